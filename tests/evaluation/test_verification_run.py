from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from naive import naive_accuracy
from tinyruns import picture_folders, tiny

from coalface.core.disk import write_json
from coalface.core.errors import RecipeError
from coalface.core.method import Models, Tensors
from coalface.engine.server import Server
from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities
from coalface.evaluation.metrics.paired import resample
from coalface.evaluation.verification import Verification, VerificationPairs, keep_lists, read_lists
from coalface.experiments.setup.parts import Parts, first_backbone


def lists(**changes: Any) -> list[VerificationPairs]:
    recipe = tiny(**changes)
    return Parts(recipe).pairs


def judge(**changes: Any) -> Verification:
    return Verification(lists(), first_backbone(tiny()), **changes)


def weights(seed: int) -> Tensors:
    return {n: t.clone() for n, t in first_backbone(tiny(seed=seed)).shared().items()}


def test_the_scores_are_cosines_of_embeddings_made_one_by_one() -> None:
    mine = judge()
    mine.models([weights(0)])
    (chosen,) = mine.lists
    module = first_backbone(tiny()).module.eval()

    def embedding(place: int) -> torch.Tensor:
        pixels = torch.from_numpy(chosen.faces.take(np.array([place])).astype(np.float32))
        with torch.no_grad():
            return module((pixels.permute(0, 3, 1, 2) - 127.5) / 127.5)[0].double()

    pairs = zip(chosen.pairs.left.tolist(), chosen.pairs.right.tolist(), strict=True)
    by_hand = [torch.cosine_similarity(embedding(a), embedding(b), dim=0).item() for a, b in pairs]
    np.testing.assert_allclose(mine.last_scores["unseen"][0], by_hand, atol=1e-5)


def test_the_figures_are_those_of_the_scores() -> None:
    mine = judge()
    found = mine.models([weights(0)])["unseen"]
    pairs = mine.lists[0].pairs
    assert pairs.fold is not None
    scores = mine.last_scores["unseen"][0].tolist()
    naive = naive_accuracy(scores, pairs.same.tolist(), pairs.fold.tolist())
    assert found["accuracy"] == pytest.approx(naive)
    assert set(found) == {"accuracy", "accuracy_se", "eer"}  # 20 impostors carry no TAR


def test_several_models_are_judged_by_their_mean() -> None:
    mine = judge()
    each = [mine.models([weights(seed)])["unseen"]["eer"] for seed in (0, 1)]
    both = mine.models([weights(0), weights(1)])["unseen"]["eer"]
    assert each[0] != each[1] and both == pytest.approx(sum(each) / 2)
    assert len(mine.evidence()["unseen"]) == 2


def test_own_models_are_judged_by_party_up_to_the_most_wanted() -> None:
    mine = judge(most=2)
    own = {f"silo-{i}": weights(i) for i in range(3)}
    server = cast(Server, SimpleNamespace(local_results=lambda kind, models: iter(own.items())))
    figures = mine.evaluate_round(server, Models(shared=None))
    assert list(mine.last_parties) == ["silo-0", "silo-1"]
    assert figures["unseen"]["eer"] == pytest.approx(np.mean([p["unseen"]["eer"] for p in mine.last_parties.values()]))
    mine.evaluate_round(server, Models(shared=weights(0)))
    assert mine.last_parties == {}  # of the last judgement only


def test_judging_twice_gives_the_same_and_depends_on_flip() -> None:
    plain, flipped = judge(), judge(flip=True)
    assert plain.models([weights(0)]) == plain.models([weights(0)])
    flipped.models([weights(0)])
    assert not np.allclose(plain.last_scores["unseen"][0], flipped.last_scores["unseen"][0])


def test_curves_count_the_pairs_of_all_models() -> None:
    mine = judge()
    mine.models([weights(0), weights(1)])
    curve = mine.curves()["unseen"]
    assert sum(curve["histogram"]["genuine"]) == sum(curve["histogram"]["impostor"]) == 2 * 20
    assert curve["roc"]["far"][-1] == 1 and curve["roc"]["tar"][-1] == 1


def test_a_headline_mask_leaves_pairs_out_of_the_curves() -> None:
    (chosen,) = lists()
    headline = ~chosen.pairs.same
    headline[np.flatnonzero(chosen.pairs.same)[:3]] = True
    pairs = type(chosen.pairs)("h", chosen.pairs.left, chosen.pairs.right, chosen.pairs.same, headline=headline)
    mine = Verification([VerificationPairs("h", chosen.faces, pairs)], first_backbone(tiny()))
    figures = mine.models([weights(0)])["h"]
    assert "accuracy" not in figures
    assert sum(mine.curves()["h"]["histogram"]["genuine"]) == int((headline & chosen.pairs.same).sum()) == 3
    assert mine.evidence()["h"][0]["list"] == mine.lists[0].identities.sha256


