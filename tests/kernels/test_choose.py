"""The faster way is measured once and remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zosam.kernels import accelerate, choose, report


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(choose, "_known", {})


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))


def test_measurements_are_made_once(masks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    sparse = masks(net, 0.9)
    accelerate(net, sparse, torch.randn(8, 4, 8, 8))
    known = dict(choose._known)
    assert len(known) == 3  # two layers and the region
    monkeypatch.setattr(choose, "best", lambda *_: pytest.fail("measured again"))
    accelerate(net, sparse, torch.randn(8, 4, 8, 8))
    choose._known.clear()  # another process
    accelerate(net, sparse, torch.randn(8, 4, 8, 8))
    assert choose._known == known
    choose.forget()
    assert not list(tmp_path.iterdir())


def test_a_region_that_loses_runs_as_before(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_remember", lambda key, measure: 0.9)
    net = model()
    x = torch.randn(8, 4, 8, 8)
    expected = net.eval()(x)
    accelerate(net, masks(net, 0.0), x)
    assert torch.equal(net(x), expected)
    assert "layers sparse" not in report(net)


def test_a_broken_cache_is_ignored(masks: Any, tmp_path: Path) -> None:
    (tmp_path / "choices.json").write_text("{broken")
    net = model()
    accelerate(net, masks(net, 0.9), torch.randn(8, 4, 8, 8))
    assert len(choose._known) == 3
