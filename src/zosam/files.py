"""Files that are whole or not there: atomic writes and checked reads.

What may come out of reading a file, here and everywhere in the package: ValueError if its content is not what it
should be (DataError, a ValueError, for data sets), OSError if it is not there or the system refuses. Nothing that is
read is run, and no claim in a file is believed before it was compared with the file's size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

LARGEST_JSON = 1 << 26  # a record of a million epochs is smaller


class NotWritten(OSError):
    """A file could not be written; what was there before is whole."""


def write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write aside, flush to disk, rename: after a crash the file is the old or the new one, never a part.

    The content is bytes, or a function that writes them to the file it is given.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        if os.name == "posix":  # elsewhere a folder cannot be opened, and need not be
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(what: object, error: OSError) -> NotWritten:
    reason = error.strerror or str(error)
    return NotWritten(
        f"{what} could not be written ({reason}); what was there before is whole."
        " Make room, or give a folder that can be written to: the same command goes on"
    )


def write_json(path: Path, content: Any) -> None:
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"{path.stat().st_size:,} bytes are too many")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a JSON object ({error})") from None
    return content
