"""Template inversion: decoder and figures by naive loops, and planted cases in which it must succeed, or fail."""

from __future__ import annotations

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tinyruns
import torch
from commands import outputs
from onnx_graphs import linear_graph
from tinyruns import Silent, tiny
from torch import Tensor, nn

from coalface.core.errors import RecipeError
from coalface.core.method import Models, generator
from coalface.data.faceset import FaceSet
from coalface.experiments.attacks import measure
from coalface.experiments.attacks.base import Attack, Exchange, NotAttackable, Outcome
from coalface.experiments.attacks.fused_embeddings import Fused
from coalface.experiments.attacks.judge import Judge, open_judge, threshold_at
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.template_inversion import (
    RIDGE,
    WIDTH,
    Decoder,
    TemplateInversion,
    accepted,
    first_share,
)
from coalface.experiments.attacks.updates import people_of
from coalface.experiments.setup import splits

SIDE = 32
MEAN_FACE = "nothing: mean face"
DEVICES: dict[str, Any] = {
    "method": "fedface",
    "methods": {"fedface": {"sample": 4}, "fedfv": {"sample": 4, "equivalents": 6}, "random-init": {"sample": 4}},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.01},
    "data": {
        "faces": {"kind": "synthetic", "identities": 40, "images": 5},
        "scenario": "private-public",
        "private": {"identities": 8},
        "hold_out": 12,
        "partition": {"kind": "equal", "parties": 8},
        "test": {"images": 1},
    },
}


class Flat(nn.Module):
    """A network that keeps all of an image: its pixels, turned."""

    def __init__(self, pixels: int, d: int) -> None:
        super().__init__()
        self.embedding_size = d
        drawn = generator(0, "flat").standard_normal((pixels, d)) / math.sqrt(pixels)
        self.register_buffer("turned", torch.from_numpy(drawn).float())

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.turned  # type: ignore[operator]


def faces_of_few_numbers(count: int, seed: int, numbers: int = 3, side: int = 8) -> FaceSet:
    """Pictures that are sums of a few smooth ones, so that few pictures teach all of them."""
    basis = generator(0, "basis").standard_normal((numbers, side, side, 1))
    weights = generator(seed, "weights").standard_normal((count, numbers))
    pixels = 127 + 25 * np.tensordot(weights, basis, 1)
    labels = np.arange(count)
    return FaceSet(np.asarray(pixels.clip(0, 255), np.uint8), labels, labels, tuple(f"p{n}" for n in labels))


def judge_file(folder: Path, numbers: int = 24) -> Path:
    """An ONNX file: a linear network of 32×32 RGB images."""
    path = folder / "judge.onnx"
    path.write_bytes(linear_graph(generator(1, "judge").standard_normal((3 * SIDE * SIDE, numbers)).astype("f4"), SIDE))
    return path


Rows = dict[tuple[str, str], Outcome]


def by_row(outcomes: list[Outcome]) -> Rows:
    return {(outcome.target, outcome.figure): outcome for outcome in outcomes}


