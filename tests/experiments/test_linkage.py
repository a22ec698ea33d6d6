"""What linkage can and cannot tell, in cases worked by hand or planted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalface.core.method import generator
from coalface.experiments.attacks.fused_embeddings import (
    Fused,
    parts_of,
    restore,
    restore_known,
    share_assigned,
    share_by_name,
    share_named,
    share_restored,
)
from coalface.experiments.attacks.linkage import code_told, embedding_by_statistics, mean_feature_told
from coalface.experiments.attacks.updates import LastLayer, batch_statistics_told
from coalface.training.bch_codes import BCH, Codebook
from coalface.training.fedfv import draw_subsets, equivalent_embeddings


def directions(people: int, d: int, name: str = "w") -> Tensor:
    return F.normalize(torch.from_numpy(generator(0, name).standard_normal((people, d))), dim=1)


@pytest.mark.parametrize("fused", [2, 3])
def test_parts_are_those_of_a_search_through_all_subsets(fused: int) -> None:
    w = directions(9, 32)
    rows = equivalent_embeddings(w, 20, fused, generator=generator(0, "fuse"))
    naive = [
        max(
            itertools.combinations(range(9), fused), key=lambda some: float(F.normalize(w[[*some]].sum(0), dim=0) @ row)
        )
        for row in rows
    ]
    assert [tuple(sorted(parts)) for parts in parts_of(rows, w, fused).tolist()] == naive


def test_the_true_directions_assign_all_and_strangers_assign_none_beyond_chance() -> None:
    w, fused = directions(200, 64), draw_subsets(200, 400, 2, generator(1, "fuse"))
    rows = equivalent_embeddings(w, 400, 2, generator=generator(1, "fuse"))
    assert share_assigned(rows, w, fused) == 1
    assert share_assigned(rows, directions(200, 64, "others"), fused) < 0.03  # 2 of 200 by chance


@pytest.mark.parametrize("fused", [2, 3])
def test_class_embeddings_come_back_from_many_rows_and_not_from_few(fused: int) -> None:
    w = directions(40, 32)
    rows = equivalent_embeddings(w, 400, fused, generator=generator(0, "fuse"))
    assert share_restored(restore(rows, 40, fused, np.random.default_rng(0)), w) == 1
    assert share_restored(restore(rows[:12], 40, fused, np.random.default_rng(0)), w) == 0
    assert share_restored(rows, w) == 0  # what a row tells as it is


@pytest.mark.parametrize("fused", [2, 10])
def test_whoever_knows_what_was_fused_has_the_class_embeddings_of_few_rows_under_their_names(fused: int) -> None:
    w, drawn = directions(40, 32), draw_subsets(40, 120, fused, generator(0, "fuse"))
    rows = equivalent_embeddings(w, 120, fused, generator=generator(0, "fuse"))
    known = restore_known(rows, torch.from_numpy(drawn), 40)
    sums = np.array([[float(person in parts) for person in range(40)] for parts in drawn])
    lengths = np.linalg.norm(sums @ w.numpy(), axis=1, keepdims=True)  # which the attacker has to find out
    naive = np.linalg.lstsq(sums, lengths * rows.numpy(), rcond=None)[0]
    torch.testing.assert_close(known, torch.from_numpy(naive), rtol=0, atol=0.02)
    assert share_by_name(known, w) == 1
    assert share_by_name(known.roll(1, 0), w) == 0
    assert not restore_known(rows[:1], torch.from_numpy(drawn[:1]), 40)[[*{*range(40)} - {*drawn[0]}]].any()


def test_a_person_is_named_whose_direction_is_restored_and_nearest_to_his_own_photographs() -> None:
    w, features = directions(4, 32), directions(5, 32, "features")
    features[[2, 0, 1, 4]] = w  # whose photographs these are
    assert share_named(w, w, features, [2, 0, 1, 4]) == 1
    assert share_named(w, w, features, [0, 2, 1, 4]) == 0.5
    assert share_named(w[:3], w, features, [2, 0, 1, 4]) == 0.75
    assert share_named(w[:0], w, features, [2, 0, 1, 4]) == share_restored(w[:0], w) == 0


def test_a_client_has_the_rows_of_the_rounds_in_which_it_was_asked_and_no_others() -> None:
    sent, rows = Fused(), {number: directions(4, 8, f"round {number}") for number in range(1, 31)}
    for number, party in [(1, "a"), (1, "b"), (2, "b"), (3, "c"), (30, "a")]:
        sent.note(number, rows[number], party)
    assert (sent.rounds_of(["a"]), sent.rounds_of(["c", "b"]), sent.rounds_of(["never asked"])) == (
        [1, 30],
        [1, 2, 3],
        [],
    )
    assert torch.equal(sent.of_rounds([1, 30]), torch.cat([rows[1], rows[30]]))
    nothing = sent.of_rounds([])
    assert share_restored(restore(nothing, 9, 2, np.random.default_rng(0)), directions(3, 8)) == 0


def test_a_change_of_the_last_layer_tells_the_embedding_of_a_single_image() -> None:
    weight, bias = directions(5, 7), torch.arange(5.0).double()
    h, g = directions(1, 7, "h")[0], torch.tensor([0.5, -1.0, 0.0, 2.0, 0.1]).double()
    told = mean_feature_told(LastLayer("fc", weight, bias, torch.outer(g, h), g))
    torch.testing.assert_close(told, weight @ h + bias)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_first_batchnorm_of_pooled_features_tells_the_mean_embedding_and_hides_it_from_what_follows(
    steps: int,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4)
    ).double()
    norm = {"weight": torch.rand(6) + 0.5, "bias": torch.randn(6), "running_mean": torch.randn(6)}
    net.load_state_dict(net.state_dict() | {f"1.{name}": value for name, value in norm.items()})
    images = torch.randn(8, 3, 1, 1).double()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
    expected = net.eval()(images).mean(0).detach()
    for _ in range(steps):
        trained_on = net.train()(images).mean(0)
    torch.testing.assert_close(trained_on, before["4.bias"])  # whoever is on the images
    after = {name: net.state_dict()[name].clone() for name in before}
    net.load_state_dict(before, strict=False)
    told = embedding_by_statistics(net, batch_statistics_told(before, after, steps), torch.zeros(1, 3, 1, 1).double())
    assert told is not None and not net[1]._forward_pre_hooks
    torch.testing.assert_close(told, expected, rtol=1e-9, atol=1e-9)
    assert embedding_by_statistics(net, {}, images[:1]) is None


def test_a_codeword_is_the_signs_of_a_change_of_rank_one_and_of_no_other() -> None:
    book = Codebook(BCH(127, 64), 50)
    codeword, other = (book.codeword(user, generator(0, "code", user)) for user in (3, 44))
    change = -0.3 * torch.outer(codeword, directions(1, 16)[0].float())
    assert code_told(change, codeword, book.user_bits) == 1
    assert code_told(-change, codeword, book.user_bits) == 1
    assert 0.2 < code_told(change, other, book.user_bits) < 0.8
