"""Signatures of what a server has accepted: its own, and one of a party that is drawn anew each round.

A statement says of a round which receipts there are by then. Receipts hold the heads of the parties' ledgers, each line
in a chain, so two signatures (Ed25519) under one statement fix all that came before it: to write any of it anew takes
the keys of the server and of every party that has signed since.

    statement    σ = (run, stage, round, lines and last hash of the receipts)
    server       s = sign(k_server, "server" ‖ σ)
    second party w = sign(k_party, "party" ‖ σ ‖ s)
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalface.core.disk import write_private
from coalface.core.errors import RecipeError
from coalface.privacy import ledger

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = "countersigns.jsonl"
"""In the server's folder: a chain of statements with the server's signature, and of the parties' signatures."""
SERVER, SERVER_KEY = "the server", "server.key"
FOLDER = "signing"
"""In a party's folder: its key (`NAME.key`, mode 0600), the public half (`NAME.pub`) and what it has signed."""
_STATED = {"run": str, "stage": str, "round": int, "lines": int, "head": str}
"""What a statement says."""
_SIGNED = {"key": str, "signature": str}
"""What is beside it, or beside the number of a line that is signed."""


def check_installed() -> None:
    """Raise RecipeError where nothing can be signed."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise RecipeError(
            "cryptography is needed to sign: pip install 'coalface[privacy]'", where="privacy.countersign"
        ) from None


class SigningKey:
    """An Ed25519 key in a file, which is made with mode 0600 where there is none."""

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            write_private(path, secret.encode())
        try:
            self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))
        except ValueError:
            raise ValueError(
                f"{path} holds no signing key, 64 digits 0-9a-f. Restore it: with another key, what was signed before "
                "could not be told from a forgery"
            ) from None
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, role: str, *parts: str) -> str:
        """The signature of some texts by somebody in a role."""
        return self._key.sign(_signed(role, parts)).hex()


def is_signed(key: str, signature: str, role: str, *parts: str) -> bool:
    """Whether a signature is that of the key's owner, in a role, under some texts."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), _signed(role, parts))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _signed(role: str, parts: Sequence[str]) -> bytes:
    return json.dumps(["coalface countersign 1", role, *parts]).encode()


def text_of(line: Mapping[str, Any]) -> str:
    """A statement as it is signed, from a line that holds one. Raises ValueError where it holds none."""
    if missing := _missing(line, _STATED):
        raise ValueError(f"a statement that is signed lacks {missing!r}, or says it in another form")
    return json.dumps({key: line[key] for key in _STATED})


def _missing(line: Mapping[str, Any], says: Mapping[str, type]) -> str:
    """The first key that a line lacks, or says in another form; empty where there is none."""
    return next((key for key, kind in says.items() if not isinstance(line.get(key), kind)), "")


def countersign(folder: Path, party: str, line: Mapping[str, Any]) -> dict[str, str]:
    """A party's signature under its server's statement, and its public key; the party keeps what it has signed.

    `folder` is where the party keeps what is its own of the run. Raises ValueError where the server has not signed it,
    has another key than before, or says less than it said, or something else of the same receipts.
    """
    text, mine = text_of(line), Signed(folder / FOLDER / f"{party}.jsonl")
    if not is_signed(line.get("key", ""), line.get("signature", ""), "server", text):
        raise ValueError(f"{party} signs nothing that its server has not signed: {text}")
    if (last := mine.last) is not None:
        other_key = last["key"] != line["key"]
        other = last["lines"] == line["lines"] and last["head"] != line["head"]
        if other_key or other or last["lines"] > line["lines"]:
            what = "by another key" if other_key else f"after {text_of(last)}"
            raise ValueError(f"{party} does not sign what its server says {what}: {text}")
    key = SigningKey(folder / FOLDER / f"{party}.key")
    public = folder / FOLDER / f"{party}.pub"
    if not public.exists():
        write_private(public, key.public.encode())
    if last is None or text_of(last) != text:
        mine.append({name: line[name] for name in (*_STATED, "key", "signature")})
    return {"key": key.public, "signature": key.sign("party", text, line["signature"])}


def _lines(path: Path) -> Iterator[tuple[ledger.Head, dict[str, Any]]]:
    """The lines of a file, if it exists. Raises ValueError for one that states or signs nothing."""
    for head, line in ledger.lines(path) if path.exists() else ():
        says = _SIGNED | ({"of": int, "party": str} if "of" in line else _STATED)
        if missing := _missing(line, says):
            raise ValueError(
                f"{path}, line {head.lines}: it lacks {missing!r}, or says it in another form: restore the file"
            )
        yield head, line


