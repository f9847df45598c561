"""Files: whole or not there, checked when read, and clear about what to do when they cannot be written."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import warnings

import pytest

from zosam import files


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_that_fails_says_what_to_do_and_leaves_what_was_there(tmp_path, monkeypatch):
    files.write(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.NotWritten, match=r"a could not be written \(No space left.*Make room"):
        files.write(tmp_path / "a", b"new")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A crash of the machine leaves the old file or the new one: content, then name, then the folder's entry."""
    done, fsync, replace = [], os.fsync, pathlib.Path.replace

    def synced(number):
        kind = "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else f"content of {os.fstat(number).st_size} bytes"
        done.append(kind)
        fsync(number)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(pathlib.Path, "replace", lambda own, to: [done.append("name"), replace(own, to)])
    files.write(tmp_path / "a", b"twelve bytes")
    assert done == ["content of 12 bytes", "name", "folder"]


def test_a_function_may_write(tmp_path):
    files.write(tmp_path / "a", lambda file: [file.write(b"one"), file.write(b"two")])
    assert (tmp_path / "a").read_bytes() == b"onetwo"

    def breaks_off(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "a", breaks_off)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(files.NotWritten, match="give a folder that can be written to"):
        files.write(tmp_path / "file" / "runs" / "a", b"")


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


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize(
    ("group", "members", "open_"),
    [("me", [], False), ("me", ["me"], False), ("me", ["me", "you"], True), ("users", [], True)],
)
def test_a_group_is_others_unless_it_is_ones_own(tmp_path, monkeypatch, group, members, open_):
    """Many systems give all users one group; there a folder that it may write to is everybody's."""
    import grp
    import pwd

    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    (tmp_path / "cache").chmod(0o770)
    real = pathlib.Path.lstat

    class Status:
        def __init__(self, path):
            self.found = real(path)
            self.st_mode, self.st_uid, self.st_gid = self.found.st_mode, self.found.st_uid, 4711

    monkeypatch.setattr(pathlib.Path, "lstat", lambda path: Status(path))
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((group, "x", number, members)))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("me", "x", number, 4711, "", "/", "")))
    assert files.open_to_others(folder / "file") == (tmp_path / "cache" if open_ else None)
    folder.chmod(0o770)  # the folder of the file itself is nobody's but one's own
    assert files.open_to_others(folder / "file") in (folder, tmp_path / "cache")


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_links_in_a_circle_lead_nowhere(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_to_others(tmp_path / "a" / "file")
