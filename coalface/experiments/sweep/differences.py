"""Paired differences between the settings of a sweep: on pair lists, and in how well clients are served."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.evaluation import personalised
from coalface.evaluation.figures import figure_name, figure_of
from coalface.evaluation.metrics.bootstrap import PairIdentities
from coalface.evaluation.metrics.paired import Resampled, compare, same_pairs
from coalface.experiments.compare import bootstrap_of, resampled
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.long_table import Grid, Record
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep.grid import Cell
from coalface.experiments.sweep.records import Groups, Line, means_of

DRAWS = 2_000
"""Draws of the clients with replacement, behind an interval."""
OTHER_PAIRS = "evaluated on other pairs"

Bases = Mapping[str, Mapping[str, str]]
"""Baseline -> setting -> the setting that it is compared with, of those that have the baseline."""


def baseline_of(settings: Sequence[str], baseline: str | None) -> str:
    """The first setting that has the `key=value` of a baseline."""
    return _having(settings, baseline)[0]


def bases(groups: Groups, there: Groups, baselines: Sequence[str]) -> dict[str, dict[str, str]]:
    """What each setting is compared with, by each baseline; without one, the first setting that is `there`."""
    to = {}
    for baseline in (baselines or (None,)) if there else ():
        each = bases_of(list(groups if baselines else there), baseline)
        to[baseline or ""] = {setting: base for setting, base in each.items() if base in there}
    return to


def _having(settings: Sequence[str], baseline: str | None) -> list[str]:
    if baseline is None:
        return list(settings[:1])
    if baseline in settings:  # a whole setting, and not what others have in common with it
        return [baseline]
    having = [setting for setting in settings if baseline in setting.split(", ")]
    if not having:
        known = "; ".join(dict.fromkeys(settings))
        raise RecipeError(f"no setting of the sweep has {baseline}; there are {known}", where="--baseline")
    return having


def bases_of(settings: Sequence[str], baseline: str | None) -> dict[str, str]:
    """Setting -> what it is compared with: of those that have the baseline, the one most like it."""
    having = _having(settings, baseline)

    def shared(one: str, other: str) -> int:
        return len(set(one.split(", ")) & set(other.split(", ")))

    return {one: one if one in having else max(having, key=lambda base: shared(one, base)) for one in settings}


# --- on pair lists ----------------------------------------------------------------------------------------------------


def of_figures(cells: Sequence[Cell], done: Mapping[str, Line], groups: Groups, to: Bases) -> list[str]:
    """Each setting less what it is compared with, of one baseline in rows, of several in columns."""
    pairs = {
        baseline: [(setting, base) for setting in groups if (base := base_of.get(setting, setting)) != setting]
        for baseline, base_of in to.items()
    }
    every = list(dict.fromkeys(pair for compared in pairs.values() for pair in compared))
    if not every:
        return []
    records = _compared(_recipes(cells, done), groups, every)
    lines = _in_columns(groups, pairs, records) if len(to) > 1 else _in_rows(records)
    seeds = {setting: {line["seed"] for line in group} for setting, group in groups.items()}
    if any(seeds[setting] != seeds[base] and seeds[setting] & seeds[base] for setting, base in every):
        lines += ["", "Settings with other seeds than what they are compared with: over the seeds that both have."]
    return lines


def _recipes(cells: Sequence[Cell], done: Mapping[str, Line]) -> list[Recipe]:
    """A recipe for every combination of pair lists: the cells of each seed may be evaluated on people of their own."""
    recipes: dict[str, Recipe] = {}
    for cell in cells:
        if (digest := cell.recipe.digest()) in done:
            recipes.setdefault(str(sorted(done[digest].get("lists", {}).items())), cell.recipe)
    return list(recipes.values())


def _compared(recipes: Sequence[Recipe], groups: Groups, pairs: Collection[tuple[str, str]]) -> list[Record]:
    """The paired differences on each pair list, in percent points; a setting is drawn again once.

    Of two settings that were evaluated on other pairs the list has one record that is not a number.
    """
    lists: dict[str, dict[str, PairIdentities]] = {}
    for recipe in recipes:
        for chosen in Parts(recipe).pairs:
            lists.setdefault(chosen.name, {})[chosen.identities.sha256] = chosen.identities
    records = []
    for name, by_sha256 in lists.items():
        bootstraps = [bootstrap_of(identities) for identities in by_sha256.values()]
        drawn: dict[str, dict[int, dict[str, list[Resampled]]]] = {}  # setting -> seed -> figure
        for setting in (setting for setting in groups if any(setting in pair for pair in pairs)):
            drawn[setting] = {}
            for line in groups[setting]:
                of_seed = drawn[setting].setdefault(line["seed"], {})
                for bootstrap in bootstraps:
                    for figure, runs in resampled(line["evidence"].get(name, ()), bootstrap).items():
                        of_seed.setdefault(figure, []).extend(runs)
        for setting, base in pairs:
            records += list(_apart(name, setting, base, drawn)) or [Record(setting, name, np.nan, base)]
    return records


def _apart(
    name: str, setting: str, base: str, drawn: Mapping[str, Mapping[int, Mapping[str, list[Resampled]]]]
) -> Iterator[Record]:
    """The difference of each figure over the seeds that both have, or over all where they have none in common."""
    seeds = drawn[setting].keys() & drawn[base].keys()
    first, second = (
        [figures for seed, figures in sorted(drawn[side].items()) if seed in seeds or not seeds]
        for side in (setting, base)
    )
    for figure in dict.fromkeys(figure for figures in first for figure in figures):
        sides = [[run for figures in side for run in figures.get(figure, ())] for side in (first, second)]
        if sides[1] and same_pairs(sides[0], sides[1]):
            difference = compare(sides[0], sides[1])
            value, low, high = 100 * difference.difference, 100 * difference.low, 100 * difference.high
            yield Record(setting, f"{name}/{figure}", value, base, low=low, high=high)


def _in_rows(records: Sequence[Record]) -> list[str]:
    """A row for every setting and figure."""
    several = sorted({record.by for record in records})
    to = several[0] if len(several) == 1 else "the setting named beside each"
    beside = ["to"] if len(several) > 1 else []
    rows = []
    for record in records:
        names = [record.setting, *([record.by] if beside else [])]
        texts = ["", "", OTHER_PAIRS] if np.isnan(record.value) else [*_numbers(record), verdict_of(record)]
        rows.append([*names, figure_name(record.metric), *texts])
    text = f"Differences to {to}, percent points, 95 % interval (2,000 paired draws of the evaluated identities):"
    header = ["setting", *beside, "figure", "difference", "interval", "verdict"]
    return ["", text, "", *Grid.of(header, rows, left=2 + len(beside)).markdown()]


def _in_columns(groups: Groups, pairs: Mapping[str, Sequence[tuple[str, str]]], records: Sequence[Record]) -> list[str]:
    """For each baseline a table with a row for every setting, beneath the row of what it is compared with."""
    by_pair: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_pair.setdefault((record.setting, record.by), []).append(record)
    names = list(dict.fromkeys(record.metric for record in records if not np.isnan(record.value)))
    lines = [
        "",
        "Differences in percent points and their 95 % intervals (2,000 paired draws of the evaluated identities), in a",
        "table for each baseline. A row `to …` has that setting's own figures. Beneath it stand the settings that are",
        "compared with it: of those with the baseline it is most like them. **Bold**: the interval does not hold zero.",
        "What one table compares is not compared the other way round in a later one.",
    ]
    seen: set[frozenset[str]] = set()
    for baseline, compared in pairs.items():
        new = [pair for pair in compared if frozenset(pair) not in seen]
        seen |= {frozenset(pair) for pair in new}
        rows = []
        for base in groups:
            if beneath := [pair for pair in new if pair[1] == base]:
                rows.append([f"to {base}", *means_of(groups[base], "figures", names)])
                rows += [[pair[0], *_cells(names, by_pair[pair])] for pair in beneath]
        if rows:
            header = ["setting", *map(figure_name, names)]
            lines += ["", f"Differences to {baseline}:", "", *Grid.of(header, rows, left=1).markdown()]
    return lines


def _cells(names: Sequence[str], records: Sequence[Record]) -> list[str]:
    by_metric = {record.metric: record for record in records}
    cells = []
    for name in names:
        if name in by_metric:
            text = "{} ({})".format(*_numbers(by_metric[name]))
            cells.append(f"**{text}**" if by_metric[name].is_decided else text)
        else:
            cells.append(OTHER_PAIRS if name.partition("/")[0] in by_metric else "")
    return cells


def _numbers(record: Record) -> list[str]:
    """The difference and its interval as text."""
    digits = figure_of(record.metric).unit.digits
    middle, low, high = (f"{value:+.{digits}f}" for value in (record.value, record.low, record.high))
    return [middle, f"{low} to {high}"]


def verdict_of(record: Record) -> str:
    """Where the interval lies; of an EER, lower is better."""
    return "undecided" if not record.is_decided else "higher" if (record.low or 0) > 0 else "lower"


# --- in how clients are served ----------------------------------------------------------------------------------------


def of_clients(groups: Groups, to: Sequence[Mapping[str, str]]) -> list[str]:
    """How well clients are served, less how well by the setting that each of `to` names, and by a setting's own kinds.

    Two settings are compared by the model that is most the client's own (the branch, else its backbone, else
    everybody's), and, where that is of two kinds, by the kinds that both have as well; no two the other way round.
    """
    across: list[tuple[str, str]] = []
    for pair in (
        (setting, each[setting]) for each in to for setting in groups if each.get(setting, setting) != setting
    ):
        if pair not in across and pair[::-1] not in across:
            across.append(pair)
    served = [personalised.by_kind(line.get("personalised", {})) for group in groups.values() for line in group]
    metrics = list(dict.fromkeys(name for kinds in served for each in kinds.values() for name in each))
    rows = []
    for setting, group in groups.items():
        kinds = _kinds(group)
        bases = [base for one, base in across if one == setting]
        pairs = [pair for base in bases for pair in _settings_apart(kinds, base, _kinds(groups[base]))]
        pairs += [(kind, setting, before) for before, kind in zip(kinds[:-1], kinds[1:], strict=True)]
        for kind, base, other in pairs:
            for name in metrics:
                found = _clients_apart(group, kind, groups[base], other, name)
                if found is not None:
                    value, low, high = found
                    record = Record(f"{setting} by {kind}", name, value, f"{base} by {other}", low=low, high=high)
                    rows.append([record.setting, record.by, figure_name(name), *_numbers(record), verdict_of(record)])
    if not rows:
        return []
    text = f"Differences in percent points, 95 % interval ({DRAWS:,} paired draws of the clients):"
    header = ["setting", "less", "figure", "difference", "interval", "verdict"]
    return ["", text, "", *Grid.of(header, rows, left=3).markdown()]


def _kinds(group: Sequence[Line]) -> list[str]:
    """By which models clients are served after training, the most own last."""
    return [kind for kind in personalised.KINDS if any(kind in line.get("personalised", {}) for line in group)]


def _settings_apart(kinds: Sequence[str], base: str, others: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, the other setting, its kind) of what is compared."""
    if kinds and others:
        yield kinds[-1], base, others[-1]
        if kinds[-1] != others[-1]:
            yield from ((kind, base, kind) for kind in kinds if kind in others)


def _clients_apart(
    first: Sequence[Line], kind: str, second: Sequence[Line], other: str, metric: str
) -> tuple[float, float, float] | None:
    """A figure's difference over the clients and seeds that both have, and its interval; None where there are none."""
    seeds = []
    for seed in sorted({line["seed"] for line in first} & {line["seed"] for line in second}):
        mine, theirs = (_clients(group, seed, model, metric) for group, model in ((first, kind), (second, other)))
        if both := sorted(mine.keys() & theirs.keys()):
            seeds.append(np.array([mine[client] - theirs[client] for client in both]))
    if not seeds:
        return None
    rng = generator(0, "personalised", "draws")
    drawn = np.mean([each[rng.integers(0, len(each), (DRAWS, len(each)))].mean(axis=1) for each in seeds], axis=0)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(np.mean([each.mean() for each in seeds])), float(low), float(high)


def _clients(group: Sequence[Line], seed: int, kind: str, metric: str) -> dict[str, float]:
    """Client -> a figure by one kind of model."""
    clients = [line.get("personalised", {}).get("clients", {}) for line in group if line["seed"] == seed]
    return {name: by[kind][metric] for each in clients for name, by in each.items() if metric in by.get(kind, {})}
