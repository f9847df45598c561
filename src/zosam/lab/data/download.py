"""Fetching data sets from their official addresses: resumed, checked, and unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from zosam.lab.data.errors import DataError
from zosam.lab.data.place import data_folder
from zosam.lab.terminal import progress_bar
from zosam.names import find

CHUNK = 1 << 18
MOST_UNPACKED = 100  # times the size of the archive; pictures hardly shrink


@dataclass(frozen=True)
class Source:
    """An archive on the web, its MD5 as its publisher gives it, and the folder that it unpacks to."""

    url: str
    archive: str
    md5: str
    folder: str


SOURCES = {
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    "cifar10-c": Source(
        "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",
        "CIFAR-10-C.tar",
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "CIFAR-10-C",
    ),
}


def get(name: str, data_dir: str | Path | None = None) -> Path:
    """Download the data set called `name` into the data folder, unless it is there; returns its folder."""
    return fetch(find(SOURCES, name, "data set to download"), data_folder(data_dir))


def fetch(source: Source, data_dir: Path) -> Path:
    """Download, check and unpack one source; an archive that was put there by hand is taken as it is."""
    target, archive = data_dir / source.folder, data_dir / source.archive
    if target.is_dir():
        return target
    by_hand = f"or put {source.archive} from {source.url} into {data_dir} by hand and run this again"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            part = archive.with_name(f"{archive.name}.part")
            _download(source, part, by_hand)
            part.rename(archive)
        found = _md5(archive)
        if found != source.md5:
            archive.unlink()
            wrong = f"{archive} is not the published file (MD5 {found}, not {source.md5}) and was removed"
            raise DataError(f"{wrong}: run again, {by_hand}")
        _unpack(archive, target, by_hand)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{error.filename or data_dir}: {reason}. Run again to go on, {by_hand}") from error
    archive.unlink()
    return target


def _download(source: Source, part: Path, by_hand: str) -> None:
    """Bring `part` to its full length; what is there from an earlier try is not fetched again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(source.url, headers={"User-Agent": "zosam", "Range": f"bytes={have}-"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            if answer.status != 206:  # the server sends all of it
                have = 0
            length = answer.headers.get("Content-Length") or ""
            total = have + int(length) if length.isdecimal() else 0
            with open(part, "ab" if have else "wb") as file, _progress() as progress:
                task = progress.add_task(source.archive, total=total or None, completed=have)
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    progress.advance(task, len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing after what we have: the checksum decides
            return
        raise DataError(f"{source.url} answers {error.code} ({error.reason}): try later, {by_hand}") from error
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{source.url} cannot be reached ({reason}): run again to go on, {by_hand}") from error
    size = part.stat().st_size
    if size < total:
        raise DataError(f"{source.url} broke off after {size:,} of {total:,} bytes: run again to go on, {by_hand}")


def _unpack(archive: Path, target: Path, by_hand: str) -> None:
    """Unpack into a folder aside and rename it; nothing may leave that folder, and only plain files count."""
    room = MOST_UNPACKED * archive.stat().st_size
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as aside:
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    name = PurePosixPath(member.name)
                    plain = (member.isreg() and not member.issparse()) or member.isdir()
                    if name.is_absolute() or ".." in name.parts or not plain:
                        raise DataError(
                            f"{archive} holds {member.name!r}, which is not a plain file inside it: {by_hand}"
                        )
                    room -= member.size
                    if room < 0:
                        raise DataError(f"{archive} claims to hold more than can be in it: {by_hand}")
                    place = Path(aside, *name.parts)
                    if member.isdir():
                        place.mkdir(parents=True, exist_ok=True)
                        continue
                    place.parent.mkdir(parents=True, exist_ok=True)
                    stream = tar.extractfile(member)
                    assert stream is not None  # it is a plain file
                    with stream, open(place, "wb") as file:
                        shutil.copyfileobj(stream, file)
        except (DataError, OSError):
            raise
        except Exception as error:  # a damaged archive can fail in any way
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DataError(f"{archive} cannot be unpacked ({reason}): remove it and run again, {by_hand}") from error
        inside = Path(aside, target.name)
        if not inside.is_dir():
            raise DataError(f"{archive} holds no folder {target.name!r}: remove it and run again, {by_hand}")
        inside.rename(target)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _progress() -> Progress:
    return progress_bar(Console(stderr=True), "", DownloadColumn(), TransferSpeedColumn())
