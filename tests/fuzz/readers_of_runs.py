"""Readers of what runs leave on a disk: commits, checkpoints, ledgers, receipts, evidence, cells."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from reader import PLACE, Reader, anew, archive, joined, of_file, parsed, parts, put, whole_or_within

from coalface.core.errors import DataError, RecipeError
from coalface.core.method import generator
from coalface.data.tools import aligned_folder
from coalface.engine import checkpoint, receipts
from coalface.engine.party import commits
from coalface.engine.party.commits import Commit, DamagedCommit, LockedCommit
from coalface.engine.party.encryption import Vault
from coalface.engine.party.sums import HiddenReply
from coalface.engine.sums.opened import Opened
from coalface.evaluation import membership, verification
from coalface.evaluation.metrics import evidence, paired
from coalface.evaluation.metrics.bootstrap import PairIdentities, draw_identities
from coalface.evaluation.metrics.verification import EER
from coalface.experiments import ledger_summary, provenance, receipt_comparison, status
from coalface.experiments.attacks import cells as attack_cells
from coalface.experiments.attacks.base import Outcome
from coalface.experiments.report import runs
from coalface.experiments.sweep.cells import read_cells
from coalface.privacy import countersign, ledger
from coalface.privacy.secure_sums.context import SecureSumError, SumContext
from coalface.privacy.secure_sums.guard import Answers

SUM = SumContext("run", "train", 1, 1, asked=4, dropouts=1, corrupt=0, length=5, bits=32)
VAULT = Vault.of(bytes(48), "run", "london")
PARTS = {"Own": b"private state", commits.LINES: b"", commits.DATA: b"{}"}


# --- a party's folder -------------------------------------------------------------------------------------------------


def written_commit(vault: Vault | None = None) -> bytes:
    path = anew("commits") / "0000001.000-a.commit"
    commits.write_commit(path, None, ledger.Head(), PARTS, flush=False, vault=vault, receipts=(1, "a" * 64))
    return path.read_bytes()


def read_commit(data: bytes, vault: Vault | None = None) -> None:
    path = put("commits/0000001.000-a.commit", data)
    Commit.receipts_in(path)
    commit = Commit.whole(path, vault)
    commit.check()
    commit.states()
    commit.lines()


def read_signed_commit(data: bytes) -> None:
    """A header and what follows it, with NUL between them, and the digest that the header must have."""
    header, _, rest = data.partition(b"\0")
    read_commit(len(header).to_bytes(8, "little") + header + hashlib.sha256(header).digest() + rest)


def unsigned_commit() -> bytes:
    data = written_commit()
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end] + b"\0" + data[end + 32 :]


def members(count: int) -> list[str]:
    about: dict[str, Any] = {"run": "r", "party": "london", "stage": "train", "round": 1, "call": 1, "step": "train"}
    about |= {"to": "server", "protection": "none", "name": "backbone/w", "kind": "tensor", "shape": [2], "bytes": 8}
    about |= {"dtype": "F32", "sha256": "0" * 64}
    return [json.dumps(about | {"round": number})[1:-1] for number in range(count)]


def chain(text: bytes) -> bytes:
    """Lines of a ledger of which each holds a line of the text: mutation seldom finds the hash of a chain."""
    lines = ledger.chained(text.decode("ascii", "replace").split("\n"), ledger.Head())
    return "".join(f"{line}\n" for line in lines).encode()


def read_ledger(data: bytes) -> None:
    path = put("ledger/london.jsonl", data)
    for read in (ledger.read_head, ledger.verify):
        read(path)
    *_, (head, _) = ledger.lines(path)
    ledger.check_holds(path, head)
    ledger.is_cut_off(path, head)
    ledger.find(path, ledger.Head(), ["0" * 64])


def read_chained_ledger(data: bytes) -> None:
    """Whatever the lines say, a summary names what is wrong."""
    summary = ledger_summary.read_ledgers([put("ledger/london.jsonl", chain(data))], by_tensor=True)
    json.dumps(summary.as_dict())
    if summary.ledgers[0].fault:
        raise DataError(summary.ledgers[0].fault)


def read_receipts(data: bytes) -> None:
    """A server's receipts and signatures, beside a party's ledger."""
    names = ("receipts.jsonl", countersign.FILE, "ledger/london.jsonl")
    run = anew("run")
    for name, text in zip(names, parts(data, 3), strict=True):
        put(f"run/{name}", chain(text))
    comparison = receipt_comparison.compare_receipts(run)
    if comparison.faults:
        raise DataError(comparison.faults[0])
    try:
        receipts.Receipts(run / "receipts.jsonl").restore(None)
        receipts.Countersigns(run, lambda party, line: {})
    except ValueError as error:
        raise DataError(str(error)) from None


def read_countersign(data: bytes) -> None:
    """A party that is asked to sign what a server says."""
    countersign.countersign(anew("signing"), "london", parsed(data))


def signing_key(name: str) -> countersign.SigningKey:
    return countersign.SigningKey(put(f"keys/{name}.key", hashlib.sha256(name.encode()).hexdigest().encode()))


def last_hash(lines: bytes) -> str:
    return str(json.loads(chain(lines).splitlines()[-1])["chain"])


def statement(head: str = "0" * 64) -> dict[str, Any]:
    """What the server has signed of its receipts."""
    about: dict[str, Any] = {"run": "r", "stage": "train", "round": 0, "lines": 1, "head": head}
    key = signing_key("server")
    return about | {"key": key.public, "signature": key.sign("server", countersign.text_of(about))}


def accepted() -> bytes:
    """A reply that a server has accepted, the signatures under it, and the ledger of its party."""
    lines = members(1)[0].encode()
    receipt = {"run": "r", "party": "london", "stage": "train", "round": 0, "call": 1, "step": "train", "pieces": 1}
    receipt |= {"sha256": receipts.combined(["0" * 64]), "lines": 1, "head": last_hash(lines)}
    listed = json.dumps(receipt)[1:-1].encode()
    stated, key = statement(last_hash(listed)), signing_key("london")
    signature = key.sign("party", countersign.text_of(stated), stated["signature"])
    second = {"of": 0, "party": "london", "key": key.public, "signature": signature}
    return joined(listed, "\n".join(json.dumps(line)[1:-1] for line in (stated, second)).encode(), lines)


# --- a server's folder ------------------------------------------------------------------------------------------------


def read_checkpoint(data: bytes) -> None:
    """`checkpoint.json` without its end, to which the digest is added that it must have."""
    put("checkpoints/0000001/state.safetensors", b"state")
    put("checkpoints/0000001/checkpoint.json", with_digest(data))
    checkpoint.load(PLACE / "checkpoints")


def with_digest(data: bytes) -> bytes:
    return data + b',"digest":"' + hashlib.sha256(data).hexdigest().encode() + b'"}'


def written_checkpoint() -> bytes:
    place = anew("checkpoints")
    checkpoint.save(place, checkpoint.Checkpoint(1, 0, 1, b"state", {"accepted": {}}, {}), keep=1)
    return (place / "0000001" / "checkpoint.json").read_bytes().rpartition(b',"digest"')[0]


RUN_FILES = ("config.yaml", "summary.json", "metrics.jsonl", "events.jsonl")


def read_run(data: bytes) -> None:
    """The files of a run's folder, and what a checkpoint says of itself but for its digest."""
    run = anew("run")
    *contents, about = parts(data, len(RUN_FILES) + 1)
    for name, content in zip(RUN_FILES, contents, strict=True):
        put(f"run/{name}", content)
    put("run/checkpoints/1/checkpoint.json", with_digest(about))
    runs.read(run)
    status.status(run).as_dict()


