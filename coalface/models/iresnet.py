"""The improved residual networks of the field (iResNet), with the tensor names of insightface's arcface_torch."""

from __future__ import annotations

from torch import Tensor, nn

from coalface.models.layers import PReLU

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
"""Depth → residual blocks in each of the four stages: the depths of insightface."""
WIDTHS = (64, 128, 256, 512)


class IBasicBlock(nn.Module):
    """BN, 3×3, BN, PReLU, 3×3 (strided), BN, added to the input: nothing follows the sum.

    (n, width, h, w) → (n, wider, ⌈h / stride⌉, ⌈w / stride⌉). The input crosses by itself where the shape stays, else
    through a strided 1×1 convolution and BN. Source: Deng et al., "ArcFace" (CVPR 2019), section 3.2.2.
    """

    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        self.prelu = PReLU(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(wider)
        self.downsample: nn.Module | None = None
        if stride != 1 or width != wider:
            self.downsample = nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(maps))))))
        return residual + (maps if self.downsample is None else self.downsample(maps))


class IResNet(nn.Module):
    """A 3×3 stem, four stages that each halve the side, BN, one linear layer and BN over the embedding.

    (n, channels, size, size) → (n, embedding_size). The linear layer reads 512 · ⌈size / 16⌉² numbers: 7×7 at 112, 4×4
    at 64. Names, shapes, dtypes and order of the state dict are those of insightface's `iresnet*`, so that a state dict
    of one loads into the other at channels 3, size 112 and embedding size 512. The scale of the last BN is fixed at 1,
    as there: the length of an embedding carries no identity.

    Raises ValueError for a size below 16.
    """

    def __init__(self, depth: int, size: int, channels: int, embedding_size: int = 512) -> None:
        super().__init__()
        if size < 16:
            raise ValueError(f"backbone 'ir{depth}': images of {size}×{size} are too small; give size 16 or more")
        width, side = WIDTHS[0], size
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.prelu = PReLU(width)
        stages = []
        for wider, blocks in zip(WIDTHS, BLOCKS[depth], strict=True):
            strided = IBasicBlock(width, wider, 2)
            stages.append(nn.Sequential(strided, *(IBasicBlock(wider, wider, 1) for _ in range(blocks - 1))))
            width, side = wider, -(-side // 2)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn2 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width * side * side, embedding_size)
        self.embedding_size = embedding_size
        self.features = nn.BatchNorm1d(embedding_size)
        self.features.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)  # as insightface; BN makes the scale immaterial at the start

    def forward(self, images: Tensor) -> Tensor:
        maps = self.prelu(self.bn1(self.conv1(images)))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return self.features(self.fc(self.bn2(maps).flatten(1)))
