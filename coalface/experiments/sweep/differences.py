"""Paired differences between the settings of a sweep: on pair lists, and in how well clients are served."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from coalface.core.checks import unknown_name
from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.evaluation import personalised
from coalface.evaluation.figures import figure_name, figure_of
from coalface.evaluation.metrics.bootstrap import PairIdentities, bootstrap_of
from coalface.evaluation.metrics.figure import PERCENT
from coalface.evaluation.metrics.paired import interval
from coalface.experiments.comparison.page import differences_chart
from coalface.experiments.comparison.paired import differences, merged, resampled
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.long_table import Grid, Record
from coalface.experiments.report.vega import Chart
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep.grid import Cell
from coalface.experiments.sweep.records import Groups, Line, means_of, work_of

DRAWS = 2_000
"""Draws of the clients with replacement, behind an interval."""
OTHER_PAIRS = "evaluated on other pairs"

Bases = Mapping[str, Mapping[str, str]]
"""Baseline -> setting -> the setting that it is compared with, of those that have the baseline."""


def baseline_of(settings: Sequence[str], baseline: str | None) -> str:
    """The first setting that has the `key=value` of a baseline."""
    return _having(settings, baseline)[0]


def bases(groups: Groups, finished: Groups, baselines: Sequence[str]) -> dict[str, dict[str, str]]:
    """What each setting is compared with, by each baseline; without one, the first setting that is `there`."""
    to = {}
    for baseline in (baselines or (None,)) if finished else ():
        base_of = bases_of(list(groups if baselines else finished), baseline)
        to[baseline or ""] = {setting: base for setting, base in base_of.items() if base in finished}
    return to


def _having(settings: Sequence[str], baseline: str | None) -> list[str]:
    if baseline is None:
        return list(settings[:1])
    if baseline in settings:  # a whole setting, and not what others have in common with it
        return [baseline]
    having = [setting for setting in settings if baseline in setting.split(", ")]
    if not having:
        names = "; ".join(dict.fromkeys(settings))
        raise RecipeError(f"no setting of the sweep has {baseline}; there are {names}", where="--baseline")
    return having


def bases_of(settings: Sequence[str], baseline: str | None) -> dict[str, str]:
    """Setting -> what it is compared with: of those that have the baseline, the one most like it."""
    having = _having(settings, baseline)

    def most_like(setting: str) -> str:
        return max(having, key=lambda base: len(set(setting.split(", ")) & set(base.split(", "))))

    return {setting: setting if setting in having else most_like(setting) for setting in settings}


def _pairs(to: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """(setting, what it is compared with) by each of `to`; no two the other way round."""
    pairs: list[tuple[str, str]] = []
    for pair in (pair for base_of in to for pair in base_of.items()):
        if pair[0] != pair[1] and pair not in pairs and pair[::-1] not in pairs:
            pairs.append(pair)
    return pairs


# --- on pair lists ----------------------------------------------------------------------------------------------------


def of_figures(
    cells: Sequence[Cell], finished: Mapping[str, Line], groups: Groups, to: Bases
) -> tuple[list[str], list[Record]]:
    """Each setting less what it is compared with, of one baseline in rows, of several in columns; and in numbers."""
    pairs = {
        baseline: [(setting, base) for setting in groups if (base := base_of.get(setting, setting)) != setting]
        for baseline, base_of in to.items()
    }
    every = list(dict.fromkeys(pair for compared in pairs.values() for pair in compared))
    if not every:
        return [], []
    records = _compared(_recipes(cells, finished), groups, every)
    lines = _in_columns(groups, pairs, records) if len(to) > 1 else _in_rows(records)
    seeds = {setting: {line["seed"] for line in group} for setting, group in groups.items()}
    if any(seeds[setting] != seeds[base] and seeds[setting] & seeds[base] for setting, base in every):
        lines += ["", "Settings with other seeds than what they are compared with: over the seeds that both have."]
    unequal = []
    for setting, base in every:
        steps, of_base = work_of(groups[setting])[:1], work_of(groups[base])[:1]
        if steps and of_base and steps != of_base:
            unequal.append(f"{setting} ({steps[0]:,.0f}) and {base} ({of_base[0]:,.0f})")
    return [*lines, "", f"Not of equal steps: {'; '.join(unequal)}."] if unequal else lines, records


def _recipes(cells: Sequence[Cell], finished: Mapping[str, Line]) -> list[Recipe]:
    """A recipe for every combination of pair lists: the cells of each seed may be evaluated on people of their own."""
    recipes: dict[str, Recipe] = {}
    for cell in cells:
        if (digest := cell.digest) in finished:
            recipes.setdefault(str(sorted(finished[digest].get("lists", {}).items())), cell.recipe)
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
        drawn = {
            setting: merged(
                resampled(line["evidence"].get(name, ()), bootstrap, line["seed"])
                for line in groups[setting]
                for bootstrap in bootstraps
            )
            for setting in groups
            if any(setting in pair for pair in pairs)
        }
        for setting, base in pairs:
            apart = differences(drawn[setting], drawn[base]).items()
            records += [
                Record(setting, f"{name}/{figure}", value, base, low=low, high=high, seeds=paired.seeds)
                for figure, paired in apart
                for value, low, high in [paired.in_unit]
            ] or [Record(setting, name, np.nan, base)]
    return records


def _in_rows(records: Sequence[Record]) -> list[str]:
    """A row for every setting and figure."""
    several = sorted({record.by for record in records})
    to = several[0] if len(several) == 1 else "the setting named beside each"
    beside = ["to"] if len(several) > 1 else []
    rows = []
    for record in records:
        setting = [record.setting, *([record.by] if beside else [])]
        texts = ["", "", OTHER_PAIRS] if np.isnan(record.value) else [*_numbers(record), verdict_of(record)]
        rows.append([*setting, figure_name(record.metric), *texts])
    names = [record.metric for record in records]
    text = f"Differences to {to}, {_points(names)}, 95 % interval (2,000 paired draws of identities and seeds):"
    header = ["setting", *beside, "figure", "difference", "interval", "verdict"]
    return ["", text, "", *Grid.of(header, rows, left=2 + len(beside)).markdown()]


def _points(names: Sequence[str]) -> str:
    """What differences are counted in."""
    in_percent = all(figure_of(name).unit == PERCENT for name in names)
    return "percent points" if in_percent else "percent points or the unit that a figure names"


def _in_columns(groups: Groups, pairs: Mapping[str, Sequence[tuple[str, str]]], records: Sequence[Record]) -> list[str]:
    """For each baseline a table with a row for every setting, beneath the row of what it is compared with."""
    by_pair: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_pair.setdefault((record.setting, record.by), []).append(record)
    names = list(dict.fromkeys(record.metric for record in records if not np.isnan(record.value)))
    units = _points(names)
    lines = [
        "",
        f"Differences in {units} and their 95 % intervals (2,000 paired draws of the evaluated identities and of the",
        "seeds), in a table for each baseline. A row `to …` has that setting's own figures. Beneath it stand the",
        "settings that are compared with it: of those with the baseline it is most like them. **Bold**: the interval",
        "does not hold zero, and is of several seeds.",
        "What one table compares is not compared the other way round in a later one.",
    ]
    earlier_pairs: set[frozenset[str]] = set()
    for baseline, compared in pairs.items():
        new = [pair for pair in compared if frozenset(pair) not in earlier_pairs]
        earlier_pairs |= {frozenset(pair) for pair in new}
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
    if record.seeds < 2:
        return "one seed"
    return "undecided" if not record.is_decided else "higher" if (record.low or 0) > 0 else "lower"


def check_figure(cells: Sequence[Cell], metric: str) -> None:
    """Raise RecipeError where no cell is evaluated on the list of `LIST/METRIC`."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.recipe.evaluation.pairs))
    if metric.partition("/")[0] not in names:
        raise unknown_name(metric.partition("/")[0], names, "--figure")


