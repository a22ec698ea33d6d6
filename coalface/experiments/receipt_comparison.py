"""A server's receipts beside the ledgers of the parties, and what else of its run speaks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core.errors import RecipeError
from coalface.core.text import first_few, natural, several
from coalface.engine import checkpoint, receipts
from coalface.engine.client_batch import CLIENT_BATCHES
from coalface.engine.party.commits import Commit
from coalface.experiments import status
from coalface.experiments.recipe import loader
from coalface.experiments.report import runs
from coalface.privacy import countersign, ledger
from coalface.privacy.countersign import Signatures

NAMED = 8
"""The most parties that a fault names."""


@dataclass(frozen=True)
class ReceiptComparison:
    """A server's receipts beside the ledgers of the parties."""

    replies: int
    """Accepted replies that were held against a ledger."""
    parties: tuple[str, ...]
    """Whose ledgers were at hand."""
    absent: tuple[str, ...]
    """Those elsewhere that have replies in the receipts, and no ledger at hand."""
    faults: tuple[str, ...]
    signatures: Signatures | None = None
    """Of a run that is countersigned, what its signatures say; their faults are among the others."""
    untold: bool = False
    """Whether the run's `privacy.dp` keeps the head of the receipts from the parties, so that none can speak of it."""


def compare_receipts(run: Path, homes: Sequence[Path] = ()) -> ReceiptComparison:
    """Hold each accepted reply against its party's ledger, and the receipts against what else speaks of them.

    That is what the parties were told, the last checkpoint, and the rounds that count. Ledgers are those of the run's
    folder and of parties' `homes`. Raises RecipeError where the run keeps no receipts.
    """
    for home in homes:
        if not home.is_dir():
            raise RecipeError(f"{home} is not a folder; give the home of a party's node", where="--party-home")
    path = run / receipts.FILE
    if not path.exists() or not path.stat().st_size:
        raise RecipeError(
            "the file is empty or does not exist; give the server's folder of a run with an accepted round. Earlier "
            "versions kept no receipts",
            where=path,
        )
    accepted: dict[str, list[dict[str, Any]]] = {}
    chain, faults, name = [ledger.START], list[str](), ""
    last, metrics = _last_head(run, faults), _metrics(run, faults)  # first: a run may go on meanwhile
    try:
        for head, line in ledger.lines(path):
            chain.append(head.chain)
            receipts.check_receipt(path, line)
            accepted.setdefault(line["party"], []).append(line)
            name = line["run"]
    except ValueError as error:
        faults.append(f"{error}")
    folders = [run, *(home / name for home in homes)]
    at_hand = {p.stem: (f, p) for f in folders for p in sorted(f.glob("ledger/*.jsonl"))}
    told: dict[tuple[int, str], set[str]] = {}
    for commit in (file for folder in folders for file in sorted(folder.glob("parties/*/*.commit"))):
        receipt = Commit.receipts_in(commit)
        if receipt is not None and (receipt[0] >= len(chain) or chain[receipt[0]] != receipt[1]):
            told.setdefault(receipt, set()).add(commit.parent.name)
    for (line_number, line_hash), parties in sorted(told.items()):
        names = first_few(sorted(parties, key=natural), NAMED)
        faults.append(
            f"{path}: {names} {'was' if len(parties) == 1 else 'were'} told that line {line_number:,} ends with "
            f"{line_hash}, and it does not: lines were changed or removed at the server"
        )
    if last is not None and (last.lines >= len(chain) or chain[last.lines] != last.chain):
        faults.append(
            f"{path} does not hold the {last.lines:,} lines that it had at the last checkpoint, of which the last ends "
            f"with {last.chain}: lines were changed or removed at the server"
        )
    faults += _uncounted(run, metrics, [line for lines in accepted.values() for line in lines])
    replies = 0
    for party, lines in accepted.items():
        if party in at_hand:
            replies += len(lines)
            if fault := _difference(at_hand[party][1], lines):
                faults.append(fault)
    removed = [party for party in _removed(run, accepted) if party not in at_hand]
    faults += [_removal_fault(run, party) for party in removed]
    signatures = None
    if (run / countersign.FILE).exists() or _privacy_of(run).get("countersign"):
        faults += (signatures := countersign.verify(run, chain, folders, _countersigned(run, metrics))).faults
    compared = tuple(party for party in accepted if party in at_hand)
    absent = tuple(party for party in accepted if party not in at_hand and party not in removed)
    untold = _privacy_of(run).get("dp") is not None
    return ReceiptComparison(replies, compared, absent, tuple(faults), signatures, untold)


def _countersigned(run: Path, metrics: Iterable[Mapping[str, Any]]) -> set[tuple[Any, Any]]:
    """(stage, round) of the rounds that ended, but for those whose second party is known not to have answered."""
    unsigned = [event for event in runs.read_events(run)[0] if event.get("event") == "not countersigned"]
    ended, missed = ({(line.get("stage"), line.get("round")) for line in lines} for lines in (metrics, unsigned))
    return ended - missed