def test_lists_are_kept_without_images_and_read_again(tmp_path: Path) -> None:
    kept = lists()
    keep_lists(tmp_path / "judged", kept)
    ((name, read),) = read_lists(tmp_path / "judged")
    mine: PairIdentities = kept[0].identities
    assert (name, read.sha256) == ("unseen", mine.sha256)
    assert np.array_equal(read.left, mine.left) and np.array_equal(read.right, mine.right)
    assert mine.fold is not None and read.fold is not None and np.array_equal(read.fold, mine.fold)
    assert read.headline is None
    assert list(read_lists(tmp_path / "nowhere")) == []


def test_json_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


# --- people who are looked up, and other false accept rates -----------------------------------------------------------


def looking(rank1: str | None, tmp_path: Path, **more: Any) -> VerificationPairs:
    """A list over folders: three people of three images and more, and one of a single image."""
    if not (tmp_path / "faces").exists():
        for seed, (name, images) in enumerate({"Ann": 3, "Bob": 3, "Cid": 1, "Dan": 5}.items()):
            picture_folders(tmp_path / "faces", [name], images, seed)
    wanted = {"source": {"kind": "folder", "path": str(tmp_path / "faces")}, "pairs": 12, "rank1": rank1} | more
    return lists(evaluation={"pairs": {"unseen": wanted}}, data={"root": str(tmp_path)})[0]


def who(chosen: VerificationPairs, images: Any) -> list[str]:
    return [chosen.faces.names[label] for label in chosen.faces.labels[images]]


@pytest.mark.parametrize("rank1", ["one-query", "one-gallery"])
def test_one_image_of_each_is_looked_up_among_the_others_or_the_others_among_one_of_each(
    rank1: str, tmp_path: Path
) -> None:
    chosen = looking(rank1, tmp_path)
    assert chosen.queries is not None and chosen.gallery is not None
    both = np.concatenate([chosen.queries, chosen.gallery])
    assert sorted(both) == list(range(12)) == sorted(range(len(chosen.faces)))  # every image, each once
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
    shown = who(chosen, np.concatenate([chosen.queries, chosen.gallery]))
    assert sorted(shown) == ["Ann"] * 3 + ["Dan"] * 5  # all of their images, not only those in pairs


def test_images_beyond_the_most_are_not_looked_up_either(tmp_path: Path) -> None:
    chosen = looking("one-query", tmp_path, most_images=4, pairs=10)
    assert chosen.queries is not None and chosen.gallery is not None
    assert who(chosen, np.concatenate([chosen.queries, chosen.gallery])).count("Dan") == 4


def test_nobody_is_looked_up_unless_it_is_wanted(tmp_path: Path) -> None:
    chosen = looking(None, tmp_path)
    assert chosen.queries is None and chosen.gallery is None and chosen.identities.queries is None


def test_the_hash_of_a_list_tells_who_is_looked_up(tmp_path: Path) -> None:
    each = [looking(rank1, tmp_path) for rank1 in ("one-query", "one-gallery")]
    each.append(looking(None, tmp_path))
    assert len({chosen.identities.sha256 for chosen in each}) == 3
    assert len({(chosen.pairs.left.tobytes(), chosen.pairs.right.tobytes()) for chosen in each}) == 1
    assert looking("one-query", tmp_path).identities.sha256 == each[0].identities.sha256


def naive_hits(chosen: VerificationPairs, tensors: Tensors) -> list[bool]:
    """Whether the image of the gallery with the highest cosine is of the query's person, query by query."""
    backbone = first_backbone(tiny())
    backbone.load(tensors)

    def embedding(place: int) -> torch.Tensor:
        pixels = torch.from_numpy(chosen.faces.take(np.array([place])).astype(np.float32))
        with torch.no_grad():
            return backbone.module.eval()((pixels.permute(0, 3, 1, 2) - 127.5) / 127.5)[0].double()

    assert chosen.queries is not None and chosen.gallery is not None
    shown = {place: embedding(place) for place in (*chosen.queries.tolist(), *chosen.gallery.tolist())}
    found = []
    for query in chosen.queries.tolist():
        cosines = {j: float(torch.cosine_similarity(shown[query], shown[j], dim=0)) for j in chosen.gallery.tolist()}
        best = max(cosines, key=cosines.__getitem__)
        found.append(bool(chosen.faces.labels[best] == chosen.faces.labels[query]))
    return found


