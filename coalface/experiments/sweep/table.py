"""The table of a sweep: a row for every setting, final training losses, and paired differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from coalface.core.errors import RecipeError
from coalface.evaluation.metrics.bootstrap import PairIdentities
from coalface.evaluation.metrics.paired import PairedDifference, Resampled, compare, same_pairs
from coalface.experiments.compare import bootstrap_of, resampled
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.runs import clean, figure_name, size, start_name
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep.grid import Cell
from coalface.experiments.sweep.side_tables import (
    aligned,
    by_seed,
    clients_of,
    clusters,
    cosines,
    domain_gaps,
    enrolled,
    flat,
    mean_and_spread,
    personalised,
    public_images,
    unlike_code,
    unlike_starts,
)
from coalface.methods import METHODS

MANY = 16
"""Parties up to which a table has the final training loss of each."""


def table(
    cells: Sequence[Cell],
    done: Mapping[str, Mapping[str, Any]],
    baselines: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
) -> tuple[str, bool]:
    """The table in Markdown: a row for every setting with its mean and spread over seeds, then the differences.

    Of one baseline, or of none (then to the first setting), they have a row for every setting and figure; of several
    there is a table for each, with a row for every setting.

    Also whether it is whole: False where the images that the differences need cannot be read here, and they are left
    out. Cells that are not in `done` are listed with their reason from `failed`.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    seeds: dict[str, int] = {}
    for cell in cells:
        group = groups.setdefault(cell.setting, [])
        group += [done[digest]] if (digest := cell.recipe.digest()) in done else []
        seeds[cell.setting] = seeds.get(cell.setting, 0) + 1
    there = {label: group for label, group in groups.items() if group}
    names = list(dict.fromkeys(n for g in there.values() for n in flat(g[0]["figures"]) if not n.endswith("_se")))
    halves = dict.fromkeys(cell.chosen["fold_split"] for cell in cells if "fold_split" in cell.chosen)
    rows = [["setting", "runs" if halves else "seeds", *map(figure_name, names), "down", "up", "seconds"]]
    starts: dict[str, list[Mapping[str, Any]]] = {}  # what was not trained yet, of the first setting that starts so
    for cell in cells:
        if cell.setting in there:
            starts.setdefault(start_name(cell.recipe.pretrain), there[cell.setting])
    rows += [_row(label, group, "untrained", names) for label, group in starts.items()]
    for label, group in groups.items():
        row = _row(label, group, "figures", names) if group else [label, "0", *[""] * (len(names) + 3)]
        row[1] += "" if len(group) == seeds[label] else f" of {seeds[label]}"
        rows.append(row)
        for half in halves if group else ():
            mine = [cell for cell in group if cell["cell"].get("fold_split") == half]
            rows += [_row(f"{label}, fold_split={half}", mine, "figures", names)] if mine else []
    lines = [*aligned(rows, left=1), "", *_said_of_figures(cells, bool(halves)), *_said_of_bounds(cells)]
    lines += unlike_starts(cells, done)
    lines += unlike_code(cells, done)
    lines += domain_gaps(cells, there)
    lines += clusters(there)
    lines += enrolled(there)
    to: dict[str, dict[str, str]] = {}  # baseline -> setting -> what it is compared with
    for wanted in (baselines or (None,)) if there else ():
        bases = _bases(list(groups if baselines else there), wanted)
        to[wanted or ""] = {label: base for label, base in bases.items() if base in there}
    people = {cell.setting: clients_of(cell.recipe) for cell in cells}
    alike = [{one: base for one, base in each.items() if people[one] == people[base]} for each in to.values()]
    if served := personalised(there, alike):
        lines += served
        if any(len(own) < len(each) for own, each in zip(alike, to.values(), strict=True)):
            lines += ["", "Settings whose clients have other people than the baseline's are not compared with it."]
    lines += public_images(there)
    lines += cosines(there)
    whole = True
    if missing := [cell for cell in cells if cell.recipe.digest() not in done]:
        reasons = [(failed or {}).get(cell.recipe.digest(), "not run") for cell in missing]
        lines += ["", *(f"- {c.name or c.setting}: failed: {why}" for c, why in zip(missing, reasons, strict=True))]
    if len(there) > 1:
        try:
            lines += _differences(_recipes(cells, done), there, to)
        except (OSError, ValueError) as error:
            whole = False
            lines += ["", f"Differences are left out: their pair lists cannot be made here ({clean(error)})."]
    lines += _losses(there)
    return "\n".join(lines) + "\n", whole


def _said_of_figures(cells: Sequence[Cell], both: bool) -> list[str]:
    """What the numbers of a table are."""
    beside = "Bytes and seconds: mean of a run."
    if both:
        return [
            "Figures in percent: mean over seeds ± standard deviation over seeds. fold_split=first: the validators",
            "hold the first half of the folds and the figures are of the other half; second: the other way round.",
            f"A setting's own row is of each seed's mean of both. {beside}",
        ]
    lines = [f"Figures in percent: mean over seeds ± standard deviation over seeds. {beside}"]
    split = next((cell.recipe for cell in cells if cell.recipe.fold_split is not None), None)
    if split is not None:
        on = ", ".join(dict.fromkeys(v.validates for v in split.validators.values() if v.validates is not None))
        lines += [f"Of {on} these are of one half alone: fold_split=first,second gives both and their mean."]
    return lines


