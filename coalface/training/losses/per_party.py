"""A loss over pooled images in which each image competes with the identities of its own party alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coalface.training.losses.base import CosineLoss


@dataclass(frozen=True, eq=False)
class PerPartyLoss(CosineLoss):
    r"""The mean over all images of what each party's own classifier would give: Σ_p (n_p / n) L(x_p, W_p, y_p).

    n_p of the batch's n images are of party p, whose identities have the rows W_p of the class embeddings. So one
    backbone is trained as the silos of a federation train theirs, with a classifier for each.

    Raises ValueError for a loss with tensors of its own beside the class embeddings, or several of them for a class.

    Examples:
        >>> from coalface.training.losses.margins import Softmax
        >>> loss = PerPartyLoss(Softmax(scale=1.0), parties=torch.tensor([0, 0, 1]))
        >>> x, w = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(loss(x, w, torch.tensor([0, 2])).item(), 4)  # (log(1 + e^{−1}) + 0) / 2: one class cannot be wrong
        0.1566
    """

    loss: CosineLoss
    parties: Tensor
    """(k,) the number of the party that each class is of."""
    sums: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Party -> (images, sum of their losses) of all batches so far."""

    def __post_init__(self) -> None:
        classes = len(self.parties)
        plain = self.loss.rows(classes) == classes and type(self.loss).draw is CosineLoss.draw
        if not plain or self.loss.extra(classes) or self.loss.state(classes):
            raise ValueError(
                f"{type(self.loss).__name__} needs more than one class embedding for each class, and is not split by "
                "party; use another loss, such as arcface"
            )

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        of_class = self.parties.to(labels.device)
        of_image, parts = of_class[labels], []
        for party in of_image.unique().tolist():
            classes, images = (of_class == party).nonzero()[:, 0], (of_image == party).nonzero()[:, 0]
            own_labels = torch.searchsorted(classes, labels[images])
            total = self.loss(embeddings[images], weights[classes], own_labels) * len(images)
            counted, so_far = self.sums.get(party, (0, 0.0))
            self.sums[party] = counted + len(images), so_far + total.item()
            parts.append(total / len(labels))
        return torch.stack(parts).sum()
