"""Tensors as one row of numbers: in place where they lie one behind the other, else copied."""

import pytest
import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Tensors, message


@message
class Weights:
    w: Tensors


FLAT = torch.arange(24.0)


@pytest.mark.parametrize(
    ("tensors", "in_place"),
    [
        ([FLAT[:4].view(2, 2), FLAT[4:7], FLAT[7]], True),
        ([FLAT[4:7], FLAT[:4]], False),
        ([FLAT[:4], FLAT[5:7]], False),
        ([FLAT.view(4, 6).T], False),
        ([torch.ones(3), torch.zeros(2)], False),
        ([FLAT[:2], FLAT[:0], FLAT[2:4]], False),
    ],
)
def test_they_follow_each_other_in_their_order(tensors: list[Tensor], in_place: bool) -> None:
    row = codec.joined(tensors)
    assert row.tolist() == [x for tensor in tensors for x in tensor.flatten().tolist()]
    assert (row.data_ptr() == tensors[0].data_ptr()) == in_place


def test_what_was_encoded_is_read_without_a_copy() -> None:
    sent = {"a": torch.randn(3, 5), "b": torch.randn(7), "c": torch.randn(2, 2)}
    read = codec.encode(Weights(w=sent)).message(Weights)
    row = codec.joined(list(read.w.values()))
    assert row.data_ptr() == read.w["a"].data_ptr() and torch.equal(row, codec.joined(list(sent.values())))
