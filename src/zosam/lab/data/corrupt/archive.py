"""Making the files of CIFAR-10-C: in parallel, file by file, and from where an earlier run stopped."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from zosam import files
from zosam.lab.data.cifar import CIFAR10, read_split
from zosam.lab.data.corrupt.linear import Pictures
from zosam.lab.data.corrupt.severities import CORRUPTIONS, corrupt
from zosam.lab.data.errors import DataError
from zosam.lab.data.place import data_folder
from zosam.lab.terminal import progress_bar
from zosam.names import find

FOLDER = "CIFAR-10-C"
NOTE = "generated.json"
BLOCK = 1000  # pictures that share one stream of random numbers
METHOD = 1  # goes up when the same seed would give other pictures


def generate(
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    only: Iterable[str] = (),
    seed: int = 0,
    processes: int | None = None,
) -> Path:
    """Make CIFAR-10-C from CIFAR-10's test set, in the published layout; returns its folder.

    `only` names some of the 19 corruptions. Files that are there are kept, so an interrupted run goes on.
    """
    x, y = read_split(CIFAR10, "test", data_dir)
    folder = Path(out) if out is not None else data_folder(data_dir) / FOLDER
    write_files(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), y, folder, only, seed, processes)
    return folder


def write_files(
    x: Pictures,
    y: NDArray[np.int64],
    folder: Path,
    only: Iterable[str] = (),
    seed: int = 0,
    processes: int | None = None,
) -> None:
    """One .npy per corruption with all five severities of pictures x (N, 32, 32, 3), and labels.npy."""
    names = list(only) or list(CORRUPTIONS)
    for name in names:
        find(CORRUPTIONS, name, "corruption")
    _claim(folder, x, seed)
    files.write(folder / "labels.npy", partial(np.save, arr=np.tile(y.astype(np.uint8), 5)))
    shape = (5 * len(x), *x.shape[1:])
    names = [name for name in names if not _ready(folder / f"{name}.npy", shape)]
    with _pool(processes) as pool, progress_bar(Console(stderr=True), "pictures") as progress:
        task = progress.add_task("", total=5 * len(x) * len(names))
        for name in names:
            progress.update(task, description=name)
            result = np.empty(shape, np.uint8)
            for start, block in _blocks(x, name, seed, pool):
                result[start : start + len(block)] = block
                progress.advance(task, len(block))
            files.write(folder / f"{name}.npy", partial(np.save, arr=result))


def _blocks(x: Pictures, name: str, seed: int, pool: ProcessPoolExecutor | None) -> Iterator[tuple[int, Pictures]]:
    places = [(severity, start) for severity in range(1, 6) for start in range(0, len(x), BLOCK)]
    work = [(x[start : start + BLOCK], name, severity, seed, start) for severity, start in places]
    done: Iterable[Pictures]
    if pool is None:
        done = (_block(*item) for item in work)
    else:
        futures: list[Future[Pictures]] = [pool.submit(_block, *item) for item in work]
        done = (future.result() for future in futures)
    for (severity, start), block in zip(places, done, strict=True):
        yield (severity - 1) * len(x) + start, block


def _block(x: Pictures, name: str, severity: int, seed: int, start: int) -> Pictures:
    """The same pictures whatever the number of processes: each block has its own random numbers."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode()), severity, start))
    return corrupt(x, name, severity, rng)


@contextmanager
def _pool(processes: int | None) -> Iterator[ProcessPoolExecutor | None]:
    count = processes or os.cpu_count() or 1
    if count == 1:
        yield None
        return
    # spawn, not fork: a fork of a process with torch's threads can hang
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _claim(folder: Path, x: Pictures, seed: int) -> None:
    """Write down how the files are made; refuse a folder whose files were made in another way."""
    note = folder / NOTE
    ours = {"seed": seed, "method": METHOD, "pictures": hashlib.sha256(x.tobytes()).hexdigest()}
    if note.exists():
        if files.read_json(note) != ours:
            raise DataError(
                f"{folder} holds files of another seed or other pictures: remove it, or give another folder"
            )
        return
    if folder.is_dir() and any(folder.glob("*.npy")):
        raise DataError(f"{folder} holds files that were not made here (the published ones?): give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(note, ours)


def _ready(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        there = np.lib.format.open_memmap(path, mode="r")
    except Exception:  # not there, or damaged in any way
        return False
    return bool(there.shape == shape and there.dtype == np.uint8)
