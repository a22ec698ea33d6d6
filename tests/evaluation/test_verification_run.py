from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from naive import embedding, naive_accuracy
from tinyruns import picture_folders, tiny

from coalface.core.method import Models, Tensors
from coalface.engine.server import Server
from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities
from coalface.evaluation.metrics.paired import resample
from coalface.evaluation.metrics.verification import tar_at_far
from coalface.evaluation.verification import Verification, VerificationPairs, keep_lists, read_lists
from coalface.experiments.setup.parts import Parts, first_backbone


def lists(**changes: Any) -> list[VerificationPairs]:
    recipe = tiny(**changes)
    return Parts(recipe).pairs


def verification(**changes: Any) -> Verification:
    return Verification(lists(), first_backbone(tiny()), **changes)


def weights(seed: int) -> Tensors:
    return {n: t.clone() for n, t in first_backbone(tiny(seed=seed)).shared().items()}


def test_the_scores_are_cosines_of_embeddings_made_one_by_one() -> None:
    evaluator = verification()
    evaluator.models([weights(0)])
    (chosen,) = evaluator.pairs
    module = first_backbone(tiny()).module
    embeddings = [embedding(module, pixels) for pixels in chosen.faces.take(np.arange(len(chosen.faces)))]
    pairs = zip(chosen.pairs.left.tolist(), chosen.pairs.right.tolist(), strict=True)
    by_hand = [torch.cosine_similarity(embeddings[a], embeddings[b], dim=0).item() for a, b in pairs]
    np.testing.assert_allclose(evaluator.last_scores["unseen"][0], by_hand, atol=1e-5)


def test_the_figures_are_those_of_the_scores() -> None:
    evaluator = verification()
    figures = evaluator.models([weights(0)])["unseen"]
    pairs = evaluator.pairs[0].pairs
    assert pairs.fold is not None
    scores = evaluator.last_scores["unseen"][0].tolist()
    naive = naive_accuracy(scores, pairs.same.tolist(), pairs.fold.tolist())
    assert figures["accuracy"] == pytest.approx(naive)
    assert set(figures) == {"accuracy", "accuracy_se", "eer"}  # 20 impostors carry no TAR


def test_own_models_are_evaluated_by_party_up_to_the_most_wanted() -> None:
    evaluator = verification(most=2)
    own_models = {f"silo-{i}": weights(i) for i in range(3)}
    server = cast(Server, SimpleNamespace(local_results=lambda kind, models: iter(own_models.items())))
    figures = evaluator.evaluate_round(server, Models(shared=None))
    assert list(evaluator.last_parties) == ["silo-0", "silo-1"]
    assert figures["unseen"]["eer"] == pytest.approx(
        np.mean([p["unseen"]["eer"] for p in evaluator.last_parties.values()])
    )
    evaluator.evaluate_round(server, Models(shared=weights(0)))
    assert evaluator.last_parties == {}  # of the last evaluation only


def test_curves_count_the_pairs_of_all_models() -> None:
    evaluator = verification()
    evaluator.models([weights(0), weights(1)])
    curve = evaluator.curves()["unseen"]
    assert sum(curve["histogram"]["genuine"]) == sum(curve["histogram"]["impostor"]) == 2 * 20
    assert curve["roc"]["far"][-1] == 1 and curve["roc"]["tar"][-1] == 1


def test_a_headline_mask_leaves_pairs_out_of_the_curves() -> None:
    (chosen,) = lists()
    headline = ~chosen.pairs.same
    headline[np.flatnonzero(chosen.pairs.same)[:3]] = True
    pairs = type(chosen.pairs)("h", chosen.pairs.left, chosen.pairs.right, chosen.pairs.same, headline=headline)
    evaluator = Verification([VerificationPairs("h", chosen.faces, pairs)], first_backbone(tiny()))
    figures = evaluator.models([weights(0)])["h"]
    assert "accuracy" not in figures
    assert sum(evaluator.curves()["h"]["histogram"]["genuine"]) == int((headline & chosen.pairs.same).sum()) == 3
    assert evaluator.evidence()["h"][0]["list"] == evaluator.pairs[0].identities.sha256


def test_lists_are_kept_without_images_and_read_again(tmp_path: Path) -> None:
    for pair_lists in (lists(), one_gallery()):
        keep_lists(tmp_path / "judged", pair_lists)
        ((name, restored),) = read_lists(tmp_path / "judged")
        identities: PairIdentities = pair_lists[0].identities
        assert (name, restored.sha256, restored.headline) == ("unseen", identities.sha256, None)
        for column in ("left", "right", "fold", "queries"):
            assert np.array_equal(getattr(restored, column), getattr(identities, column)), column
    assert list(read_lists(tmp_path / "nowhere")) == []


# --- people who are looked up, and other false accept rates -----------------------------------------------------------


def looking(rank1: str | None, tmp_path: Path, **changes: Any) -> VerificationPairs:
    """A list over folders: three people of three images and more, and one of a single image."""
    if not (tmp_path / "faces").exists():
        for seed, (name, images) in enumerate({"Ann": 3, "Bob": 3, "Cid": 1, "Dan": 5}.items()):
            picture_folders(tmp_path / "faces", [name], images, seed)
    settings = {"source": {"kind": "folder", "path": str(tmp_path / "faces")}, "pairs": 12, "rank1": rank1} | changes
    return lists(evaluation={"pairs": {"unseen": settings}}, data={"root": str(tmp_path)})[0]


def who(chosen: VerificationPairs, images: Any) -> list[str]:
    return [chosen.faces.names[label] for label in chosen.faces.labels[images]]


