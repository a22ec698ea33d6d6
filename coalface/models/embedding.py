"""Embeddings of face images, as every evaluation of this package takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.data.faceset import FaceSet

PIXELS = 2**18
"""Of the images that are embedded at once on a CPU, or up to twice as many: 256 images of 32×32, 20 of 112×112."""


def embed(
    module: nn.Module,
    faces: FaceSet,
    index: NDArray[np.int64] | None = None,
    *,
    flip: bool = False,
    batch: int = 256,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Unit embeddings of some images of a face set: (len(index), d) float32, in the order of `index` (None: all).

    The module, which must already be on `device`, gets (b, channels, height, width) float32 pixels (x − 127.5) / 127.5
    and gives (b, d). With `flip`, the embeddings of the image and of its mirror are added before they are normalised.
    Only the images named are read, `batch` at a time; `progress` is told how many are done. The module runs in eval
    mode; afterwards each of its parts is back in the mode it was in.

    An embedding of length zero stays zero, so that its cosine with any other is 0: a collapsed model can be evaluated,
    and is evaluated badly. Embeddings that are not finite are a ValueError that says how many and which image is first.
    """
    index = np.arange(len(faces)) if index is None else np.asarray(index, dtype=np.int64)
    if len(index) == 0:
        raise ValueError("no images to embed: the index is empty, so pass at least one image")
    if batch < 1:
        raise ValueError(f"cannot embed {batch} images at a time: batch must be at least 1")
    features: NDArray[np.float32] | None = None
    with eval_mode(module), torch.no_grad():
        for start in range(0, len(index), batch):
            unit = _unit(module, faces.take(index[start : start + batch]), flip, device)
            if features is None:
                features = np.empty((len(index), unit.shape[1]), dtype=np.float32)
            features[start : start + batch] = unit
            if progress is not None:
                progress(min(start + batch, len(index)))
    assert features is not None  # at least one batch ran
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(index)} embeddings are not finite, the first is that of image {index[bad[0]]}: "
            "the model has diverged, or its weights were not loaded whole"
        )
    return features


def unit_features(
    module: nn.Module, images: NDArray[np.uint8], *, flip: bool = False, device: str | torch.device = "cpu"
) -> NDArray[np.float32]:
    """(b, d) the embeddings of one batch of images (b, height, width, channels), as `embed` makes them of each batch.

    They may not be finite, which is for the caller to see.
    """
    with eval_mode(module), torch.no_grad():
        return _unit(module, images, flip, device)


def raw_features(
    module: nn.Module, images: NDArray[np.uint8], *, mirror: bool = False, device: str | torch.device = "cpu"
) -> NDArray[np.float32]:
    """(b, d) what the backbone gives for one batch of images, at the length that it has; finite or not.

    With `mirror`, (b, 2d): beside it what it gives for the mirrored images, as `templates.template_features` takes it.
    """
    with eval_mode(module), torch.no_grad():
        stored = _pixels(images, device)
        sides = [_forward(module, side) for side in ([stored, stored.flip(-1)] if mirror else [stored])]
        return np.asarray(torch.cat(sides, dim=1).float().cpu().numpy(), np.float32)


def cache_sized(images: Tensor) -> Sequence[Tensor]:
    """Parts of (n, channels, height, width) to compute one after the other without gradients; on a GPU all at once.

    On a CPU the activations of a larger part leave the cache, and above 32 MiB the kernel hands out their memory anew
    for each layer: 256 images at once take MobileFaceNet at 112×112 three times as long as 20. Parts are alike in size,
    as the kernels of a few images may round in another way than those of many.

    >>> [len(part) for part in cache_sized(torch.zeros(64, 3, 112, 112))]
    [22, 21, 21]
    """
    pixels = len(images) * images.shape[-1] * images.shape[-2]
    count = max(1, min(len(images), pixels // PIXELS))
    return images.tensor_split(count) if images.device.type == "cpu" else (images,)


def images_needed(
    left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The images that a pair list names, each once, ascending, and the two sides of its pairs as places among them.

    >>> index, left, right = images_needed(np.array([7, 7]), np.array([3, 9]))
    >>> index.tolist(), left.tolist(), right.tolist()
    ([3, 7, 9], [1, 1], [0, 2])
    """
    index, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    return index, places[: len(left)], places[len(left) :]


def _unit(module: nn.Module, images: NDArray[np.uint8], flip: bool, device: str | torch.device) -> NDArray[np.float32]:
    stored = _pixels(images, device)
    raw = _forward(module, stored)
    if flip:
        raw = raw + _forward(module, stored.flip(-1))
    return np.asarray(nn.functional.normalize(raw.float(), dim=1).cpu().numpy(), np.float32)


def _forward(module: nn.Module, images: Tensor) -> Tensor:
    """(b, d) of pixels (b, channels, height, width); ValueError where the module gives something else."""
    if any(parameter.dtype == torch.float64 for parameter in module.parameters()):
        images = images.double()  # a float64 backbone takes no other
    parts = []
    for part in cache_sized(images):
        raw: Tensor = module(part)
        if raw.ndim != 2 or len(raw) != len(part):
            raise ValueError(
                f"the module made {tuple(raw.shape)} of {len(part)} images: "
                "a backbone must give one embedding per image, (images, d)"
            )
        parts.append(raw)
    return torch.cat(parts)


def _pixels(images: NDArray[np.uint8], device: str | torch.device) -> Tensor:
    # The bytes go to the device and become floats there: a quarter of the traffic. Not `to_tensor`: grey images keep
    # their strides here, by which torch chooses how to convolve, and so the last bits of every figure.
    stored = torch.from_numpy(np.ascontiguousarray(images)).to(device)
    return stored.permute(0, 3, 1, 2).contiguous().float().sub_(127.5).div_(127.5)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """The module in eval mode; afterwards each of its parts is back in the mode it was in."""
    # Part by part, because a model in training may hold parts in eval mode on purpose (frozen BatchNorm).
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
