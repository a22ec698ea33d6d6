"""`docs/trust.md`: what liars do is what the cells of attacks have."""

from __future__ import annotations

import functools
import json
import math
import re
import statistics

from trustpage import NOISE, PAGE, assert_shows, assert_tells, bullet, cells, entries, method_of, rows

from coalface.experiments.attacks import measure
from coalface.experiments.attacks.cells import read_cells
from coalface.experiments.attacks.poisoning import ACCURACY, AS_TARGET, BACKDOORS, BOTH, HOW

LOST = "accuracy lost, points"
STUDENT = {5: 2.776, 7: 2.447}
"""Of so many seeds: the 97.5 % quantile of Student's t."""
LIES = {
    "ALIE": ("alie",),
    "mimicry": ("mimic",),
    "label flips": ("label-flip",),
    "IPM of 2": ("ipm",),
    "IPM of 5": ("ipm", 5),
}
SEEDS_END = 10
"""The first seed that no lie was tried on anew."""
TRIMMED = "engine.aggregator.name=trimmed-mean engine.aggregator.byzantine=0.2"
RULES = {
    "mean": "none",
    "median": "engine.aggregator.name=median",
    "trimmed mean": TRIMMED,
    "geometric median": "engine.aggregator.name=geometric-median",
    "clipping": "engine.aggregator.name=centred-clipping",
    "norm bound": "engine.aggregator.name=norm-bound",
    "median of buckets": "engine.aggregator.name=median engine.aggregator.bucket=2",
    "Multi-Krum": "engine.aggregator.name=multi-krum engine.aggregator.byzantine=0.2",
    "trimmed mean, mixing": f"{TRIMMED} engine.aggregator.mixing=true",
    "Krum": "engine.aggregator.name=krum engine.aggregator.byzantine=0.2",
}


@functools.cache
def by_seed(title: str = "poisoned") -> dict[tuple[str, str, str], dict[int, tuple[float, float]]]:
    """(options, defence, figure) -> seed -> (value, chance)."""
    found: dict[tuple[str, str, str], dict[int, tuple[float, float]]] = {}
    for cell in read_cells(PAGE.parent / "results" / "attacks" / "poisoning" / measure.CELLS):
        for outcome in cell.outcomes if cell.title == f"attacks/{title}" else ():
            of_figure = found.setdefault((cell.options, cell.defence, outcome.figure), {})
            of_figure[cell.seed] = outcome.value, outcome.chance
    return found


def options(how: str, factor: int | None = None, *, share: float = 0.2, **more: int) -> str:
    return json.dumps({**({} if factor is None else {"factor": factor}), "how": how, "share": share, **more})


def mean_of(key: tuple[str, str, str]) -> float:
    return statistics.mean(value for value, _ in by_seed()[key].values())


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of a 95 % interval."""
    return statistics.mean(values), STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def verdict(mean: float, half: float) -> str:
    return "missed" if mean - half > 2 else "kept" if mean + half <= 2 else "undecided"


def lost_anew(rule: str, lie: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """What a lie costs on seeds that did not choose it: to the rule's own honest runs, and to those of the mean."""
    accuracy = by_seed()[options(*LIES[lie]), RULES[rule], ACCURACY]
    of_mean = by_seed()[options("ipm", 5), "none", ACCURACY]
    seeds = sorted(seed for seed in accuracy if seed > 2)
    assert seeds == list(range(3, SEEDS_END))
    own = [accuracy[seed][1] - accuracy[seed][0] for seed in seeds]
    return interval(own), interval([of_mean[seed][1] - accuracy[seed][0] for seed in seeds])


def worst(rule: str, share: float = 0.2) -> tuple[float, str]:
    """The largest mean loss of seeds 0 to 2 under the lies but scaling, and which it is of."""
    hows = {"flips of sign": ("flipped",), **LIES}
    return max(
        (statistics.mean(by_seed()[options(*lie, share=share), RULES[rule], LOST][seed][0] for seed in range(3)), name)
        for name, lie in hows.items()
    )


def test_one_liar_of_ten_does_what_the_cells_have() -> None:
    """Of Krum and buckets IPM of 5 alone, beside backdoors."""
    scaled = {
        rule: mean_of((options("scaled", share=0.1), defence, LOST))
        for rule, defence in RULES.items()
        if rule not in ("Krum", "median of buckets")
    }
    others = [max(worst(rule, 0.1)[0], lost) for rule, lost in scaled.items() if rule != "mean"]
    ipm = {rule: mean_of((options("ipm", 5, share=0.1), defence, LOST)) for rule, defence in RULES.items()}
    expected = [scaled["mean"], ipm["mean"], max(others), ipm["median of buckets"], ipm["Krum"]]
    for text, value in zip(bullet("One liar of ten"), expected, strict=True):
        assert_shows(text, value)