@pytest.mark.parametrize("rank1", ["one-query", "one-gallery"])
def test_one_image_of_each_is_looked_up_among_the_others_or_the_others_among_one_of_each(
    rank1: str, tmp_path: Path
) -> None:
    chosen = looking(rank1, tmp_path)
    assert chosen.queries is not None and chosen.gallery is not None
    places = np.concatenate([chosen.queries, chosen.gallery])
    assert sorted(places) == list(range(12)) == sorted(range(len(chosen.faces)))  # every image, each once
    queries, gallery = who(chosen, chosen.queries), who(chosen, chosen.gallery)
    if rank1 == "one-query":
        assert sorted(queries) == ["Ann", "Bob", "Dan"]
    else:
        assert sorted(gallery) == ["Ann", "Bob", "Cid", "Dan"]
        assert [queries.count(name) for name in ("Ann", "Bob", "Dan")] == [2, 2, 4]
    assert "Cid" in gallery and "Cid" not in queries  # whom nobody could find


@pytest.mark.parametrize("rank1", ["one-query", "one-gallery"])
def test_those_in_no_pair_are_not_looked_up(rank1: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("1\nAnn\t1\t2\nAnn\t1\tDan\t2\n")
    chosen = looking(rank1, tmp_path, kind="lfw", path=str(tmp_path / "pairs.txt"))
    assert chosen.queries is not None and chosen.gallery is not None
    names = who(chosen, np.concatenate([chosen.queries, chosen.gallery]))
    assert sorted(names) == ["Ann"] * 3 + ["Dan"] * 5  # all of their images, not only those in pairs


def test_the_hash_of_a_list_tells_who_is_looked_up(tmp_path: Path) -> None:
    choices = [looking(rank1, tmp_path) for rank1 in ("one-query", "one-gallery")]
    choices.append(looking(None, tmp_path))
    assert len({chosen.identities.sha256 for chosen in choices}) == 3
    assert len({(chosen.pairs.left.tobytes(), chosen.pairs.right.tobytes()) for chosen in choices}) == 1
    assert looking("one-query", tmp_path).identities.sha256 == choices[0].identities.sha256


def naive_hits(chosen: VerificationPairs, tensors: Tensors) -> list[bool]:
    """Whether the image of the gallery with the highest cosine is of the query's person, query by query."""
    backbone = first_backbone(tiny())
    backbone.load(tensors)
    assert chosen.queries is not None and chosen.gallery is not None
    embeddings = [embedding(backbone.module, pixels) for pixels in chosen.faces.take(np.arange(len(chosen.faces)))]
    hits = []
    for query in chosen.queries.tolist():
        cosines = {
            j: float(torch.cosine_similarity(embeddings[query], embeddings[j], dim=0)) for j in chosen.gallery.tolist()
        }
        best = max(cosines, key=cosines.__getitem__)
        hits.append(bool(chosen.faces.labels[best] == chosen.faces.labels[query]))
    return hits


def one_gallery() -> list[VerificationPairs]:
    """The four people held out of the tiny recipe's twelve, with four images each."""
    return lists(evaluation={"pairs": {"unseen": {"rank1": "one-gallery"}}})


@pytest.mark.parametrize("seed", [0, 1])
def test_rank_1_is_the_share_of_queries_whose_nearest_is_right(seed: int) -> None:
    evaluator = Verification(one_gallery(), first_backbone(tiny()))
    figures = evaluator.models([weights(seed)])["unseen"]
    hits = naive_hits(evaluator.pairs[0], weights(seed))
    assert evaluator.last_hits["unseen"][0].tolist() == hits and len(hits) == 12 and len(set(hits)) == 2
    assert figures["rank-1"] == pytest.approx(100 * sum(hits) / 12)
    plain = verification().models([weights(seed)])["unseen"]
    assert {name: figures[name] for name in plain} == plain  # the pairs' figures are not touched


def test_the_evidence_says_each_figure_again_with_everybody_counted_once() -> None:
    evaluator = Verification(one_gallery(), first_backbone(tiny()), fars=(0.1, 0.05))
    figures = evaluator.models([weights(1)])["unseen"]
    (evidence,) = json.loads(json.dumps(evaluator.evidence()))["unseen"]
    identities = evaluator.pairs[0].identities
    once = Bootstrap(identities, np.ones((4, 1), dtype=np.int32))
    resampled = resample(evidence, once)
    assert set(resampled) == {"accuracy", "eer", "tar@far=0.1", "tar@far=0.05", "rank-1"}
    assert set(figures) == {*resampled, "accuracy_se"}
    for name, drawn in resampled.items():
        assert 100 * drawn.point == pytest.approx(figures[name]) and drawn.values[0] == drawn.point


def test_false_accept_rates_are_those_of_the_recipe_as_far_as_the_list_carries_them() -> None:
    for fars, expected in (
        ((0.2, 0.05), {"tar@far=0.2", "tar@far=0.05"}),
        ((0.1, 0.001), {"tar@far=0.1"}),
        ((), set()),
    ):
        evaluator = verification(fars=fars)
        figures = evaluator.models([weights(0)])["unseen"]
        assert {name for name in figures if name.startswith("tar")} == expected
        scores, same = evaluator.last_scores["unseen"][0], evaluator.pairs[0].pairs.same
        for tar in tar_at_far(scores, same, [far for far in fars if f"tar@far={far}" in expected]):
            assert figures[f"tar@far={tar.far}"] == pytest.approx(100 * tar.tar)
