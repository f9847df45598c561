"""The demonstration says what it does; what it measures is tested where that is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from zosam.lab import demo, terminal

LAST = {"test_accuracy": 0.99, "sparsity": 0.9, "forward": 345.0, "backward": 345.0}


def test_the_demo_is_never_silent_and_names_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=out, force_terminal=True, width=120))
    monkeypatch.setattr(demo, "watched", lambda label, *_: SimpleNamespace(last=LAST, path=tmp_path / label))
    monkeypatch.setattr(demo, "rise", lambda record: 0.01)

    def one_step(what: Any, fast: bool = True) -> Callable[[], object]:
        return lambda: None

    monkeypatch.setattr(demo, "one_step", one_step)
    demo.demo(tmp_path)
    told = out.getvalue()
    for label in demo.CONTESTANTS:
        assert f"{label}: measuring its kernels" in told
        assert f"{label}: sharpness" in told
    assert "a step of each" in told
    assert f"zosam report --runs {tmp_path}" in told
    assert "images/s" not in told