def read_begun(data: bytes) -> None:
    content = parsed(data)
    run = put("begun/config.yaml", b"{}").parent
    put(f"begun/{provenance.BEGUN}", json.dumps({**content, "sha256": provenance._digest(content)}).encode())
    provenance.begun_with(run)


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def arrays_of(*names: str) -> Callable[[bytes], bytes]:
    """An archive of parts, each an array's file."""
    return lambda data: archive(
        {f"{name}.npy": part for name, part in zip(names, parts(data, len(names)), strict=True)}
    )


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values))
    return file.getvalue()


def read_members(data: bytes) -> None:
    membership.read(put("run/trained_on.npz", data).parent)


def read_lists(data: bytes) -> None:
    list(verification.read_lists(put("judged/unseen.npz", data).parent))


ATTACKED = attack_cells.Cell("a", "b", "linkage", "{}", "none", 0, (Outcome("centre", "server", "found", 1.0, 0.5, 2),))
PAIRS = PairIdentities(
    np.array([0, 1, 2, 0, 1, 2]), np.array([0, 1, 2, 1, 2, 0]), "list", fold=np.arange(6) % 3, queries=np.arange(3)
)
TAIL = dataclasses.replace(PAIRS, sha256="tail", headline=np.ones(6, dtype=bool))
BOOTSTRAPS = {pairs.sha256: draw_identities(pairs, generator(1, "fuzz"), 5) for pairs in (PAIRS, TAIL)}


