"""The residual networks of SphereFace: no BatchNorm anywhere."""

from __future__ import annotations

from torch import Tensor, nn

from coalface.models.layers import PReLU

BLOCKS = {20: (1, 2, 4, 1), 64: (3, 8, 16, 3)}
"""Convolutions in all → residual blocks in each of the four stages."""
WIDTHS = (64, 128, 256, 512)


class SphereBlock(nn.Module):
    """3×3, PReLU, 3×3, PReLU, added to the input: (n, width, h, w) → the same shape; nothing follows the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.prelu1 = PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.prelu2 = PReLU(width)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.prelu2(self.conv2(self.prelu1(self.conv1(maps))))


class SphereNet(nn.Module):
    """Four stages, each a 3×3 convolution with stride 2, PReLU and residual blocks, then one linear layer.

    (n, channels, size, size) → (n, embedding_size). The linear layer reads 512 · ⌈size / 16⌉² numbers: 7×7 at 112, 4×4
    at 64. Without BatchNorm a network must start near a map it can train: as in the authors' definition, the residual
    convolutions start at a standard deviation of 0.01 and have no bias, the strided ones and the linear layer from
    Glorot's uniform weights over the fan-in (Caffe's "xavier": variance 1 / fan-in) with biases of zero.
    Source: Liu et al., "SphereFace" (CVPR 2017), table 2.

    Raises ValueError for a size below 16.
    """

    def __init__(self, depth: int, size: int, channels: int, embedding_size: int = 512) -> None:
        super().__init__()
        if size < 16:
            raise ValueError(f"backbone 'sphere{depth}': images of {size}×{size} are too small; give size 16 or more")
        width, side = channels, size
        stages = []
        for wider, blocks in zip(WIDTHS, BLOCKS[depth], strict=True):
            strided = nn.Conv2d(width, wider, 3, 2, padding=1)
            stages.append(nn.Sequential(strided, PReLU(wider), *(SphereBlock(wider) for _ in range(blocks))))
            width, side = wider, -(-side // 2)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(width * side * side, embedding_size)
        self.embedding_size = embedding_size
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is None:
                nn.init.normal_(module.weight, std=0.01)
            elif isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="linear")  # ±√(3 / fan-in)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(images)))).flatten(1))
