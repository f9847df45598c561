"""CIFAR-10 and CIFAR-100 from their canonical python files, kept as bytes on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zosam.lab.data.augment import Augmented, Plain
from zosam.lab.data.batches import Data, Size, Tensors
from zosam.lab.data.errors import DataError
from zosam.lab.data.pickles import read_pickle
from zosam.lab.data.place import data_folder, missing

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
SIDE = 32  # pixels


@dataclass(frozen=True)
class Cifar:
    """Where one of the two data sets lies and what its files hold."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    rows: tuple[int, int]  # in each file, to train on and to test
    label: str
    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


CIFAR10 = Cifar(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    rows=(10_000, 10_000),
    label="labels",
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    rows=(50_000, 10_000),
    label="fine_labels",
    classes=100,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


def read_file(path: Path, rows: int, label: str, classes: int, advice: str) -> tuple[Bytes, Labels]:
    """Pictures (rows, 3, 32, 32) and labels of one file, with every size and label checked."""
    content = read_pickle(path, advice)
    x, y = content.get("data"), content.get(label)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (rows, 3072):
        found = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise DataError(f"{path}: 'data' must be uint8 of shape ({rows}, 3072), found {found}: {advice}")
    if not isinstance(y, list) or len(y) != rows or not all(isinstance(value, int) for value in y):
        raise DataError(f"{path}: {label!r} must be a list of {rows} whole numbers: {advice}")
    if min(y) < 0 or max(y) >= classes:
        raise DataError(f"{path}: labels must be 0 to {classes - 1}, found {min(y)} to {max(y)}: {advice}")
    return x.reshape(rows, 3, 32, 32), np.asarray(y, np.int64)


def read_split(kind: Cifar, split: str, data_dir: str | Path | None = None) -> tuple[Bytes, Labels]:
    """The pictures (N, 3, 32, 32) and labels of `"train"` or `"test"`, as numpy arrays."""
    folder = data_folder(data_dir) / kind.folder
    advice = f"get it with `zosam data get {kind.name}`"
    if not folder.is_dir():
        raise missing(folder, advice)
    files, rows = (kind.train, kind.rows[0]) if split == "train" else ((kind.test,), kind.rows[1])
    parts = [read_file(folder / name, rows, kind.label, kind.classes, advice) for name in files]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def size(
    kind: Cifar,
    train: int | None = None,
    validation: int = 0,
    augment: bool = True,
    cutout: int = 0,
    reflect: bool = False,
) -> Size:
    """How many pictures there are with these settings; those that cannot be are refused."""
    there = kind.rows[0] * len(kind.train)
    if not 0 <= validation < there:
        raise ValueError(f"validation must be 0 to {there - 1} pictures, not {validation}")
    if train is not None and not 0 < train <= there - validation:
        raise ValueError(f"train must be 1 to {there - validation} pictures, not {train}")
    if train == there - validation:
        raise ValueError(f"train={train} is all that there is: leave it out")
    if not 0 <= cutout <= SIDE:
        raise ValueError(f"cutout must be 0 to {SIDE} pixels, not {cutout}")
    if not augment and (cutout or reflect):
        raise ValueError("cutout and reflect are augmentation, and augment is false: leave out one or the other")
    return Size(train or there - validation, kind.rows[1], kind.classes, (3, SIDE, SIDE))


def cifar10(
    batch_size: int = 128,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    train: int | None = None,
    validation: int = 0,
    augment: bool = True,
    cutout: int = 0,
    reflect: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """CIFAR-10: 50,000 + 10,000 pictures, 32 x 32, 10 classes; cropped and flipped.

    `train` is how many pictures to train on, and `validation` how many to hold out, both the same ones for every seed;
    by default all of the training set is trained on, less what is held out. `augment=False` neither crops nor flips;
    else `cutout` is the side of a square to blank, and `reflect` pads the crop with mirrored pixels instead of black.
    """
    return _load(CIFAR10, batch_size, seed, device, data_dir, train, validation, augment, cutout, reflect, rank, world)


def cifar100(
    batch_size: int = 128,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    train: int | None = None,
    validation: int = 0,
    augment: bool = True,
    cutout: int = 0,
    reflect: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """CIFAR-100: 50,000 + 10,000 pictures, 32 x 32, 100 classes; cropped and flipped.

    The settings are those of cifar10.
    """
    return _load(CIFAR100, batch_size, seed, device, data_dir, train, validation, augment, cutout, reflect, rank, world)


def _load(
    kind: Cifar,
    batch_size: int,
    seed: int,
    device: torch.device | str,
    data_dir: str | Path | None,
    train: int | None,
    validation: int,
    augment: bool,
    cutout: int,
    reflect: bool,
    rank: int,
    world: int,
) -> Data:
    size(kind, train, validation, augment, cutout, reflect)
    (x, y), (test_x, test_y) = (
        tuple(torch.from_numpy(a).to(device) for a in read_split(kind, split, data_dir)) for split in ("train", "test")
    )
    plain = Plain(kind.mean, kind.std)
    held = None
    if validation or train:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(device)
        out, kept = order[:validation], order[validation:][:train]
        held = Tensors(x[out], y[out], 500, augment=plain, rank=rank, world=world) if validation else None
        x, y = x[kept], y[kept]
    seen = Augmented(kind.mean, kind.std, cutout, reflect) if augment else plain
    return Data(
        train=Tensors(x, y, batch_size, shuffle=True, seed=seed, augment=seen, rank=rank, world=world),
        test=Tensors(test_x, test_y, 500, augment=plain, rank=rank, world=world),
        classes=kind.classes,
        shape=(3, SIDE, SIDE),
        validation=held,
    )
