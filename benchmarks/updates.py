"""How far updates in float16, bfloat16 and int8 are off, and what it takes to narrow them.

    python benchmarks/updates.py [updates/synthetic] [method=fedavg …]
    python benchmarks/updates.py --speed ir18

Runs a recipe with updates as they are, and narrows each reply beside it in every type: ‖δ̂ − δ‖ / ‖δ‖ for each field of
matrices, where δ is what the party changed and δ̂ what the server would have; medians over parties and rounds, and of
the last round. `weights as …` is the same for a server that is sent the weights in that type and no differences.
`--speed` times encoding and decoding of one reply of a backbone, on one thread: medians of seven.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from coalface.core import codec, compression
from coalface.core.compression import TYPES, Updates
from coalface.core.declarations import Tensors
from coalface.core.method import Models, generator, message
from coalface.experiments.attacks.base import Attack, Exchange, Outcome
from coalface.experiments.attacks.replay import replay
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader, schema
from coalface.models import build

Errors = dict[tuple[str, str], list[tuple[int, float]]]
"""(field, how it is sent) -> round and relative error of every reply."""


def matrices(value: Any) -> torch.Tensor:
    """The float32 tensors of two dimensions or more of a field's value, in one vector."""
    tensors = value.values() if isinstance(value, dict) else [value]
    flat = [t.flatten() for t in tensors if t.dtype == torch.float32 and t.dim() > 1]
    return torch.cat(flat).double() if flat else torch.zeros(0, dtype=torch.float64)


def measure(reply: Any, sent: list[Any], when: int, errors: Errors) -> None:
    """Note the errors of one reply."""
    cls, forms = type(reply), codec.forms(type(reply), sent)
    for field, form in forms.items():
        if form.model is None or not len(exact := matrices(getattr(reply, field))):
            continue
        before = matrices(form.start) if form.is_change else 0 * exact
        size = torch.linalg.norm(exact - before).item()
        for name, dtype in TYPES.items():
            data = codec.encode(reply, change=compression.narrowing(forms, name)).data
            back = matrices(getattr(codec.decode(data, cls, change=compression.widening(forms, name)), field))
            errors.setdefault((field, name), []).append((when, torch.linalg.norm(back - exact).item() / size))
            if form.is_change and name != "int8":
                off = torch.linalg.norm(exact.to(dtype).double() - exact).item() / size
                errors.setdefault((field, f"weights as {name}"), []).append((when, off))


def errors_of(recipe: schema.Recipe) -> Errors:
    """Run a recipe, and narrow every reply of it beside the run."""
    errors: Errors = {}

    class Measuring(Attack):
        kind = "updates"

        def watch(self, exchange: Exchange) -> None:
            if exchange.reply is not None:
                sent = [message for message in exchange.sent if message is not None]
                measure(exchange.reply, sent, exchange.request.ordinal, errors)

        def outcomes(self, models: Models) -> list[Outcome]:
            return []

    replay(recipe, Measuring, Callback())
    return errors


@message
class Backbone:
    """A backbone and nothing else, down and up."""

    backbone: Tensors


def speed(name: str) -> dict[str, dict[str, float]]:
    """Bytes, and milliseconds to encode and to decode, of a reply with a backbone."""
    rng = torch.Generator().manual_seed(0)
    module = build(name, size=112, channels=3, generator=generator(0, "backbone"))
    before = {n: t for n, t in module.state_dict().items() if t.dim()}
    forms = codec.forms(Backbone, [Backbone(backbone=before)])
    after = {n: t + 1e-3 * torch.randn(t.shape, generator=rng) for n, t in before.items()}
    reply, timings = Backbone(backbone=after), {}
    kinds: list[Updates | None] = [None, *TYPES]
    for kind in kinds:
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            data = codec.encode(reply, change=compression.narrowing(forms, kind)).data
            middle = time.perf_counter()
            codec.decode(data, Backbone, change=compression.widening(forms, kind), like=forms)
            times.append((middle - begun, time.perf_counter() - middle))
        encoding, decoding = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        timings[kind or "float32"] = {"MB": len(data) / 1e6, "encode ms": encoding, "decode ms": decoding}
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="updates/synthetic")
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--speed", metavar="BACKBONE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.speed:
        rows = speed(options.speed)
    else:
        rows = {}
        for (field, how), all_of_it in errors_of(loader.load(options.recipe, options.changes)).items():
            last = max(when for when, _ in all_of_it)
            medians = [statistics.median(e for w, e in all_of_it if w >= since) for since in (0, last)]
            rows[f"{field}, {how}"] = dict(zip(("median, %", "last round, %"), (100 * m for m in medians), strict=True))
    for name, figures in rows.items():
        print(f"{name:32}" + "  ".join(f"{key} {value:.3g}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
