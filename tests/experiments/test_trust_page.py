"""`docs/trust.md`: its first table is what the declarations of every method say, and figures are those of the cells.

To write the first table anew: `REWRITE_TEXTS=1 .venv/bin/python -m pytest tests/experiments/test_trust_page.py`
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable

from trustpage import NOISE, PAGE, assert_shows, assert_tells, bullet, cells, entries, method_of, rows

from coalface.core.declarations import CONTENTS
from coalface.experiments.attacks.updates import GRADIENT, MEAN, UPDATE
from coalface.experiments.plan import messages, preflight
from coalface.experiments.plan.messages import Sent
from coalface.experiments.recipe import loader
from coalface.methods import METHODS

HEADER = "| method | the server sees of each party | all are sent | each is sent for itself |\n|---|---|---|---|\n"


def cell(sent: Iterable[Sent]) -> str:
    """Fields by what they hold, the most personal first; those of other parties than trainers behind their role."""
    by_role: dict[str, dict[str, dict[str, None]]] = {}
    for field in sent:
        name = f"`{field.field}`{'*' if field.kind.endswith('aggregated') else ''}"
        by_role.setdefault(field.role.partition("/")[0], {}).setdefault(field.content, {})[name] = None
    parts = []
    for role, contents in by_role.items():
        ordered = [f"{c} ({', '.join(contents[c])})" for c in CONTENTS if c in contents]
        parts.append(f"{'' if role == 'trainer' else f'{role}s: '}{', '.join(ordered)}")
    return "; ".join(parts) or "–"


@functools.cache
def planned(method: str) -> tuple[Sent, ...]:
    return preflight.plan(loader.load(None, [f"method={method}", *preflight.stand_in(method)])).sent


def declared(method: str) -> tuple[str, str]:
    """(who holds all images, where one party does; the cells of the method's row)."""
    fields = [field for field in planned(method) if field.field != "header"]
    up, down = ([f for f in fields if f.direction == way] for way in ("up", "down"))
    cells = [cell(up), cell(f for f in down if f.to == "all alike"), cell(f for f in down if f.to == "each its own")]
    pooled = f", one party with all {METHODS[method].pools}" if METHODS[method].pools else ""
    return pooled, " | ".join(cells)


def declared_table() -> str:
    """The rows, of methods that send the same in one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for method in METHODS.own:
        alike.setdefault(declared(method), []).append(f"`{method}`")
    return "".join(f"| {', '.join(methods)}{pooled} | {cells} |\n" for (pooled, cells), methods in alike.items())


def test_the_table_is_what_the_declarations_say() -> None:
    table = HEADER + declared_table()
    text = PAGE.read_text(encoding="utf-8")
    before, begins, rest = text.partition(HEADER)
    assert begins, "the table has another header, or is gone"
    after = rest[rest.index("\n\n") + 1 :]
    if os.environ.get("REWRITE_TEXTS"):
        PAGE.write_text(before + table + after, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == before + table + after


def test_what_leaves_by_declaration_is_what_a_plan_says() -> None:
    for method in METHODS.own:
        leaves = messages.what_leaves(METHODS[method])
        assert {
            (s.step, s.field): s.content for s in planned(method) if s.direction == "up"
        }.items() <= leaves.items(), method


def test_who_was_found_among_clients_of_one_person_is_what_the_cells_have() -> None:
    found, figure = cells("linkage"), "people found by other photographs, %"
    for method, (template, update, *_) in list(rows("| what is sent | found: template").items())[:-1]:
        at = f"devices method={method.strip('`')}", "{}", "none"
        if template != "–":
            assert_shows(template, found[*at, "centre", figure])
        assert_shows(update, found[*at, "backbone", figure])


def test_faces_made_of_templates_are_what_the_cells_have() -> None:
    """By either judge those of the template or of its change, whichever it accepts more."""
    accepted: dict[tuple[str, bool], list[float]] = {}
    for (title, options, defence, target, figure), value in cells("template-inversion").items():
        if title.startswith("devices") and (defence, figure) == ("none", "accepted as the person (type II), %"):
            if target in ("centre", "centre, its change"):
                method = "fedface" if "method=" not in title else method_of(title)
                accepted.setdefault((method, "other-people" in options), []).append(value)
    shown = {method.strip("`"): row[2:] for method, row in rows("| what is sent | found: template").items()}
    for (method, is_other_people), values in accepted.items():
        assert_shows(shown[method][0 if is_other_people else 1], max(values))
    assert {method for method, row in shown.items() if row[0] != "–" and " " not in method} == {m for m, _ in accepted}


def test_what_is_restored_of_250_clients_is_what_the_cells_have() -> None:
    of_cells, ways = cells("linkage"), ("by one client", "by 10 clients together", "from all rounds")
    for fused, row in rows("| k | one client").items():
        title = "devices method=fedfv" + (f" methods.fedfv.fused={fused}" if fused != "2" else "")
        for text, way in zip(row, ways, strict=True):
            assert_shows(text, of_cells[title, "{}", "none", "others", f"class embeddings restored {way}, %"])


def test_what_is_restored_of_1_000_clients_is_what_the_cells_have() -> None:
    of_cells = cells("linkage")
    (title,) = {title for title, *_ in of_cells if "parties=1000" in title}
    figures = (
        "class embeddings restored from all rounds, %",
        "people named by other photographs of class embeddings restored from all rounds, %",
        "class embeddings restored by 10 clients together, %",
        "parts assigned by other photographs, %",
    )
    assert_tells("Of 1,000 clients", 0, *(of_cells[title, "{}", "none", "others", figure] for figure in figures))


PEOPLE_FOUND = "people found by another photograph, %"


SAME_FIRST_ROUND = ("fedaws", "fedfv", "positive-only", "random-init")


def test_faces_made_of_updates_are_what_the_cells_have() -> None:
    """By `other-people` of those that learn, `random-init` and z = 0.2; by the other judge of drawn and real people."""
    accepted, by_network, independent = "accepted as the person (type II), %", dict[str, float](), dict[str, float]()
    at, lfw, of_cells = "devices data.size=64", "lfw model.weights=mobilefacenet.pt", cells("template-inversion")
    for (title, options, defence, target, figure), value in of_cells.items():
        if (target, figure) == ("backbone", accepted):
            (by_network if "other-people" in options else independent)[f"{title} {defence}"] = value
    found = [
        value
        for (title, _, defence, target, figure), value in of_cells.items()
        if title.startswith(lfw) and defence == "none" and (target, figure) == ("backbone", PEOPLE_FOUND)
        if "fedavg" not in title and "local.lr" not in title
    ]
    by_method = [independent[f"{lfw} none"], *(independent[f"{lfw} method={m} none"] for m in SAME_FIRST_ROUND)]
    assert len(found) == 6 and len({round(value) for value in by_method}) == 1
    (nearest_of_feduv,) = (
        value
        for (title, _, _, target, figure), value in of_cells.items()
        if title == f"{lfw} method=feduv" and (target, figure) == ("backbone: nearest public face", accepted)
    )
    learn = [by_network[f"{at} none"]]
    learn += [by_network[f"{at} method={m} none"] for m in ("fedaws", "fedfv", "feduv", "positive-only")]
    drawn = [value for run, value in independent.items() if run.startswith("devices")]
    told = PAGE.read_text(encoding="utf-8").partition("**A face made of the update**")[2].partition("\n")[0]
    expected = [
        *(min(learn), max(learn), by_network[f"{at} method=random-init none"]),
        *(by_network[f"{at} privacy.templates.noise_multiplier=0.2"], min(drawn), max(drawn)),
        *(by_method[0], independent[f"{lfw} method=feduv none"], nearest_of_feduv, min(found), max(found)),
        independent[f"{lfw} model.batchnorm=frozen"],
    ]
    for text, value in zip(re.findall(r"\d+", told.replace("z = 0.2", "")), expected, strict=True):
        assert_shows(text, value)


SMALL, SECURE = "local.steps_per_round=1 local.batch_size=8", "privacy.secure.dropouts=0"
SPAN = "by the last layer's span"
SCORED = [
    (UPDATE, f"an image {SPAN}"),
    (UPDATE, f"a person {SPAN}"),
    (MEAN, f"an image {SPAN}"),
    (MEAN, f"a person {SPAN}"),
    ("the model", "a person by tightness"),
    ("the model", "a person by tightness gained since the first model"),
]


def test_membership_is_what_the_cells_have() -> None:
    of_cells, lines = cells("membership"), list(rows("| who, of what |").values())
    for line, (target, figure) in zip(lines[:-1], SCORED, strict=True):
        for text, defence in zip(
            line, ("none", SMALL, SECURE, f"{SECURE} {SMALL}", NOISE, f"{NOISE} {SMALL}"), strict=True
        ):
            key = "silos", "{}", defence, target
            rates = [of_cells.get((*key, f"{figure}: {rate}, %")) for rate in ("AUC", "TPR at FPR 1 %")]
            assert (text == "–") == (rates == [None, None])
            if text != "–":
                assert_shows(text, *(rate for rate in rates if rate is not None))


def test_one_update_with_batchnorm_at_home_is_what_the_cells_have() -> None:
    of_cells, shown = cells("update-inversion-batchnorm"), bullet("Keeping BatchNorm at home")
    (title, options) = {key[:2] for key in of_cells}.pop()
    figures = ("rebuilt: PSNR, dB", "rebuilt: SSIM, %")
    kept, sent = (
        [of_cells[title, options, defence, UPDATE, figure] for figure in figures]
        for defence in ("model.batchnorm=parameters-only", "none")
    )
    shows = of_cells[title, options, "none", UPDATE, "rebuilt: shows somebody in the update, %"]
    for text, value in zip(shown[1:], (*kept, *sent, shows), strict=True):
        assert_shows(text, value)


def test_faces_of_templates_on_lfw_are_what_the_cells_have() -> None:
    """The judge's two types, and the nearest public face beside."""
    of_cells, told = cells("template-inversion"), PAGE.read_text(encoding="utf-8")
    (key,) = {key[:3] for key in of_cells if key[0] == "lfw model.weights=mobilefacenet.pt" and key[2] == "none"}
    first, second = (f"accepted as the person (type {number}), %" for number in ("I", "II"))
    better = told.partition("**A better decoder shows more.**")[2].partition("\n")[0]
    shown = re.findall(r"\d+", better.partition("takes ")[2])[:2]
    for text, figure in zip(shown, (first, second), strict=True):
        assert_shows(text, of_cells[*key, "centre", figure])
    row = rows("| z (ε) | found: template")["none"][3:]
    for text, figure in zip(row, (second, PEOPLE_FOUND), strict=True):
        assert_shows(text, of_cells[*key, "centre", figure])
        nearest = re.findall(r"public face: (\d+)", text)[0]
        assert_shows(nearest, of_cells[*key, "centre: nearest public face", figure])
    spoilt = key[0] + " method=fedfv local.lr=0.5", key[1], "model.batchnorm=frozen"
    told = told.partition("or of their change, the judge")[2].partition("by them")[0]
    targets = ("centre", second), ("centre, its change", second), ("backbone", second)
    found = [("centre", PEOPLE_FOUND), ("centre, its change", PEOPLE_FOUND)]
    for text, of in zip(re.findall(r"\d+", told.replace("92 people", "")), [*targets, *found], strict=True):
        assert_shows(text, of_cells[*spoilt, *of])


def test_public_code_beside_ours_is_what_its_table_has() -> None:
    """Of two updates each: public code, ours as told, ours untold."""
    lines = (PAGE.parent / "results" / "attacks" / "public-inversion" / "table.md").read_text("utf-8").splitlines()
    table = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in lines if line.startswith("| ")}
    column = next(of for name, of in table.items() if "seed" in name).index(
        "PSNR at its best brightness and contrast, dB"
    )
    names = "modern", "rebuilt, class embeddings known by the seed", "rebuilt"
    expected = [float(value) for name in names for value in table[name][column].split()]
    shown = [text for text in bullet("Public code comes nearer") if "." in text]
    for text, value in zip(shown, expected, strict=True):
        assert_shows(text, value)


