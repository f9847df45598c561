"""Checkpoints: checked when read, two of them stay, and a damaged one costs an epoch at most."""

from __future__ import annotations

import errno
import hashlib
import os
import re

import pytest
import torch

from zosam import files
from zosam.lab import checkpoints
from zosam.lab import serialize as tree

STATE = {"weights": torch.arange(5.0), "step": 3}


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_that_fails_says_what_to_do_and_leaves_what_was_there(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, 1, STATE)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.NotWritten, match=r"checkpoint-0+2.pt could not be written \(No space left.*Make room"):
        checkpoints.save(tmp_path, 2, STATE)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000000001.pt"]
    assert checkpoints.load_latest(tmp_path)["step"] == 3


def test_the_last_two_stay(tmp_path):
    for step in (1, 5, 9):
        checkpoints.save(tmp_path, step, {"step": step})
    assert [checkpoints.load(p)["step"] for p in checkpoints.of(tmp_path)] == [5, 9]


def test_after_going_back_the_damaged_later_one_does_not_push_a_whole_one_out(tmp_path):
    for step in (4, 8):
        checkpoints.save(tmp_path, step, {"step": step})
    newest = checkpoints.of(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="going back to the one before"):
        assert checkpoints.load_latest(tmp_path) == {"step": 4}
    checkpoints.save(tmp_path, 6, {"step": 6})
    assert [checkpoints.load(p)["step"] for p in checkpoints.of(tmp_path)] == [4, 6]


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("checkpoint-zzz.pt", "checkpoint-1.pt", "checkpoint-000000001.pt.bak"):
        (tmp_path / name).write_text("x")
    assert checkpoints.of(tmp_path) == []
    checkpoints.save(tmp_path, 10**10, {"step": 2})
    checkpoints.save(tmp_path, 999_999_999, {"step": 1})
    assert checkpoints.load_latest(tmp_path) == {"step": 1}  # the later one was removed: it could not have been whole


@pytest.mark.parametrize("keep", [0, 1, 18, 30, 60, -1])
def test_a_cut_checkpoint(tmp_path, keep):
    path = checkpoints.save(tmp_path, 1, STATE)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged or no checkpoint of ours"):
        checkpoints.load(path)


def test_every_flipped_byte_is_found(tmp_path):
    path = checkpoints.save(tmp_path, 1, {"step": 1})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            checkpoints.load(path)


def test_another_version_stops_instead_of_beginning_again(tmp_path):
    checkpoints.save(tmp_path, 1, {"step": 1})
    payload = b"whatever there will be"
    newer = tmp_path / "checkpoint-000000002.pt"
    newer.write_bytes(b"zosam checkpoint 77\n" + hashlib.sha256(payload).digest() + payload)
    with pytest.raises(checkpoints.OtherVersion, match="is of version 77, and this zosam reads version 2: go on with"):
        checkpoints.load_latest(tmp_path)


def test_a_whole_checkpoint_of_something_else(tmp_path):
    for payload in (b"no tree", tree.dumps([1, 2])):
        path = tmp_path / "checkpoint-000000001.pt"
        path.write_bytes(b"zosam checkpoint 2\n" + hashlib.sha256(payload).digest() + payload)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            checkpoints.load(path)
