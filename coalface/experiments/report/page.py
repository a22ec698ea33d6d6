"""The report page of a run: one HTML file that needs nothing else, the same bytes for the same run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from coalface.core.text import clean, several, size
from coalface.evaluation.figures import figure_name, figure_of, figure_text
from coalface.experiments.report import charts, faults, grids, groups, hardest, holdings
from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.runs import (
    Run,
    as_list,
    duration,
    flatten,
    mapping,
    number,
    read,
    whole_number,
)
from coalface.experiments.report.templates import template, write_page
from coalface.experiments.report.vega import Chart, scripts


@dataclass(frozen=True)
class Tile:
    """A number at the head of the page, with what it is and what to hold it against."""

    title: str
    value: str
    detail: str = ""


def build(run: Path, to: Path | None = None) -> Path:
    """Write the report page of a run, to RUN/report.html by default, and return its path.

    Raises FileNotFoundError or ValueError where the run folder cannot be read.
    """
    return write_page(to or run / "report.html", render(read(run)))


def charts_of(run: Run) -> dict[str, list[Chart]]:
    """Section -> its charts, in the page's order."""
    return {
        "similarity": charts.similarity([run]),
        "by_group": groups.charts(run),
        "progress": charts.progress([run]),
        "secure_sums": charts.secure_sums(run),
        "weightings": charts.weightings(run),
        "embeddings": charts.class_embeddings([run]),
        "logged": charts.logged([run]),
        "holdings": holdings.charts(run),
    }


def render(run: Run) -> str:
    """The page as HTML."""
    runs, evaluated = [run], run.evaluated
    ledger = mapping(run.summary.get("ledger"))
    chains, chains_hold = faults.checked_chains(ledger)
    return template("page.html").render(
        scripts=scripts(),
        run=run,
        sentence=_sentence(run),
        result=_result(run, evaluated),
        troubles=" ".join(faults.at_the_head(run)),
        tiles=_tiles(run, evaluated),
        figures=grids.figures(run),
        thresholds=grids.thresholds(run),
        has_intervals=bool(run.intervals),
        hardest=[] if run.is_shared else hardest.read(run.path),
        lists=groups.lists(runs),
        spreads=groups.spreads(runs),
        clusters=grids.clusters(runs),
        enrolled=grids.enrolled(runs),
        enrolled_of=_enrolled_counts(run),
        personalised=grids.personalised(runs),
        personalised_of=_personalised_counts(run),
        **charts_of(run),
        parties=grids.parties(run),
        failures=grids.failures(run),
        bytes=grids.traffic(run),
        messages=grids.messages(run),
        validators=[p for p in run.parties if p.get("role") == "validator"],
        stays=[str(name) for name in as_list(run.summary.get("stays"))],
        summed=bool(mapping(run.config.get("privacy")).get("secure")),
        readable=str(run.summary.get("readable") or ""),
        contents=grids.contents(run),
        templates_left=grids.templates_left(run),
        tensors=grids.tensors(run),
        not_counted=faults.not_counted(run),
        ledger=ledger,
        ledger_difference=faults.ledger_difference(run),
        chains=chains,
        chains_hold=chains_hold,
        ledger_lines=grids.integer_text(ledger.get("lines")),
        ledger_bytes=grids.size_text(ledger.get("bytes")),
        heads=grids.heads(ledger),
        provenance=_provenance(run),
        command=str(mapping(run.summary.get("environment")).get("command") or ""),
        numerics=Grid(("setting", "value"), list(flatten(mapping(run.summary.get("numerics"))).items())),
        environment=Grid(("what", "value"), list(flatten(mapping(run.summary.get("environment"))).items())),
        config=Markup("\n").join(escape(clean(line)) for line in run.config_text.rstrip().split("\n")),
    )


def _enrolled_counts(run: Run) -> str:
    """How many clients were verified, by how many trials, and how many could not verify by themselves."""
    enrolled = mapping(run.summary.get("enrolled"))
    trials, absent = mapping(enrolled.get("trials")), whole_number(enrolled.get("never enrolled"))
    values = (enrolled.get("clients"), trials.get("genuine"), trials.get("impostor"))
    clients, genuine, impostor = (whole_number(value) for value in values)
    if clients is None or genuine is None or impostor is None:
        return ""
    apart = f"; {absent:,} never enrolled and verify nobody by themselves" if absent else ""
    return f"{clients:,} clients, {genuine:,} genuine and {impostor:,} impostor trials{apart}."


def _personalised_counts(run: Run) -> str:
    """How many clients were evaluated, and on how many pairs and probes each."""
    counts = [mapping(of) for of in mapping(mapping(run.summary.get("personalised")).get("counts")).values()]
    kinds = [_between([whole_number(of.get(kind)) for of in counts]) for kind in _TRIALS]
    if not counts or not all(kinds):
        return ""
    pairs = f"{kinds[0]} genuine and {kinds[1]} impostor pairs"
    return f"{len(counts):,} clients; each has {pairs}, {kinds[2]} mated and {kinds[3]} non-mated probes."


