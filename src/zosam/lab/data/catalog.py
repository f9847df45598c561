"""A data set by its name and settings, as in `"cifar10:validation=5000"`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zosam.lab.data import cifar, cifar_c
from zosam.lab.data.batches import Data, Size, Tensors, moved
from zosam.lab.data.cifar import cifar10, cifar100
from zosam.lab.data.cifar_c import cifar10c
from zosam.lab.data.digits import SIZE, digits
from zosam.lab.data.image_folder import check, folder, imagenet, imagenet_size
from zosam.lab.settings import Choice, Kind
from zosam.names import settings_of

OURS: tuple[Callable[..., Data], ...] = (digits, cifar10, cifar100, cifar10c, imagenet, folder)
DATA: dict[str, Callable[..., Data]] = {f.__name__: f for f in OURS}


SIZES: dict[str, Callable[..., Size | None]] = {
    "digits": lambda: SIZE,
    "cifar10": partial(cifar.size, cifar.CIFAR10),
    "cifar100": partial(cifar.size, cifar.CIFAR100),
    "cifar10c": cifar_c.size,
    "imagenet": imagenet_size,
    "folder": check,
}
GIVEN = frozenset({"batch_size", "seed", "device", "data_dir", "workers", "rank", "world"})
DATA_SETS = Kind("data set", DATA, GIVEN)


def size_of(what: Choice) -> Size | None:
    """How large a data set of ours is, whether or not it is there, if that is known; settings that cannot be are
    refused."""
    known = SIZES.get(what.name)
    return None if known is None else known(**what.settings)


def load(
    what: str | Choice,
    batch_size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    workers: int = 2,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """The data set that `what` names; the settings after the colon are those of its function.

    `package.module:function` of your own is called in the same way, and is given what it takes of the rest: one that
    does not take `rank` and `world` cannot be shared by several processes. Batches of one that does not take `device`
    are moved there one by one.
    """
    choice = DATA_SETS.read(what) if isinstance(what, str) else what
    function = DATA_SETS.thing(choice.name)
    given: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "device": device, "data_dir": data_dir}
    given |= {"workers": workers, "rank": rank, "world": world}
    takes = settings_of(function)
    if world > 1 and not {"rank", "world"} <= takes.keys():
        raise ValueError(f"data {choice} does not take rank and world, so {world} processes cannot share it")
    source = function(**{name: value for name, value in given.items() if name in takes}, **choice.settings)
    if not isinstance(source, Data):
        raise ValueError(f"data {choice} returned {type(source).__name__}, not zosam.lab.data.Data")
    _check_labels(choice, source)
    return source if "device" in takes or torch.device(device).type == "cpu" else moved(source, device)


def _check_labels(choice: Choice, source: Data) -> None:
    """Refuse labels that are those of no class: torch would say it of a number alone, and on CUDA not even that."""
    for split in (source.train, source.test, source.validation):
        if isinstance(split, Tensors) and split.y.numel() and not split.y.is_floating_point():
            for label in (int(split.y.min()), int(split.y.max())):
                if not 0 <= label < source.classes:
                    raise ValueError(
                        f"data {choice} has a label {label}, but says {source.classes} classes: labels are 0 to"
                        f" {source.classes - 1}"
                    )
