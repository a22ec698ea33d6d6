"""Updates in narrow types: the formula twice, its bound, what is left as it is, and what a server refuses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import over_flower
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from worlds import ONE_OF_A_KIND, recipe

from coalface.core import codec, compression
from coalface.core.compression import TYPES, Updates
from coalface.core.header import read_tensors
from coalface.core.method import Tensors, content, free, like, message
from coalface.engine.checkpoint import CheckpointError
from coalface.engine.local import InProcess
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import NUMERICS, Stop, run, stopping
from coalface.methods import METHODS

Array = NDArray[Any]


@message
class Sent:
    w: Tensors
    point: Tensor = content("weight")


@message
class Answer:
    w: Tensors
    slope: Tensor = like("point", "weight")
    other: Tensor = free("weight")
    images: int = 1


def there_and_back(reply: Answer, sent: Sent, updates: Updates | None) -> Answer:
    """The reply as the server has it, which finds nothing wrong with it."""
    return received(encoded(reply, sent, updates).data, sent, updates)


def encoded(reply: Answer, sent: Sent, updates: Updates | None) -> codec.Encoded:
    return codec.encode(reply, change=compression.narrowing(codec.forms(Answer, [sent]), updates))


def received(data: bytearray | memoryview, sent: Sent, updates: Updates | None) -> Answer:
    forms = codec.forms(Answer, [sent])
    reply = codec.decode(data, Answer, change=compression.widening(forms, updates), like=forms)
    codec.validate(reply, forms)
    return reply


def both(before: Tensor, after: Tensor) -> tuple[Answer, Sent]:
    point = torch.zeros(2, 2)
    return Answer(w={"a": after}, slope=point, other=point), Sent(w={"a": before}, point=point)


def changed(before: Tensor, after: Tensor, updates: Updates) -> Array:
    """What the server takes for the change that was made."""
    back = there_and_back(*both(before, after), updates).w["a"]
    return back.double().numpy() - before.double().numpy()


def written(reply: Answer, sent: Sent, updates: Updates) -> dict[str, codec.Entry]:
    return {e.name: e for e in encoded(reply, sent, updates).entries}


# --- the formula ------------------------------------------------------------------------------------------------------


def naive(before: Array, after: Array, updates: Updates) -> tuple[Array, list[float]]:
    """What the server has of rows y that were sent as differences to x, value by value, and the scales of int8."""
    restored, scales = np.zeros(before.shape, dtype=np.float32), []
    for r in range(len(before)):
        scale = np.float32(
            max(abs(y - x) for x, y in zip(before[r].flat, after[r].flat, strict=True)) / np.float32(127)
        )
        scales.append(float(scale))
        for place in np.ndindex(before[r].shape):
            change = np.float32(after[r][place] - before[r][place])
            if updates == "int8":
                narrow = np.float32(round(float(change / scale))) * scale if scale else np.float32(0)
            elif updates == "float16":
                narrow = np.float32(np.float16(change))
            else:  # the upper half of the float32, rounded to the nearest, ties to even
                bits = int(change.view(np.uint32))
                narrow = np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
            restored[r][place] = before[r][place] + narrow
    return restored, scales


@pytest.mark.parametrize("updates", list(TYPES))
def test_it_is_what_a_loop_over_the_values_gives(updates: Updates) -> None:
    rng = np.random.default_rng(0)
    for shape in [(3, 4), (1, 7), (5, 1), (4, 2, 3, 3)]:
        before, after = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for _ in range(2))
        back = there_and_back(*both(before, after), updates).w["a"]
        assert np.array_equal(back.numpy(), naive(before.numpy(), after.numpy(), updates)[0])


def test_int8_by_hand() -> None:
    before = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    after = torch.tensor([[128.0, -62.5, 1.5, 2.5], [0.254, -0.254, 0.001, 0.0], [5.0, 5.0, 5.0, 5.0]])
    reply, sent = both(before, after)
    tensors, _ = read_tensors(encoded(reply, sent, "int8").data, Answer)
    # differences 127, −63.5, 0.5, 1.5 with scale 1: halves go to the even number
    assert tensors["w/a"].tolist() == [[127, -64, 0, 2], [127, -127, 0, 0], [0, 0, 0, 0]]
    assert tensors["scales of w/a"].tolist() == pytest.approx([1.0, 0.002, 0.0])
    back = there_and_back(reply, sent, "int8").w["a"]
    assert back[0].tolist() == [128.0, -63.0, 1.0, 3.0] and torch.equal(back[2], after[2])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    power=st.integers(-28, 30),
    zeros=st.booleans(),
)
def test_an_int8_difference_is_off_by_half_a_scale_at_most(
    rows: int, columns: int, seed: int, power: int, zeros: bool
) -> None:
    rng = np.random.default_rng(seed)
    before = torch.zeros(rows, columns)  # so that the sum at the server rounds nothing
    after = torch.from_numpy((rng.standard_t(2, size=(rows, columns)) * 10.0**power).astype(np.float32))
    after[0] *= not zeros
    scales = naive(before.numpy(), after.numpy(), "int8")[1]
    error = np.abs(changed(before, after, "int8") - after.double().numpy())
    assert (error <= np.array(scales)[:, None] * (0.5 + 1e-5)).all()  # and what float32 rounds
    assert not zeros or (error[0] == 0).all()


# --- what is narrowed, and what is left -------------------------------------------------------------------------------


def everything() -> tuple[Answer, Sent]:
    """float32 of two dimensions, of one, of none, and empty; counters and float64; a gradient; a free tensor."""
    torch.manual_seed(2)
    w = {"matrix": torch.randn(3, 4), "bias": torch.randn(4), "number": torch.randn(()), "none": torch.zeros(0, 4)}
    w |= {"count": torch.arange(6).view(2, 3), "exact": torch.randn(2, 3, dtype=torch.float64)}
    after = {name: t + 1 for name, t in w.items()}
    return Answer(w=after, slope=torch.randn(3, 2), other=torch.randn(3, 5)), Sent(w=w, point=100 * torch.ones(3, 2))


def test_float32_of_two_dimensions_with_a_counterpart_is_narrowed_and_nothing_else() -> None:
    reply, sent = everything()
    for updates, name in [("float16", "F16"), ("bfloat16", "BF16"), ("int8", "I8")]:
        entries, plain = written(reply, sent, updates), written(reply, sent, None)
        narrow = {path for path, e in entries.items() if path in plain and e.dtype != plain[path].dtype}
        assert narrow == {"w/matrix", "slope"} and {entries[path].dtype for path in narrow} == {name}
        back = there_and_back(reply, sent, updates)
        for field in ("bias", "number", "none", "count", "exact"):
            assert torch.equal(back.w[field], reply.w[field])
        assert torch.equal(back.other, reply.other)
    assert {p for p in written(reply, sent, "int8") if p.startswith("scales")} == {
        "scales of w/matrix",
        "scales of slope",
    }


def test_a_field_that_is_like_another_is_no_change_of_it() -> None:
    reply, sent = everything()
    back = there_and_back(reply, sent, "bfloat16").slope
    assert torch.equal(back, reply.slope.bfloat16().float())  # a difference to 100 would have lost it


def test_what_a_type_cannot_hold_is_sent_as_it_is() -> None:
    before, after = torch.zeros(2, 2), torch.tensor([[70000.0, 1.0], [1.0, 1.0]])
    reply, sent = both(before, after)
    assert written(reply, sent, "float16")["w/a"].dtype == "F32"
    assert torch.equal(there_and_back(reply, sent, "float16").w["a"], after)
    assert written(reply, sent, "bfloat16")["w/a"].dtype == "BF16" and written(reply, sent, "int8")["w/a"].dtype == "I8"
    largest = torch.finfo(torch.float32).max
    reply, sent = both(-torch.full((2, 2), largest), torch.full((2, 2), largest))  # a difference beyond float32
    for updates in ("float16", "bfloat16"):
        assert torch.equal(there_and_back(reply, sent, updates).w["a"], reply.w["a"])


def test_a_row_too_small_for_a_scale_counts_as_zero() -> None:
    after = torch.tensor([[1e-40, -1e-37], [1.0, 1.0]])
    assert changed(torch.zeros(2, 2), after, "int8")[0].tolist() == [0.0, 0.0]


# --- whole runs -------------------------------------------------------------------------------------------------------

INT8 = replace(NUMERICS, update_dtype="int8")
NOTHING_NARROW = ("solo",)
"""Methods whose replies hold no matrix that was sent before."""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for path in folder.glob("ledger/*.jsonl") for text in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "name", [n if n in ONE_OF_A_KIND else pytest.param(n, marks=(pytest.mark.slow, pytest.mark.ci)) for n in METHODS]
)
def test_every_method_runs_with_int8_updates(name: str, tmp_path: Path) -> None:
    """No reply is refused, what is counted is what the ledgers say, and it is narrow where there are matrices."""
    settings = {f.name for f in fields(METHODS[name])}  # type: ignore[arg-type]
    method, build = recipe(name, **{field: 1 for field in ("rounds", "pretrain", "finetune") if field in settings})
    ran = run(method, tmp_path, build, numerics=INT8)
    ledger_lines = lines(tmp_path)
    assert not any(stats.failed for stats in ran.server.at.party_stats.values())
    assert sum(line["bytes"] for line in ledger_lines) == ran.server.at.totals["up"]
    dtypes = {line["name"]: line["dtype"] for line in ledger_lines}
    assert {dtypes[n] for n in dtypes if n in ("backbone/up.weight", "gradient/up.weight", "classifier")} <= {"I8"}
    assert {dtypes[n] for n in dtypes if n in ("backbone/up.bias", "scales of backbone/up.weight")} <= {"F32"}
    assert "I8" in dtypes.values() or name in NOTHING_NARROW


def test_a_run_is_close_to_one_in_float32_and_not_the_same(tmp_path: Path) -> None:
    method, build = recipe("fedavg")
    runs = [run(method, tmp_path / str(n.update_dtype), build, numerics=n) for n in (NUMERICS, INT8)]
    first, (exact, narrow) = build().backbone.shared(), [r.models.shared or {} for r in runs]
    step = math.sqrt(sum(float((exact[n] - first[n]).pow(2).sum()) for n in first))
    error = math.sqrt(sum(float((narrow[n] - exact[n]).pow(2).sum()) for n in first))
    assert 0 < error < 0.02 * step
    assert runs[1].server.at.totals["up"] < 0.4 * runs[0].server.at.totals["up"]


def test_stopped_and_resumed_or_over_flower_it_is_the_same_run(tmp_path: Path) -> None:
    method, build = recipe("scaffold", rounds=2)
    whole = run(method, tmp_path / "whole", build, numerics=INT8).bytes()
    assert run(method, tmp_path / "flower", build, numerics=INT8, transport=over_flower()).bytes() == whole
    with pytest.raises(Stop):
        run(method, tmp_path / "stopped", build, numerics=INT8, transport=stopping(4))
    with pytest.raises(CheckpointError, match=r"other numerics: update_dtype int8 \(now float16\)"):
        run(method, tmp_path / "stopped", build, numerics=replace(INT8, update_dtype="float16"))
    assert run(method, tmp_path / "stopped", build, numerics=INT8).bytes() == whole


class Mixed(InProcess):
    """A transport on which one party narrows its replies otherwise than the server thinks."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request in requests:
            context = replace(self._context, update_dtype="float16") if request.party == "silo-0" else self._context
            yield request, PartyExecutor(context, request.party).answer(request)


