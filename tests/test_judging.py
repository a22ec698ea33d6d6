from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tinyruns import tiny

from coalface import pairlists, world
from coalface.core import Models, Tensors
from coalface.engines.server import Server
from coalface.evaluate.bootstrap import PairIdentities
from coalface.judging import Judge, keep_lists, read_lists, write_json
from coalface.pairlists import Lists


def lists(**changes: Any) -> list[Lists]:
    recipe = tiny(**changes)
    return pairlists.judged(recipe, *world.training_faces(recipe))


def judge(**changes: Any) -> Judge:
    return Judge(lists(), world.backbone(tiny()), **changes)


def weights(seed: int) -> Tensors:
    return {n: t.clone() for n, t in world.backbone(tiny(seed=seed)).shared().items()}


def naive_accuracy(scores: list[float], same: list[bool], fold: list[int]) -> float:
    """Ten-fold accuracy by trying every score as the threshold; of equally good ones the lower middle."""
    right = []
    for f in sorted(set(fold)):
        train = [(s, g) for s, g, k in zip(scores, same, fold, strict=True) if k != f]
        rightly = {cut: sum((s >= cut) == g for s, g in train) for cut in sorted({s for s, _ in train} | {2.0})}
        equal = [cut for cut, count in rightly.items() if count == max(rightly.values())]
        best = equal[(len(equal) - 1) // 2]
        test = [(s >= best) == g for s, g, k in zip(scores, same, fold, strict=True) if k == f]
        right.append(sum(test) / len(test))
    return 100 * sum(right) / len(right)


def test_the_scores_are_cosines_of_embeddings_made_one_by_one() -> None:
    mine = judge()
    mine.models([weights(0)])
    (chosen,) = mine.lists
    module = world.backbone(tiny()).module.eval()

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
    server = cast(Server, SimpleNamespace(own_models=lambda models: iter(own.items())))
    figures = mine(server, Models(at_party=lambda: None))
    assert list(mine.last_parties) == ["silo-0", "silo-1"]
    assert figures["unseen"]["eer"] == pytest.approx(np.mean([p["unseen"]["eer"] for p in mine.last_parties.values()]))
    mine(server, Models(shared=weights(0)))
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
    mine = Judge([Lists("h", chosen.faces, pairs)], world.backbone(tiny()))
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
