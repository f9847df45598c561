"""Every optimizer and method on a device that is not the CPU, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GROUPS = {"optimizers": "optimizer or part or state", "methods": "method", "waits": "waits or tells or planted"}


@pytest.mark.parametrize("group", GROUPS)
def test_on_a_pretended_device(group):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", GROUPS[group]]
    done = subprocess.run([*command, str(Path(__file__).with_name("inside.py"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