def evidences() -> Iterator[dict[str, Any]]:
    """One of ranks, with the queries that were found; one of some folds, with a custom figure; one of a tail."""
    scores = np.array([0.9, 0.5, 0.7, 0.1, 0.5, 0.2])
    hits = evidence.hits_evidence(np.array([True, False, True]))
    yield {**evidence.accuracy_evidence(scores, PAIRS, [0.5]), **hits}
    drawn = evidence.drawn_evidence({EER: (1.0, np.arange(5.0))}, BOOTSTRAPS["list"])
    yield {**evidence.accuracy_evidence(scores, PAIRS, [0.5], folds=[0, 1]), **drawn}
    yield evidence.tar_evidence(scores, TAIL, [0.5])


def evidence_parts(found: dict[str, Any]) -> bytes:
    """What `read_evidence` takes: the numbers as they are before they are packed."""
    own: dict[str, Any] = next(iter(found.get("own", {}).values()), {})
    packed = (found["data"], found.get("hits"), own.get("data"))
    numbers = [zlib.decompress(base64.b85decode(text)) if text else b"" for text in packed]
    return b"\0" + joined(json.dumps({key: found[key] for key in found.keys() - {"data", "hits"}}).encode(), *numbers)


def read_evidence(data: bytes) -> None:
    text, *numbers = parts(data, 4)
    found = parsed(text)
    found["data"], hits, drawn = (base64.b85encode(zlib.compress(part, 1)).decode() for part in numbers)
    found |= {"hits": hits} if numbers[1] else {}
    for own in found.get("own", {}).values() if isinstance(found.get("own"), dict) else ():
        if isinstance(own, dict):
            own["data"] = drawn
    paired.resample(found, BOOTSTRAPS.get(str(found.get("list")), BOOTSTRAPS["list"]))


MEMBERS = {"names": np.arange(3, dtype=np.uint64), "images": np.arange(2, dtype=np.uint64)}
JUDGED = {"left": [0, 1], "right": [1, 2], "sha256": "0", "headline": [True, False], "fold": [0, 1], "queries": [2, 0]}
CELL = {"hash": "a", "seed": 0, "figures": {"unseen": {"accuracy": 90.0}}, "own_figures": {}}
RUN = joined(
    b"name: tiny\nmethod: fedavg\nrounds: 2\n",
    b'{"name": "tiny", "figures": {"unseen": {"eer": 3.0}}, "bytes": {"down": 5, "up": 5}, '
    b'"parties": [{"name": "london", "role": "trainer", "rounds": 1, "failed": 0, "bytes_down": 5, "bytes_up": 5}]}',
    2 * b'{"round": 1, "stage": "train", "failed": {"york": "away"}, "losses": {"london": 0.5}}\n',
    b'{"event": "begins", "parties": {"london": "trainer"}, "counts": {"london": [3, 2]}, "time": 5.0}\n'
    b'{"event": "asks", "round": 1, "step": "train", "parties": 1, "seen": {"london": 5.0}, "late": {"london": 1}}\n',
    b'{"ordinal":1,"stage":0,"round":1,"record":{"tallies":{"london":[1,0,5,5]},"totals":{"up":5}},"sha256":{}',
)


