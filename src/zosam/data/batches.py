"""Data as a run sees it: two splits that give the same batches for the same (seed, epoch), whatever else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Augment = Callable[[Tensor, torch.Generator], Tensor]


class Batches(Protocol):
    """A split: `epoch(e)` gives the batches of epoch e; a plain iteration is epoch 0."""

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Data:
    """A data set ready to train on: its splits, the number of classes and the shape of one picture."""

    train: Batches
    test: Batches
    classes: int
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Tensors:
    """A split that lives in memory as one tensor of pictures and one of labels."""

    x: Tensor
    y: Tensor
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    augment: Augment | None = None

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.y), generator=generator) if self.shuffle else torch.arange(len(self.y))
        for index in order.to(self.x.device).split(self.batch_size):
            x = self.x[index]
            yield (x if self.augment is None else self.augment(x, generator)), self.y[index]