def test_a_party_that_narrows_otherwise_is_refused_by_name_and_the_others_count(tmp_path: Path) -> None:
    method, build = recipe("fedavg", rounds=1)
    party_stats = run(method, tmp_path, build, numerics=INT8, transport=Mixed).server.at.party_stats
    assert {party: stats.failed for party, stats in party_stats.items()} == {"silo-0": 1, "silo-1": 0, "silo-2": 0}
    assert re.search(r"backbone/down.weight is F16 .*, not F32", (tmp_path / "metrics.jsonl").read_text())


# --- a server that is sent nonsense -----------------------------------------------------------------------------------


def forged(tensors: Tensors, updates: Updates = "int8") -> Answer:
    """A reply to matrices of zeros, two by two, whose bytes hold these tensors in place of `w/a` and its scales."""
    reply, sent = both(torch.zeros(2, 2), torch.ones(2, 2))

    def change(tensors_sent: Tensors) -> Tensors:
        return {name: t for name, t in tensors_sent.items() if name != "w/a"} | tensors

    return received(codec.encode(reply, change=change).data, sent, updates)


ONES, MOST = torch.ones(2, 2, dtype=torch.int8), torch.full((2, 2), 127, dtype=torch.int8)


def scaled(scales: Tensor, w: Tensor = ONES) -> Tensors:
    return {"w/a": w, "scales of w/a": scales}