class Keeping(TemplateInversion):
    """Keeps what passes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passed: list[Exchange] = []

    def watch(self, exchange: Exchange) -> None:
        self.passed.append(exchange)
        super().watch(exchange)


def attacked(judge: Path, far: float = 0.02, **changes: Any) -> tuple[Keeping, Models]:
    make = functools.partial(Keeping, judge=str(judge), far=far)
    attack, models = replay(tiny(**{**DEVICES, **changes}), make, Silent())
    assert isinstance(attack, Keeping)
    return attack, models


def test_the_decoder_is_its_formula() -> None:
    public, other = faces_of_few_numbers(9, 1), faces_of_few_numbers(2, 2)
    network = Flat(64, 5)
    decoder = Decoder.fit(network, public)
    t, new = decoder.templates, Decoder.fit(network, other).templates
    k = np.array([[math.exp(-float((a - b).square().sum()) / (2 * WIDTH**2)) for b in t] for a in t])
    pixels = public.pixels.reshape(9, -1).astype(float)
    weights = np.linalg.inv(k + RIDGE * np.eye(9)) @ (pixels - pixels.mean(0))
    for template, face in zip(new, decoder(new), strict=True):
        kernel = [math.exp(-float((template - b).square().sum()) / (2 * WIDTH**2)) for b in t]
        naive = pixels.mean(0) + sum(k * row for k, row in zip(kernel, weights, strict=True))
        np.testing.assert_allclose(face.ravel(), naive.clip(0, 255), atol=0.501)


def test_faces_come_back_of_a_network_that_keeps_them_and_none_of_random_directions() -> None:
    public, people = faces_of_few_numbers(300, 1), faces_of_few_numbers(40, 2)
    network, judge = Flat(64, 16), Judge(Flat(64, 9), 8, 1)
    decoder, threshold = Decoder.fit(network, public), 0.9
    templates, photographs = Decoder.fit(network, people).templates, judge.embed(people.pixels)
    rebuilt = judge.embed(decoder(templates))
    share, chance = accepted(rebuilt, photographs, threshold)
    assert share > 0.8 > 0.3 > chance
    assert first_share(rebuilt, photographs) > 0.5
    strangers = torch.from_numpy(generator(5).standard_normal(templates.shape))
    rebuilt = judge.embed(decoder(nn.functional.normalize(strangers, dim=1)))
    share, chance = accepted(rebuilt, photographs, threshold)
    assert share < 0.3 and first_share(rebuilt, photographs) < 0.2


def test_figures_are_those_of_a_naive_loop() -> None:
    rebuilt = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    photographs = np.array([[0.8, 0.6], [0, 1], [1, 0]], np.float32)
    # cosines to the own: 0.8, 0.8, 0; to others: 0, 1 of the first; 0.96, 0.6 of the second; 0.6, 1 of the third
    assert accepted(rebuilt, photographs, 0.7) == (pytest.approx(2 / 3), pytest.approx(3 / 6))
    assert first_share(rebuilt, photographs) == 0  # the nearest are the third, the first and the second


def test_the_threshold_accepts_the_share_of_impostors_that_is_asked_for() -> None:
    faces, judge = faces_of_few_numbers(60, 3), Judge(Flat(64, 9), 8, 1)
    faces = FaceSet(faces.pixels, faces.rows, faces.labels // 2, tuple(f"p{n}" for n in range(30)))
    threshold, features = threshold_at(0.05, judge, faces, generator(0)), judge.embed(faces.pixels).astype(float)
    impostors = [
        float(features[a] @ features[b]) for a in range(60) for b in range(a) if faces.labels[a] != faces.labels[b]
    ]
    assert sum(score >= threshold for score in impostors) == math.floor(0.05 * len(impostors))
    with pytest.raises(NotAttackable):
        threshold_at(1e-5, judge, faces, generator(0))


def test_a_judge_sees_other_sizes_and_colours() -> None:
    colour = np.arange(2 * 16 * 16 * 3, dtype=np.uint8).reshape(2, 16, 16, 3)
    assert Judge(Flat(64, 4), 8, 1).embed(colour).shape == (2, 4)
    grey = colour[..., :1]
    three = Judge(Flat(3 * 64, 4), 8, 3)
    np.testing.assert_array_equal(three.embed(grey), three.embed(np.repeat(grey, 3, axis=3)))


@pytest.mark.parametrize("judge", ["", "missing.onnx"])
def test_without_a_judge_nothing_is_judged(judge: str) -> None:
    with pytest.raises(RecipeError):
        open_judge(judge)


def test_a_run_without_public_people_gives_a_decoder_nothing_to_learn_from(tmp_path: Path) -> None:
    def make(run: Any, seed: int) -> TemplateInversion:
        return TemplateInversion(run, seed, judge=str(judge_file(tmp_path)), far=0.02)

    with pytest.raises(NotAttackable):
        replay(tiny(), make, Silent())


def test_the_command_judges_what_passes_beside_chance(tmp_path: Path) -> None:
    recipe, out, sheet = tinyruns.write(tmp_path / "recipe.yaml", **DEVICES), tmp_path / "out", tmp_path / "sheet.png"
    options = ["--option", f"judge={judge_file(tmp_path)}", "--option", "far=0.02", "--option", f"sheet={sheet}"]
    outputs("attack", recipe, "--kind", "template-inversion", *options, "--out", out, "--quiet")
    (cell,) = [json.loads(line) for line in (out / measure.CELLS).read_text().splitlines()]
    rows = by_row([Outcome(**outcome) for outcome in cell["outcomes"]])
    targets = {target for target, _ in rows}
    assert {"centre", "backbone", MEAN_FACE, "all: the photograph itself"} < targets
    assert rows["all: the photograph itself", "accepted as the person (type I), %"].value == 100
    assert rows["all: the photograph itself", "accepted as the person (type II), %"].value < 100
    assert rows[MEAN_FACE, "accepted as the person (type I), %"].value < 50
    found = rows["centre", "people found by another photograph, %"]
    assert found.chance == pytest.approx(100 / found.trials)
    picture = cv2.imread(str(sheet), cv2.IMREAD_GRAYSCALE)
    assert picture is not None and picture.shape == (SIDE * found.trials, SIDE * 5)


@pytest.mark.parametrize(("method", "field"), [("fedface-multi", "centre"), ("fedgc", "classes")])
def test_a_party_s_templates_are_of_its_people_one_by_one(method: str, field: str, tmp_path: Path) -> None:
    """The first messages to the parties have no rows, or zeros."""
    data = {**DEVICES["data"], "partition": {"kind": "equal", "parties": 2}}
    attack, models = attacked(judge_file(tmp_path), method=method, data=data)
    people = {(party, number) for party in ("silo-00", "silo-01") for number in range(4)}
    assert attack._told[field, "server"].keys() == attack._told[f"{field}, its change", "server"].keys() == people
    assert by_row(attack.outcomes(models))[field, "people found by another photograph, %"].trials == 8


@pytest.fixture(scope="module", params=[None, 50.0], ids=["open", "noised"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Keeping, Models, Rows]:
    """A run of 48 people whose templates leave, as they are or with much noise, and what comes of it."""
    people: dict[str, Any] = {"private": {"identities": 48}, "partition": {"kind": "equal", "parties": 48}}
    people["faces"] = {"kind": "synthetic", "identities": 200, "images": 8}
    changes: dict[str, Any] = {"data": {**DEVICES["data"], **people}, "methods": {"fedface": {"sample": 48}}}
    changes |= {"privacy": {"templates": {"noise_multiplier": request.param}}} if request.param else {}
    attack, models = attacked(judge_file(tmp_path_factory.mktemp("judge")), far=0.1, **changes)
    return attack, models, by_row(attack.outcomes(models))


def test_a_run_s_templates_show_faces_and_none_with_much_noise(judged: tuple[Keeping, Models, Rows]) -> None:
    attack, _, rows = judged
    names = "centre", "centre: nearest public face", MEAN_FACE
    centre, nearest, mean_face = (rows[what, "accepted as the person (type I), %"] for what in names)
    gain = centre.value - max(centre.chance, nearest.value, mean_face.value)
    assert rows["nothing: public face", "accepted as the person (type I), %"].value < 50
    if attack.run.recipe.privacy.templates:
        assert gain < 10 and centre.value < centre.chance + 10
    else:
        assert gain > 20


@pytest.mark.parametrize("judged", [None], indirect=True)
def test_rows_are_those_of_a_loop(judged: tuple[Keeping, Models, Rows]) -> None:
    """By the threshold of those held out, with public people to learn from."""
    attack, models, rows = judged
    run, judge, everybody = attack.run, attack._judge, splits.split(attack.run.recipe).trainable
    trained, held, others = people_of(run), run.held_out, run.test_images
    assert held is not None and others is not None
    shown = judge.embed(held.take(np.arange(len(held)))).astype(float)
    pairs = itertools.combinations(range(len(held)), 2)
    impostors = sorted(float(shown[a] @ shown[b]) for a, b in pairs if held.labels[a] != held.labels[b])
    refused = impostors[-1 - len(impostors) // 10]  # a tenth of them is above
    public = everybody.only([n for n, name in enumerate(everybody.names) if name not in trained.names])
    mean_face = public.take(np.arange(len(public))).mean(0)

    def first_of(faces: FaceSet) -> np.ndarray:
        firsts = [faces.only([faces.names.index(name)]).take(np.arange(1)) for name in trained.names]
        return judge.embed(np.concatenate(firsts)).astype(float)

    told: dict[str, list[Tensor]] = {name: [] for name in trained.names}
    for exchange in attack.passed:
        if (centre := getattr(exchange.reply, "centre", None)) is not None:
            told[run.data.data[exchange.request.party].names[0]].append(
                nn.functional.normalize(centre[0].double(), dim=0)
            )
    assert models.shared is not None and {len(releases) for releases in told.values()} == {2}
    run.data.backbone.load(models.shared)
    decoder = Decoder.fit(run.data.backbone.module, public)
    directions = torch.stack([(first + second) / 2 for first, second in told.values()])
    blind = np.rint(mean_face)[None].astype(np.uint8).repeat(48, 0)
    seen = {
        ("centre", "server"): decoder(directions),
        ("centre: nearest public face", "server"): decoder.nearest(directions),
        (MEAN_FACE, "outsider"): blind,
    }
    embedded = {about: judge.embed(faces).astype(float) for about, faces in seen.items()}
    embedded["all: the photograph itself", "outsider"] = first_of(trained)
    for (target, attacker), faces in embedded.items():
        for which, of in (("type I", first_of(trained)), ("type II", first_of(others))):
            accepts = [[float(face @ photograph) > refused for photograph in of] for face in faces]
            own = [accepts[i][i] for i in range(48)]
            cross = [accepts[i][j] for i, j in itertools.permutations(range(48), 2)]
            figure = f"accepted as the person ({which}), %"
            expected = Outcome(target, attacker, figure, 100 * np.mean(own), 100 * np.mean(cross), 48)
            assert rows[target, figure] == expected


def test_what_clients_of_fedfv_have_is_judged_as_well_and_what_cannot_be_restored_is_the_mean_face(
    tmp_path: Path,
) -> None:
    one_a_round = {"fedfv": {"sample": 4, "equivalents": 1}}
    attack, models = attacked(judge_file(tmp_path), method="fedfv", methods=one_a_round)
    rows = by_row(attack.outcomes(models))
    who = {target: outcome.attacker for (target, _), outcome in rows.items()}
    assert who["others"] == "client" and who["centre"] == "server"
    for which in ("type I", "type II"):
        figure = f"accepted as the person ({which}), %"
        assert rows["others, restored from all rounds", figure].value == rows[MEAN_FACE, figure].value


def test_of_a_client_that_no_round_asked_nothing_is_judged(tmp_path: Path) -> None:
    """Its class embedding is as the server drew it."""
    few = {"fedfv": {"sample": 2, "equivalents": 20}}
    attack, models = attacked(judge_file(tmp_path), method="fedfv", methods=few)
    asked = {exchange.request.party for exchange in attack.passed if exchange.request.step == "train"}
    rows = by_row(attack.outcomes(models))
    assert models.class_embeddings is not None and len(models.class_embeddings) == 8 > len(asked) > 2
    restored = {party for party, _ in attack._told["others, restored from all rounds", "client"]}
    assert restored == asked > {party for party, _ in attack._told["others", "client"]}
    figure = "accepted as the person (type I), %"
    assert {rows[what, figure].trials for what in ("centre", MEAN_FACE)} == {len(asked)}


def test_whose_equivalents_are_is_what_the_server_drew() -> None:
    exchanges: list[Exchange] = []

    class Watching(Attack):
        def watch(self, exchange: Exchange) -> None:
            exchanges.append(exchange)

        def outcomes(self, models: Models) -> list[Outcome]:
            return []

    attack, models = replay(tiny(**{**DEVICES, "method": "fedfv"}), Watching, Silent())
    last = [exchange for exchange in exchanges if exchange.request.round == 2]
    rows, sent, parties = last[0].sent[0].others, Fused(), attack.run.data.by_role()["trainer"]
    for exchange in last:
        sent.note(2, rows, exchange.request.party)
    others, parts = sent.drawn(2, parties, 2, attack.seed)
    assert models.class_embeddings is not None  # of who was not asked last they are what the rows were fused of
    kept = nn.functional.normalize(torch.cat([models.class_embeddings[parties[place]] for place in others]), dim=1)
    torch.testing.assert_close(rows, nn.functional.normalize(kept[parts].mean(1), dim=1))


def test_rows_that_nobody_trains_tell_no_change(tmp_path: Path) -> None:
    attack, models = attacked(judge_file(tmp_path), method="random-init")
    targets = {target for target, _ in by_row(attack.outcomes(models))}
    assert "centre" in targets and "centre, its change" not in targets
