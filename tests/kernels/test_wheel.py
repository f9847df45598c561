"""What pip is given: a wheel of one platform if it carries libraries, and an sdist that carries none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = "from setuptools.build_meta import build_{0}; print(build_{0}('dist'))"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, with something in the place of a shipped library."""
    to = tmp_path_factory.mktemp("tree") / "zosam"
    kept = ("src", "docs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
    for name in kept:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "lib"))
        else:
            to.mkdir(exist_ok=True)
            shutil.copy(place, to / name)
    (to / "tests").mkdir()
    (to / "tests/test_nothing.py").touch()
    shipped = to / "src/zosam/kernels/lib"
    shipped.mkdir()
    (shipped / "zosam-portable-x86_64-0.so").write_bytes(b"a library")
    (shipped / "zosam-portable-x86_64-0.so.sha256").write_text("0")
    return to


def made(tree: Path, what: str, platform: str = "") -> Path:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"ZOSAM_PLATFORM": platform}
    command = [sys.executable, "-c", MAKE.format(what)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tree / "dist" / done.stdout.split()[-1]


def test_a_wheel_with_libraries_is_of_one_platform(tree: Path) -> None:
    wheel = made(tree, "wheel", "manylinux_2_17_x86_64")
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = next(archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in about
    assert "Tag: py3-none-manylinux_2_17_x86_64" in about
    assert {"zosam/kernels/lib/zosam-portable-x86_64-0.so", "zosam/kernels/c/kernels.c"} <= set(names)
    assert "zosam/kernels/c/tiles.h" in names
    assert "zosam/kernels/lib/zosam-portable-x86_64-0.so.sha256" in names


def test_an_sdist_has_docs_and_tests_and_no_library(tree: Path) -> None:
    with tarfile.open(made(tree, "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"docs/kernels.md", "tests/test_nothing.py", "src/zosam/kernels/c/tiles.h", "setup.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".sha256"))]


def test_an_sdist_lacks_nothing_of_the_checkout(tmp_path: Path) -> None:
    """Its tests and pages read the results, the examples and more."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout")
    here = {n for n in listed.stdout.split("\0") if (ROOT / n).is_file() and not n.startswith((".ci", ".gitignore"))}
    for name in here:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with tarfile.open(made(tmp_path, "sdist")) as archive:
        assert here <= {name.partition("/")[2] for name in archive.getnames()}
