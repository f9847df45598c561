"""Locks: one process at a time in a folder, whatever the file system has, and wherever the folder is moved to."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from zosam import files
from zosam.lab.locks import MARKER, Busy, is_held, locked


def test_half_written_files_are_removed_and_others_are_not(tmp_path):
    left = [
        tmp_path / ".checkpoint-000000007.pt.1234",
        tmp_path / ".room-0.99",
        tmp_path / "masks" / ".000.safetensors.7",
    ]
    stay = [tmp_path / ".notes.2024.txt", tmp_path / "model.1", tmp_path / ".hidden.5" / "file"]
    for path in left + stay:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    with locked(tmp_path):
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in stay)


def test_a_folder_is_held_once(tmp_path):
    with locked(tmp_path):
        with pytest.raises(Busy, match="is in use by another process"), locked(tmp_path):
            pass
        began = time.monotonic()
        with pytest.raises(Busy), locked(tmp_path, wait=0.3):
            pass
        assert time.monotonic() - began >= 0.3
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(files.NotWritten, match="give a folder that can be written to"), locked(tmp_path / "file" / "a"):
        pass


CHILD = """
import errno, fcntl, os, sys, time
from pathlib import Path
def none(*_):
    raise OSError(getattr(errno, sys.argv[2]), "no locks here")
if sys.argv[2]:
    fcntl.flock = none
from zosam.lab.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holding(folder, error=""):
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", CHILD, folder, error], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    return child


@pytest.mark.parametrize("error", ["", "ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_the_lock_of_a_killed_process_is_gone(tmp_path, monkeypatch, error):
    if error:

        def none(*_):
            raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

        monkeypatch.setattr(fcntl, "flock", none)
        said = f"on a file system without locks .* {MARKER} stands for one"
        with pytest.warns(UserWarning, match=said), locked(tmp_path):
            pass
    child = holding(tmp_path, error)
    try:
        with pytest.raises(Busy), locked(tmp_path):
            pass
        assert is_held(tmp_path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not is_held(tmp_path)  # who waits for it would wait for ever
    with locked(tmp_path):
        pass


def test_a_moved_folder_keeps_its_lock(tmp_path):
    with locked(tmp_path / "here") as held:
        held.check()
        (tmp_path / "here").rename(tmp_path / "there")
        with pytest.raises(files.NotWritten, match="was moved or removed while it was in use"):
            held.check()
        with pytest.raises(Busy), locked(tmp_path / "there"):
            pass
        with locked(tmp_path / "here"), pytest.raises(files.NotWritten):  # another one has the name now
            held.check()
    with locked(tmp_path / "there"):
        pass
