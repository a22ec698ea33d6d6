"""Tables of a sweep beside that of its figures: domains, clusters, clients' own people, class embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coalface.core.method import generator
from coalface.evaluation import personalised as personal
from coalface.evaluation.clustering import mean
from coalface.evaluation.enrolled import by_kind
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.runs import figure_name, gaps
from coalface.experiments.sweep.grid import Cell

DRAWS = 2_000
"""Draws of the clients with replacement, behind an interval."""

ALIKE = 0.1
"""Percent points within which figures of one model may lie that two processors have computed."""

Group = Sequence[Mapping[str, Any]]
"""The cells of a setting, one for each seed."""


def clients_of(recipe: Recipe) -> str:
    """What decides who a run's clients are, and how well they are served is evaluated by."""
    data, evaluated = recipe.data.model_dump(mode="json"), recipe.evaluation.model_dump(mode="json")
    told = ("faces", "min_images", "exclude", "max_identities", "private", "hold_out", "scenario", "partition", "test")
    public = recipe.side == "public"  # other people altogether; a method that pools both sides has the same clients
    return json.dumps([{key: data.get(key) for key in told}, evaluated["personalised"], public], sort_keys=True)


def by_seed(cells: Group, values: Sequence[float | None]) -> list[float]:
    """The mean of each seed's runs, which differ in the half of the folds alone."""
    found: dict[int, list[float]] = {}
    for cell, value in zip(cells, values, strict=True):
        if value is not None:
            found.setdefault(cell["seed"], []).append(value)
    return [float(np.mean(each)) for each in found.values()]


