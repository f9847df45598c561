"""Every optimizer and method, and whole runs, on a device that is not the CPU, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize("file", ["inside", "inside_lab"])
def test_on_a_pretended_device(file, forked):
    words = ["-p", "no:cacheprovider", "-p", "no:xdist", str(Path(__file__).with_name(f"{file}.py"))]
    inner = forked(f"import pytest\nraise SystemExit(int(pytest.main({words!r})))")
    assert inner.ends() == 0, inner.says()[-8000:]
    assert " passed" in inner.says()