def test_what_a_party_may_send() -> None:
    assert forged(scaled(torch.tensor([2.0, 0.0]))).w["a"].tolist() == [[2, 2], [0, 0]]
    assert forged({"w/a": torch.full((2, 2), 7.0)}).w["a"].tolist() == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    ("tensors", "updates"),
    [
        ({"w/a": MOST}, "int8"),
        (scaled(torch.ones(3)), "int8"),
        (scaled(torch.ones(2).double()), "int8"),
        (scaled(torch.tensor([1.0, -1.0])), "int8"),
        (scaled(torch.tensor([1.0, math.inf])), "int8"),
        (scaled(torch.tensor([3e38, 1.0]), MOST), "int8"),
        ({"w/a": torch.ones(2, 3, dtype=torch.int8)}, "int8"),
        ({"w/a": torch.full((2, 2), math.nan, dtype=torch.float16)}, "float16"),
        ({"w/a": ONES}, "float16"),
    ],
)
def test_narrow_tensors_of_another_form_or_with_absurd_scales_are_refused(tensors: Tensors, updates: Updates) -> None:
    with pytest.raises(codec.Refused, match="w/a"):
        forged(tensors, updates)


def test_scales_of_nothing_are_refused() -> None:
    for name in ("w/a", "w/b"):
        with pytest.raises(codec.WireError, match=f"scales of {name}"):
            forged({"w/a": torch.ones(2, 2), f"scales of {name}": torch.ones(2)})


@pytest.mark.parametrize("updates", [None, *TYPES])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_values_that_are_not_finite_are_refused(updates: Updates | None, bad: float) -> None:
    with pytest.raises(codec.Refused, match="w/a"):
        there_and_back(*both(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [bad, 1.0]])), updates)
