"""Laws again on sparse kernels: an accelerated model takes the steps of the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam import accelerate
from zosam.kernels import build, choose
from zosam.lab.record import read_record
from zosam.lab.run import Run, run
from zosam.optim import OPTIMIZERS, ZOSAM, Pair
from zosam.sparse import RigL

kernels = pytest.mark.skipif(build.load() is None, reason="no compiled kernels on this machine")


def train(make, fast):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    data = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 3, 12, 12, generator=data), torch.randint(0, 4, (16,), generator=data)
    optimizer = make(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    sparse = RigL(model, optimizer, 0.9, every=3, steps=1000)
    if fast:
        accelerate(model, sparse, x)
    reduction = "none" if optimizer.per_sample else "mean"

    def closure(keep=slice(None)):
        return F.cross_entropy(model(x[keep]), y[keep], reduction=reduction)

    for _ in range(5):
        optimizer.step(closure)
    for n, w in sparse.weights.items():
        assert (w.detach()[~sparse.masks[n]] == 0).all()
    return model


@kernels
@pytest.mark.parametrize("make", [*OPTIMIZERS.values(), lambda b: ZOSAM(b, decide=Pair()), ZOSAM.fast])
def test_an_accelerated_model_takes_the_same_steps(make):
    plain, fast = train(make, fast=False), train(make, fast=True)
    for (name, a), b in zip(plain.state_dict().items(), fast.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


class Stop(Exception):
    """A training is cut off here."""


@kernels
def test_resumed_where_timings_differ_it_ends_in_the_same_bits(tmp_path, monkeypatch):
    what = Run(model="digits_net:width=16", epochs=2, batch_size=256)
    weights = []

    def stop_in_the_second_epoch(step, steps):
        if step > steps // 2:
            raise Stop

    def timings(ratio):  # of dense to sparse
        monkeypatch.setattr(choose, "remember", lambda key, measure: ratio)

    timings(2.0)
    weights.append(run(what, tmp_path / "whole", accelerate=True).load().state_dict())
    with pytest.raises(Stop):
        run(what, tmp_path / "resumed", tick=stop_in_the_second_epoch, accelerate=True)
    timings(0.5)
    weights.append(run(what, tmp_path / "resumed", accelerate=True).load().state_dict())
    weights.append(run(what, tmp_path / "other", accelerate=True).load().state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(weights[0].values(), weights[2].values(), strict=True))
    ran = [read_record(tmp_path / name / what.folder)["made_with"]["kernels"] for name in ("resumed", "other")]
    assert ran == [build.load().variant, "none"]