def test_methods_that_protect_no_more_than_fedavg_are_what_the_cells_have() -> None:
    of_cells = cells("membership")
    person = [f"a person {SPAN}: {rate}, %" for rate in ("AUC", "TPR at FPR 1 %")]

    def rates(title: str, options: str, target: str) -> list[float]:
        return [of_cells[title, options, "none", target, figure] for figure in person]

    told = PAGE.read_text(encoding="utf-8").partition("**No method that averages weights")[2].partition("\n")[0]
    least_auc, most_auc, least_tpr, most_tpr = re.findall(r"\d+", told.partition("told in ")[2])[:4]
    updates = [
        rates(title, options, UPDATE)
        for title, options, defence, target, figure in of_cells
        if title.startswith("silos method=")
        and "fedfr-joint" not in title
        and (defence, target, figure) == ("none", UPDATE, person[0])
    ]
    assert len(updates) == 16
    for of_updates, least, most in zip(
        zip(*updates, strict=True), (least_auc, least_tpr), (most_auc, most_tpr), strict=True
    ):
        assert_shows(least, min(of_updates))
        assert_shows(most, max(of_updates))
    shown = re.findall(r"`([a-z-]+)`(?:, whose [a-z ]+,| has)? (\d+ / \d+)(?: \(by its gradient (\d+ / \d+)\))?", told)
    assert [method for method, *_ in shown] == ["fedfr-joint", "scaffold", "pfm", "mimelite", "mime"]
    for method, update, gradient in shown:
        (title,) = {
            title for title, *_ in of_cells if title.startswith("silos") and f"method={method}" in title.split()
        }
        assert_shows(update, *rates(title, "{}", UPDATE))
        if gradient:
            assert_shows(gradient, *rates(title, "{}", GRADIENT))


