"""Private state, encrypted on the disk: what shows of it, what opens, and what is refused and left as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import worlds
from grids import InProcessGrid, roles, seated
from one_party import PARTY, at, chain, flip, moves, place, request

from coalface.core.errors import RecipeError
from coalface.engine.party import commits, encryption
from coalface.engine.party.commits import DATA, LINES, REPLY, Commit, DamagedCommit, LockedCommit
from coalface.engine.party.encryption import Vault
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.engine.party.service import PartyService
from coalface.engine.party.setup import FederatedData, Setup
from coalface.experiments.conformance.tiny_federation import Stop, run
from coalface.flower.app.transport import FlowerTransport, Patience
from coalface.flower.party import rekey
from coalface.flower.provision import certificates

pytestmark = pytest.mark.usefixtures("toy_steps")
SECRET, OTHER = bytes(range(48)), bytes(range(1, 49))
OURS = Vault.of(SECRET, "test", PARTY)


def sealed_at(folder: Path, vault: Vault | None = OURS) -> PartyExecutor:
    return at(folder, vault=vault, flush=True)


def answered(executor: PartyExecutor, count: int = 2) -> list[Path]:
    """The commits of some requests, each on top of the one before."""
    return [place(executor, request_) for request_ in chain(executor, moves(count))]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [encryption.PIECE, 64])
def test_what_was_written_comes_back_and_does_not_show(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "PIECE", piece)
    clear, sealed = answered(sealed_at(tmp_path / "clear", None)), answered(sealed_at(tmp_path / "sealed"))
    for ours, theirs in zip(sealed, clear, strict=True):
        one, other = Commit.open(ours, OURS), Commit.open(theirs)
        assert one.spans.keys() == other.spans.keys() == {"Control", REPLY, LINES, DATA}
        assert (one.base, one.head) == (other.base, other.head)
        for name in one.spans:
            data = other.read(name)
            assert data is not None and bytes(data) == bytes(one.read(name) or b"")
            assert bytes(data) in theirs.read_bytes()
            for start in range(0, len(data) - 16, 16) if name != LINES else ():  # the ledger is in the clear anyway
                assert bytes(data)[start : start + 16] not in ours.read_bytes()
    ledgers = [(tmp_path / one / "ledger" / f"{PARTY}.jsonl").read_bytes() for one in ("clear", "sealed")]
    assert ledgers[0] == ledgers[1]  # for the party to read


def test_no_nonce_is_used_twice_under_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []
    real = encryption.AESGCM

    class Watched:
        def __init__(self, key: bytes) -> None:
            self.key, self.cipher = key, real(key)

        def encrypt(self, nonce: bytes, data: Any, bound: bytes) -> bytes:
            used.append((self.key, nonce))
            return self.cipher.encrypt(nonce, data, bound)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.cipher, name)

    monkeypatch.setattr(encryption, "AESGCM", Watched)
    monkeypatch.setattr(encryption, "PIECE", 32)
    executor = sealed_at(tmp_path)
    path = answered(executor, 2)[-1]
    first = path.read_bytes()
    path.unlink()  # as a crash before the rename: the same work is committed again
    answered(executor, 2)
    assert path.read_bytes() != first and len(used) > 40
    assert len(set(used)) == len(used)


def test_the_key_is_the_nodes_and_each_partys_own() -> None:
    again = Vault.of(SECRET, "test", PARTY)
    assert again == OURS and OURS.key.hex() not in repr(OURS) and len(OURS.key) == 32
    others = [Vault.of(SECRET, "test", "silo-2"), Vault.of(OTHER, "test", PARTY)]
    assert len({one.key for one in (OURS, *others)}) == len({one.id for one in (OURS, *others)}) == 3
    # by RFC 5869 with HMAC alone, as `hmac` has it
    import hashlib
    import hmac

    pseudorandom = hmac.digest(bytes(32), SECRET, "sha256")
    info, stream, block = b"coalface private state 1\0" + PARTY.encode(), b"", b""
    for count in (1, 2):
        block = hmac.digest(pseudorandom, block + info + bytes([count]), hashlib.sha256)
        stream += block
    assert (OURS.key, OURS.id) == (stream[:32], stream[32:40].hex())


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "PIECE", 256)
    executor = sealed_at(tmp_path)
    path = answered(executor, 1)[0]
    whole = path.read_bytes()
    for number in range(0, len(whole), 23):
        flip(path, number)
        with pytest.raises((LockedCommit, DamagedCommit), match=str(path)) as told:
            commit = Commit.open(path, OURS)
            for name in commit.spans:
                commit.read(name)
        assert "estore the party's folder" in str(told.value) or "start the node with" in str(told.value)
        path.write_bytes(whole)
    swapped = bytearray(whole)  # two pieces of one file in each other's place
    begin = Commit.open(path, OURS).spans[REPLY][0]
    one, two = slice(begin, begin + 272), slice(begin + 272, begin + 544)
    swapped[one], swapped[two] = whole[two], whole[one]
    path.write_bytes(swapped)
    with pytest.raises(LockedCommit, match="was changed after it was written"):
        Commit.open(path, OURS).read(REPLY)


def refuses(executor: PartyExecutor, request_: Request, match: str) -> None:
    """The request, the check and the end of a stage raise LockedCommit, and leave every byte as it is."""
    before = everything(executor.context.folder)
    for act in (
        lambda: executor.answer(request_),
        lambda: executor.commits.check(request_.base, whole=True),
        lambda: executor.commits.finalize(request_.base, 9),
    ):
        with pytest.raises(LockedCommit, match=match):
            act()
    assert everything(executor.context.folder) == before


def test_another_key_or_none_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    paths = answered(sealed_at(tmp_path / "a"))
    request_ = request(3, paths[-1].stem, horizon=(2, paths[-1].stem))
    wrong = Vault.of(OTHER, "test", PARTY)
    refuses(sealed_at(tmp_path / "a", wrong), request_, "--from OLD --to NEW")
    refuses(sealed_at(tmp_path / "a", None), request_, "with key=")
    answered(sealed_at(tmp_path / "b", None))
    refuses(sealed_at(tmp_path / "b"), request_, "--to KEY")


def test_a_file_of_elsewhere_is_refused(tmp_path: Path) -> None:
    first, second = answered(sealed_at(tmp_path / "one"))
    request_ = request(3, second.stem, horizon=(2, second.stem))
    other_run = Vault.of(SECRET, "another", PARTY)
    refuses(sealed_at(tmp_path / "one", other_run), request_, "is a file of another run, party or place")
    shutil.copy(first, second)  # an older state under the name of the accepted one
    refuses(sealed_at(tmp_path / "one"), request_, "is a file of another run, party or place")


def test_after_a_power_cut_torn_commits_are_dropped_as_those_in_the_clear_are(tmp_path: Path) -> None:
    paths = answered(sealed_at(tmp_path), 3)
    for torn in (b"", paths[2].read_bytes()[:40], paths[2].read_bytes()[:-1], bytes(400)):
        paths[2].write_bytes(torn)
        sealed_at(tmp_path).commits.check(paths[1].stem, whole=True)
        assert not paths[2].exists()
        sealed_at(tmp_path).answer(request(3, paths[1].stem))
        assert Commit.open(paths[2], OURS).base == paths[1].stem


# --- runs -------------------------------------------------------------------------------------------------------------


def sealed_grid(secrets: Callable[[str], bytes]) -> Callable[[Setup, FederatedData], FlowerTransport]:
    """A transport to parties at nodes of their own, each with a key."""

    def transport(setup: Setup, world: FederatedData) -> FlowerTransport:
        def app(name: str) -> Any:
            built = setup.build()
            context = replace(setup.context(built), flush=True, vault=Vault.of(secrets(name), "test", name))
            return seated(PartyService(name, built.members()[name], context, "test"))

        return FlowerTransport(InProcessGrid([app(n) for n in world.members()]), roles(world), Patience(5, 60, 0.01))

    return transport


def secret(party: str) -> bytes:
    return party.encode().rjust(48, b"k")


def test_a_run_ends_in_the_same_bytes_with_and_without_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, build = worlds.recipe("scaffold")
    plain = run(method, tmp_path / "plain", build).bytes()
    opens = Commit.open.__func__  # type: ignore[attr-defined]

    def stops(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run(method, tmp_path / "sealed", build, transport=sealed_grid(secret), report=stops)
    ran = run(method, tmp_path / "sealed", build, transport=sealed_grid(secret))

    def opened(cls: Any, path: Path, own: Vault | None = None) -> Commit:
        commit: Commit = opens(cls, path, own or Vault.of(secret(path.parent.name), "test", path.parent.name))
        return commit

    monkeypatch.setattr(commits.Commit, "open", classmethod(opened))
    assert ran.bytes() == plain
    monkeypatch.undo()
    states = {name: data for name, data in plain.items() if name.split()[-1] not in ("state", "metrics", LINES)}
    states = {name: data for name, data in states.items() if not name.startswith("ledger")}
    canaries = [data[place : place + 24] for data in states.values() for place in range(len(data) // 2, len(data), 999)]
    canaries = [canary for canary in canaries if len(set(canary)) > 8]  # no rows of zeros
    contents = {kind: b"".join(everything(tmp_path / kind / "parties").values()) for kind in ("plain", "sealed")}
    assert len(canaries) > 10 and all(canary in contents["plain"] for canary in canaries)
    assert not any(canary in contents["sealed"] for canary in canaries)


# --- another key ------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    keys = tmp_path / "a.key", tmp_path / "b.key"
    for path in keys:
        path.write_bytes(certificates.node().private)
    return keys


def rekeyed(home: Path, key: Path | None) -> PartyExecutor:
    return sealed_at(home / "test", None if key is None else rekey.vault(key, "test", PARTY))


def test_private_state_is_written_anew_under_another_key(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    home, (a, b) = tmp_path / "home", keys
    paths = answered(rekeyed(home, None))
    states = [bytes(Commit.open(path).read("Control") or b"") for path in paths]
    clear = everything(home)
    for old, new in ((None, a), (a, b), (b, b), (b, None)):
        assert rekey.rekey(home, old, new) == (0 if old == new else 2)
        executor = rekeyed(home, new)
        executor.commits.check(paths[-1].stem, whole=True)
        commits = [Commit.open(path, executor.context.vault) for path in paths]
        assert [bytes(commit.read("Control") or b"") for commit in commits] == states
        assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert everything(home) == clear


def test_a_wrong_key_changes_nothing_and_what_was_broken_off_goes_on(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    home, (a, b) = tmp_path / "home", keys
    paths = answered(rekeyed(home, a))
    before = everything(home)
    for old in (b, None):
        with pytest.raises(LockedCommit):
            rekey.rekey(home, old, b if old is None else None)
        assert everything(home) == before
    content = paths[0].read_bytes()
    assert rekey.rekey(home, a, b) == 2
    (half := paths[0]).write_bytes(content)  # as if it had been stopped after the other
    assert rekey.rekey(home, a, b) == 1 and Commit.open(half, rekeyed(home, b).context.vault)


def test_a_party_at_work_a_home_without_state_and_what_is_no_key_are_told(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    home, (a, _) = tmp_path / "home", keys
    with pytest.raises(RecipeError) as error:
        rekey.rekey(home, None, a)
    assert error.value.where == str(home)
    (tmp_path / "no.key").write_text("none")
    with pytest.raises(RecipeError) as error:
        rekey.vault(tmp_path / "no.key", "test", PARTY)
    assert error.value.where == str(tmp_path / "no.key")
    answered(rekeyed(home, None), 1)
    (home / "processes").mkdir()
    (home / "processes" / "one.json").write_text(json.dumps({"socket": "/none", "process": os.getpid()}))
    with pytest.raises(RecipeError, match=str(os.getpid())):
        rekey.rekey(home, None, a)