class Signed:
    """A chain of what was signed, on the disk at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, ledger.Head()
        self.lines: list[dict[str, Any]] = []
        for self.head, line in _lines(path):
            self.lines.append(line)

    @property
    def last(self) -> dict[str, Any] | None:
        return self.lines[-1] if self.lines else None

    def append(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Add a line; returns it."""
        (text,) = ledger.chained([json.dumps(members)[1:-1]], self.head)
        ledger.append(self.path, [text], self.head, flush=True)
        self.head = self.head.after([text])
        self.lines.append(json.loads(text))
        return self.lines[-1]


@dataclass
class Signatures:
    """What signatures say of a run's receipts."""

    receipts: int
    """How many there are."""
    covered: int = 0
    """How many, up to the last statement that holds and that a party has signed too."""
    by_parties: bool = False
    """Whether that statement is known from what a party at hand keeps alone: the run's file lacks it."""
    signed: dict[str, int] = field(default_factory=dict)
    """Who signed how many rounds, by signatures that hold; first the server, as `the server`."""
    keys: dict[str, str] = field(default_factory=dict)
    """Their public keys."""
    faults: list[str] = field(default_factory=list)
    """What does not hold."""


def verify(
    run: Path, receipts: Sequence[str], folders: Iterable[Path] = (), ended: Container[tuple[Any, Any]] = ()
) -> Signatures:
    """Check the signatures of a run offline; `receipts` are the last hash after 0, 1, 2 … lines of its receipts.

    `folders` are the run's and those of parties at hand, whose keys and own records are held against the run's file. Of
    the others the keys are those that the file says, to be compared with what the parties say that theirs are. `ended`
    are the (stage, round) that ended with a countersignature: what a party signed of them must be in the run's file.
    """
    path, found = run / FILE, Signatures(len(receipts) - 1)
    at_hand = {public.stem: public.parent for folder in folders for public in sorted((folder / FOLDER).glob("*.pub"))}
    statements: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
    try:
        for _, line in _lines(path):
            place, who = line["line"], line["party"] if "of" in line else SERVER
            if "of" not in line:
                statements[place] = line, []
            elif line["of"] not in statements:
                raise ValueError(f"{path}, line {place + 1}: it signs line {line['of']}, which states nothing")
            statement, signers = statements[line.get("of", place)]
            text = text_of(statement)
            own = (at_hand[who] / f"{who}.pub").read_text().strip() if who in at_hand else line["key"]
            known = found.keys.setdefault(who, own)
            role, parts = ("server", (text,)) if who == SERVER else ("party", (text, statement["signature"]))
            if line["key"] != known or not is_signed(known, line["signature"], role, *parts):
                found.faults.append(
                    f"{path}, line {place + 1}: {who} has not signed {_when(statement)} with the key {known}"
                )
            else:
                signers.append(who)
                found.signed[who] = found.signed.get(who, 0) + 1
        files = [(party, Signed(place / f"{party}.jsonl")) for party, place in at_hand.items()]
        kept = [(party, line, text_of(line)) for party, own_file in files for line in own_file.lines]
    except ValueError as error:
        found.faults.append(str(error))
        return found
    listed, every = {text_of(statement): signers for statement, signers in statements.values()}, [*statements.values()]
    for party, line, text in kept:
        if line.get("key") != found.keys.get(SERVER, line.get("key")) or text not in listed:
            found.faults.append(f"{path} does not have {_when(line)} as the server signed it to {party}")
        elif party not in listed[text] and (line["stage"], line["round"]) in ended:
            found.faults.append(f"{path} lacks the signature of {party} under {_when(line)}: lines were removed")
        if text not in listed:
            every.append((line, [SERVER, party]))
    if not statements:
        why = "the parties at hand keep what it had" if kept else "no round was signed, or the file was removed"
        found.faults.append(f"{path} does not exist or is empty: {why}")
    return _held(found, every, listed, receipts)


def _held(
    found: Signatures,
    statements: Iterable[tuple[Mapping[str, Any], Sequence[str]]],
    listed: Container[str],
    receipts: Sequence[str],
) -> Signatures:
    """Hold what was stated, or `listed` in the run's file, against the receipts: the first that fails is a fault."""
    for statement, signers in sorted(statements, key=lambda entry: int(entry[0]["lines"])):
        lines, head = statement["lines"], statement["head"]
        if 0 < lines < len(receipts) and receipts[lines] == head:
            if len(signers) > 1:
                found.covered, found.by_parties = lines, text_of(statement) not in listed
            continue
        is_there = 0 <= lines < len(receipts)
        now = f"it ends with {receipts[lines]}" if is_there else f"there are {len(receipts) - 1:,} lines"
        found.faults.append(
            f"{_when(statement)} is the first that does not hold: {' and '.join(signers) or 'nobody'} signed that line "
            f"{lines:,} of the receipts ends with {head}, and {now}: they were changed or removed at the server"
        )
        break
    return found


def _when(statement: Mapping[str, Any]) -> str:
    return f"{statement['stage']} round {statement['round']}"
