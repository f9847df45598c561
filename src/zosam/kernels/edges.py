"""Tensors as they come and go, and as pictures [N, C, H, W], which is how the kernels see them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

HIGH, WIDE = 2, 4  # rows of a linear layer's input lie side by side like these pixels: just one register tile
ROWS = HIGH * WIDE
RANKS = {"image": 4, "line": 3}  # of what enters a region; rows may have any from two on


def as_image(x: Tensor, kind: str) -> Tensor:
    """A line is a picture of one row, rows are pixels of small pictures, filled up by zeros that nothing comes of."""
    if kind == "image":
        return x
    if kind == "line":
        return x.unsqueeze(2)
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % ROWS:
        rows = nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS))
    return rows.view(-1, HIGH, WIDE, x.shape[-1]).permute(0, 3, 1, 2)


def as_given(y: Tensor, kind: str, lead: Sequence[int]) -> Tensor:
    """The other way round; `lead` are the sizes of rows without their features."""
    if kind == "image" or y.dim() == 2:
        return y
    if kind == "line":
        return y.squeeze(2)
    rows = y.permute(0, 2, 3, 1).reshape(-1, y.shape[1])
    return rows[: torch.Size(lead).numel()].view(*lead, y.shape[1])


def plain_shape(kind: str, lead: Sequence[int], size: tuple[int, int, int, int]) -> tuple[int, ...]:
    """The shape that a picture has outside."""
    images, channels, height, width = size
    if kind == "rows":
        return (*lead, channels)
    return (images, channels, height, width) if kind == "image" else (images, channels, width)
