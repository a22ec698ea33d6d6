"""Weights that others trained: read without executing anything, and matched to a network's tensors.

A file fits by its names, or by a mapping that its shapes and their order determine; every step is printed.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from coalface.core.errors import DataError
from coalface.core.method import Tensors
from coalface.core.text import first_few, several
from coalface.models import branched
from coalface.models.folder import locate, read_about, read_tensors
from coalface.models.pretrained.input import WithInput

SUFFIXES = (".safetensors", ".pt", ".pth")
COUNTER = "num_batches_tracked"
_MOST_PARTS, _MOST_SETS = 64, 10_000
"""Of a file whose parts may stand in another order: more parts, or sets of parts to continue from, are not searched."""


@dataclass(frozen=True)
class Weights:
    """What a file or a folder holds."""

    path: Path
    sha256: str
    """Of the file of tensors."""
    tensors: Tensors
    steps: tuple[str, ...] = ()
    """What was done to have the tensors by name."""


def identify(path: Path, party: str | None = None) -> tuple[str, Mapping[str, Any]]:
    """(the SHA-256 of the file of tensors, `model.json` where it is a folder), with no tensor read.

    Raises DataError and OSError as `read_weights` does.
    """
    if path.is_dir():
        folder = locate(path)
        name = _file(folder, party)
        about = read_about(folder)
        return about["sha256"][name], about
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), {}


def _file(folder: Path, party: str | None) -> str:
    """The file of a model's tensors, or of a party's own."""
    name = "backbone.safetensors" if party is None else f"parties/{party}.safetensors"
    if not (folder / name).exists():
        parties = sorted(path.stem for path in folder.glob("parties/*.safetensors"))
        hint = ""
        if parties:
            export = f"coalface export {shlex.quote(str(folder))} --to safetensors --party {parties[0]}"
            hint = (
                f"; each party has its own ({first_few(parties, most=8)}): to start from one, name it as model.party; "
            )
            hint += f"to learn from one, name the folder that `{export}` writes"
        raise DataError(f"{folder / name} does not exist{hint}", where=folder)
    return name


def read_weights(path: Path, party: str | None = None) -> Weights:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file, of a run, or of a folder with a model, a `party`'s own.

    Of a personalised model the branch behind the backbone is left out.
    Of a `.pt` or `.pth` file only tensors are read, by torch's `weights_only`: what else a pickle asks for is refused.
    Raises DataError for what cannot be read so, and OSError.
    """
    if path.is_dir():
        folder = locate(path)
        name = _file(folder, party)
        about = read_about(folder)
        tensors = read_tensors(folder, name, about)
        backbone = {name: tensor for name, tensor in tensors.items() if name not in branched.NAMES}
        is_branched = len(backbone) < len(tensors)
        notes = ("leaves out the branch of a personalised model",) if is_branched else ()
        return Weights(path, about["sha256"][name], backbone, notes)
    if party is not None:
        raise DataError("a file holds the tensors of one model: remove model.party", where=path)
    if path.suffix == ".onnx":
        raise DataError(
            "an ONNX file cannot be trained: give the network's PyTorch weights, or let it teach one that can, by "
            f"`pretrain: {{method: distill, teacher: {path.name}}}` (docs/models.md#distillation)",
            where=path,
        )
    if path.suffix not in SUFFIXES:
        raise DataError(f"not a file of weights by its name; use a run, or {', '.join(SUFFIXES)}", where=path)
    data = path.read_bytes()
    try:
        if path.suffix == ".safetensors":
            content: Any = load(data)
        else:
            with warnings.catch_warnings(action="ignore"):  # of a pickle that is refused anyway
                content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise DataError(f"not a safetensors file: {error}", where=path) from None
    except Exception as error:  # whatever torch raises; its text advises to run the code of a pickle
        is_pickle = isinstance(error, pickle.UnpicklingError) and data.startswith((b"PK", b"\x80"))
        if is_pickle or "TorchScript" in str(error):
            text = "refused: it holds code or other objects, and not tensors alone; get the weights as safetensors"
        else:
            text = "it is no file of weights, or a damaged one: get it again"
        raise DataError(text, where=path) from None
    tensors, steps = _tensors(content, path)
    return Weights(path, hashlib.sha256(data).hexdigest(), tensors, steps=tuple(steps))


def _tensors(content: Any, path: Path) -> tuple[Tensors, list[str]]:
    """The one mapping of names to tensors in a file, perhaps nested under a key such as `state_dict`."""
    steps = []
    if isinstance(content, Mapping) and not _is_state(content):
        below = [key for key, value in content.items() if _is_state(value)]
        if len(below) != 1:
            which = f"{', '.join(map(str, below[:5]))}; keep one of them" if below else "none"
            raise DataError(f"its keys that hold tensors by name are: {which}", where=path)
        steps, content = [f"takes the tensors below the key {below[0]!r}"], content[below[0]]
    if not _is_state(content):
        raise DataError(f"it holds a {type(content).__name__}, and not tensors by name", where=path)
    return dict(content), steps