def test_the_default_bound_does_what_the_cells_have() -> None:
    bound, told = "engine.max_update_norm=30", bullet("The default bound")
    (twenty,) = {key for key in by_seed(f"poisoned {bound}") if key[2] == LOST}
    assert_shows(told[1], mean_of((options("scaled"), bound, LOST)))
    assert_shows(told[3], statistics.mean(value for value, _ in by_seed(f"poisoned {bound}")[twenty].values()))


def test_a_backdoor_does_what_the_cells_have() -> None:
    """In the table: as the target, of two liars and near, and of one; seeds within the goal; both with glasses."""
    shown = rows("| mean | as the target |")
    assert shown.keys() == RULES.keys()
    for rule, row in shown.items():
        of_cells = {
            (figure, how, share): by_seed()[options(how, share=share), RULES[rule], figure]
            for figure in (AS_TARGET, BOTH)
            for how in BACKDOORS
            for share in (0.2, 0.1)
        }
        assert all(of_seeds.keys() == {0, 1, 2} for of_seeds in of_cells.values())
        means = {key: statistics.mean(v for v, _ in of_seeds.values()) for key, of_seeds in of_cells.items()}
        for text, figure, ways, share in (
            (row[0], AS_TARGET, BACKDOORS[:2], 0.2),
            (row[1], AS_TARGET, BACKDOORS[2:], 0.2),
            (row[2], AS_TARGET, BACKDOORS, 0.1),
            (row[4], BOTH, BACKDOORS[:2], 0.2),
            (row[5], BOTH, BACKDOORS[2:], 0.2),
            (row[6], BOTH, BACKDOORS[:2], 0.1),
            (row[7], BOTH, BACKDOORS[2:], 0.1),
        ):
            way = max(ways, key=lambda how: means[figure, how, share])
            assert_shows(text, means[figure, way, share])
            if ranged := re.search(r"\(([\d.]+) to ([\d.]+)\)", text):
                values = [value for value, _ in of_cells[figure, way, share].values()]
                for number, value in zip(ranged.groups(), (min(values), max(values)), strict=True):
                    assert_shows(number, value)
        within = [all(of_cells[AS_TARGET, how, 0.2][seed][0] <= 5 for how in BACKDOORS) for seed in range(3)]
        assert row[3] == str(sum(within)), rule


def test_without_liars_nobody_passes_as_the_target_but_pairs_with_glasses_do() -> None:
    chances = {
        figure: [
            statistics.mean(chance for _, chance in by_seed()[options("backdoor"), defence, figure].values())
            for defence in RULES.values()
        ]
        for figure in (AS_TARGET, BOTH)
    }
    text = PAGE.read_text(encoding="utf-8")
    told = re.search(r"without liars ([\d.]+) % at most, [^.]* without liars ([\d.]+) to ([\d.]+) %", text)
    assert told
    for number, value in zip(
        told.groups(), (max(chances[AS_TARGET]), min(chances[BOTH]), max(chances[BOTH])), strict=True
    ):
        assert_shows(number, value)


def by_method(scenario: str, figure: str, how: str, rule: str = "mean") -> dict[str, float]:
    """Method -> the most that lies which begin so do to it under a mean."""
    values: dict[str, float] = {}
    for (title, options, defence, _, of), value in cells("poisoning").items():
        is_of = title.startswith(f"{scenario} ") and "method=" in title and json.loads(options)["how"] in how.split()
        if is_of and (defence, of) == (RULES[rule], figure):
            values[method_of(title)] = max(value, values.get(method_of(title), value))
    return values


def test_liars_among_clients_of_one_person_do_what_the_cells_have() -> None:
    def of_devices(figure: str, how: str, rule: str = "mean") -> tuple[float, list[float]]:
        values = by_method("devices", figure, how, rule)
        fedavg = values.pop("fedavg", 0.0)
        assert len(values) == 6
        return fedavg, sorted(values.values())

    of_fedavg, scaled = of_devices(LOST, "scaled")
    sign_of_fedavg, sign = of_devices(LOST, "flipped")
    label_of_fedavg, label = of_devices(LOST, "label-flip")
    fedavg = "devices method=fedavg rounds=12 engine.max_update_norm=0"
    honest = cells("poisoning")[
        fedavg, json.dumps({"factor": 1.0, "how": "scaled", "share": 0.2}), "none", "unseen", LOST
    ]
    renamed = by_method("devices", LOST, "label-renamed")["fedavg"]
    backdoor_of_fedavg, backdoor = of_devices(BOTH, "backdoor replacement")
    _, backdoor_under_median = of_devices(BOTH, "backdoor", "median")
    target_of_fedavg, target = of_devices(AS_TARGET, "backdoor replacement")
    _, target_under_median = of_devices(AS_TARGET, "backdoor", "median")
    expected = [
        *(scaled[0], scaled[-1], of_devices(LOST, "scaled", "median")[1][-1], sign[0], sign[-1]),
        *(of_devices(LOST, "ipm")[1][-1], label[-1], backdoor[0], backdoor[-1]),
        *(backdoor_under_median[0], backdoor_under_median[-1]),
        *(target[0], target[-1], target_under_median[0], target_under_median[-1]),
        *(of_fedavg, honest, renamed, label_of_fedavg, sign_of_fedavg, backdoor_of_fedavg, target_of_fedavg),
    ]
    assert_tells("Clients of one person: liars", 2, *expected)


