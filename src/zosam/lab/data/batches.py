"""Data as a run sees it: splits that give the same batches for the same (seed, epoch, rank), whatever else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
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
    validation: Batches | None = None


@dataclass(frozen=True)
class Size:
    """What is known of a data set before it is there: how many pictures, of how many classes and which shape."""

    train: int
    test: int
    classes: int
    shape: tuple[int, int, int]


def visit(count: int, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits `count` pictures; the same on all ranks."""
    if not shuffle:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def share(order: Tensor, rank: int, world: int, equal: bool) -> Tensor:
    """What one rank of `world` sees: every world-th picture.

    `equal` is for training, where all ranks must take the same number of steps: up to world - 1 pictures
    of this epoch are left out. For evaluation nothing is left out and nothing is seen twice.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank must be from 0 to world - 1 = {world - 1}, not {rank}")
    return order[: len(order) // world * world if equal else None][rank::world]


def share_size(count: int, rank: int, world: int, equal: bool) -> int:
    """The length of `share` without making it."""
    return count // world if equal else len(range(rank, count, world))


def randomness(seed: int, epoch: int, rank: int) -> torch.Generator:
    """The generator for all augmentation of one rank in one epoch."""
    state = np.random.SeedSequence((seed, epoch, rank)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


@dataclass(frozen=True)
class Tensors:
    """A split that lives on the device as one tensor of pictures and one of labels."""

    x: Tensor
    y: Tensor
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    augment: Augment | None = None
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        return -(-share_size(len(self.y), self.rank, self.world, self.shuffle) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = visit(len(self.y), self.shuffle, self.seed, epoch)
        order = share(order, self.rank, self.world, self.shuffle).to(self.x.device)
        generator = randomness(self.seed, epoch, self.rank)
        for index in order.split(self.batch_size):
            x, y = self.x.index_select(0, index), self.y.index_select(0, index)
            yield (x if self.augment is None else self.augment(x, generator)), y


@dataclass(frozen=True)
class Moved:
    """A split whose batches are moved to the device as they come."""

    batches: Batches
    device: torch.device | str

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches.epoch(epoch):
            yield x.to(self.device), y.to(self.device)


def moved(source: Data, device: torch.device | str) -> Data:
    """The data set with all its splits on the device."""
    held = None if source.validation is None else Moved(source.validation, device)
    return replace(source, train=Moved(source.train, device), test=Moved(source.test, device), validation=held)
