"""Where data lives."""

from __future__ import annotations

import os
from pathlib import Path

from zosam.lab.data.errors import DataError
from zosam.machine import cache_folder


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the given one, else the environment's ZOSAM_DATA, else the cache folder."""
    return Path(given or os.environ.get("ZOSAM_DATA") or cache_folder()).expanduser()


def missing(path: Path, how: str) -> DataError:
    """The error for a path that is not there, and how to get it."""
    return DataError(f"{path} is not there: {how}. The data folder is --data-dir, or ZOSAM_DATA, or {cache_folder()}")
