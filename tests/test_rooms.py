"""The library is small: it needs torch, numpy and safetensors, and knows nothing of the laboratory around it."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import zosam

SRC = Path(zosam.__file__).parent
ONLY_FOR_THE_LAB = ("tyro", "rich", "scipy", "sklearn", "filelock")


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


FORGET = """
for name in [name for name in sys.modules if name.partition(".")[0] in {names!r}]:
    del sys.modules[name]
"""


def test_the_library_trains_without_what_the_laboratory_needs(forked):
    without = [name for name in ONLY_FOR_THE_LAB if name != "filelock"]  # torch needs that one
    code = f"""{FORGET.format(names=["zosam", *without])}
sys.modules |= dict.fromkeys({without!r})
import zosam
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = zosam.ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
sparse = zosam.SET(model, optimizer, sparsity=0.5, steps=1000)
x, y = torch.randn(16, 8), torch.randint(2, (16,))
for _ in range(2):
    loss = optimizer.step(lambda: torch.nn.functional.cross_entropy(model(x), y))
print(float(loss))
"""
    child = forked(code)
    assert child.ends() == 0, child.says()
    assert float(child.says()) > 0


def test_without_the_laboratory_the_command_says_what_to_install():
    for name in ONLY_FOR_THE_LAB:
        code = "import sys; sys.modules[sys.argv.pop()] = None; import zosam.__main__ as m; m.main()"
        done = python(code, name)
        assert done.returncode == 1
        assert f"needs {name}, not installed here: pip install 'zosam[lab]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_every_public_name_is_there_and_nothing_of_the_laboratory_is_imported_for_the_library():
    code = """
import sys, zosam
assert "torch" not in sys.modules
import torch  # it imports some of these by itself, depending on what is installed
before = set(sys.modules)
import zosam.optim, zosam.sparse, zosam.kernels, zosam.distributed.ddp, zosam.distributed.sharded_files
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} | {n for n in sys.modules if ".lab" in n}))
for name in zosam.__all__:
    getattr(zosam, name)
from zosam import *
print(ZOSAM.__name__, Random.__module__, zosam.optim.SAM.__name__, "ZOSAM" in dir(zosam))
zosam.nothing
"""
    done = python(code)
    imported, said = done.stdout.splitlines()
    assert not {*ONLY_FOR_THE_LAB, "PIL", "matplotlib"} & set(imported.split())
    assert "zosam.lab" not in imported
    assert said.split() == ["ZOSAM", "zosam.sparse.random", "SAM", "True"], done.stderr
    assert "AttributeError: module 'zosam' has no attribute 'nothing'" in done.stderr


def test_the_version_is_said_once():
    stated = importlib.metadata.version("zosam")
    assert zosam.__version__ == stated
    text = (SRC.parents[1] / "pyproject.toml").read_text()
    assert "zosam.__version__" in text
    assert f'version = "{stated}"' not in text


def test_no_file_name_twice_and_none_too_long():
    files = [p for p in SRC.rglob("*.py") if p.name not in {"__init__.py", "base.py"}]
    assert [name for name, count in Counter(p.name for p in files).items() if count > 1] == []
    written = [p for p in SRC.rglob("*") if p.suffix in {".py", ".c", ".h", ".toml", ".js", ".css", ".html"}]
    assert {p.name for p in written if len(p.read_text().splitlines()) > 300} == set()


@pytest.mark.parametrize(
    "room", ["optim", "sparse", "distributed", "integrations", "kernels", "kernels.operations", "lab", "lab.paper"]
)
def test_a_room_says_what_each_of_its_modules_is(room):
    listed = re.findall(r"^(\w+) {2,}\S", importlib.import_module(f"zosam.{room}").__doc__, re.MULTILINE)
    inside = (SRC / room.replace(".", "/")).iterdir()
    there = [p.stem for p in inside if p.suffix == ".py" or (p / "__init__.py").exists()]
    assert sorted(listed) == sorted(name for name in there if name != "__init__")


def test_a_training_needs_nothing_that_only_some_systems_have(forked, tmp_path):
    """As on Windows: no fcntl, no SIGCHLD, no folders that can be opened, no space that can be reserved."""
    code = f"""{FORGET.format(names=["zosam", "filelock"])}
import signal
sys.modules |= dict.fromkeys(("resource", "pwd", "grp", "termios"))
from filelock import FileLock, SoftFileLock
import filelock
filelock.FileLock = SoftFileLock  # msvcrt's there
sys.modules["fcntl"] = None
for module, name in ((signal, "SIGCHLD"), (os, "posix_fallocate")):
    delattr(module, name)
import torch
from zosam.lab.run import Run, run
from zosam import files
files.os = type("Windows", (), {{**vars(os), "name": "nt"}})
record = run(Run(model="digits_net:width=4", epochs=1, batch_size=512, method="rigl:every=1"), {str(tmp_path)!r})
print(record.last["epoch"])
"""
    child = forked(code)
    assert child.ends() == 0, child.says()
    assert child.says().strip() == "1"
