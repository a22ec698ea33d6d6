"""A small vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

PATCH = 8
"""Side of a patch in pixels: 14×14 patches at 112 (as many as ViT-Ti has at 224 with 16), 8×8 at 64."""
WIDTH, DEPTH, HEADS, EXPANSION = 192, 12, 3, 4


class Attention(nn.Module):
    """Self-attention over tokens: softmax(q kᵀ / √d) v in each of `heads` heads of d = width / heads numbers.

    (n, tokens, width) → the same shape. Source: Vaswani et al., "Attention is all you need" (NeurIPS 2017), equation 1.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, count, width = tokens.shape
        qkv = self.qkv(tokens).view(n, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (n, heads, tokens, d)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(n, count, width))


class TransformerBlock(nn.Module):
    """x + attention(LN(x)), then x + MLP(LN(x)) with GELU between its two layers."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class VitTiny(nn.Module):
    """Patches of 8×8 become tokens of 192 numbers; 12 blocks of 3 heads; the class token becomes the embedding.

    (n, channels, size, size) → (n, embedding_size), with learned positions, so a model is bound to its `size`.
    5.5 M parameters at 112×112 RGB. No BatchNorm (LayerNorm holds no running statistics), so every BatchNorm policy is
    the same. Weights start from normals of standard deviation 0.02 cut at two of them, biases at zero. Sources:
    Dosovitskiy et al., "An image is worth 16x16 words" (ICLR 2021), equations 1 to 4; the width, depth and heads are
    those of ViT-Ti in Touvron et al., "DeiT" (ICML 2021), table 1. Neither is about faces: the patch of 8 is ours.

    Raises ValueError for a size that 8 does not divide.
    """

    def __init__(self, size: int, channels: int, embedding_size: int = 512) -> None:
        super().__init__()
        if size % PATCH or size < PATCH:
            near = max(PATCH, round(size / PATCH) * PATCH)
            raise ValueError(
                f"backbone 'vit-tiny': images of {size}×{size} cannot be cut into patches of {PATCH}×{PATCH}; give a "
                f"size that {PATCH} divides, for example {near}"
            )
        self.patches = nn.Conv2d(channels, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.empty(1, 1 + (size // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(TransformerBlock(WIDTH, HEADS, EXPANSION) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.fc = nn.Linear(WIDTH, embedding_size)
        self.embedding_size = embedding_size
        drawn: list[Tensor] = [self.token, self.positions]
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                drawn.append(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        for weight in drawn:
            nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.positions
        return self.fc(self.norm(self.blocks(tokens))[:, 0])
