"""The face network of FedUV."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
POOLS = (2, 2, 2, 2, 4)
NORM_GROUPS = 2


class FedUvCnn(nn.Module):
    """Five blocks of 3×3 convolution, ReLU, max-pool and GroupNorm of two groups, then one linear layer.

    (n, channels, size, size) → (n, embedding_size). The pools divide the side by 64 in all, so the linear layer reads
    512 · ⌊size / 64⌋² numbers; 4.2 M parameters at 64×64. Source: the blocks are those of Hosseini et al., "Federated
    Learning of User Verification Models Without Sharing Embeddings" (ICML 2021); the pools are not in the paper and
    follow its public reproductions.

    Raises ValueError for a size below 64.
    """

    def __init__(self, size: int, channels: int, embedding_size: int = 512) -> None:
        super().__init__()
        if size < 64:
            raise ValueError(
                f"backbone 'feduv-cnn': images of {size}×{size} vanish in its pools, which divide the side by 64; "
                "give size 64 or more, or take 'cnn-small'"
            )
        blocks: list[nn.Module] = []
        width, side = channels, size
        for wider, pool in zip(WIDTHS, POOLS, strict=True):
            blocks += [
                nn.Conv2d(width, wider, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(pool),
                nn.GroupNorm(NORM_GROUPS, wider),
            ]
            width, side = wider, side // pool
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(width * side * side, embedding_size)
        self.embedding_size = embedding_size

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.blocks(images).flatten(1))