def _is_state(value: Any) -> bool:
    named = isinstance(value, Mapping) and len(value) > 0
    return named and all(isinstance(k, str) and isinstance(t, Tensor) for k, t in value.items())


def fit_weights(weights: Weights, network: nn.Module) -> tuple[Tensors, tuple[str, ...]]:
    """(the float tensors of a network by its names, the steps of the mapping); the network may be on the meta device.

    Tried in turn: the network's names; these below one prefix; the order of the file's layers, where the sequences of
    shapes are the network's, with its parts (the names before the first dot) in the one order in which they are.
    Raises DataError where none fits, or several orders do.
    """
    inner = network.network if isinstance(network, WithInput) else network
    expected = {name: tensor for name, tensor in inner.state_dict().items() if tensor.is_floating_point()}
    from_file = {name: tensor for name, tensor in weights.tensors.items() if name.rpartition(".")[2] != COUNTER}
    steps = list(weights.steps)
    if counters := len(weights.tensors) - len(from_file):
        steps.append(f"leaves out {several(counters, 'counter')} ({COUNTER})")
    if from_file.keys() == expected.keys():
        steps.append("takes every tensor by its name")
    else:
        last = f".{next(iter(expected))}"
        prefixes = (name.removesuffix(last) + "." for name in from_file if name.endswith(last))
        prefix = next((p for p in prefixes if expected.keys() == _below(from_file, p).keys()), None)
        if prefix is not None:
            steps.append(f"takes away the prefix {prefix!r}")
            if outside := [name for name in from_file if not name.startswith(prefix)]:
                steps.append(f"leaves out {several(len(outside), 'tensor')} without it: {first_few(outside, 5)}")
            from_file = _below(from_file, prefix)
        else:
            from_file, by_order = _by_order(from_file, expected, weights.path)
            steps += by_order
    wrong = [name for name, tensor in expected.items() if from_file[name].shape != tensor.shape]
    if wrong:
        raise DataError(_unfit(from_file, expected, wrong), where=weights.path)
    before = "" if inner is network else "network."
    plain = {before + name: _plain(from_file[name], t.dtype, name, weights.path) for name, t in expected.items()}
    return plain, tuple(steps)


def _plain(tensor: Tensor, dtype: torch.dtype, name: str, path: Path) -> Tensor:
    if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
        raise DataError(f"{name} holds no plain floating-point numbers", where=path)
    plain = tensor.detach().to(dtype).contiguous().clone()
    if not plain.isfinite().all():
        raise DataError(f"{name} holds numbers that are not finite", where=path)
    return plain


def _below(given: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)}


# --- by order ---------------------------------------------------------------------------------------------------------

Form = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class _Layer:
    """The tensors of one module: a convolution, a norm, a PReLU."""

    name: str
    form: Form
    """(last part of the name, shape) of each tensor."""

    @property
    def kind(self) -> str:
        """Layers with matrices, or the names of their vectors: only the order within a kind is compared."""
        return "matrices" if any(len(shape) > 1 for _, shape in self.form) else " ".join(name for name, _ in self.form)


def _layers(tensors: Mapping[str, Tensor]) -> list[_Layer]:
    forms: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".")
        forms.setdefault(layer, []).append((last, tuple(tensor.shape)))
    return [_Layer(name, tuple(sorted(form))) for name, form in forms.items()]


Kinds = dict[str, list[_Layer]]


def _by_kind(layers: Sequence[_Layer]) -> Kinds:
    kinds: Kinds = {}
    for layer in layers:
        kinds.setdefault(layer.kind, []).append(layer)
    return kinds


def _forms(kinds: Kinds) -> dict[str, list[Form]]:
    return {kind: [layer.form for layer in layers] for kind, layers in kinds.items()}


