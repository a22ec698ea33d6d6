"""The images of an update by public attack code, beside what `update-inversion` rebuilds: an oracle from outside.

    git clone https://github.com/JonasGeiping/breaching FOLDER    # tried at 8bd99d5
    python benchmarks/public_inversion.py --breaching FOLDER --attack invertinggradients --images 1 8
    python benchmarks/public_inversion.py --breaching FOLDER --control --images 1 --iterations 2000

The updates are those of `coalface attack attacks/silos rounds=1 local.steps_per_round=1 local.batch_size=N --kind
update-inversion`, judged by the same figures. The public attacks search among pixels. They are given what their threat
model allows them, and more than an update tells: the loss with its labels and class embeddings, which ours has in
"class embeddings known by the seed" alone. *Gradient's cosine* is that of the images' gradient with the update's; that
of the images that were trained on must be 1, else the exit status is not 0. In `--control` they attack, by the same
images, a network that keeps every pixel apart, where they are known to succeed.

Of breaching only `breaching.attacks` is imported, which needs scipy and PyYAML and none of its other parts' packages.
Changed of its settings are the labels, which are given (`deepleakage` would search for them too), and `modern`'s
features of the last layer, which are left out of several images: a sum over images is all that an update has of them.
It makes images of three colours, whose mean is the grey that a network for grey images is given.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import logging
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coalface.core.method import Tensors, generator
from coalface.experiments.attacks.gradient_matching import assign, psnr
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.update_inversion import UpdateInversion, nearness
from coalface.experiments.attacks.updates import UPDATE, Change
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.recipe import loader

ATTACKS = ("invertinggradients", "modern", "seethroughgradients", "deepleakage")
RECIPE = "attacks/silos"
LEAST, CLASSES, WIDTH, COLOURS = 0.999, 10, 16, 3
"""The cosine that the true images' gradient must have with the update; the outputs and channels of the control."""
FITTED = "PSNR at its best brightness and contrast, dB"
FIGURES = (
    "PSNR, dB",
    FITTED,
    "SSIM, %",
    "shows somebody in the update, %",
    "gradient's cosine",
    "processor s an iteration",
)
MARGIN = 3.0
"""dB that an attack must be above the mean face in the control."""
Loss = Callable[[Tensor], Tensor]


