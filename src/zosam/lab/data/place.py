"""Where data lives, and how a file gets there: whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from zosam.lab.data.errors import DataError
from zosam.machine import cache_folder


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the given one, else the environment's ZOSAM_DATA, else the cache folder."""
    return Path(given or os.environ.get("ZOSAM_DATA") or cache_folder()).expanduser()


def missing(path: Path, how: str) -> DataError:
    """The error for a path that is not there, and how to get it."""
    return DataError(f"{path} is not there: {how}. The data folder is --data-dir, or ZOSAM_DATA, or {cache_folder()}")


def write_whole(path: Path, save: Callable[[BinaryIO], object]) -> None:
    """Write beside `path`, bring it to the disk, then rename: a reader sees the whole file or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # two runs at once do not share it
    try:
        with open(part, "wb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise DataError(
            f"{path} could not be written ({reason}); nothing of it is left: make room, run again"
        ) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
