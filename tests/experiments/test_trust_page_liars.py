"""`docs/trust.md`: what liars do is what the cells of attacks have."""

from __future__ import annotations

import json

from trustpage import NOISE, assert_shows, assert_tells, bullet, cells, entries, method_of, rows

from coalface.experiments.attacks.poisoning import HOW

LOST, ACCEPTED = "accuracy lost, points", "impostors with glasses on both accepted, %"
TRIMMED = "engine.aggregator.name=trimmed-mean engine.aggregator.byzantine=0.2"
RULES = {
    "mean": "none",
    "mean, with the default bound": "engine.max_update_norm=30",
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


def test_one_liar_of_ten_does_what_the_cells_have() -> None:
    of_cells = cells("poisoning")
    lost: dict[str, float] = {}
    accepted: dict[str, float] = {}
    for (title, options, defence, _, figure), value in of_cells.items():
        if title == "poisoned" and json.loads(options)["share"] == 0.1 and "hidden" not in options:
            of_figure = lost if figure == LOST else accepted
            if figure in (LOST, ACCEPTED):
                of_figure[defence] = max(value, of_figure.get(defence, value))
    two_held = [RULES["Multi-Krum"], RULES["trimmed mean, mixing"]]
    others = [value for defence, value in accepted.items() if defence not in ("none", *two_held)]
    expected = [
        lost.pop("none"),
        max(lost.values()),
        accepted["none"],
        *(accepted[defence] for defence in two_held),
        min(others),
        max(others),
    ]
    for text, value in zip(bullet("One liar of ten"), expected, strict=True):
        assert_shows(text, value)


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
    backdoor_of_fedavg, backdoor = of_devices(ACCEPTED, "backdoor replacement")
    _, backdoor_under_median = of_devices(ACCEPTED, "backdoor", "median")
    expected = [
        *(scaled[0], scaled[-1], of_devices(LOST, "scaled", "median")[1][-1], sign[0], sign[-1]),
        *(of_devices(LOST, "ipm")[1][-1], label[-1], backdoor[0], backdoor[-1]),
        *(backdoor_under_median[0], backdoor_under_median[-1]),
        *(of_fedavg, honest, renamed, label_of_fedavg, sign_of_fedavg, backdoor_of_fedavg),
    ]
    assert_tells("Clients of one person: liars", 2, *expected)


def test_liars_under_other_methods_do_what_the_cells_have() -> None:
    scaled, under_median = (by_method("poisoned", LOST, "scaled", rule) for rule in ("mean", "median"))
    feddyn = under_median.pop("feddyn")
    others = by_method("poisoned", LOST, "flipped label-flip alie ipm mimic")
    accepted = [by_method("poisoned", ACCEPTED, "backdoor replacement", rule) for rule in ("mean", "median")]
    least, least_under_median = (min(values.values()) for values in accepted)
    most, most_under_median = (max(values.values()) for values in accepted)
    expected = [min(scaled.values()), max(scaled.values()), max(under_median.values()), feddyn, max(others.values())]
    assert_tells("Other methods: liars", 0, *expected, least, most, least_under_median, most_under_median)


def test_liars_whom_the_table_says_to_do_harm_do_it() -> None:
    """More than two points lost, or half of the impostors accepted, by whichever lie does most."""
    shown, seen = entries(5), set()
    for scenario in ("poisoned", "devices", "silos"):
        lost = by_method(scenario, LOST, " ".join(HOW))
        accepted = by_method(scenario, ACCEPTED, " ".join(HOW))
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
        *(
            max(value for how, figure, value in of_cells if how in hows and "on both" in figure)
            for hows in (("backdoor", "replacement"), ("hidden",))
        ),
    ]
    for text, value in zip(bullet("With noise of ε = 1.8"), expected, strict=True):
        assert_shows(text, value)


def test_what_liars_do_is_what_the_cells_have() -> None:
    of_cells = cells("poisoning")
    shown = rows("| mean | lost to scaling |")
    assert shown.keys() == RULES.keys()
    for rule, (scaled, worst, backdoor, near) in shown.items():
        defence = RULES[rule]

        def value(figure: str, *hows: str, defence: str = defence, **factor: int) -> float | None:
            options = [json.dumps({**factor, "how": how, "share": 0.2}) for how in hows]
            known = [of_cells.get(("poisoned", o, defence, "unseen", figure)) for o in options]
            return max((v for v in known if v is not None), default=None)

        others = value(LOST, "flipped", "label-flip", "alie", "ipm", "mimic"), value(LOST, "ipm", factor=5)
        expected = [
            (scaled, value(LOST, "scaled"), True),
            (worst, max((v for v in others if v is not None), default=None), True),
            (backdoor, value(ACCEPTED, "backdoor", "replacement"), False),
            (near, value(ACCEPTED, "hidden"), False),
        ]
        for text, of_rule, is_lost in expected:
            assert (text == "?") == (of_rule is None)
            if of_rule is not None:
                assert_shows(text, of_rule)
                assert text.startswith("**") == (is_lost and of_rule > 2)