class Settings(dict[str, Any]):
    """A mapping whose keys are attributes too, as breaching reads its settings."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @classmethod
    def of(cls, value: Any) -> Any:
        """A value of YAML; `1e-4` is a text to PyYAML."""
        if isinstance(value, dict):
            return cls({key: cls.of(v) for key, v in value.items()})
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value


class Breaching:
    """The public attacks of a checkout."""

    def __init__(self, folder: Path, iterations: int | None) -> None:
        for name in ("breaching", "breaching.cases", "breaching.cases.models"):  # theirs import data sets and models
            package = sys.modules[name] = types.ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")))]
        self._prepare = importlib.import_module("breaching.attacks").prepare_attack
        self._configs, self._iterations = folder / "breaching" / "config" / "attack", iterations

    def settings(self, attack: str, count: int) -> Settings:
        texts = [(self._configs / f"{name}.yaml").read_text() for name in ("_default_optimization_attack", attack)]
        settings = Settings.of(functools.reduce(loader.merged, map(yaml.safe_load, texts)))
        settings["attack_type"] = "optimization"  # by labels that are known
        settings.optim["max_iterations"] = self._iterations or settings.optim.max_iterations
        if count > 1 and settings.regularization and "features" in settings.regularization:
            settings.regularization.features["scale"] = 0.0
        return settings

    def rebuild(
        self, attack: str, module: nn.Module, loss_of: Loss, gradient: Tensors, shape: torch.Size, seed: int
    ) -> tuple[Tensor, float]:
        """Images of a shape (n, c, h, w) in [−1, 1], and the processor seconds of an iteration."""
        settings, half = self.settings(attack, shape[0]), [0.5] * COLOURS
        gradients = [gradient[name].float() for name, _ in module.named_parameters()]
        module = OfColours(copy.deepcopy(module).requires_grad_(True), shape[1])
        parameters, buffers = list(module.parameters()), list(module.buffers())
        # `loss_of` knows the labels; they choose rows of the last layer for `modern`, each of which tells one image's
        labels = gradients[-1].abs().argmax().expand(shape[0])
        known = {"num_data_points": shape[0], "labels": labels, "local_hyperparams": None}
        about = Settings(shape=(COLOURS, *shape[2:]), mean=half, std=half, modality="vision", task="classification")
        payload = {"parameters": parameters, "buffers": None, "metadata": about}
        shared = {"gradients": gradients, "buffers": buffers, "metadata": known}
        attacker = self._prepare(module, lambda outputs, _: loss_of(outputs), settings)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            began = time.process_time()
            found, _ = attacker.reconstruct([payload], [shared], {})
        seconds = (time.process_time() - began) / settings.optim.max_iterations
        return module.seen(found["data"]).clamp(-1, 1), seconds


class OfColours(nn.Module):
    """A module that is given colours, as all that breaching makes are, and sees grey where it is made for grey."""

    def __init__(self, module: nn.Module, channels: int) -> None:
        super().__init__()
        self.module, self._channels = module, channels

    def seen(self, images: Tensor) -> Tensor:
        return images.mean(1, keepdim=True) if self._channels == 1 else images

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.module(self.seen(images))
        return outputs


def gradient_of(module: nn.Module, loss_of: Loss, images: Tensor) -> Tensors:
    named = dict(module.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss_of(module(images)), list(named.values())), strict=True))


def cosine(one: Tensors, other: Tensors) -> float:
    a, b = (torch.cat([tensors[name].double().flatten() for name in one]) for tensors in (one, other))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def fitted(image: Tensor, true: Tensor) -> Tensor:
    """(n, c, h, w) a x + b of an image x, nearest to each of the true ones."""
    x, y = (t.double() - t.double().mean((-3, -2, -1), keepdim=True) for t in (image[None], true))
    slope = (x * y).sum((1, 2, 3), keepdim=True) / x.square().sum().clamp_min(1e-12)
    return slope * x + (true.double() - y)


def control(channels: int, side: int) -> nn.Module:
    """Convolutions without strides or pools, as it was drawn, and a layer that reads all their positions."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(WIDTH * side**2, CLASSES),
        )  # fmt: skip


