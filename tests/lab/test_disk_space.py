"""Room on the disk is looked for before a training begins."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from zosam import files
from zosam.lab import disk_space as room


def test_room(tmp_path):
    room.check_room(tmp_path, 10_000, 3)
    assert not list(tmp_path.iterdir())
    with pytest.raises(files.NotWritten, match=r"2 checkpoints of 1,[\d,]+ bytes"):
        room.check_room(tmp_path, 1 << 60, 2)
    assert not list(tmp_path.iterdir())


def unsupported(*_):
    raise OSError(errno.EOPNOTSUPP, "not here")


@pytest.mark.parametrize("reserve", [unsupported, None])
def test_room_on_a_system_that_cannot_reserve(tmp_path, monkeypatch, reserve):
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(os.fspath(path)))  # Windows takes no open file
    monkeypatch.delattr(os, "posix_fallocate")
    if reserve is not None:
        monkeypatch.setattr(os, "posix_fallocate", reserve, raising=False)
    room.check_room(tmp_path, 10_000, 3)
    with pytest.raises(files.NotWritten, match="No space left"):
        room.check_room(tmp_path, 1 << 60, 1)
    with pytest.raises(files.NotWritten, match="No space left"):  # one of them would fit
        room.check_room(tmp_path, usage(tmp_path).free * 2 // 3, 2)
    assert not list(tmp_path.iterdir())
