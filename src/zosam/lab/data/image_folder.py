"""Any folder of pictures, and ImageNet-1K."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from zosam.lab.data.batches import Data, Size
from zosam.lab.data.errors import DataError
from zosam.lab.data.pictures import Pictures
from zosam.lab.data.place import data_folder
from zosam.lab.data.scan import splits
from zosam.names import find

AUGMENT = {"crop": "crop", "deit": "deit"}
LARGEST = 4096  # pixels on a side


def check(path: str = "", image_size: int = 224, augment: str = "crop") -> None:
    """Refuse settings that cannot be."""
    find(AUGMENT, augment, "augmentation")
    if not 1 <= image_size <= LARGEST:
        raise ValueError(f"image_size must be 1 to {LARGEST:,} pixels, not {image_size:,}")


def imagenet_size(path: str = "imagenet", image_size: int = 224, augment: str = "deit") -> Size:
    """How many pictures ImageNet-1K has; settings that cannot be are refused."""
    check(path, image_size, augment)
    return Size(1_281_167, 50_000, 1000, (3, image_size, image_size))


def folder(
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    path: str = "",
    image_size: int = 224,
    augment: str = "crop",
    workers: int = 2,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """Any folder of pictures: train/<class>/*.jpg and val/<class>/*.jpg.

    `path` is absolute or inside the data folder. `augment="crop"` crops and flips; `"deit"` adds DeiT's
    RandAugment, random erasing, mixup, cutmix and repeated augmentation, and its labels are shares (N, classes).
    """
    check(path, image_size, augment)
    if importlib.util.find_spec("PIL") is None:
        raise DataError("reading pictures needs Pillow: pip install 'zosam[images]'")
    train, test = splits(data_folder(data_dir) / path)
    return Data(
        train=Pictures(train, batch_size, image_size, augment, seed, device, workers, rank, world),
        test=Pictures(test, batch_size, image_size, "none", seed, device, workers, rank, world),
        classes=len(train.classes),
        shape=(3, image_size, image_size),
    )


def imagenet(
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    path: str = "imagenet",
    image_size: int = 224,
    augment: str = "deit",
    workers: int = 2,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """ImageNet-1K: 1,281,167 + 50,000 pictures, 1,000 classes, with DeiT's augmentation.

    Put the pictures into imagenet/train/<wnid>/ and imagenet/val/<wnid>/ of the data folder.
    """
    data = folder(batch_size, seed, device, data_dir, path, image_size, augment, workers, rank, world)
    if data.classes != 1000:
        root = data_folder(data_dir) / path
        raise DataError(
            f"{root} has {data.classes} classes, ImageNet-1K has 1000: is it whole? A part of it is a `folder`"
        )
    return data
