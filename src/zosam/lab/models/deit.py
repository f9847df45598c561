"""DeiT, the vision transformer that trains on ImageNet alone; the names of its weights are timm's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DropPath(nn.Module):
    """While training, drop a whole residual branch per picture with probability `rate`, and scale up the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * keep.to(x.dtype) / (1 - self.rate)


class Attention(nn.Module):
    """Multi-head self-attention with one joint projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Linear, GELU, linear, four times wider inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Layer(nn.Module):
    """Attention, then the MLP, each normalised before and added to what came in."""

    def __init__(self, dim: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class Patches(nn.Module):
    """Cut a picture into squares and project each to one token."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, size, size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(x)
        return out


class Deit(nn.Module):
    """Patches, a class token, positions, 12 layers, and a linear head on the class token.

    Pictures of another size than `image_size` get positions interpolated from the learnt ones.
    """

    def __init__(
        self, dim: int, heads: int, num_classes: int, image_size: int, patch_size: int, drop_path: float
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"image_size={image_size} is not a multiple of patch_size={patch_size}")
        if not 0 <= drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, not {drop_path:g}")
        self.grid = image_size // patch_size
        self.patch_embed = Patches(dim, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid**2 + 1, dim))
        self.blocks = nn.Sequential(*(Layer(dim, heads, drop_path * i / 11) for i in range(12)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        for parameter in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def positions(self, height: int, width: int) -> Tensor:
        """The learnt positions, resized (bicubic) if the grid of patches is another one."""
        if (height, width) == (self.grid, self.grid):
            return self.pos_embed
        square = self.pos_embed[:, 1:].unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        resized = F.interpolate(square, (height, width), mode="bicubic", align_corners=False)
        return torch.cat((self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)), 1)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)), 1)
        tokens = self.blocks(tokens + self.positions(*patches.shape[2:]))
        out: Tensor = self.head(self.norm(tokens[:, 0]))
        return out


def deit_tiny(num_classes: int = 1000, image_size: int = 224, patch_size: int = 16, drop_path: float = 0.1) -> Deit:
    """DeiT-Tiny for ImageNet or any picture size: 5.7 million weights.

    Touvron et al.: Training data-efficient image transformers and distillation through attention, ICML 2021.
    """
    return Deit(192, 3, num_classes, image_size, patch_size, drop_path)


def deit_small(num_classes: int = 1000, image_size: int = 224, patch_size: int = 16, drop_path: float = 0.1) -> Deit:
    """DeiT-Small for ImageNet or any picture size: 22 million weights.

    Touvron et al.: Training data-efficient image transformers and distillation through attention, ICML 2021.
    """
    return Deit(384, 6, num_classes, image_size, patch_size, drop_path)