JOURNAL_HEAD = {"size": 112}
JOURNAL = (
    json.dumps(JOURNAL_HEAD)
    + '\n{"file": "a.jpg", "length": 3, "changed": 5, "faces": [], "left_out": [{"reason": "blurred", "detail": "", '
    + '"corners": [[1.0, 2.0]]}]}\n'
).encode()


def read_journal(data: bytes) -> None:
    aligned_folder._read_journal(put(f"aligned/{aligned_folder.JOURNAL}", data).parent, JOURNAL_HEAD)


def read_hidden(data: bytes) -> None:
    """What a commit of a secure sum says of its vector."""
    path = anew("hidden") / "0000001.000-a.commit"
    commits.write_commit(path, None, ledger.Head(), {"(vector)": bytes(20), "(sum)": data}, flush=False)
    HiddenReply.read(Commit.open(path))


KEPT_BY_NODES: tuple[type[Exception], ...] = (DamagedCommit, LockedCommit, FileNotFoundError)
"""The last one where a shard that the commit names is missing."""
HIDDEN = HiddenReply(np.zeros(5, np.int32), SUM, "00", "work", ("w",), ())
OPENED = b'{"stage": "train", "round": 1, "call": 1, "sha256": "00"}\n'
ANSWERED = b'{"place": "p", "what": "vector", "sha256": "00"}\n'
RUNS = {
    "commit": Reader(read_commit, (written_commit(),), KEPT_BY_NODES),
    "commit-signed": Reader(read_signed_commit, (unsigned_commit(),), KEPT_BY_NODES),
    "commit-encrypted": Reader(lambda data: read_commit(data, VAULT), (written_commit(VAULT),), KEPT_BY_NODES),
    "ledger": Reader(read_ledger, (chain("\n".join(members(3)).encode()),), (ValueError,)),
    "ledger-chained": Reader(read_chained_ledger, ("\n".join(members(3)).encode(),)),
    "receipts": Reader(read_receipts, (accepted(),), (DataError, RecipeError)),
    "countersign": Reader(read_countersign, (json.dumps(statement()).encode(),), (ValueError,)),
    "checkpoint": Reader(read_checkpoint, (written_checkpoint(),), (checkpoint.CheckpointError,)),
    "opened": Reader(of_file("opened.jsonl", Opened), (OPENED,), (ValueError,)),
    "answers": Reader(
        of_file("answers.jsonl", lambda path: Answers(path).record("p", "vector", b"\0")),
        (ANSWERED,),
        (SecureSumError,),
    ),
    "hidden-reply": Reader(read_hidden, (bytes(HIDDEN.parts["(sum)"]),), (ValueError,)),
    "run": Reader(read_run, (RUN,)),
    "begun": Reader(
        read_begun, (b'{"recipe": {"name": "a", "method": "fedavg"}, "code": {}}',), (RecipeError, DataError)
    ),
    "cells": Reader(of_file("cells.jsonl", read_cells), (json.dumps(CELL).encode() + b"\n",)),
    "attack-cells": Reader(
        of_file("attack-cells.jsonl", lambda path: list(attack_cells.read_cells(path))),
        (json.dumps(dataclasses.asdict(ATTACKED)).encode() + b"\n",),
    ),
    "cells-packed": Reader(
        lambda data: read_cells(put("packed/cells.jsonl.gz", data).with_suffix("")),
        (gzip.compress(json.dumps(CELL).encode() + b"\n", mtime=0),),
    ),
    "trained-on": Reader(
        whole_or_within(read_members, lambda data: read_members(arrays_of(*MEMBERS)(data))),
        (npz(**MEMBERS), b"\0" + joined(*map(npy, MEMBERS.values()))),
    ),
    "judged-pairs": Reader(
        whole_or_within(read_lists, lambda data: read_lists(arrays_of(*JUDGED)(data))),
        (npz(**JUDGED), b"\0" + joined(*map(npy, JUDGED.values()))),
    ),
    "evidence": Reader(
        whole_or_within(lambda data: evidence._unpacked(data.decode("ascii", "replace"), [3]), read_evidence),
        (evidence._packed([np.arange(3)]).encode(), *map(evidence_parts, evidences())),
        (ValueError,),
    ),
    "align-journal": Reader(read_journal, (JOURNAL,)),
}
