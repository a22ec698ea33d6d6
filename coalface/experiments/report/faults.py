"""The faults of a run in words, real and simulated."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from coalface.core.method import plays
from coalface.core.text import clean, size
from coalface.experiments.report.runs import Run, mapping, number, whole_number

FEW = 8
"""Parties that a sentence names."""


def at_the_head(run: Run) -> list[str]:
    """What a reader must know before the figures: simulated faults, parties that never counted, abandoned rounds."""
    sentences = [
        f"The run ended {clean(why)}."
        for section in ("privacy", "templates")
        if (why := mapping(run.summary.get(section)).get("ended"))
    ]
    if simulated := _simulated(mapping(run.config.get("faults"))):
        sentences.append(f"Simulated faults: {'; '.join(simulated)}.")
    if warning := much_larger(run.metrics):
        sentences.append(f"{warning}.")
    if silent := [
        clean(p.get("name", "")) for p in run.parties if p.get("failed") and whole_number(p.get("rounds")) == 0
    ]:
        sentences.append(f"No reply of {_names(silent)} ever counted.")
    if abandoned := sum(record.get("abandoned") is True for record in run.metrics):
        were = "was" if abandoned == 1 else "were"
        sentences.append(f"{abandoned:,} of {len(run.metrics):,} rounds {were} abandoned: the model stayed as it was.")
    if isinstance(passed := run.summary.get("passed_over"), list):
        sentences += [f"{clean(line)}." for line in passed]
    if crowded := [party for party, figures in run.clusters.items() if figures.get("clusters") == 1]:
        sentences.append(
            f"All images of {_names([clean(party) for party in crowded])} went into one cluster: a softmax over one "
            "class has no gradient, so nothing was learnt from them. The threshold is too high for this model, or the "
            "model has not learnt to tell people apart."
        )
    return [*sentences, *([why] if (why := _no_gradient(run)) else [])]


def _no_gradient(run: Run) -> str:
    """Softmax over one class embedding: what becomes of methods for silos where each party holds one identity."""
    trainers = [p for p in run.parties if plays(str(p.get("role")), "trainer")]
    losses = [number(record.get("loss")) for record in run.metrics]
    if not trainers or any(p.get("identities") != 1 for p in trainers) or not losses or any(losses):
        return ""
    return (
        "Each party holds one identity: a softmax over its one class embedding is always right, its loss is 0 and has "
        "no gradient, so the model stays where it started. `positive-only` is what trains there without a safeguard."
    )


def _simulated(simulated: dict[str, Any]) -> list[str]:
    sentences = []
    if dropout := number(simulated.get("dropout")):
        sentences.append(f"a party is not reached with probability {dropout:g}")
    if lost := number(simulated.get("lost")):
        sentences.append(f"a reply is lost with probability {lost:g}")
    slow = mapping(simulated.get("slow"))
    for party, mean in sorted(slow.items(), key=lambda item: item[0] == "*"):
        if number(mean):
            subject = "all parties" if len(slow) == 1 else "all others"
            sentences.append(f"{subject if party == '*' else clean(party)}: a mean delay of {number(mean):g} s")
    if sentences and number(simulated.get("deadline")):
        sentences.append(f"late after {number(simulated['deadline']):g} s")
    for stage, share in mapping(simulated.get("stages")).items():
        if number(share):
            sentences.append(
                f"a party drops out before {clean(stage)} of a secure sum with probability {number(share):g}"
            )
    by_kind: dict[str, list[str]] = {}
    for party, kind in mapping(simulated.get("corrupt")).items():
        by_kind.setdefault(clean(kind), []).append(clean(party))
    return sentences + [f"the replies of {_names(names)} are corrupted ({kind})" for kind, names in by_kind.items()]


def much_larger(metrics: Iterable[Mapping[str, Any]], known: Container[str] = ()) -> str:
    """Whose replies were much larger than others' and may have counted, less those `known`; '' if nobody's."""
    first: dict[str, str] = {}
    for record in metrics:
        for party, why in mapping(record.get("large")).items():
            if party not in known:
                first.setdefault(clean(party), f"in round {record.get('round', '')} {clean(why)}")
    if not first:
        return ""
    why = next(iter(first.values()))
    return f"Replies of {_names([*first])} were much larger than those of others, and not refused: {why}"


def not_counted(run: Run) -> str:
    """Of what the parties sent, what was refused, and what was lost or late; nothing where all of it counted."""
    parts = [
        f"{size(count)} was {kind}"
        for kind, count in (
            ("refused", number(run.bytes.get("refused"))),
            ("lost or late", number(run.bytes.get("lost"))),
        )
        if count
    ]
    return f"Of what the parties sent, {' and '.join(parts)}, and did not count." if parts else ""


def ledger_difference(run: Run) -> str:
    """How the bytes in the ledgers differ from those that the server counted as sent, and why they may."""
    ledger, sent = mapping(run.summary.get("ledger")), number(run.bytes.get("up"))
    sent = None if sent is None else sent - (number(run.bytes.get("again")) or 0)
    listed, checked = number(ledger.get("bytes")), mapping(ledger.get("checked"))
    heads, whole = whole_number(checked.get("heads")), whole_number(checked.get("whole"))
    if heads is not None and whole is not None and whole < heads:
        return f"The bytes are those of the first {whole:,} of {heads:,} ledgers; the others were not added up."
    if listed is None or sent is None or listed == sent:
        return ""
    if listed < sent:
        again = "a reply collected in a round that was then abandoned was sent twice and is listed once, or "
        why = again if any(record.get("abandoned") is True for record in run.metrics) else ""
        return f"That is {size(sent - listed)} less than the server counted as sent: {why}lines are missing."
    return (
        f"That is {size(listed - sent)} more than the server counted as sent: what a party sent again after a stop "
        "stands in its ledger as well."
    )


def checked_chains(ledger: dict[str, Any]) -> tuple[str, bool]:
    """What was found when the run ended and the chains were checked, and whether all was well."""
    checked = mapping(ledger.get("checked"))
    heads, whole = whole_number(checked.get("heads")), whole_number(checked.get("whole"))
    if heads is None or whole is None:
        return "", True
    if faults := mapping(checked.get("faults")):
        first = clean(next(iter(faults.values())))
        return f"The ledger of {_names([clean(party) for party in faults])} does not hold: {first}", False
    ledgers = f"all {heads:,} ledgers" if heads > 1 else "the ledger"
    if whole >= heads:
        return f"When the run ended, the chain of {ledgers} was followed from its first line and held.", True
    followed = f"the chains of the first {whole:,} were followed from their first lines"
    return (
        f"When the run ended, {ledgers} had the heads that their parties kept, and {followed} and held.",
        True,
    )


def _names(parties: list[str]) -> str:
    ending = f" and {len(parties) - FEW:,} more" if len(parties) > FEW else ""
    return ", ".join(parties[:FEW]) + ending
