"""Files that are whole or not there: atomic writes and checked reads.

What may come out of reading a file, here and everywhere in the package: ValueError if its content is not what it
should be (DataError, a ValueError, for data sets), OSError if it is not there or the system refuses. Nothing that is
read is run, and no claim in a file is believed before it was compared with the file's size.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST_LINKS = 40  # on the way to a file, as for Linux
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


def open_to_others(path: Path) -> Path | None:
    """Where somebody other than root could put another file in the place of this one; None if nowhere.

    Looked at are the file, if it is there, and every folder and link on the way. A folder that does not hold the file
    or a link to it may be a group's of one's own, and one with a sticky bit is nobody's to rename things in.
    """
    if os.name != "posix":
        return None
    way = list(_way(path))
    near = {path.parent.resolve(), way[-1].parent, way[-1]}
    for place in way:
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISLNK(status.st_mode):
            shared = 0
        elif place not in near:
            if status.st_mode & stat.S_ISVTX:
                shared = 0
            elif _is_own(status.st_gid):
                shared &= stat.S_IWOTH
        if shared or status.st_uid not in (0, os.geteuid()):
            return place
    return None


def _way(path: Path) -> Iterator[Path]:
    """Every place that a path leads through, links and what they lead to among them; last where it ends."""
    path, links = path.absolute(), 0
    at, left = Path(path.anchor), list(reversed(path.parts[1:]))
    yield at
    while left:
        step = left.pop()
        at = at.parent if step == ".." else at / step
        yield at
        if at.is_symlink():
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = at.readlink()
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path(target.anchor) if target.is_absolute() else at.parent


def _is_own(group: int) -> bool:
    """Whether a group is root's, or of this user alone, as many systems give one to each."""
    import grp
    import pwd

    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group == 0
    return group == 0 or (found.gr_name == name and set(found.gr_mem) <= {name})
