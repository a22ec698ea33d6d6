"""The tables of a report page: figures, parties, bytes and the ledger, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from coalface.core.compression import SCALES
from coalface.core.text import size
from coalface.evaluation.figures import SERVED_BY, figure_name, figure_of, figure_text
from coalface.evaluation.metrics.verification import TAR
from coalface.experiments.report.long_table import Grid, pivot, records_of, single
from coalface.experiments.report.runs import (
    Run,
    as_dicts,
    as_list,
    flat_figures,
    mapping,
    number,
    whole_number,
    without_errors,
)

MOST_ROWS = 60
"""Rows shown of a table with a row a party, a failure or a logged number; the page says how many there are in all."""
MOST_TENSORS = 400
TEMPLATE = "template"
CONTENT = {
    TEMPLATE: "template-like: an embedding or a class embedding of a person, or several fused",
    "sanitised": "made of several people's, with noise",
    "code": "a codeword or a text",
    "weight": "weights of a network, their gradient or momentum",
    "aggregate": "weights that were averaged over parties",
    "score": "a score of images or models",
    "count": "a count",
}
"""What the fields of messages hold, in words."""


def integer_text(value: object) -> str:
    whole = whole_number(value)
    return "" if whole is None else f"{whole:,}"


def size_text(value: object) -> str:
    count = number(value)
    return "" if count is None else size(count)


def ends_text(key: str, ends: tuple[float, float] | None) -> str:
    """An interval of a figure: `37.0 to 43.1`."""
    return "" if ends is None else " to ".join(map(figure_of(key).text, ends))


def figures(run: Run) -> list[dict[str, str]]:
    """Trained, before, and the change, with whether it is for the better."""
    rows = []
    for key in run.evaluated:
        figure = figure_of(key)
        gain = run.figures[key] - run.untrained[key] if key in run.untrained else None
        tone = (
            "" if not gain or not figure.better else "better" if (gain < 0) == (figure.better == "lower") else "worse"
        )
        rows.append(
            {
                "name": figure_name(key),
                "value": figure_text(run.figures, key),
                "interval": ends_text(key, run.intervals.get(key)),
                "untrained": figure_text(run.untrained, key),
                "gain": "" if gain is None else figure.difference_text(gain),
                "tone": tone,
            }
        )
    return rows


def thresholds(run: Run) -> Grid:
    """What each false accept rate asks for and comes to: the threshold, the rate that it attains, and the TAR."""
    rows, intervals = [], run.intervals
    for name, curves in mapping(run.summary.get("curves")).items():
        for point in as_dicts(mapping(curves).get("thresholds")):
            far, threshold, attained, tar = (number(point.get(key)) for key in ("far", "threshold", "attained", "tar"))
            if far is not None and threshold is not None and attained is not None and tar is not None:
                own = [f"{far:g}", f"{threshold:.4f}", f"{attained:.3g}", f"{100 * tar:.2f}"]
                key = f"{name}/{TAR.at(far)}"
                rows.append([name, *own, ends_text(key, intervals.get(key))])
    header = ("pairs", "FAR", "threshold (cosine)", "FAR attained", "TAR (%)", "95 % interval")
    return Grid.of(header, rows, left=1).without_empty_columns()


def clusters(runs: Sequence[Run]) -> Grid:
    """How well parties' clusters of their images fit who is in them."""
    return _by(runs, "party", lambda run: run.clusters)


def enrolled(runs: Sequence[Run]) -> Grid:
    """What test images say of each run's own clients: a row for what it verifies by."""
    names = list(dict.fromkeys(name for run in runs for by_figure in run.enrolled.values() for name in by_figure))
    names.sort(key=lambda name: name.startswith("accepted"))  # what clients' own thresholds do comes last
    return _by(runs, "verified by", lambda run: run.enrolled, names)


def personalised(runs: Sequence[Run]) -> Grid:
    """How each run serves its clients' own people: a row for the model that does it."""
    return _by(
        runs, "served by", lambda run: {SERVED_BY[kind]: by_figure for kind, by_figure in run.personalised.items()}
    )