def figure(cells: Sequence[Cell], differences: Sequence[Record], base_of: Mapping[str, str], metric: str) -> Chart:
    """Each setting less what it is compared with: a dot, and the 95 % interval over people and seeds.

    A dot is a ring where nothing is decided. Raises RecipeError for a figure that the list does not have.
    """
    labels = {cell.setting: cell.label for cell in cells}
    records = [record for record in differences if record.by == base_of.get(record.setting)]
    of_metric = [record for record in records if record.metric == metric]
    if not of_metric:
        have = list(dict.fromkeys(record.metric for record in records if not np.isnan(record.value)))
        raise unknown_name(metric, have, "--figure")
    bases = {base_of[record.setting] for record in records}
    return differences_chart(of_metric, labels, labels[bases.pop()] if len(bases) == 1 else "the baseline most like it")


# --- in what is of no list --------------------------------------------------------------------------------------------


def of_numbers(numbers: Sequence[Record], to: Sequence[Mapping[str, str]], what: str) -> list[str]:
    """Each setting less what it is compared with, in numbers of runs and not of a list: intervals over seeds alone."""
    by_seed: dict[tuple[str, str], dict[int | None, list[float]]] = {}
    for record in numbers:
        by_seed.setdefault((record.setting, record.metric), {}).setdefault(record.seed, []).append(record.value)
    metrics = list(dict.fromkeys(record.metric for record in numbers))
    rows = []
    for setting, base in _pairs(to):
        texts = [_apart(by_seed.get((setting, name), {}), by_seed.get((base, name), {})) for name in metrics]
        rows += [[setting, base, *texts]] if any(texts) else []
    if not rows:
        return []
    text = f"Differences in {what}, 95 % interval over seeds. **Bold**: it does not hold zero."
    return ["", text, "", *Grid.of(["setting", "less", *metrics], rows, left=2).markdown()]


