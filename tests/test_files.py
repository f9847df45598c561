"""Files: whole or not there, checked when read, and clear about what to do when they cannot be written."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import warnings

import pytest
import torch

from zosam import files
from zosam.lab import disk_space as room

STATE = {"weights": torch.arange(5.0), "step": 3}


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_that_fails_says_what_to_do_and_leaves_what_was_there(tmp_path, monkeypatch):
    files.save(tmp_path, 1, STATE)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.NotWritten, match=r"checkpoint-0+2.pt could not be written \(No space left.*Make room"):
        files.save(tmp_path, 2, STATE)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000000001.pt"]
    assert files.load_latest(tmp_path)["step"] == 3


@pytest.mark.parametrize("act", [files.save, lambda folder, *_: files.locked(folder).__enter__()])
def test_a_folder_that_cannot_be(tmp_path, act):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(files.NotWritten, match="give a folder that can be written to"):
        act(tmp_path / "file" / "runs", 1, STATE)


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
    monkeypatch.delattr(os, "posix_fallocate")
    if reserve is not None:
        monkeypatch.setattr(os, "posix_fallocate", reserve, raising=False)
    room.check_room(tmp_path, 10_000, 3)
    with pytest.raises(files.NotWritten, match="No space left"):
        room.check_room(tmp_path, 1 << 60, 1)
    assert not list(tmp_path.iterdir())


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
    with files.locked(tmp_path):
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in stay)


def test_the_last_two_stay(tmp_path):
    for step in (1, 5, 9):
        files.save(tmp_path, step, {"step": step})
    assert [files.load(p)["step"] for p in files.checkpoints(tmp_path)] == [5, 9]


def test_after_going_back_the_damaged_later_one_does_not_push_a_whole_one_out(tmp_path):
    for step in (4, 8):
        files.save(tmp_path, step, {"step": step})
    newest = files.checkpoints(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="going back to the one before"):
        assert files.load_latest(tmp_path) == {"step": 4}
    files.save(tmp_path, 6, {"step": 6})
    assert [files.load(p)["step"] for p in files.checkpoints(tmp_path)] == [4, 6]


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("checkpoint-zzz.pt", "checkpoint-1.pt", "checkpoint-000000001.pt.bak"):
        (tmp_path / name).write_text("x")
    assert files.checkpoints(tmp_path) == []
    files.save(tmp_path, 10**10, {"step": 2})
    files.save(tmp_path, 999_999_999, {"step": 1})
    assert files.load_latest(tmp_path) == {"step": 1}  # the later one was removed: it could not have been whole


@pytest.mark.parametrize("keep", [0, 1, 18, 30, 60, -1])
def test_a_cut_checkpoint(tmp_path, keep):
    path = files.save(tmp_path, 1, STATE)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged or no checkpoint of ours"):
        files.load(path)


def test_every_flipped_byte_is_found(tmp_path):
    path = files.save(tmp_path, 1, {"step": 1})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            files.load(path)


def test_another_version_stops_instead_of_beginning_again(tmp_path):
    files.save(tmp_path, 1, {"step": 1})
    payload = b"whatever there will be"
    newer = tmp_path / "checkpoint-000000002.pt"
    newer.write_bytes(b"zosam checkpoint 77\n" + hashlib.sha256(payload).digest() + payload)
    with pytest.raises(files.OtherVersion, match="is of version 77, and this zosam reads version 2: go on with"):
        files.load_latest(tmp_path)


def test_a_whole_checkpoint_of_something_else(tmp_path):
    for payload in (b"no tree", files.tree.dumps([1, 2])):
        path = tmp_path / "checkpoint-000000001.pt"
        path.write_bytes(b"zosam checkpoint 2\n" + hashlib.sha256(payload).digest() + payload)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            files.load(path)


def test_json(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": [1.5, None]})
    with warnings.catch_warnings(action="error"):
        assert files.read_json(path) == {"a": [1.5, None]}
    for content in (b"", b"{", b"[1]", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": ' * 200_000, b"1" * 9999):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.json cannot be read as a JSON object"):
            files.read_json(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes are too many"):
        files.read_json(path)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "nothing")