def _by(
    runs: Sequence[Run],
    head: str,
    take: Callable[[Run], Mapping[str, Mapping[str, float]]],
    metrics: Sequence[str] | None = None,
) -> Grid:
    """A row for each run and each of what `take` gives of it."""
    records = [
        record
        for run in runs
        for by, by_figure in take(run).items()
        for record in records_of(run.label if len(runs) > 1 else "", by_figure, by)
    ]
    grid = pivot(records, {"setting": "run", "by": head}, single, metrics)
    return Grid.of(grid.header, grid.rows, left=2, most=MOST_ROWS).without_empty_columns()


def parties(run: Run) -> Grid:
    """A row a party: what it holds, what it did, what it sent and its own figures where it was evaluated."""
    entries = run.parties
    evaluated = without_errors(key for party in entries for key in flat_figures(party.get("judged")))
    header = ["party", "role", "identities", "images", "rounds", "failed", "down", "up", "last loss"]
    header += [figure_name(key) for key in evaluated]
    rows = []
    for party in entries[:MOST_ROWS]:
        figures = flat_figures(party.get("judged"))
        loss = number(party.get("last_loss"))
        cells = [str(party.get("name", "")), str(party.get("role") or "")]
        cells += [integer_text(party.get(key)) for key in ("identities", "images", "rounds", "failed")]
        cells += [size_text(party.get(key)) for key in ("bytes_down", "bytes_up")]
        cells += ["" if loss is None else f"{loss:#.4g}", *(figure_text(figures, key) for key in evaluated)]
        rows.append(cells)
    total = ["sum", ""] + [integer_text(_sum(entries, key)) for key in ("identities", "images")] + ["", ""]
    total += [size_text(_sum(entries, key)) for key in ("bytes_down", "bytes_up")] + [""] * (len(header) - 8)
    shown_total = total if len(entries) > 1 else ()
    numeric = frozenset(range(2, len(header)))
    return Grid(header, rows, numeric, shown_total, len(entries) - len(rows)).without_empty_columns()


def failures(run: Run) -> Grid:
    """Who failed in which round and why; rounds that were abandoned have their own line."""
    rows = []
    for record in run.metrics:
        place = [str(record.get("stage") or ""), str(record.get("round", ""))]
        rows += [[*place, str(party), str(reason)] for party, reason in mapping(record.get("failed")).items()]
        if record.get("abandoned"):
            rows.append([*place, "", "round abandoned: the model stayed as it was"])
    return Grid(
        ("stage", "round", "party", "reason"), rows[:MOST_ROWS], frozenset({1}), (), max(0, len(rows) - MOST_ROWS)
    )


def traffic(run: Run) -> Grid:
    """Bytes to and from the parties: over the run, in a round, and for one party over the run."""
    rows = []
    for name, entries, down, up in (
        ("whole run, all parties", [run.bytes], "down", "up"),
        ("a round, all parties (median)", run.metrics, "bytes_down", "bytes_up"),
        ("a party, whole run (median)", run.parties, "bytes_down", "bytes_up"),
    ):
        cells = [_median([entry.get(key) for entry in entries]) for key in (down, up)]
        if any(cells):
            rows.append([name, *cells])
    rows += [[f"{field}, of a party in each {step}", *cells] for (step, field), cells in _by_field(run).items()]
    return Grid.of(("of what", "to the parties", "from the parties"), rows, left=1)


def _by_field(run: Run) -> dict[tuple[str, str], list[str]]:
    """(step, field) -> its bytes to and from one party, where a step sends more than one field of tensors a way."""
    by_field: dict[tuple[str, str], list[str]] = {}
    for message in as_dicts(run.summary.get("messages")):
        if str(message.get("kind") or "").startswith("tensor") and number(message.get("bytes")):
            key = str(message.get("step", "")), str(message.get("field", "")).rpartition(".")[2]
            by_field.setdefault(key, ["", ""])[message.get("direction") == "up"] = size_text(message.get("bytes"))
    steps = [step for step, _ in by_field]
    return {key: cells for key, cells in by_field.items() if steps.count(key[0]) > 1}


