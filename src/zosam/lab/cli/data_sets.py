"""`zosam data get` and `zosam data corrupt`: fetch data sets, and make CIFAR-10-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from zosam.lab.terminal import Output, Printed


def get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None, output: Printed = Output()) -> None:
    """Download cifar10, cifar100 or cifar10-c from its official address; a download that broke off is resumed.

    Args:
        name: Which data set.
        data_dir: Folder to put it into; by default $ZOSAM_DATA, else ~/.cache/zosam.
        output: In which form to print where it is.
    """
    from zosam.lab.data.download import get

    folder = get(name, data_dir)
    output.tell(f"{name} is in {folder}", {"name": name, "folder": str(folder)})


def corrupt(
    data_dir: Path | None = None,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    seed: int = 0,
    processes: int | None = None,
    output: Printed = Output(),
) -> None:
    """Make CIFAR-10-C (19 corruptions, 5 severities) from CIFAR-10's test set; existing files are kept.

    Args:
        data_dir: Folder that holds CIFAR-10; by default $ZOSAM_DATA, else ~/.cache/zosam.
        out: Folder for the files; by default CIFAR-10-C beside CIFAR-10.
        only: Only these corruptions, by name.
        seed: Seed of all noise.
        processes: Number of processes; by default one per core.
        output: In which form to print where they are.
    """
    from zosam.lab.data.corrupt import generate

    folder = generate(data_dir, out, only, seed, processes)
    output.tell(f"CIFAR-10-C is in {folder}", {"name": "cifar10-c", "folder": str(folder)})