def one_gallery() -> list[VerificationPairs]:
    """The four people held out of the tiny recipe's twelve, with four images each."""
    return lists(evaluation={"pairs": {"unseen": {"rank1": "one-gallery"}}})


@pytest.mark.parametrize("seed", [0, 1])
def test_rank_1_is_the_share_of_queries_whose_nearest_is_right(seed: int) -> None:
    mine = Verification(one_gallery(), first_backbone(tiny()))
    figures = mine.models([weights(seed)])["unseen"]
    hits = naive_hits(mine.lists[0], weights(seed))
    assert mine.last_hits["unseen"][0].tolist() == hits and len(hits) == 12 and len(set(hits)) == 2
    assert figures["rank-1"] == pytest.approx(100 * sum(hits) / 12)
    plain = judge().models([weights(seed)])["unseen"]
    assert {name: figures[name] for name in plain} == plain  # the pairs' figures are not touched


def test_rank_1_of_several_models_is_their_mean() -> None:
    mine = Verification(one_gallery(), first_backbone(tiny()))
    both = mine.models([weights(0), weights(1)])["unseen"]["rank-1"]
    hits = [sum(naive_hits(mine.lists[0], weights(seed))) for seed in (0, 1)]
    assert both == pytest.approx(100 * sum(hits) / 24)
    assert [int(right.sum()) for right in mine.last_hits["unseen"]] == hits
    assert [("hits" in model) for model in mine.evidence()["unseen"]] == [True, True]
    judge_without = judge()
    judge_without.models([weights(0)])
    assert not any("hits" in model for model in judge_without.evidence()["unseen"])


def test_the_evidence_says_each_figure_again_with_everybody_counted_once() -> None:
    mine = Verification(one_gallery(), first_backbone(tiny()), fars=(0.1, 0.05))
    figures = mine.models([weights(1)])["unseen"]
    (evidence,) = json.loads(json.dumps(mine.evidence()))["unseen"]
    identities = mine.lists[0].identities
    once = Bootstrap(identities, np.ones((4, 1), dtype=np.int32))
    found = resample(evidence, once)
    assert set(found) == set(figures) - {"accuracy_se"} == {"accuracy", "eer", "tar@far=0.1", "tar@far=0.05", "rank-1"}
    for name, drawn in found.items():
        assert 100 * drawn.point == pytest.approx(figures[name]) and drawn.values[0] == drawn.point


def test_false_accept_rates_are_those_of_the_recipe_as_far_as_the_list_carries_them() -> None:
    for fars, expected in (
        ((0.2, 0.05), {"tar@far=0.2", "tar@far=0.05"}),
        ((0.1, 0.001), {"tar@far=0.1"}),
        ((), set()),
    ):
        mine = judge(fars=fars)
        figures = mine.models([weights(0)])["unseen"]
        assert {name for name in figures if name.startswith("tar")} == expected
        for name in expected:  # of 20 impostors the allowed ones may reach the threshold
            scores, same = mine.last_scores["unseen"][0], mine.lists[0].pairs.same
            impostors = np.sort(scores[~same])[::-1]
            allowed = int(float(name.partition("=")[2]) * 20 + 1e-9)
            assert figures[name] == pytest.approx(100 * (scores[same] > impostors[allowed]).mean())


def test_lists_with_queries_are_kept_and_read_again(tmp_path: Path) -> None:
    kept = one_gallery()
    keep_lists(tmp_path / "judged", kept)
    ((_, read),) = read_lists(tmp_path / "judged")
    mine = kept[0].identities
    assert mine.queries is not None and read.queries is not None
    assert np.array_equal(read.queries, mine.queries) and read.queries.dtype == np.int64
    assert kept[0].queries is not None and np.array_equal(mine.queries, kept[0].faces.labels[kept[0].queries])
    assert read.sha256 == mine.sha256


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"evaluation": {"pairs": {"unseen": {"kind": "bin", "path": "x.bin", "rank1": "one-query"}}}},
            r"evaluation\.pairs\.unseen\.rank1: a \.bin does not say who is in its images; leave it out",
        ),
        (
            {"validators": {"v": {"identities": 2, "rank1": "one-query"}}},
            r"validators\.v\.rank1: a validator scores pairs and looks nobody up; leave it out",
        ),
        (
            {
                "evaluation": {"pairs": {"unseen": {"rank1": "one-query"}}},
                **{"validators": {"v": {"validates": "unseen"}}, "fold_split": "first"},
            },
            r"evaluation\.pairs\.unseen\.rank1: v holds half of its folds, and who is looked up has no fold",
        ),
    ],
)
def test_looking_up_where_it_means_nothing_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        tiny(**changes)