_TRIALS = ("genuine", "impostors", "mated", "non-mated")


def _between(counts: Sequence[int | None]) -> str:
    """The least and the most; empty where one is no number."""
    numbers = [count for count in counts if count is not None]
    if len(numbers) < len(counts) or not numbers:
        return ""
    return f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"


def _sentence(run: Run) -> str:
    """What was trained, by whom and how."""
    summary = run.summary
    count = several(len(run.parties), "party", "parties") if run.parties else "its parties"
    if validators := sum(p.get("role") == "validator" for p in run.parties):
        count = f"{several(len(run.parties) - validators, 'trainer')} and {several(validators, 'validator')}"
    if summary.get("setting") not in (None, "any"):
        count += f" ({summary['setting']})"
    model = str(mapping(run.config.get("model")).get("name") or "a model")
    if run.is_pooled:
        how = f"{model} on the images of all parties, pooled in one place"
    elif run.method == "solo":
        how = f"{model} at each of {count}, each on its own images"
    else:
        how = f"{model} over {count}"
    rounds = whole_number(summary.get("rounds"))
    length = f" in {several(rounds, 'round')}" if rounds is not None else ""
    seed = whole_number(summary.get("seed", run.config.get("seed")))
    return f"{run.method} trained {how}{length}" + (f", seed {seed}." if seed is not None else ".")


def _result(run: Run, evaluated: Sequence[str]) -> str:
    """The first figure in words, against the model that the run started from."""
    if not evaluated:
        return "This run has not been evaluated yet."
    key, figure = evaluated[0], figure_of(evaluated[0])
    first = f"{figure_name(key)}: {figure_text(run.figures, key, sign=True)}"
    if key in run.untrained:
        gain = figure.difference_text(run.figures[key] - run.untrained[key]) + figure.unit.difference
        first += f", {_start(run, key)} ({gain})"
    return first + "."


def _start(run: Run, key: str) -> str:
    """The figure of what the run starts from: `untrained 60.0 %`."""
    figure = figure_of(key)
    return f"{run.start} {figure.text(run.untrained[key])}{figure.unit.sign}"


def _provenance(run: Run) -> str:
    """What the run was last carried out with, and when, in a sentence."""
    environment = mapping(run.summary.get("environment"))
    versions = [f"{name} {environment[key]}" for key, name in _VERSIONS.items() if environment.get(key)]
    when = str(environment.get("date") or "").replace("T", " ").replace("+00:00", " UTC")
    return f"Carried out with {', '.join(versions)}{f', on {when}' if when else ''}." if versions else ""


_VERSIONS = {"coalface": "Coalface", "commit": "commit", "python": "Python", "torch": "torch"}


def _tiles(run: Run, evaluated: Sequence[str]) -> list[Tile]:
    tiles = []
    for key in evaluated[:2]:
        start = _start(run, key) if key in run.untrained else ""
        tiles.append(Tile(figure_name(key), figure_text(run.figures, key, sign=True), start))
    if privacy := mapping(run.summary.get("privacy")):
        spent, delta, z = (number(privacy.get(k)) for k in ("epsilon", "delta", "noise_multiplier"))
        hidden = mapping(run.config.get("privacy")).get("secure")
        against = "towards the server too" if hidden else "not towards the server"
        bound, promised = f"{spent or 0:.2f}", f"δ = {delta or 0:g}, noise {z or 0:g}; {against}"
        if spent is None:
            bound, promised = "no bound", "no noise is added, and clipping alone protects nobody"
        tiles.append(Tile("ε, each party", bound, promised))
    if templates := mapping(run.summary.get("templates")):
        spent, delta, z = (number(templates.get(k)) for k in ("epsilon", "delta", "noise_multiplier"))
        tiles.append(
            Tile("ε, each template", f"{spent or 0:.2f}", f"δ = {delta or 0:g}, noise {z or 0:g}; of it alone")
        )
    if (up := number(run.bytes.get("up"))) is not None:
        down = number(run.bytes.get("down"))
        tiles.append(Tile("sent by the parties", size(up), f"{size(down)} sent to them" if down is not None else ""))
    if run.parties:
        images = sum(whole_number(p.get("images")) or 0 for p in run.parties)
        tiles.append(Tile("parties", f"{len(run.parties):,}", f"{images:,} images" if images else ""))
    seconds = {key: value for key, n in mapping(run.summary.get("seconds")).items() if (value := number(n))}
    if "total" in seconds:
        details = [f"{key} {duration(value)}" for key, value in seconds.items() if key != "total" and value >= 1]
        tiles.append(Tile("time", duration(seconds["total"]), ", ".join(details)))
    return tiles
