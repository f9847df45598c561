"""CIFAR-10-C: CIFAR-10's test set under 19 corruptions at five severities, read from the published files or ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zosam.lab.data.augment import normalise
from zosam.lab.data.batches import Data, Size, share, share_size
from zosam.lab.data.cifar import CIFAR10, cifar10
from zosam.lab.data.cifar import size as clean_size
from zosam.lab.data.corrupt.severities import CORRUPTIONS
from zosam.lab.data.errors import DataError
from zosam.lab.data.place import data_folder, missing
from zosam.names import find

FOLDER = "CIFAR-10-C"
ADVICE = "get it with `zosam data get cifar10-c`, or make it with `zosam data corrupt`"
COUNT = 10_000


@dataclass(frozen=True)
class Corrupted:
    """One corruption at one severity; the pictures stay on the disk until their batch comes."""

    corruption: str
    severity: int
    x: NDArray[np.uint8]
    y: Tensor
    batch_size: int
    device: torch.device | str = "cpu"
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        return -(-share_size(len(self.x), self.rank, self.world, equal=False) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        mine = share(torch.arange(len(self.x)), self.rank, self.world, equal=False)
        for index in mine.split(self.batch_size):
            x = torch.from_numpy(self.x[index.numpy()]).permute(0, 3, 1, 2).contiguous().to(self.device)
            yield normalise(x, CIFAR10.mean, CIFAR10.std), self.y[index].to(self.device)


@dataclass(frozen=True)
class Joined:
    """Several splits one after the other, as one."""

    parts: tuple[Corrupted, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for part in self.parts:
            yield from part.epoch(epoch)


def size(corruption: str = "all", severity: int = 0) -> Size:
    """How many pictures there are with these settings; those that cannot be are refused."""
    if severity not in range(6):
        raise ValueError(f"severity must be 1 to 5, or 0 for all five, not {severity}")
    if corruption != "all":
        find(CORRUPTIONS, corruption, "corruption")
    parts = (len(CORRUPTIONS) if corruption == "all" else 1) * (1 if severity else 5)
    return replace(clean_size(CIFAR10), test=parts * COUNT)


def corrupted(
    corruption: str = "all",
    severity: int = 0,
    data_dir: str | Path | None = None,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
) -> tuple[Corrupted, ...]:
    """The parts of CIFAR-10-C, each with its name and severity; `"all"` and severity 0 mean every one."""
    size(corruption, severity)
    folder = data_folder(data_dir) / FOLDER
    y = _array(folder / "labels.npy", (5 * COUNT,))
    if y.min() < 0 or y.max() > 9:
        raise DataError(f"{folder / 'labels.npy'}: labels must be 0 to 9, found {y.min()} to {y.max()}: {ADVICE}")
    labels = torch.from_numpy(y.astype(np.int64))
    parts = []
    for name in CORRUPTIONS if corruption == "all" else (corruption,):
        x = _array(folder / f"{name}.npy", (5 * COUNT, 32, 32, 3))
        for level in (severity,) if severity else range(1, 6):
            at = slice((level - 1) * COUNT, level * COUNT)
            parts.append(Corrupted(name, level, x[at], labels[at], batch_size, device, rank, world))
    return tuple(parts)


def cifar10c(
    batch_size: int = 128,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    corruption: str = "all",
    severity: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """CIFAR-10-C: trains on CIFAR-10, tests on 19 corruptions x 5 severities x 10,000 pictures.

    `corruption` and `severity` choose a part of them.
    """
    parts = corrupted(corruption, severity, data_dir, 500, device, rank, world)
    clean = cifar10(batch_size, seed, device, data_dir, rank=rank, world=world)
    return Data(clean.train, Joined(parts), clean.classes, clean.shape)


def _array(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in a .npy file, not yet read; never a pickle."""
    if not path.exists():
        raise missing(path, ADVICE)
    try:
        array: NDArray[np.uint8] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header can fail in any way
        raise DataError(f"{path} is damaged ({error}): {ADVICE}") from error
    if array.shape != shape or array.dtype.kind not in "ui" or (array.ndim > 1 and array.dtype != np.uint8):
        raise DataError(f"{path} must be of shape {shape}, found {array.dtype} {array.shape}: {ADVICE}")
    return array
