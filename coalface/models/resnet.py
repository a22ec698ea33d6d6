"""The residual network of He et al., with the tensor names of torchvision's."""

from __future__ import annotations

from torch import Tensor, nn

BLOCKS = (3, 4, 6, 3)
"""Residual blocks in each of the four stages."""
WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """3×3 (strided), BN, ReLU, 3×3, BN, added to the input, ReLU.

    (n, width, h, w) → (n, wider, ⌈h / stride⌉, ⌈w / stride⌉). The input crosses by itself where the shape stays, else
    through a strided 1×1 convolution and BN. Source: He et al., "Deep residual learning for image recognition" (CVPR
    2016), figure 5 left and option B of section 4.1.
    """

    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, wider, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        self.downsample: nn.Module | None = None
        if stride != 1 or width != wider:
            self.downsample = nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        return self.relu(residual + (maps if self.downsample is None else self.downsample(maps)))


class ResNet34(nn.Module):
    """A 7×7 stem and a pool that divide the side by 4, four stages, the mean over positions, one linear layer.

    (n, channels, size, size) → (n, embedding_size). The side shrinks by 32 in all (4×4 positions at 112, 2×2 at 64) and
    the mean takes any; so the number of parameters does not depend on `size`. Source: He et al. (CVPR 2016), table 1,
    with the embedding in the place of the 1000 classes, by default of the 256 numbers of Zhuang et al. (FedFR, 2021).
    Convolutions start from He et al.'s normal weights (fan-out).

    Raises ValueError for a size below 32.
    """

    def __init__(self, size: int, channels: int, embedding_size: int = 256) -> None:
        super().__init__()
        if size < 32:
            raise ValueError(f"backbone 'resnet34': images of {size}×{size} are too small; give size 32 or more")
        width = WIDTHS[0]
        self.conv1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        stages = []
        for stage, (wider, blocks) in enumerate(zip(WIDTHS, BLOCKS, strict=True)):
            first = BasicBlock(width, wider, 1 if stage == 0 else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(wider, wider, 1) for _ in range(blocks - 1))))
            width = wider
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, embedding_size)
        self.embedding_size = embedding_size
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return self.fc(self.avgpool(maps).flatten(1))
