"""docs/trainers.md is run as it stands, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    for name in ("lightning", "accelerate", "transformers"):
        pytest.importorskip(name)
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
    assert names["sparse"].steps > 0
