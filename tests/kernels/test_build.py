"""One source, several builds, found by hash; what is damaged, strange or open to others is never loaded."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from zosam.kernels import build, doctor


def found() -> tuple[Path | None, str]:
    """The first library to try, or why there is none."""
    reasons: list[str] = []
    for one in build.libraries(reasons):
        return one
    return None, "; ".join(reasons)


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOSAM_LIBRARY", raising=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing shipped."""
    if build.compiler() is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("ZOSAM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(build, "variants", lambda: ["portable"])
    return tmp_path / "kernels"


def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small source in the place of the kernels, for tests that build again and again."""
    source = tmp_path / "kernels.c"
    source.write_text('__attribute__((visibility("default"))) long zk_lanes(void) { return 4; }\n')
    monkeypatch.setattr(build, "SOURCE", source)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_widest_build_uses_the_widest_registers(compiler: str) -> None:
    """No CPU is needed to compile for AVX-512, only to run it."""
    if shutil.which(compiler) is None or platform.machine() != "x86_64":
        pytest.skip(f"no {compiler} for x86-64")
    command = [compiler, *build.FLAGS, "-march=x86-64-v4", "-S", "-o", "-", str(build.SOURCE)]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert assembly.count("%zmm") > 1000


@pytest.mark.parametrize(("machine", "count"), [("x86_64", 3), ("aarch64", 1)])
def test_a_wheel_is_built_by_the_newest_clang(tmp_path: Path, machine: str, count: int) -> None:
    pytest.importorskip("ziglang")
    assert len(build.build_shipped(machine, tmp_path)) == count


def test_every_part_of_the_source_counts_for_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick(monkeypatch, tmp_path)
    names = [build.file_name("portable")]
    for text in ("/* a part */", "/* the same part, changed */"):
        (tmp_path / "part.h").write_text(text)
        names.append(build.file_name("portable"))
    assert len(set(names)) == 3


def test_a_built_library_is_kept(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, tmp_path)
    path, origin = found()
    assert (path, origin) == (cache / build.file_name("portable"), "built")
    monkeypatch.setattr(build, "compile_library", lambda *_: pytest.fail("built again"))
    assert found() == (path, "built")


def load_elsewhere() -> int:
    """How a process ends that loads the first library: 0 if it says its width and one was passed over for a reason."""
    child = os.fork()
    if child == 0:
        reasons: list[str] = []
        path, _ = next(iter(build.libraries(reasons)))
        os._exit(int((ctypes.CDLL(str(path)).zk_lanes(), len(reasons)) != (4, 1)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("damage", ["cut short", "empty", "one byte", "no checksum", "other checksum", "no text"])
def test_a_damaged_library_is_built_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Half a library maps well, and ends the process by SIGBUS as it is loaded."""
    quick(monkeypatch, tmp_path)
    path, _ = found()
    assert path is not None
    content, beside = path.read_bytes(), Path(f"{path}.sha256")
    if damage == "cut short":
        os.truncate(path, len(content) // 2)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "one byte":
        path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "no checksum":
        beside.unlink()
    else:
        beside.write_bytes(b"0" * 64 if damage == "other checksum" else b"\xff\x9c" * 32)
    assert load_elsewhere() == 0
    assert path.read_bytes() == content
    assert found() == (path, "built")


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("where", ["file", "folder", "above"])
def test_what_others_may_write_is_not_loaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    quick(monkeypatch, tmp_path)
    path, _ = found()
    assert path is not None
    place = {"file": path, "folder": cache, "above": tmp_path}[where]
    place.chmod(0o777)
    again, reason = found()
    if where == "file":  # a new one takes its place
        assert again == path
        assert not path.stat().st_mode & 0o022
    else:
        assert again is None
        assert f"others may write to {place}" in reason
        assert "ZOSAM_CACHE" in reason
    if where == "above":
        place.chmod(0o1777)  # where nobody can rename what is not theirs, as in /tmp
        assert found() == (path, "built")


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("link", ["file", "folder", "by way of"])
def test_nor_is_what_lies_there_behind_a_link(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    quick(monkeypatch, tmp_path)
    path, _ = found()
    assert path is not None
    everybodys = tmp_path / "everybody's"
    everybodys.mkdir()
    if link == "file":
        path.rename(everybodys / "other.so")
        path.symlink_to(everybodys / "other.so")
    elif link == "folder":
        cache.rename(everybodys / "kernels")
        cache.symlink_to(everybodys / "kernels")
    else:  # what it leads to is ours, and anybody may lead it elsewhere
        (everybodys / "link").symlink_to(tmp_path)
        monkeypatch.setenv("ZOSAM_CACHE", str(everybodys / "link"))
    assert found()[1] == "built"
    everybodys.chmod(0o777)
    again, reason = found()
    if link == "file":  # a new one takes its place
        assert again == path
        assert not path.is_symlink()
    else:
        assert again is None
        assert f"others may write to {everybodys}" in reason


def test_a_compiler_that_hangs_is_given_up(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nsleep 600 & echo $! > "$0.child"\nwait\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(build, "PATIENCE", 1.0)
    began = time.monotonic()
    path, reason = found()
    assert path is None
    assert "has not come back" in reason
    assert time.monotonic() - began < 20
    child = int((tmp_path / "slow.child").read_text())
    for _ in range(100):  # its children end with it
        if not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("a child of the compiler goes on")


def test_a_given_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOSAM_LIBRARY", str(tmp_path / "own.so"))
    assert found() == (tmp_path / "own.so", "given")


def test_no_compiler_is_a_reason_not_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)
    path, reason = found()
    assert path is None
    assert "compiler" in reason


def test_a_source_that_does_not_compile_is_a_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels.c").write_text("this is not C")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "kernels.c")
    path, reason = found()
    assert path is None
    assert "error" in reason
    assert not list(cache.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="a shell")
def test_of_what_a_compiler_says_the_beginning_is_told(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\necho no room\nhead -c 3000000 /dev/zero | tr '\\0' x\nexit 1\n")
    loud.chmod(0o700)
    monkeypatch.setenv("CC", str(loud))
    path, reason = found()
    assert path is None
    assert "no room" in reason
    assert len(reason) < 20_000


def other(tmp_path: Path) -> Path:
    """A library of something else, such as an older source."""
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "other.c").write_text("long zk_lanes(void) { return 8; }")
    subprocess.run([compiler, "-shared", "-fPIC", "other.c", "-o", "other.so"], cwd=tmp_path, check=True)
    return tmp_path / "other.so"


def test_a_library_of_something_else_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOSAM_LIBRARY", str(other(tmp_path)))
    lib, reasons = build.find.__wrapped__()
    assert lib is None
    assert "other.so is no library of these kernels" in reasons[0]
    monkeypatch.setattr(build, "find", lambda: (lib, reasons))
    with pytest.warns(RuntimeWarning, match="runs dense"):
        assert build.load.__wrapped__() is None
    assert any("other.so" in line for line in doctor())


def test_a_library_that_does_not_load_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a shipped one that wants a newer libc: the next one is built, for any CPU, and says its width."""
    wrong = other(tmp_path).read_bytes()
    build.SHIPPED.mkdir()
    shipped = build.SHIPPED / build.file_name("portable")
    shipped.write_bytes(wrong)
    Path(f"{shipped}.sha256").write_text(build.hashlib.sha256(wrong).hexdigest())
    lib, reasons = build.find.__wrapped__()
    assert lib is not None
    assert lib.origin == "built"
    assert len(reasons) == 1
    path = cache / build.file_name("portable")
    assert ctypes.CDLL(str(path)).zk_lanes() == lib.lanes == 4
    monkeypatch.setattr(build, "SHIPPED", cache)
    assert found() == (path, "shipped")


def test_the_doctor_tells_what_will_run() -> None:
    lines = doctor()
    assert any("kernels" in line for line in lines)
    assert all(isinstance(line, str) for line in lines)