class PublicInversion(UpdateInversion):
    """`update-inversion` of single updates, with the public attacks beside it."""

    def __init__(
        self, run: PreparedRun, seed: int, *, oracle: Breaching, attacks: list[str], is_control: bool, **options: Any
    ) -> None:
        super().__init__(run, seed, **options)
        self._oracle, self._attacks, self._is_control = oracle, attacks, is_control
        self._matched: tuple[nn.Module, Loss, Tensors] | None = None

    def study(self, change: Change) -> None:
        if change.target == UPDATE:
            super().study(change)

    def _rebuild(self, change: Change, gradient: Tensors, people: list[int], chance: float) -> None:
        loss_of = self._first_loss(change)
        if loss_of is None or len(change.names) != change.images:
            raise SystemExit("the loss of the update is not known, or not all images are rebuilt")
        true = change.trained_on
        module = copy.deepcopy(self.network.module).train()
        if self._is_control:
            module, labels = control(*true.shape[1:3]), torch.arange(len(true)) % CLASSES
            loss_of = functools.partial(cross_entropy, target=labels)
            gradient = gradient_of(module, loss_of, true)
        self._matched = module, loss_of, gradient
        self._judge_whom(change, "trained on", true, people, chance)
        if (reached := self._values[change.target, "server", "trained on: gradient's cosine"][-1][0]) < LEAST:
            raise SystemExit(
                f"the images that were trained on have a gradient of cosine {reached:.6f} with the update's"
            )
        for attack in self._attacks:
            rng = generator(self.seed, "public", attack, *change.parties)
            found, seconds = self._oracle.rebuild(
                attack, module, loss_of, gradient, true.shape, int(rng.integers(2**31))
            )
            self._judge_whom(change, attack, found, people, chance)
            self._note_nearness(change, attack, found)
            self._note(change, f"{attack}: processor s an iteration", seconds, 0.0)
        if self._is_control:  # ours is of a network that ends in embeddings
            self._note_nearness(change, "mean face", self._faces.mean.expand_as(true))
        else:
            super()._rebuild(change, gradient, people, chance)

    def _note_nearness(self, change: Change, name: str, images: Tensor) -> None:
        for figure, value in zip(("PSNR, dB", "SSIM, %"), nearness(images, change.trained_on), strict=True):
            self._note(change, f"{name}: {figure}", value, 0.0)

    def _judge_whom(self, change: Change, name: str, images: Tensor, people: list[int], chance: float) -> None:
        """Also the cosine of the images' gradient, where it is known which of them has which label."""
        super()._judge_whom(change, name, images, people, chance)
        if self._matched is not None and (name != "rebuilt" or len(images) == 1):
            module, loss_of, gradient = self._matched
            reached = cosine(gradient_of(module, loss_of, images.float()), gradient)
            self._note(change, f"{name}: gradient's cosine", reached, 0.0)
        scores = torch.stack([psnr(fitted(image, change.trained_on), change.trained_on) for image in images])
        best = scores[range(len(scores)), list(assign(scores))]
        self._note(change, f"{name}: {FITTED}", float(best.mean()), 0.0)

    def rows(self) -> dict[str, dict[str, list[float]]]:
        """The way to have images, and figure -> its values, update by update."""
        rows: dict[str, dict[str, list[float]]] = {}
        for (_, _, about), pairs in self._values.items():
            name, _, figure = about.partition(": ")
            if figure in FIGURES:
                rows.setdefault(name, {})[figure] = [value for value, _ in pairs]
        return rows

    def table(self, images: int) -> str:
        """A line for each way to have images, with a value for each update."""
        rows = self.rows()
        lines = [
            f"| {images} image{'s' * (images > 1)}, seed {self.seed} | {' | '.join(FIGURES)} |",
            "|---|" + len(FIGURES) * "---:|",
        ]
        for name, by_figure in rows.items():
            cells = [" ".join(f"{value:.4g}" for value in by_figure.get(figure, [])) for figure in FIGURES]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--breaching", type=Path, required=True, help="Checkout of github.com/JonasGeiping/breaching.")
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, default=["invertinggradients"])
    parser.add_argument("--images", type=int, nargs="+", choices=range(1, 9), default=[1, 8], help="Of an update.")
    parser.add_argument("--iterations", type=int, help="Of the public attacks; their own unless given.")
    parser.add_argument("--updates", type=int, default=2, help="How many of them are attacked.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="Attack a network that keeps every pixel apart.")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("breaching").setLevel(logging.INFO)  # their progress, on stderr
    torch.set_num_threads(1)
    make = functools.partial(
        PublicInversion,
        oracle=Breaching(options.breaching, options.iterations),
        attacks=options.attack,
        is_control=options.control,
        parties=options.updates,
    )
    for images in options.images:
        changes = ["rounds=1", "local.steps_per_round=1", f"local.batch_size={images}", f"seed={options.seed}"]
        recipe = loader.load(Path(RECIPE), [*changes, f"data.faces.seed={options.seed}"])
        attack, _ = replay(recipe, make, Callback())
        print(attack.table(images), flush=True)
        if options.control:
            rows = attack.rows()
            margins = {
                name: [a - b for a, b in zip(rows[name]["PSNR, dB"], rows["mean face"]["PSNR, dB"], strict=True)]
                for name in options.attack
            }
            if failed := [name for name, of in margins.items() if min(of) < MARGIN]:
                raise SystemExit(f"no better than the mean face where it should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
