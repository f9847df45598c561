"""Noise in the place of a data set that is not there, to time steps on: as many pictures, of the same shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zosam.lab.data.batches import Data, Size


@dataclass(frozen=True)
class Noise:
    """A split of `count` pictures; all its batches are the same one."""

    x: Tensor
    y: Tensor
    count: int

    def __len__(self) -> int:
        return -(-self.count // len(self.y))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self.count, len(self.y)):
            yield self.x[: self.count - start], self.y[: self.count - start]


def stand_in(size: Size, batch_size: int, device: torch.device | str = "cpu") -> Data:
    """Data of that size."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(min(batch_size, size.train), *size.shape, generator=draw).to(device)
    y = torch.randint(size.classes, (len(x),), generator=draw).to(device)
    return Data(Noise(x, y, size.train), Noise(x, y, size.test), size.classes, size.shape)
