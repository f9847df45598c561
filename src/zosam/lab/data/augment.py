"""Crop, flip, cutout and normalise: whole batches of byte pictures at once, on the device they live on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to numbers with the given mean and standard deviation per channel (both on the scale 0 to 1)."""
    shift, scale = (torch.tensor(v, device=x.device).view(-1, 1, 1) * 255 for v in (mean, std))
    return x.float().sub_(shift).mul_(1 / scale)


def crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4, reflect: bool = False) -> Tensor:
    """Each picture padded, cut at its own place and mirrored by its own coin.

    A row of a crop is `width` neighbouring bytes of the padded pictures or of their mirror images, so the
    whole batch is one selection of such windows by where they start.
    """
    count, channels, height, width = x.shape
    down, right = (torch.randint(0, 2 * padding + 1, (count, 1), generator=generator) for _ in range(2))
    mirrored = torch.rand((count, 1), generator=generator) < 0.5
    padded = _pad(x, padding, reflect)
    both = torch.cat((padded, padded.flip(3)))
    line, plane = padded.shape[3], padded.shape[2] * padded.shape[3]
    corner = (torch.arange(count)[:, None] + count * mirrored) * channels * plane + down * line + right
    starts = corner[:, :, None] + torch.arange(channels)[:, None] * plane + torch.arange(height) * line
    windows = both.view(-1).as_strided((both.numel() - width + 1, width), (1, 1))
    return windows.index_select(0, starts.flatten().to(x.device)).view(x.shape)


def cutout(x: Tensor, generator: torch.Generator, size: int) -> Tensor:
    """Zero a square of side `size` around a random pixel of each picture; it may hang over the border."""
    height, width = x.shape[2:]
    top = torch.randint(0, height, (len(x), 1), generator=generator) - size // 2
    left = torch.randint(0, width, (len(x), 1), generator=generator) - size // 2
    rows, columns = torch.arange(height) - top, torch.arange(width) - left
    inside_rows, inside_columns = ((i >= 0) & (i < size) for i in (rows, columns))
    hole = (inside_rows[:, :, None] & inside_columns[:, None, :])[:, None]
    return x.masked_fill(hole.to(x.device), 0)


@dataclass(frozen=True)
class Plain:
    """What evaluation sees: normalised pictures."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return normalise(x, self.mean, self.std)


@dataclass(frozen=True)
class Augmented:
    """What training sees: cropped, flipped, normalised, and cut out if `cutout` is a side above 0."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    cutout: int = 0
    reflect: bool = False

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        out = normalise(crop_flip(x, generator, reflect=self.reflect), self.mean, self.std)
        return cutout(out, generator, self.cutout) if self.cutout else out


def _pad(x: Tensor, padding: int, reflect: bool) -> Tensor:
    if not reflect:
        return torch.nn.functional.pad(x, (padding,) * 4)
    for axis in (2, 3):  # torch's own reflection pad knows no bytes
        size = x.shape[axis]
        index = torch.arange(-padding, size + padding, device=x.device).abs()
        x = x.index_select(axis, torch.minimum(index, 2 * size - 2 - index))
    return x