def messages(run: Run) -> list[dict[str, Any]]:
    """What crosses the wire, step by step: each step's fields in the order of the run's own record."""
    steps: dict[str, list[dict[str, str]]] = {}
    for message in as_dicts(run.summary.get("messages")):
        steps.setdefault(str(message.get("step", "")), []).append(
            {
                "up": "up" if message.get("direction") == "up" else "",
                "field": str(message.get("field", "")),
                "kind": str(message.get("kind") or "").replace("folded", "aggregated"),
                "content": str(message.get("content") or ""),
                "bytes": size_text(message.get("bytes")),
                "to": str(message.get("to") or ""),
            }
        )
    return [{"step": step, "fields": fields} for step, fields in list(steps.items())[:MOST_ROWS]]


def contents(run: Run) -> Grid:
    """The tensors that left, summed by what they hold."""
    sums: dict[str, list[float]] = {}
    for tensor in _left(run):
        entry = sums.setdefault(str(tensor["content"]), [0, 0])
        entry[0] += 1
        entry[1] += number(tensor.get("bytes")) or 0
    rows = [
        [kind, _meaning(kind), f"{count:,.0f}", size(count_bytes)]
        for kind, (count, count_bytes) in sorted(sums.items(), key=lambda item: TEMPLATE not in item[0])
    ]
    return Grid.of(("content", "what that is", "tensors", "bytes, once each"), rows, left=2)


def _meaning(kind: str) -> str:
    """What a content is, in words."""
    return "; ".join(words for word, words in CONTENT.items() if re.search(rf"\b{word}\b", kind))


def templates_left(run: Run) -> str:
    """What left that is like a template, in a sentence; nothing of a run that does not say what its messages hold."""
    tensors = [tensor for tensor in _left(run) if TEMPLATE in str(tensor["content"])]
    if not any(message.get("content") for message in as_dicts(run.summary.get("messages"))):
        return ""
    if not tensors:
        return "No field that left is declared as a template of a person."
    fields = dict.fromkeys(str(tensor.get("name", "")).partition("/")[0].removeprefix(SCALES) for tensor in tensors)
    sent = sum((number(t.get("bytes")) or 0) * (whole_number(t.get("count")) or 0) for t in tensors)
    return f"Template-like: {', '.join(fields)}, {size(sent)} in all. Guard it as a template: it tells a person apart."


def _left(run: Run) -> list[dict[str, Any]]:
    """The distinct tensors that left, each with the content of its field, or of an older run with its kind."""
    holds: dict[str, dict[str, None]] = {}
    for message in as_dicts(run.summary.get("messages")):
        if message.get("direction") == "up" and message.get("content"):
            holds.setdefault(str(message.get("field")), {})[str(message["content"])] = None
    left = as_dicts(mapping(run.summary.get("ledger")).get("tensors"))
    fields = [str(tensor.get("name", "")).partition("/")[0].removeprefix(SCALES) for tensor in left]
    said = [" or ".join(holds.get(field, ())) for field in fields]
    return [t | {"content": content or str(t.get("kind") or "not said")} for t, content in zip(left, said, strict=True)]


def tensors(run: Run) -> Grid:
    """Every distinct tensor that left a party."""
    rows = []
    for tensor in _left(run):
        shape = " × ".join(map(str, as_list(tensor.get("shape")))) or "scalar"
        cells = [str(tensor.get("name", "")), str(tensor["content"]), shape, str(tensor.get("dtype") or "")]
        rows.append([*cells, size_text(tensor.get("bytes")), integer_text(tensor.get("count"))])
    header = ("tensor", "content", "shape", "dtype", "bytes, once", "times sent")
    return Grid.of(header, rows, left=4, most=MOST_TENSORS)


def heads(ledger: dict[str, Any]) -> Grid:
    """The last hash of each party's chain."""
    rows = [[str(party), str(head)] for party, head in mapping(ledger.get("head")).items()]
    return Grid.of(("party", "head (SHA-256)"), rows, left=2, most=MOST_ROWS)


def _median(values: Sequence[object]) -> str:
    numbers = [value for entry in values if (value := number(entry)) is not None]
    return size(median(numbers)) if numbers else ""


def _sum(entries: Sequence[dict[str, Any]], key: str) -> float | None:
    numbers = [value for entry in entries if (value := number(entry.get(key))) is not None]
    return sum(numbers) if numbers else None