def _apart(first: Mapping[int | None, list[float]], second: Mapping[int | None, list[float]]) -> str:
    """Mean and interval of paired seeds; a seed's runs are averaged first. Empty where both have no seed in common."""
    apart = np.array([np.mean(first[seed]) - np.mean(second[seed]) for seed in first if seed in second])
    if not len(apart):
        return ""
    mean = apart.mean()
    if len(apart) == 1:
        return f"{mean:+.2f} (one seed)"
    low, high = interval(np.array([mean]), [apart])
    text = f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
    return text if low <= 0 <= high else f"**{text}**"


# --- in how clients are served ----------------------------------------------------------------------------------------


def of_clients(groups: Groups, to: Sequence[Mapping[str, str]]) -> list[str]:
    """How well clients are served, less how well by the setting that each of `to` names, and by a setting's own kinds.

    Two settings are compared by the model that is most the client's own (the branch, else its backbone, else
    everybody's), and, where that is of two kinds, by the kinds that both have as well; no two the other way round.
    """
    across = _pairs(to)
    served = [personalised.by_kind(line.get("personalised", {})) for group in groups.values() for line in group]
    metrics = list(dict.fromkeys(name for kinds in served for by_metric in kinds.values() for name in by_metric))
    rows = []
    for setting, group in groups.items():
        kinds = _kinds(group)
        bases = [base for compared, base in across if compared == setting]
        pairs = [pair for base in bases for pair in _settings_apart(kinds, base, _kinds(groups[base]))]
        pairs += [(kind, setting, before) for before, kind in zip(kinds[:-1], kinds[1:], strict=True)]
        for kind, base, base_kind in pairs:
            for name in metrics:
                if (apart := _clients_apart(group, kind, groups[base], base_kind, name)) is not None:
                    value, low, high, seeds = apart
                    names = f"{setting} by {kind}", name, value, f"{base} by {base_kind}"
                    record = Record(*names, low=low, high=high, seeds=seeds)
                    rows.append([record.setting, record.by, figure_name(name), *_numbers(record), verdict_of(record)])
    if not rows:
        return []
    text = f"Differences in percent points, 95 % interval ({DRAWS:,} paired draws of clients and seeds):"
    header = ["setting", "less", "figure", "difference", "interval", "verdict"]
    return ["", text, "", *Grid.of(header, rows, left=3).markdown()]


def _kinds(group: Sequence[Line]) -> list[str]:
    """By which models clients are served after training, the most own last."""
    return [kind for kind in personalised.KINDS if any(kind in line.get("personalised", {}) for line in group)]


def _settings_apart(kinds: Sequence[str], base: str, base_kinds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, the other setting, its kind) of what is compared."""
    if kinds and base_kinds:
        yield kinds[-1], base, base_kinds[-1]
        if kinds[-1] != base_kinds[-1]:
            yield from ((kind, base, kind) for kind in kinds if kind in base_kinds)


def _clients_apart(
    first: Sequence[Line], kind: str, second: Sequence[Line], base_kind: str, metric: str
) -> tuple[float, float, float, int] | None:
    """A figure's difference over the clients and seeds that both have, its interval, and how many seeds these are.

    None where there are none.
    """
    seeds = []
    for seed in sorted({line["seed"] for line in first} & {line["seed"] for line in second}):
        first_values, second_values = (
            _clients(group, seed, model, metric) for group, model in ((first, kind), (second, base_kind))
        )
        if clients := sorted(first_values.keys() & second_values.keys()):
            seeds.append(np.array([first_values[client] - second_values[client] for client in clients]))
    if not seeds:
        return None
    rng = generator(0, "personalised", "draws")
    drawn = np.mean([gaps[rng.integers(0, len(gaps), (DRAWS, len(gaps)))].mean(axis=1) for gaps in seeds], axis=0)
    points = np.array([gaps.mean() for gaps in seeds])
    return float(points.mean()), *interval(drawn, [points]), len(points)


def _clients(group: Sequence[Line], seed: int, kind: str, metric: str) -> dict[str, float]:
    """Client -> a figure by one kind of model."""
    clients = [line.get("personalised", {}).get("clients", {}) for line in group if line["seed"] == seed]
    return {
        name: by[kind][metric] for by_client in clients for name, by in by_client.items() if metric in by.get(kind, {})
    }