def _said_of_bounds(cells: Sequence[Cell]) -> list[str]:
    """Which methods for two domains are no federation."""
    used = [name for name in dict.fromkeys(cell.recipe.method for cell in cells) if METHODS[name].scenario == "domains"]
    pooled = [
        n + (", told who is in the target's images" if METHODS[n].pools == "images and labels" else "")
        for n in used
        if METHODS[n].pools
    ]
    return [f"Pooled at one party, and no federation: {'; '.join(pooled)}."] if pooled else []


def _row(label: str, group: Sequence[Mapping[str, Any]], key: str, names: Sequence[str]) -> list[str]:
    mine = [flat(cell[key]) for cell in group]
    shown = [mean_and_spread(by_seed(group, [f.get(name) for f in mine])) for name in names]
    ran = key == "figures"
    shown += [size(float(np.mean([c["bytes"][way] for c in group]))) if ran else "" for way in ("down", "up")]
    shown.append(f"{np.mean([c['seconds']['total'] for c in group]):.0f}" if ran else "")
    return [label, str(len(group)), *shown]


def _losses(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The final training loss of each party, where the cells have those of a few parties."""
    cells = [cell for group in groups.values() for cell in group]
    parties = list(dict.fromkeys(party for cell in cells for party in cell.get("losses", ())))
    if not 1 < len(parties) <= MANY:
        return []
    rows = [["setting", *parties]]
    for label, group in groups.items():
        each = [[cell["losses"][party] for cell in group if party in cell.get("losses", ())] for party in parties]
        rows.append([label, *map(mean_and_spread, each)])
    said = "Final training loss of each party, smoothed over steps by 0.99: mean over runs ± standard deviation."
    return ["", said, "", *aligned(rows, left=1)]


def baseline_of(settings: Sequence[str], wanted: str | None) -> str:
    """The first setting that has the wanted `key=value`."""
    return _having(settings, wanted)[0]


def _having(settings: Sequence[str], wanted: str | None) -> list[str]:
    if wanted is None:
        return list(settings[:1])
    if wanted in settings:  # a whole setting, and not what others have in common with it
        return [wanted]
    found = [setting for setting in settings if wanted in (setting, *setting.split(", "))]
    if not found:
        known = "; ".join(dict.fromkeys(settings))
        raise RecipeError(f"--baseline {wanted}: no setting of the sweep has it; there are {known}")
    return found


def _bases(settings: Sequence[str], wanted: str | None) -> dict[str, str]:
    """Setting -> what it is compared with: of those that have the wanted `key=value`, the one most like it."""
    found = _having(settings, wanted)

    def shared(one: str, other: str) -> int:
        return len(set(one.split(", ")) & set(other.split(", ")))

    return {one: one if one in found else max(found, key=lambda base: shared(one, base)) for one in settings}


Found = Mapping[str, Mapping[tuple[str, str], Mapping[str, PairedDifference]]]
"""Pair list -> (setting, what it is compared with) -> figure -> their difference; none if evaluated on other pairs."""


def _recipes(cells: Sequence[Cell], done: Mapping[str, Mapping[str, Any]]) -> list[Recipe]:
    """A recipe for every combination of evaluated lists: each seed may be evaluated on people of its own."""
    found: dict[str, Recipe] = {}
    for cell in cells:
        if (digest := cell.recipe.digest()) in done:
            found.setdefault(str(sorted(done[digest].get("lists", {}).items())), cell.recipe)
    return list(found.values())


def _differences(
    recipes: Sequence[Recipe], groups: Mapping[str, Sequence[Mapping[str, Any]]], to: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Each setting less what it is compared with; `to` says for each baseline with what, itself being left out."""
    pairs = {
        wanted: [(label, base) for label in groups if (base := bases.get(label, label)) != label]
        for wanted, bases in to.items()
    }
    every = {pair for each in pairs.values() for pair in each}
    if not every:
        return []
    found = _compared(recipes, groups, every)
    lines = _in_columns(groups, pairs, found) if len(to) > 1 else _in_rows(next(iter(pairs.values())), found)
    seeds = {label: {cell["seed"] for cell in group} for label, group in groups.items()}
    if any(seeds[label] != seeds[base] and seeds[label] & seeds[base] for label, base in every):
        lines += ["", "Settings with other seeds than what they are compared with: over the seeds that both have."]
    return lines


def _compared(
    recipes: Sequence[Recipe], groups: Mapping[str, Sequence[Mapping[str, Any]]], pairs: Collection[tuple[str, str]]
) -> Found:
    """The paired differences on each evaluated list. A setting is drawn again once, however often it is compared."""
    lists: dict[str, dict[str, PairIdentities]] = {}
    for recipe in recipes:
        for chosen in Parts(recipe).pairs:
            lists.setdefault(chosen.name, {})[chosen.identities.sha256] = chosen.identities
    found: dict[str, dict[tuple[str, str], dict[str, PairedDifference]]] = {}
    for name, each in lists.items():
        bootstraps = [bootstrap_of(identities) for identities in each.values()]
        drawn: dict[str, dict[int, dict[str, list[Resampled]]]] = {}  # setting -> seed -> figure
        for label, group in groups.items():
            if any(label in pair for pair in pairs):
                drawn[label] = {}
                for cell in group:
                    of_seed = drawn[label].setdefault(cell["seed"], {})
                    for bootstrap in bootstraps:
                        for figure, runs in resampled(cell["evidence"].get(name, ()), bootstrap).items():
                            of_seed.setdefault(figure, []).extend(runs)
        found[name] = {(label, base): _apart(drawn[label], drawn[base]) for label, base in pairs}
    return found


def _apart(
    mine: Mapping[int, Mapping[str, list[Resampled]]], base: Mapping[int, Mapping[str, list[Resampled]]]
) -> dict[str, PairedDifference]:
    """Figure -> the difference over the seeds that both have, or over all where they have none in common."""
    seeds = mine.keys() & base.keys()
    first, second = (
        [each for seed, each in sorted(side.items()) if seed in seeds or not seeds] for side in (mine, base)
    )
    found = {}
    for figure in dict.fromkeys(figure for each in first for figure in each):
        sides = [[run for each in side for run in each.get(figure, ())] for side in (first, second)]
        if sides[1] and same_pairs(sides[0], sides[1]):
            found[figure] = compare(sides[0], sides[1])
    return found


OTHER_PAIRS = "evaluated on other pairs"


def _in_rows(pairs: Sequence[tuple[str, str]], found: Found) -> list[str]:
    """A row for every setting and figure."""
    several = sorted({base for _, base in pairs})
    to = several[0] if len(several) == 1 else "the setting named beside each"
    said = f"Differences to {to}, percent points, 95 % interval (2,000 paired draws of the evaluated identities):"
    beside = ["to"] if len(several) > 1 else []
    rows = [["setting", *beside, "figure", "difference", "interval", "verdict"]]
    for name, by_pair in found.items():
        for label, base in pairs:
            first = [label, base] if beside else [label]
            if not by_pair[label, base]:
                rows.append([*first, name, "", "", OTHER_PAIRS])
            for figure, difference in by_pair[label, base].items():
                verdict = "higher" if difference.low > 0 else "lower" if difference.high < 0 else "undecided"
                rows.append([*first, figure_name(f"{name}/{figure}"), *_numbers(difference), verdict])
    return ["", said, "", *aligned(rows, left=2 + len(beside))]


def _in_columns(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    pairs: Mapping[str, Sequence[tuple[str, str]]],
    found: Found,
) -> list[str]:
    """For each baseline a table with a row for every setting, beneath the row of what it is compared with."""
    figures = {name: list(dict.fromkeys(f for of in by_pair.values() for f in of)) for name, by_pair in found.items()}
    names = [f"{name}/{figure}" for name, each in figures.items() for figure in each]
    lines = [
        "",
        "Differences in percent points and their 95 % intervals (2,000 paired draws of the evaluated identities), in a",
        "table for each baseline. A row `to …` has that setting's own figures. Beneath it stand the settings that are",
        "compared with it: of those with the baseline it is most like them. **Bold**: the interval does not hold zero.",
        "What one table compares is not compared the other way round in a later one.",
    ]
    shown: set[frozenset[str]] = set()
    for wanted, each in pairs.items():
        new = [pair for pair in each if frozenset(pair) not in shown]
        shown |= {frozenset(pair) for pair in new}
        rows = [["setting", *map(figure_name, names)]]
        for base in groups:
            if beneath := [pair for pair in new if pair[1] == base]:
                rows.append([f"to {base}", *_row(base, groups[base], "figures", names)[2 : 2 + len(names)]])
                rows += [[pair[0], *_cells(figures, found, pair)] for pair in beneath]
        if len(rows) > 1:
            lines += ["", f"Differences to {wanted}:", "", *aligned(rows, left=1)]
    return lines


def _cells(figures: Mapping[str, Sequence[str]], found: Found, pair: tuple[str, str]) -> list[str]:
    shown = []
    for name, each in figures.items():
        for figure in each:
            difference = found[name][pair].get(figure)
            text = "{} ({})".format(*_numbers(difference)) if difference is not None else ""
            decided = difference is not None and not difference.low <= 0 <= difference.high
            shown.append(f"**{text}**" if decided else text if found[name][pair] else OTHER_PAIRS)
    return shown


def _numbers(difference: PairedDifference) -> list[str]:
    """The difference and its interval as text, in percent points."""
    middle, low, high = (f"{100 * value:+.2f}" for value in (difference.difference, difference.low, difference.high))
    return [middle, f"{low} to {high}"]
