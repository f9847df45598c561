"""One source, several builds, found by hash; a machine without a compiler is told what is missing."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from zosam.kernels import build, doctor, library


def test_every_variant_compiles_and_says_its_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.compiler() is None:
        pytest.skip("no C compiler")
    path = build.compile_library("portable", tmp_path)
    assert path.name == build.file_name("portable")
    assert ctypes.CDLL(str(path)).zk_lanes() == 4
    monkeypatch.setattr(build, "SHIPPED", tmp_path)
    monkeypatch.setattr(build, "variants", lambda: ["portable"])
    assert build.find_library() == (path, "shipped")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_widest_build_uses_the_widest_registers(compiler: str) -> None:
    """No CPU is needed to compile for AVX-512, only to run it."""
    if shutil.which(compiler) is None or platform.machine() != "x86_64":
        pytest.skip(f"no {compiler} for x86-64")
    command = [compiler, *build.FLAGS, "-march=x86-64-v4", "-S", "-o", "-", str(build.SOURCE)]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert assembly.count("%zmm") > 1000


def test_a_built_library_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOSAM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(build, "variants", lambda: ["portable"])
    (tmp_path / build.file_name("portable")).touch()
    assert build.find_library() == (tmp_path / build.file_name("portable"), "built")


def test_a_given_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOSAM_LIBRARY", str(tmp_path / "own.so"))
    assert build.find_library() == (tmp_path / "own.so", "given")


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOSAM_LIBRARY", raising=False)


def test_no_compiler_is_a_reason_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOSAM_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(build, "compiler", lambda: None)
    path, reason = build.find_library()
    assert path is None
    assert "compiler" in reason


def test_a_source_that_does_not_compile_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.compiler() is None:
        pytest.skip("no C compiler")
    broken = tmp_path / "kernels.c"
    broken.write_text("this is not C")
    monkeypatch.setattr(build, "SOURCE", broken)
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none")
    monkeypatch.setenv("ZOSAM_CACHE", str(tmp_path / "cache"))
    path, reason = build.find_library()
    assert path is None
    assert "error" in reason
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_library_of_something_else_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that was built from an older source."""
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "other.c").write_text("long zk_lanes(void) { return 8; }")
    subprocess.run([compiler, "-shared", "-fPIC", "other.c", "-o", "other.so"], cwd=tmp_path, check=True)
    monkeypatch.setenv("ZOSAM_LIBRARY", str(tmp_path / "other.so"))
    with pytest.warns(RuntimeWarning, match="runs dense"):
        assert library.load.__wrapped__() is None
    monkeypatch.setattr(library, "load", lambda: None)
    assert any("other.so" in line for line in doctor())


def test_the_doctor_tells_what_will_run() -> None:
    lines = doctor()
    assert any("kernels" in line for line in lines)
    assert all(isinstance(line, str) for line in lines)
