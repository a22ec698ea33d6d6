"""MobileFaceNet, a network for phones, as its paper has it."""

from __future__ import annotations

from torch import Tensor, nn

from coalface.models.layers import DepthwiseConv2d, PReLU

BOTTLENECKS = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))
"""Rows of the paper's table 1: expansion, width, repetitions, stride of the first."""
STEM = 64
LAST = 512


class Bottleneck(nn.Module):
    """1×1 to `expansion` times the width, 3×3 depthwise (strided), 1×1 back without an activation.

    (n, width, h, w) → (n, wider, ⌈h / stride⌉, ⌈w / stride⌉), added to the input where the shape stays. Source: Sandler
    et al., "MobileNetV2" (CVPR 2018), with PReLU, or with its own ReLU6.
    """

    def __init__(self, width: int, wider: int, stride: int, expansion: int, relu: bool = False) -> None:
        super().__init__()
        inner = expansion * width
        self.layers = nn.Sequential(
            *_normed(width, inner, 1),
            nn.ReLU6() if relu else PReLU(inner),
            DepthwiseConv2d(inner, 3, stride),
            nn.BatchNorm2d(inner),
            nn.ReLU6() if relu else PReLU(inner),
            *_normed(inner, wider, 1),
        )
        self.adds = stride == 1 and width == wider

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.layers(maps)
        return maps + out if self.adds else out


class MobileFaceNet(nn.Module):
    """A stem, bottlenecks, a 1×1 to 512, a global depthwise convolution, and a 1×1 to the embedding.

    (n, channels, size, size) → (n, embedding_size). The global depthwise convolution is as wide as the last map, of
    side ⌈size / 16⌉ (7 at 112, 4 at 64), and weighs each position of each channel by itself. Every convolution is
    followed by BatchNorm, and by PReLU unless the paper calls it linear. At 112×112 RGB and 128 numbers: 1,003,136
    parameters, of which 993,344 are left when BatchNorm is folded into the convolutions (the paper's 0.99 M), and 221 M
    multiply-adds. Convolutions start from He et al.'s normal weights (fan-out).
    With `relu` (the backbone `mobilefacenet-relu`) it is the network that foamliu/MobileFaceNet trained: ReLU6 and ReLU
    in the place of PReLU, a 1×1 with BatchNorm and ReLU at the end of the stem, and a bias in the last convolution.
    insightface's `mbf` is another network (twice the widths, half the expansion, 512 numbers): its weights do not load.
    Source: Chen et al., "MobileFaceNets" (CCBR 2018), table 1.

    Raises ValueError for a size below 32.
    """

    def __init__(self, size: int, channels: int, embedding_size: int = 128, *, relu: bool = False) -> None:
        super().__init__()
        if size < 32:
            raise ValueError(f"backbone 'mobilefacenet': images of {size}×{size} are too small; give size 32 or more")
        side = -(-size // 16)
        stem = [*_normed(channels, STEM, 3, 2), nn.ReLU6() if relu else PReLU(STEM)]
        stem += [DepthwiseConv2d(STEM, 3), nn.BatchNorm2d(STEM), nn.ReLU() if relu else PReLU(STEM)]
        stem += [*_normed(STEM, STEM, 1), nn.ReLU()] if relu else []
        blocks, width = [], STEM
        for expansion, wider, repetitions, stride in BOTTLENECKS:
            for place in range(repetitions):
                blocks.append(Bottleneck(width, wider, stride if place == 0 else 1, expansion, relu))
                width = wider
        self.stem = nn.Sequential(*stem)
        self.blocks = nn.Sequential(*blocks)
        self.widen = nn.Sequential(*_normed(width, LAST, 1), nn.ReLU6() if relu else PReLU(LAST))
        self.gdconv = nn.Sequential(nn.Conv2d(LAST, LAST, side, groups=LAST, bias=False), nn.BatchNorm2d(LAST))
        self.linear = nn.Sequential(*_normed(LAST, embedding_size, 1, bias=relu))
        self.embedding_size = embedding_size
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.gdconv(self.widen(self.blocks(self.stem(images))))).flatten(1)


def _normed(width: int, wider: int, kernel: int, stride: int = 1, bias: bool = False) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(width, wider, kernel, stride, padding=kernel // 2, bias=bias)
    return convolution, nn.BatchNorm2d(wider)