def test_clients_of_one_person_are_told_as_the_cells_have_it() -> None:
    of_cells = cells("membership")
    told = PAGE.read_text(encoding="utf-8").partition("- **Clients of one person** (seed 0)")[2].partition("\n")[0]
    methods = re.findall(r"`([a-z-]+)`", told.partition(" tell ")[0])
    shown = iter(re.findall(r"\d+", told.replace("25 of them", "").partition(" tell ")[2]))
    for target in (UPDATE, MEAN):
        for rate in ("AUC", "TPR at FPR 1 %"):
            figure = f"a person {SPAN}: {rate}, %"
            values = [of_cells[f"devices method={m}", '{"parties": 25}', "none", target, figure] for m in methods]
            assert_shows(next(shown), min(values))
            assert_shows(next(shown), max(values))
    assert len(methods) == 5


REBUILT = [
    ("none", UPDATE),
    ("local.batch_size=8", UPDATE),
    ("local.batch_size=32", UPDATE),
    ("local.steps_per_round=5", UPDATE),
    (SECURE, MEAN),
    ("local.batch_size=8", MEAN),
    (NOISE, MEAN),
]


def test_rebuilt_images_are_what_the_cells_have() -> None:
    of_cells, lines = cells("update-inversion"), list(rows("| what made the update | PSNR").values())
    for line, (defence, target) in zip(lines, REBUILT, strict=True):
        key = "silos rounds=1 local.steps_per_round=1 local.batch_size=1", "{}", defence, target
        for text, figure in zip(line, ("PSNR, dB", "SSIM, %", "shows somebody in the update, %"), strict=True):
            assert_shows(text, *(of_cells[*key, f"{image}: {figure}"] for image in ("rebuilt", "mean face")))


