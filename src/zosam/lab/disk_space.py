"""Room on the disk, found out before a training starts and not after hours of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from zosam.files import not_written


def check_room(folder: Path, size: int, count: int) -> None:
    """Whether `count` files of `size` bytes can be written here: they are reserved, and none of them stays."""
    asides = [folder / f".room-{k}.{os.getpid()}" for k in range(count)]
    try:
        for aside in asides:
            with aside.open("wb") as file:
                if not _reserved(file.fileno(), max(size, 1)) and shutil.disk_usage(folder).free < size * count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise not_written(f"{folder}: {count} checkpoints of {size:,} bytes", error) from error
    finally:
        for aside in asides:
            aside.unlink(missing_ok=True)


def _reserved(file: int, size: int) -> bool:
    """Take the blocks; quotas and limits count, as they do when it is written. False where nothing can be reserved."""
    try:
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
            raise
        return False
    return True
