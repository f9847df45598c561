"""The benchmark of signs, at a size at which it takes seconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from zosam.lab.run import Run

FILE = Path(__file__).parents[2] / "benchmarks" / "signs.py"


@pytest.fixture
def signs():
    spec = importlib.util.spec_from_file_location("signs", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rounding_spoils_signs_of_probes_that_are_near(signs, tmp_path, monkeypatch):
    monkeypatch.setattr(signs, "DELTAS", [None, 1e-5, 3e-3])
    what = Run(model="digits_net:width=8", epochs=2, optimizer="sgd")
    found = signs.rounding(what, None, 24, ["fp32", "bf16"], tmp_path)
    assert set(found) == {(p, d) for p in ("fp32", "bf16") for d in signs.DELTAS}
    assert all(found["fp32", delta] >= 0.75 for delta in signs.DELTAS)
    assert found["bf16", 1e-5] <= 0.7  # most of the time nothing moves in bf16
    assert found["bf16", 3e-3] >= 0.75