def test_whose_images_are_rebuilt_is_what_the_cells_have() -> None:
    """By how much they are nearer to the true ones than the mean face: 3 dB, or 1."""
    of_cells, shown, gains = cells("update-inversion-methods"), entries(3), dict[str, float]()
    for title, options, defence, target, figure in of_cells:
        method = method_of(title)
        if (defence, figure) == ("none", "rebuilt: PSNR, dB") and target == (GRADIENT if method == "mime" else UPDATE):
            key = title, options, defence, target
            gains[method] = gain = of_cells[*key, figure] - of_cells[*key, "mean face: PSNR, dB"]
            verdict = "yes" if gain >= 3 else "little" if gain >= 1 else "no"
            assert shown[method] == verdict, f"{method}: {gain:.1f} dB"
    assert gains.keys() == shown.keys()
    apart = [gains.pop(method) for method in ("fedrep", "fedface-multi", "mime", "fedfr-joint")]
    of_others = [gain for method, gain in gains.items() if METHODS[method].scenario != "devices"]
    assert_tells("Other methods: images", 0, min(of_others), max(of_others), *apart)


NOTHING_LEFT = {"devices method=fedavg"}
"""Honest updates are zero there; what BatchNorm tells is another recipe's."""
FOUND = [
    (0, "linkage", ("centre", "classes"), "people found by other photographs, %"),
    (2, "linkage", ("backbone",), "people found by other photographs, %"),
    (2, "update-inversion-methods", (UPDATE,), "people named by the last layer, %"),
    (2, "update-inversion-methods", (GRADIENT,), "people named by the last layer, %"),
    (4, "membership", (UPDATE,), "a person by the last layer's span: TPR at FPR 1 %, %"),
]


