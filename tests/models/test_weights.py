"""Weights of others' files: what is read, what is refused, and how tensors find their places."""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from coalface.core.errors import DataError
from coalface.models import build
from coalface.models.pretrained.input import InputConvention
from coalface.models.pretrained.weights import fit_weights, read_weights


def network(seed: int = 0, convention: InputConvention | None = None) -> nn.Module:
    made = build("mobilefacenet", size=32, channels=1, convention=convention, generator=np.random.default_rng(seed))
    for name, tensor in made.state_dict().items():  # no two layers alike
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(np.random.default_rng(len(name) + seed).random(tensor.shape) + 0.5))
    return made


def floats(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_every_form_of_a_file_gives_the_tensors_by_name(tmp_path: Path) -> None:
    state = network().state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": t for k, t in state.items()}}, tmp_path / "c.pt")
    head = {"net.backbone.head.weight": torch.ones(2)}
    torch.save(head | {f"net.backbone.{k}": t for k, t in state.items()}, tmp_path / "d.pt")
    torch.save({f"net.{k}": t for k, t in state.items()} | {"fc.weight": torch.ones(2)}, tmp_path / "e.pt")
    for name in ("a.safetensors", "b.pth", "c.pt", "e.pt"):
        tensors, steps = fit_weights(read_weights(tmp_path / name), network(seed=1))
        assert same(tensors, floats(network())), name
    assert "takes away the prefix 'net.'" in steps and any("fc.weight" in step for step in steps)
    with pytest.raises(DataError):  # beside the network's own tensors, below the same prefix, is another
        fit_weights(read_weights(tmp_path / "d.pt"), network())
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    torch.save(half, tmp_path / "half.pt")
    tensors, _ = fit_weights(read_weights(tmp_path / "half.pt"), network())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_behind_an_input_convention_the_names_are_those_of_the_whole_module(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "a.pt")
    whole = network(seed=1, convention=InputConvention(mean=127))
    tensors, _ = fit_weights(read_weights(tmp_path / "a.pt"), whole)
    whole.load_state_dict(tensors, strict=False)
    assert same(floats(whole.network), floats(network()))


def renamed(parts: list[str]) -> OrderedDict[str, Tensor]:
    """The tensors of `network`, its parts in this order under other names, convolutions and norms numbered."""
    state, numbers = floats(network()), dict[str, int]()
    renamed_state: OrderedDict[str, Tensor] = OrderedDict()
    for part in parts:
        for name, tensor in state.items():
            if name.startswith(f"{part}."):
                layer, _, last = name.rpartition(".")
                number = numbers.setdefault(layer, len(numbers))
                renamed_state[f"{part.upper()}.{number}.{last}"] = tensor
    return renamed_state


def test_other_names_are_matched_by_the_order_of_shapes(tmp_path: Path) -> None:
    for parts in (["stem", "blocks", "widen", "gdconv", "linear"], ["linear", "gdconv", "stem", "widen", "blocks"]):
        torch.save(renamed(parts), tmp_path / "a.pt")
        tensors, steps = fit_weights(read_weights(tmp_path / "a.pt"), network(seed=1))
        assert same(tensors, floats(network()))
        assert sum(map(len, steps)) < 8000
    assert steps[0] == "takes its parts in the order STEM, BLOCKS, WIDEN, GDCONV, LINEAR"


def spread(side: str) -> list[str]:
    """`a.{0…2, 5}.b` → a.0.b, a.1.b, a.2.b, a.5.b."""
    before, brace, behind = side.partition("{")
    if not brace:
        return [side]
    numbers: list[int] = []
    spans, _, after = behind.partition("}")
    for span in spans.split(", "):
        first, _, last = span.partition("…")
        numbers += range(int(first), int(last or first) + 1)
    return [f"{before}{number}{after}" for number in numbers]


def test_the_steps_of_a_mapping_are_few_and_name_every_layer(tmp_path: Path) -> None:
    state = floats(network())
    torch.save({renamed_block(name): tensor for name, tensor in state.items()}, tmp_path / "a.pt")
    _, steps = fit_weights(read_weights(tmp_path / "a.pt"), network(seed=1))
    sides = [pair.split(" → ") for step in steps for pair in re.split(r", (?![\d…, ]*\})", step.partition(": ")[2])]
    mapping = {to: source for pair in sides for source, to in zip(*map(spread, pair), strict=True)}
    layers = {name.rpartition(".")[0] for name in state}
    assert mapping == {layer: renamed_block(f"{layer}.x")[:-2] for layer in layers}
    assert len(steps) == 5 and len(layers) > 70


def renamed_block(name: str) -> str:
    """The blocks counted from 1, with other words around the number, but for two that are parts of their own."""
    return re.sub(r"^blocks\.(\d+)\.layers", lambda block: f"body.{int(block[1]) + 1}.op", name)


def test_a_file_without_parts_is_matched_in_its_own_order(tmp_path: Path) -> None:
    flat = {name.partition(".")[2]: t for name, t in renamed(["stem", "blocks", "widen", "gdconv", "linear"]).items()}
    torch.save(flat, tmp_path / "a.pt")  # more than a hundred layers, many of them alike
    tensors, _ = fit_weights(read_weights(tmp_path / "a.pt"), network(seed=1))
    assert same(tensors, floats(network()))
    names = [name.partition(".")[0] for name in flat]
    moved = sorted(flat, key=lambda name: names.index(name.partition(".")[0]) if not name.startswith("3.") else 999)
    torch.save({name: flat[name] for name in moved}, tmp_path / "b.pt")
    with pytest.raises(DataError):
        fit_weights(read_weights(tmp_path / "b.pt"), network(seed=1))


class Pair(nn.Module):
    """Two like layers and another, in an order of their own."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


def test_an_order_that_shapes_leave_open_is_refused(tmp_path: Path) -> None:
    target = Pair(a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 2))
    torch.save(Pair(z=nn.Linear(4, 2), x=nn.Linear(4, 4), y=nn.Linear(4, 4)).state_dict(), tmp_path / "a.pt")
    with pytest.raises(DataError, match="x and y") as error:
        fit_weights(read_weights(tmp_path / "a.pt"), target)
    assert error.value.where == str(tmp_path / "a.pt")
    in_order = Pair(x=nn.Linear(4, 4), y=nn.Linear(4, 4), z=nn.Linear(4, 2)).state_dict()
    torch.save(in_order, tmp_path / "b.pt")
    tensors, _ = fit_weights(read_weights(tmp_path / "b.pt"), target)  # the file's own order tells x from y
    assert torch.equal(tensors["a.weight"], in_order["x.weight"])


class Command:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("harm"),))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["a.pt", "b.pth", "c.pt", "d.safetensors", "e.bin", "f.pt", "g.pt"])
def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Command()}, "a.pt")
    Path("b.pth").write_bytes(pickle.dumps(Command()))
    torch.save(network().state_dict(), "c.pt")
    Path("c.pt").write_bytes(Path("c.pt").read_bytes()[:-900])
    Path("d.safetensors").write_bytes(b"\xff" * 64)
    Path("e.bin").write_bytes(b"")
    torch.save({"net": {"a": torch.ones(1)}, "ema": {"a": torch.ones(1)}}, "f.pt")
    torch.save([torch.ones(1)], "g.pt")
    with pytest.raises(DataError) as error:
        read_weights(tmp_path / name)
    assert error.value.where == str(tmp_path / name)
    assert not (tmp_path / "harm").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
@pytest.mark.parametrize("name", ["zip", "legacy", "pickle", "module", "script"])
def test_a_file_that_holds_code_is_refused_and_its_weights_asked_for_as_safetensors(tmp_path: Path, name: str) -> None:
    path, module = tmp_path / "a.pt", nn.Linear(2, 2)
    if name == "pickle":
        path.write_bytes(pickle.dumps(Command()))
    elif name == "script":
        torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), path)  # type: ignore[no-untyped-call]
    else:
        content = module if name == "module" else {"a": Command()}
        torch.save(content, path, _use_new_zipfile_serialization=name != "legacy")
    with pytest.raises(DataError, match="holds code .* as safetensors$"):
        read_weights(path)


def test_an_onnx_file_is_said_to_teach_and_not_to_be_trained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"method: distill, teacher: sface\.onnx") as error:
        read_weights(tmp_path / "sface.onnx")
    assert error.value.where == str(tmp_path / "sface.onnx")


def test_what_is_no_file_of_weights_is_not_said_to_hold_code(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3000)}, tmp_path / "whole.pt")
    bytes_of = np.random.default_rng(0).bytes(3000)
    for content in (bytes_of, b"", b"hello\n" * 9, (tmp_path / "whole.pt").read_bytes()[:2000]):
        (tmp_path / "a.pth").write_bytes(content)
        with pytest.raises(DataError, match="^[^:]*: it is no file of weights, or a damaged one: get it again$"):
            read_weights(tmp_path / "a.pth")


@pytest.mark.parametrize("fault", ["shape", "missing", "unknown", "not finite", "integers", "endless", "nowhere"])
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, fault: str) -> None:
    state = network().state_dict()
    state |= {
        "shape": {"linear.0.weight": torch.ones(7)},
        "not finite": {"linear.0.weight": torch.full((128, 512, 1, 1), torch.nan)},
        "integers": {"linear.0.weight": torch.ones(128, 512, 1, 1, dtype=torch.int64)},
        "endless": {"linear.0.weight": torch.ones(1).expand(1 << 40)},
        "nowhere": {"linear.0.weight": torch.ones(128, 512, 1, 1, device="meta")},
        "unknown": {"linear.9.weight": torch.ones(7)},
    }.get(fault, {})
    if fault == "missing":
        del state["linear.0.weight"]
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(DataError, match=r"linear\.") as error:
        fit_weights(read_weights(tmp_path / "a.pt"), network())
    assert error.value.where == str(tmp_path / "a.pt")
