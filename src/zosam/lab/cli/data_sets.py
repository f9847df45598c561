"""`zosam data get` and `zosam data corrupt`: fetch data sets, and make CIFAR-10-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from zosam.lab.terminal import console


def get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download cifar10, cifar100 or cifar10-c from its official address; stopped, it goes on where it was.

    Args:
        name: Which data set.
        data_dir: Where to; else $ZOSAM_DATA, else ~/.cache/zosam.
    """
    from zosam.lab.data.download import get

    console.print(f"{name} is in {get(name, data_dir)}", highlight=False)


def corrupt(
    data_dir: Path | None = None,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    seed: int = 0,
    processes: int | None = None,
) -> None:
    """Make CIFAR-10-C, 19 corruptions at 5 severities, from CIFAR-10's test set; files that are there are kept.

    Args:
        data_dir: Where CIFAR-10 lies; else $ZOSAM_DATA, else ~/.cache/zosam.
        out: Folder for the files; by default CIFAR-10-C beside CIFAR-10.
        only: Some of the corruptions, by name.
        seed: Seed of all noise.
        processes: How many at once; by default one per core.
    """
    from zosam.lab.data.corrupt import generate

    console.print(f"CIFAR-10-C is in {generate(data_dir, out, only, seed, processes)}", highlight=False)