def test_liars_under_other_methods_do_what_the_cells_have() -> None:
    scaled, under_median = (by_method("poisoned", LOST, "scaled", rule) for rule in ("mean", "median"))
    feddyn = under_median.pop("feddyn")
    others = by_method("poisoned", LOST, "flipped label-flip alie ipm mimic")
    accepted = [
        by_method("poisoned", figure, "backdoor replacement", rule).values()
        for figure in (AS_TARGET, BOTH)
        for rule in ("mean", "median")
    ]
    ranges = [bound for values in accepted for bound in (min(values), max(values))]
    expected = [min(scaled.values()), max(scaled.values()), max(under_median.values()), feddyn, max(others.values())]
    assert_tells("Other methods: liars", 0, *expected, *ranges)


def test_liars_whom_the_table_says_to_do_harm_do_it() -> None:
    """More than two points lost, or half of those with glasses accepted as the target, by whichever lie does most."""
    shown, seen = entries(5), set()
    for scenario in ("poisoned", "devices", "silos"):
        lost = by_method(scenario, LOST, " ".join(HOW))
        accepted = by_method(scenario, AS_TARGET, " ".join(HOW))
        for method in lost.keys() | accepted.keys():
            does_harm = lost.get(method, 0.0) > 2 or accepted.get(method, 0.0) >= 50
            assert shown[method] == ("yes" if does_harm else "no"), method
            seen.add(method)
    assert shown.keys() == seen


def test_what_liars_do_under_noise_is_what_the_cells_have() -> None:
    of_cells = [
        (json.loads(options)["how"], figure, value)
        for (title, options, defence, _, figure), value in cells("poisoning").items()
        if (title, defence) == ("poisoned", NOISE)
    ]
    assert len({how for how, *_ in of_cells}) == 9
    expected = [
        max(value for _, figure, value in of_cells if figure == LOST),
        max(value for _, figure, value in of_cells if figure == AS_TARGET),
        *(
            max(value for how, figure, value in of_cells if how in hows and figure == BOTH)
            for hows in (("backdoor", "replacement"), ("hidden",))
        ),
    ]
    for text, value in zip(bullet("With noise of ε = 1.8"), expected, strict=True):
        assert_shows(text, value)


def test_liars_in_secure_sums_do_what_the_cells_have() -> None:
    secure = "privacy.secure=true engine.max_update_norm=null"
    expected = [
        mean_of((options("backdoor"), secure, AS_TARGET)),
        mean_of((options("backdoor"), secure, BOTH)),
        mean_of((options("label-flip"), secure, LOST)),
        mean_of((options("label-flip"), "none", LOST)),
    ]
    for text, value in zip(bullet("Secure sums"), expected, strict=True):
        assert_shows(text, value)


def test_what_outlasts_liars_who_leave_is_what_the_cells_have() -> None:
    """After the lie, and after as many honest rounds: under the mean, then under the median."""
    later = by_seed("poisoned rounds=16")
    expected = [
        value
        for defence in ("none", RULES["median"])
        for figure in (AS_TARGET, BOTH)
        for value in (
            mean_of((options("backdoor"), defence, figure)),
            statistics.mean(v for v, _ in later[options("backdoor", until=8), defence, figure].values()),
        )
    ]
    for text, value in zip(bullet("Liars who leave")[2:], expected, strict=True):
        assert_shows(text, value)


def test_what_liars_cost_is_what_the_cells_have() -> None:
    shown, of_rules = rows("| mean | lost to scaling |"), []
    assert shown.keys() == RULES.keys()
    for rule, (scaled, chosen, own, to_mean) in shown.items():
        assert_shows(scaled, mean_of((options("scaled"), RULES[rule], LOST)))
        lost, lie = worst(rule)
        assert_shows(chosen, lost)
        assert chosen.endswith(f"({lie})"), (rule, lie)
        for text, (mean, half) in zip((own, to_mean), lost_anew(rule, lie), strict=True):
            number, _, rest = text.partition(" ± ")
            assert_shows(number, mean)
            assert_shows(rest, half)
            assert rest.strip("*").endswith(verdict(mean, half)), (rule, mean, half)
        if rule != "mean":
            of_rules.append(own.strip("*").split()[-1])
    summary = rows("| method | template: who")["*with a robust mean*"][5]
    told = re.search(r"missed under (\d) rules, undecided under (\d), kept under (\d)", summary)
    assert told, summary
    assert [int(n) for n in told.groups()] == [of_rules.count(v) for v in ("missed", "undecided", "kept")]
