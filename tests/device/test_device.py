"""Every optimizer and method, and whole runs, on a device that is not the CPU, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("file", ["inside", "inside_lab"])
def test_on_a_pretended_device(file):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([*command, str(Path(__file__).with_name(f"{file}.py"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