def _by_order(given: Tensors, expected: Tensors, path: Path) -> tuple[Tensors, list[str]]:
    """The file's tensors by the network's names, and the steps: which layer becomes which."""
    goal, file_layers = _by_kind(_layers(expected)), _by_kind(_layers(given))
    steps = []
    if _forms(file_layers) != _forms(goal):
        parts: dict[str, list[_Layer]] = {}
        for layer in _layers(given):
            parts.setdefault(layer.name.partition(".")[0], []).append(layer)
        orders: list[tuple[str, ...]] = []
        sizes = [{kind: len(layers) for kind, layers in kinds.items()} for kinds in (file_layers, goal)]
        if sizes[0] == sizes[1] and len(parts) <= _MOST_PARTS:
            orders = _orders({name: _by_kind(layers) for name, layers in parts.items()}, goal)
        if not orders:
            raise DataError(_unfit(given, expected), where=path)
        if len(orders) > 1:
            first, second = next(pair for pair in zip(*orders, strict=True) if pair[0] != pair[1])
            raise DataError(f"ambiguous: by their shapes {first} and {second} may change places", where=path)
        steps.append(f"takes its parts in the order {', '.join(orders[0])}")
        file_layers = _by_kind([layer for name in orders[0] for layer in parts[name]])
    tensors: Tensors = {}
    sources: dict[str, str] = {}
    for kind, layers in file_layers.items():
        for source, target in zip(layers, goal[kind], strict=True):
            sources[target.name] = source.name
            for last, _ in target.form:
                tensors[_joined(target.name, last)] = given[_joined(source.name, last)]
    in_order = [(sources[layer.name], layer.name) for layer in _layers(expected)]
    by_part = itertools.groupby(in_order, key=lambda pair: pair[1].partition(".")[0])
    return tensors, steps + [f"{part}: {', '.join(_folded(list(pairs)))}" for part, pairs in by_part]


_BLOCK = re.compile(r"\b\d+\b")


def _folded(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """`source → target` of layers; those that differ in the number of their block alone are one.

    >>> _folded([("f.1.conv", "blocks.0.a"), ("f.1.bn", "blocks.0.b"), ("f.2.conv", "blocks.1.a")])
    ['f.{1…2}.conv → blocks.{0…1}.a', 'f.1.bn → blocks.0.b']
    """
    alike: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for source, target in pairs:
        forms, from_to = (source, target), (0, 0)
        if (first := _BLOCK.search(source)) and (second := _BLOCK.search(target)):
            forms = _BLOCK.sub("\0", source, count=1), _BLOCK.sub("\0", target, count=1)
            from_to = int(first[0]), int(second[0])
        alike.setdefault((*forms, from_to[0] - from_to[1]), []).append(from_to)
    steps = []
    for (source, target, _), blocks in alike.items():
        sides = zip((source, target), zip(*blocks, strict=True), strict=True)
        steps.append(" → ".join(form.replace("\0", _span(numbers)) for form, numbers in sides))
    return steps


def _span(numbers: Sequence[int]) -> str:
    """Numbers, those that follow on each other as `{0…3}`."""
    by_run = itertools.groupby(enumerate(numbers), key=lambda place: place[1] - place[0])
    runs = [[number for _, number in run] for _, run in by_run]
    spans = [f"{run[0]}…{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return spans[0] if len(numbers) == 1 else f"{{{', '.join(spans)}}}"


def _joined(layer: str, last: str) -> str:
    return f"{layer}.{last}" if layer else last


def _orders(parts: Mapping[str, Kinds], goal: Kinds) -> list[tuple[str, ...]]:
    """Up to two orders of a file's parts in which their layers have the network's shapes.

    Two that map the layers alike are one: a norm and a convolution beside it may change places. What can follow depends
    only on which parts are placed.
    """
    after: dict[frozenset[str], list[tuple[str, ...]]] = {frozenset(parts): [()]}

    def mapping(order: tuple[str, ...]) -> dict[str, list[str]]:
        layers = [layer for name in order for below in parts[name].values() for layer in below]
        return {kind: [layer.name for layer in below] for kind, below in _by_kind(layers).items()}

    def follow(placed: frozenset[str]) -> list[tuple[str, ...]]:
        if placed not in after and len(after) < _MOST_SETS:
            orders: list[tuple[str, ...]] = []
            for name in (name for name in parts if name not in placed and fits(name, placed)):
                for order in ((name, *rest) for rest in follow(placed | {name})):
                    if len(orders) < 2 and all(mapping(order) != mapping(before) for before in orders):
                        orders.append(order)
            after[placed] = orders
        return after.get(placed, [])

    def fits(name: str, placed: frozenset[str]) -> bool:
        for kind, layers in parts[name].items():
            at = sum(len(parts[before].get(kind, ())) for before in placed)
            if [layer.form for layer in goal[kind][at : at + len(layers)]] != [layer.form for layer in layers]:
                return False
        return True

    return follow(frozenset())


def _unfit(given: Tensors, expected: Tensors, wrong: Sequence[str] = ()) -> str:
    """What does not fit, by name."""
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    shapes = [f"{n} is {tuple(given[n].shape)}, not {tuple(expected[n].shape)}" for n in wrong]
    faults = [
        f"{several(len(names), 'tensor')} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("of the network missing", missing), ("unknown to it", unknown))
        if names
    ]
    faults += shapes[:3] + ([f"and {len(shapes) - 3} more"] if len(shapes) > 3 else [])
    by_order = "" if wrong else ", nor do the shapes in their order"
    return f"it does not fit the network: {'; '.join(faults)}{by_order}"
