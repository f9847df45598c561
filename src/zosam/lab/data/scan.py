"""A folder of pictures, one sub-folder per class, as lists of files and labels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from zosam.lab.data.errors import DataError
from zosam.lab.data.place import missing

KINDS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Listing:
    """The classes in alphabetical order, and every file with the number of its class."""

    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]


def scan(folder: Path) -> Listing:
    """All pictures under folder/<class>/; a class without a picture is an error."""
    if not folder.is_dir():
        raise missing(folder, "it should hold one folder of pictures per class")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} is empty: it should hold one folder of pictures per class")
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = sorted(e.path for e in os.scandir(folder / name) if e.name.lower().endswith(KINDS) and e.is_file())
        if not inside:
            raise DataError(f"{folder / name} holds no picture ({', '.join(KINDS)}): fill it or remove it")
        files += inside
        labels += [label] * len(inside)
    return Listing(tuple(classes), tuple(files), tuple(labels))


def splits(root: Path) -> tuple[Listing, Listing]:
    """root/train and root/val (or root/test), which must have the same classes."""
    if not root.is_dir():
        raise missing(root, "it should hold train/<class>/*.jpg and val/<class>/*.jpg")
    held = root / "val" if (root / "val").is_dir() or not (root / "test").is_dir() else root / "test"
    train, test = scan(root / "train"), scan(held)
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        shown = ", ".join(odd[:5]) + (", ..." if len(odd) > 5 else "")
        raise DataError(f"{root / 'train'} and {held} must have the same classes; only in one of them: {shown}")
    return train, test