def test_who_is_found_is_what_the_cells_have() -> None:
    """Of what guessing misses a tenth, or a fiftieth; `mime` by its gradient."""
    seen: dict[int, set[str]] = {}
    for column, kind, targets, counted in FOUND:
        values, chances, shown = cells(kind), cells(kind, "chance"), entries(column)
        for key, value in values.items():
            title, _, defence, target, figure = key
            method = method_of(title)
            is_gradient = kind != "membership" and not title.startswith("devices") and method == "mime"
            if (defence, figure) != ("none", counted) or target not in targets or title in NOTHING_LEFT:
                continue
            if title.startswith("lfw") or "pretrain" in title or is_gradient != (target == GRADIENT):
                continue
            found = (value - chances[key]) / (100 - chances[key])
            verdict = "yes" if found >= 0.1 else "little" if found >= 0.02 else "no"
            assert shown[method] == verdict, f"{kind}, {title}: {value:.1f} by chance {chances[key]:.1f}"
            seen.setdefault(column, set()).add(method)
    assert seen[0] == {method for method, entry in entries(0).items() if not entry.startswith("–")}
    assert seen[2] == seen[4] == entries(2).keys()


def test_images_of_one_person_are_what_the_cells_have() -> None:
    of_cells = cells("update-inversion-methods")
    titles = {title for title, *_ in of_cells if title.startswith("devices") and "positive-only" not in title}
    gains, shares = [], []
    for key in ((title, "{}", "none", UPDATE) for title in titles):
        gains.append(of_cells[*key, "rebuilt: PSNR, dB"] - of_cells[*key, "mean face: PSNR, dB"])
        shares.append(of_cells[*key, "rebuilt: shows somebody in the update, %"])
    for text, value in zip(
        bullet("Clients of one person: images")[2:], (min(gains), max(gains), min(shares), max(shares)), strict=True
    ):
        assert_shows(text, value)
    assert len(titles) == 5


def test_methods_without_a_row_send_what_the_one_named_sends() -> None:
    """Fields of each content, but for scores and counts."""
    told = PAGE.read_text(encoding="utf-8").partition("\nMethods without a row")[2].partition("Not tried")[0]
    with_row = {m for first in rows("| method | template: who") for m in re.findall(r"`([a-z-]+)`", first)}
    apart, _, rest = told.partition(", send ")
    alike = {}
    for part in rest.rstrip(". ").split(";"):
        *methods, of = re.findall(r"`([a-z-]+)`", part)
        alike |= dict.fromkeys(methods, of)
    bounds = {method for method in METHODS.own if METHODS[method].pools}
    assert {*alike, *with_row, *bounds, *re.findall(r"`([a-z-]+)`", apart)} == set(METHODS.own)

    def personal(method: str) -> set[tuple[str, str]]:
        return {
            (sent.field, sent.content)
            for sent in planned(method)
            if sent.direction == "up" and sent.content not in ("score", "count") and sent.field != "header"
        }

    for method, of in alike.items():
        assert personal(method) == personal(of), method