def flat(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{on}/{name}": value for on, each in figures.items() for name, value in each.items()}


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table whose columns stand beneath each other as text too, the first `left` to the left.

    >>> aligned([["method", "%"], ["solo", "81.20"]], left=1)
    ['| method |     % |', '|--------|------:|', '| solo   | 81.20 |']
    """
    safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*safe, strict=True)]
    lines = []
    for row in safe:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"| {' | '.join(padded)} |")
    rule = ["-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths)]
    return [lines[0], f"|{'|'.join(rule)}|", *lines[1:]]


def enrolled(groups: Mapping[str, Group]) -> list[str]:
    """What test images say of runs' own clients: a row for every setting and what it verifies by."""
    found = {label: [by_kind(cell.get("enrolled", {})) for cell in group] for label, group in groups.items()}
    names = list(dict.fromkeys(n for group in found.values() for each in group for f in each.values() for n in f))
    if not names:
        return []
    rows = [["setting", "by", *(figure_name(name) for name in sorted(names, key=_place))]]
    for label, group in groups.items():
        for kind in dict.fromkeys(kind for each in found[label] for kind in each):
            mine = [each.get(kind, {}) for each in found[label]]
            values = [by_seed(group, [f.get(name) for f in mine]) for name in sorted(names, key=_place)]
            rows.append([label, kind, *map(mean_and_spread, values)])
    said = "Clients verified by their own test images, in percent: mean over seeds ± standard deviation over seeds."
    return ["", said, "", *aligned(rows, left=2)]


def domain_gaps(cells: Sequence[Cell], groups: Mapping[str, Group]) -> list[str]:
    """Of two domains, how far the target's figures lie below the source's: a row for every setting."""
    lists = next((cell.recipe.evaluation.pairs for cell in cells if cell.setting in groups), {})
    domains = {name: wanted.domain for name, wanted in lists.items() if wanted.domain is not None}
    found = {label: [gaps(flat(cell["figures"]), domains) for cell in group] for label, group in groups.items()}
    names = list(dict.fromkeys(name for each in found.values() for one in each for name in one))
    if not names:
        return []
    start = [gaps(flat(cell["untrained"]), domains) for cell in next(iter(groups.values()))]
    rows = [["setting", *map(figure_name, names)]]
    for label, each in {"(before any round)": start, **found}.items():
        rows.append([label, *(mean_and_spread([one[name] for one in each if name in one]) for name in names)])
    return ["", "Gap between the domains, source less target, in percent points:", "", *aligned(rows, left=1)]


def clusters(groups: Mapping[str, Group]) -> list[str]:
    """How well the parties' clusters fit who is in their images: a row for every setting that has some."""
    found = {label: [mean(cell.get("clusters", {})) for cell in group] for label, group in groups.items()}
    names = list(dict.fromkeys(name for group in found.values() for each in group for name in each))
    if not names:
        return []
    rows = [["setting", *(name.replace("_", " ") for name in names)]]
    for label, group in groups.items():
        if any(found[label]):
            values = [by_seed(group, [each.get(name) for each in found[label]]) for name in names]
            rows.append([label, *map(mean_and_spread, values)])
    said = "Clusters of the parties' own images against who is in them: mean over parties, then over seeds, in percent;"
    return ["", said, "clusters, identities and images are counts.", "", *aligned(rows, left=1)]


def unlike_starts(cells: Sequence[Cell], done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which seeds' cells start from pre-trained models that are not the same, though their recipes say so.

    One recipe leaves another model on a processor that rounds otherwise, such as one without bfloat16.
    """
    found: dict[tuple[str, str], list[float]] = {}  # (pre-training, figure on those pairs) -> of each cell
    seeds = {}
    for cell in cells:
        if cell.recipe.pretrain is None or (line := done.get(cell.recipe.digest())) is None:
            continue
        start = loader.pretraining(cell.recipe).digest()
        seeds[start] = line["seed"]
        for name, figures in line["untrained"].items():
            pairs = line.get("lists", {}).get(name)
            for figure, value in figures.items():
                if pairs is not None and not figure.endswith("_se"):
                    found.setdefault((start, f"{name}/{figure} {pairs}"), []).append(value)
    said = {}
    for (start, figure), values in found.items():
        if max(values) - min(values) > ALIKE and start not in said:
            shown = f"{figure_name(figure.split()[0])} {min(values):.2f} and {max(values):.2f}"
            said[start] = f"- seed {seeds[start]}: {shown}"
    if not said:
        return []
    return [
        "",
        "**Not from one model:** these seeds' runs start from pre-trained models that differ (on processors that round",
        "otherwise, the same recipe leaves another). Their differences hold the difference of what they start from.",
        "",
        *said.values(),
    ]


def unlike_code(cells: Sequence[Cell], done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which cells ran before code of their method was changed by which others ran; `done` is in the order they ran."""
    names = {cell.recipe.digest(): cell.name or cell.setting for cell in cells}
    ran = {names[digest]: line.get("code", {}) for digest, line in done.items() if digest in names}
    last = {module: digest for code in ran.values() for module, digest in code.items()}
    said = [
        f"- {name}: {', '.join(module for module, digest in code.items() if last[module] != digest)}"
        for name, code in ran.items()
        if code.items() - last.items()
    ]
    if not said:
        return []
    return [
        "",
        "**Not by one code:** code of the methods was changed during the sweep. These cells ran before that, others",
        "after it. Delete their lines in cells.jsonl, and the same command runs them by the code as it is then.",
        "",
        *said,
    ]


def cosines(groups: Mapping[str, Group]) -> list[str]:
    """How close the class embeddings that servers know came to each other, where cells say it."""
    found = {label: [cell.get("class_embeddings", {}).get("mean") for cell in group] for label, group in groups.items()}
    rows = [["setting", "cosine"]]
    for label, group in groups.items():
        if values := by_seed(group, found[label]):
            rows.append([label, mean_and_spread(values)])
    if len(rows) == 1:
        return []
    said = "Mean cosine of all pairs of class embeddings: mean over seeds ± standard deviation over seeds."
    return ["", said, "", *aligned(rows, left=1)]


def public_images(groups: Mapping[str, Group]) -> list[str]:
    """Which share of the public images clients trained on, where cells say it: hard negatives are some of them."""
    found = {label: [shares(cell.get("public_images")) for cell in group] for label, group in groups.items()}
    names = ("first round", "last round", "all rounds")
    rows = [["setting", *names]]
    for label, group in groups.items():
        if any(found[label]):
            values = [by_seed(group, [each.get(name) for each in found[label]]) for name in names]
            rows.append([label, *map(mean_and_spread, values)])
    if len(rows) == 1:
        return []
    said = "Share of the public images that clients trained on in a round, in percent: mean over clients,"
    return ["", said, "then over seeds ± standard deviation.", "", *aligned(rows, left=1)]


def shares(said: Mapping[str, Any] | None) -> dict[str, float]:
    """Percent of the public images that clients trained on: mean over clients, by what a cell keeps of its run."""
    each = [100 * np.array(rounds) / said["held"] for rounds in said["used"].values() if rounds] if said else []
    if not each:
        return {}
    ends = {"first round": [one[0] for one in each], "last round": [one[-1] for one in each]}
    return {name: float(np.mean(of)) for name, of in {**ends, "all rounds": [one.mean() for one in each]}.items()}


def _place(name: str) -> int:
    """The figures of clients' own thresholds come last."""
    return name.startswith("accepted")


def mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}" if values else ""


def personalised(groups: Mapping[str, Group], to: Sequence[Mapping[str, str]]) -> list[str]:
    """How well clients are served, by which model, and the differences to the setting that each of `to` names.

    Two settings are compared by the model that is most the client's own (the branch, else its backbone, else
    everybody's), and, where that is of two kinds, by the kinds that both have as well; no two the other way round.
    """
    found = {
        label: [personal.by_kind(cell.get("personalised", {})) for cell in group] for label, group in groups.items()
    }
    names = list(dict.fromkeys(n for group in found.values() for each in group for f in each.values() for n in f))
    if not names:
        return []
    rows = [["setting", "by", *map(figure_name, names)]]
    for label, group in groups.items():
        for kind in dict.fromkeys(kind for each in found[label] for kind in each):
            mine = [each.get(kind, {}) for each in found[label]]
            values = [by_seed(group, [f.get(name) for f in mine]) for name in names]
            rows.append([label, kind, *map(mean_and_spread, values)])
    lines = [
        "",
        "Clients' own people on test images, in percent: mean over clients, then over seeds ± standard deviation;",
    ]
    lines += ["by the model that the run starts from, everybody's, a client's own backbone, and its branch.", ""]
    lines += aligned(rows, left=2)
    compared = [["setting", "less", "figure", "difference", "interval", "verdict"]]
    across: list[tuple[str, str]] = []
    for pair in ((label, each[label]) for each in to for label in groups if each.get(label, label) != label):
        if pair not in across and pair[::-1] not in across:
            across.append(pair)
    for label, group in groups.items():
        kinds = _kinds(group)
        bases = [base for one, base in across if one == label]
        pairs = [pair for base in bases for pair in _settings_apart(kinds, base, _kinds(groups[base]))]
        pairs += [(kind, label, before) for before, kind in zip(kinds[:-1], kinds[1:], strict=True)]
        for kind, base, other in pairs:
            for name in names:
                apart = _apart(group, kind, groups[base], other, name)
                if apart is not None:
                    middle, low, high = apart
                    verdict = "higher" if low > 0 else "lower" if high < 0 else "undecided"
                    shown = [f"{middle:+.2f}", f"{low:+.2f} to {high:+.2f}", verdict]
                    compared.append([f"{label} by {kind}", f"{base} by {other}", figure_name(name), *shown])
    if len(compared) > 1:
        lines += ["", f"Differences in percent points, 95 % interval ({DRAWS:,} paired draws of the clients):", ""]
        lines += aligned(compared, left=3)
    return lines


def _kinds(group: Group) -> list[str]:
    """By which models clients are served after training, the most own last."""
    return [kind for kind in personal.KINDS if any(kind in cell.get("personalised", {}) for cell in group)]


def _settings_apart(kinds: Sequence[str], base: str, others: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, the other setting, its kind) of what is compared."""
    if kinds and others:
        yield kinds[-1], base, others[-1]
        if kinds[-1] != others[-1]:
            yield from ((kind, base, kind) for kind in kinds if kind in others)


def _apart(first: Group, kind: str, second: Group, other: str, name: str) -> tuple[float, float, float] | None:
    """A figure's difference over the clients and seeds that both have, and its interval; None where there are none."""
    seeds = []
    for seed in sorted({cell["seed"] for cell in first} & {cell["seed"] for cell in second}):
        mine, theirs = (_of_clients(group, seed, what, name) for group, what in ((first, kind), (second, other)))
        if both := sorted(mine.keys() & theirs.keys()):
            seeds.append(np.array([mine[client] - theirs[client] for client in both]))
    if not seeds:
        return None
    rng = generator(0, "personalised", "draws")
    drawn = np.mean([each[rng.integers(0, len(each), (DRAWS, len(each)))].mean(axis=1) for each in seeds], axis=0)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(np.mean([each.mean() for each in seeds])), float(low), float(high)


def _of_clients(group: Group, seed: int, kind: str, name: str) -> dict[str, float]:
    cells = [cell.get("personalised", {}).get("clients", {}) for cell in group if cell["seed"] == seed]
    return {client: each[kind][name] for cell in cells for client, each in cell.items() if name in each.get(kind, {})}
