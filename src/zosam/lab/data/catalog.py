"""A data set by its name and settings, as in `"cifar10:validation=5000"`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zosam.lab.data.batches import Data
from zosam.lab.data.cifar import cifar10, cifar100
from zosam.lab.data.cifar_c import cifar10c
from zosam.lab.data.digits import digits
from zosam.lab.data.image_folder import folder, imagenet
from zosam.names import check_settings, find, parse

OURS: tuple[Callable[..., Data], ...] = (digits, cifar10, cifar100, cifar10c, imagenet, folder)
DATA: dict[str, Callable[..., Data]] = {f.__name__: f for f in OURS}


def load(
    spec: str,
    batch_size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data_dir: str | Path | None = None,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """The data set that `spec` names; the settings after the colon are those of its function."""
    name, settings = parse(spec)
    function = find(DATA, name, "data set")
    given: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "device": device, "rank": rank, "world": world}
    check_settings(function, settings, name, taken=(*given, "data_dir"))
    if "data_dir" in inspect.signature(function).parameters:  # the digits are embedded
        given["data_dir"] = data_dir
    return function(**given, **settings)