def _privacy_of(run: Path) -> dict[str, Any]:
    """The section `privacy` of a run's recipe."""
    config = run / "config.yaml"
    return runs.mapping(loader.read(config).get("privacy")) if config.exists() else {}


def privacy_spent(run: Path, faults: list[str]) -> dict[str, dict[str, Any]]:
    """ε, δ and rounds so far by what has noise, `dp` or `templates`; nothing where `run` is not a run folder.

    ε is None where it has no bound. `faults` comes to name metrics that are damaged.
    """
    metrics, privacy = _metrics(run, faults), _privacy_of(run)
    return {
        key: {
            "epsilon": metrics[-1][metric],
            "delta": runs.mapping(privacy.get(key)).get("delta"),
            "rounds": len(metrics),
        }
        for key, metric in (("dp", "epsilon"), ("templates", "template_epsilon"))
        if metrics and metric in metrics[-1]
    }


def missing_ledgers(path: Path) -> list[str]:
    """Which ledgers are gone from a run's folder, each as a fault: of parties that are played beside the server."""
    receipts_file = path / receipts.FILE
    if not receipts_file.exists():
        return []
    try:
        accepted = dict.fromkeys(str(line["party"]) for _, line in ledger.lines(receipts_file))
    except (ValueError, KeyError) as error:
        return [str(error)]
    return [_removal_fault(path, party) for party in _removed(path, accepted)]


def _removed(run: Path, accepted: Iterable[str]) -> list[str]:
    is_local = status.read_begins(run).get("elsewhere") is False  # so its folder has the ledgers
    away = [party for party in accepted if not (run / "ledger" / f"{party}.jsonl").exists()]
    return [party for party in away if is_local or (run / "parties" / party).exists()]


def _removal_fault(run: Path, party: str) -> str:
    return (
        f"{run / 'ledger' / party}.jsonl does not exist, but the server has accepted replies of {party}, which was "
        "played here: the file was removed. Restore it, or name the home that it was moved to with verify --party-home"
    )


def _last_head(run: Path, faults: list[str]) -> ledger.Head | None:
    """The head of the receipts at the last checkpoint, if there is one."""
    try:
        last = checkpoint.load(run / "checkpoints")
    except checkpoint.CheckpointError as error:
        faults.append(f"{error}")
        return None
    head = None if last is None else last.record.get("receipts")
    return None if head is None else ledger.Head(**head)


def _metrics(run: Path, faults: list[str]) -> Sequence[Mapping[str, Any]]:
    try:
        return runs.read_metrics(run) if (run / "metrics.jsonl").exists() else ()
    except ValueError as error:
        faults.append(f"{error}")
        return ()


def _uncounted(run: Path, metrics: Iterable[Mapping[str, Any]], accepted: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Of rounds that count, those with fewer receipts than parties whose replies arrived.

    A client batch has no receipts, and posted work has those of the round that posted it: such runs are not looked at.
    """
    posted = any(event.get("event") == "posts" for event in runs.read_events(run)[0])
    if posted or (run / f"{CLIENT_BATCHES}.jsonl").exists():
        return
    listed: dict[tuple[Any, Any], set[str]] = {}
    for line in accepted:
        listed.setdefault((line.get("stage"), line.get("round")), set()).add(line["party"])
    for record in metrics:
        when = record.get("stage"), record.get("round")
        count = len(listed.get(when, set()) - set(runs.mapping(record.get("failed"))))
        arrived = runs.number(record.get("arrived")) or 0
        if not record.get("abandoned") and count < arrived:
            yield (
                f"{run / receipts.FILE}: {when[0]} round {when[1]} has receipts of "
                f"{several(count, 'party', 'parties')}, and metrics.jsonl counts {arrived:g}: lines were removed "
                "at the server"
            )


def _difference(path: Path, accepted: Iterable[Mapping[str, Any]]) -> str:
    """How a ledger differs from what the server has accepted, at the first place; empty where it does not."""
    chain, sums = [ledger.START], list[str]()
    try:
        for head, line in ledger.lines(path):
            chain.append(head.chain)
            sums.append(str(line["sha256"]))
    except (ValueError, KeyError) as error:
        return str(error)
    for receipt in accepted:
        place = f"step {receipt['step']}, {receipt['stage']} round {receipt['round']}"
        reply = f"the reply of {place}, which the server has accepted,"
        end = receipt["lines"]
        if end is None or end < receipt["pieces"]:
            return f"{path}: {reply} came without a head of this ledger, so nobody can tell where it stands"
        if end >= len(chain):
            return f"{path} ends after line {len(sums):,}, and {reply} ended with line {end:,}: lines were removed"
        if chain[end] != receipt["head"]:
            return f"{path}, line {end:,}: it is not the line that {reply} ended with: lines were changed"
        if receipts.combined(sums[end - receipt["pieces"] : end]) != receipt["sha256"]:
            return f"{path}, line {end:,}: {reply} has another SHA-256 than the ledger says"
    return ""
