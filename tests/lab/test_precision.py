"""Autocast and loss scaling around sharpness-aware steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.precision import Overflow, Precision
from zosam.names import fitting
from zosam.optim import OPTIMIZERS, SAM, ZOSAM

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def base(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def closure_of(model, precision, per_sample=False, factor=1.0):
    def closure(keep=slice(None)):
        with precision.autocast():
            logits = model(X[keep])
        assert logits.dtype == (torch.float32 if precision.name == "fp32" else logits.dtype)
        loss = factor * F.cross_entropy(logits.float(), Y[keep], reduction="none" if per_sample else "mean")
        precision.backward(loss, model.parameters())
        return loss

    return closure


def test_the_scale_follows_torchs_grad_scaler():
    """The same steps overflow in both: the scale is the same after each."""
    precision = Precision("fp16", scale=2.0**10)
    precision.interval = 3
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    overflows = [False, False, False, True, True, False, False, True, False, False, False, False, False, False, True]
    for over in overflows:
        scaler.scale(weight.sum()).backward()
        if over:
            weight.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        precision.overflowed() if over else precision.stepped()
        assert precision.scale == scaler.get_scale()
        assert precision.good == scaler._get_growth_tracker()


def test_scaled_gradients_are_the_plain_ones():
    """Scaling by a power of two changes no bit of an fp16 gradient that neither over- nor underflows."""
    grads = {}
    for scale in (1.0, 2.0**8):
        model = net().eval()
        closure_of(model, Precision("fp16", scale=scale))()
        grads[scale] = [p.grad for p in model.parameters()]
    for a, b in zip(*grads.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-3, atol=2e-5)


def test_scaling_saves_gradients_that_fp16_loses():
    """A loss times 1e-7: without a scale most of its gradient is zero in fp16."""
    lost, kept = net().eval(), net().eval()
    closure_of(lost, Precision("fp16", scale=1.0), factor=1e-7)()
    closure_of(kept, Precision("fp16", scale=65536.0), factor=1e-7)()
    assert torch.count_nonzero(lost[0].weight.grad) < 0.5 * torch.count_nonzero(kept[0].weight.grad)
    exact = net().eval()
    F.cross_entropy(exact(X), Y).mul(1e-7).backward()
    torch.testing.assert_close(kept[0].weight.grad, exact[0].weight.grad, rtol=0.05, atol=1e-9)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_overflow_takes_the_whole_step_back(name):
    """And once the scale is small enough, the step is that of a scale that never overflowed."""
    cls = OPTIMIZERS[name]
    calm, wild = net(), net()
    results = []
    for model, scale in ((calm, 2.0**8), (wild, 2.0**40)):
        torch.manual_seed(3)
        precision = Precision("fp16", scale=scale)
        optimizer = cls(base(model), **fitting(cls, rho=0.2, seed=1))
        closure = closure_of(model, precision, cls.per_sample)
        tries = 0
        for _ in range(3):
            while True:
                before = [t.clone() for t in model.state_dict().values()]
                stream = torch.get_rng_state()
                try:
                    optimizer.step(closure)
                    precision.stepped()
                    break
                except Overflow:
                    tries += 1
                    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
                    assert torch.equal(stream, torch.get_rng_state())
                    precision.overflowed()
        results.append(tries)
    assert results[0] == 0
    assert results[1] > 10
    for a, b in zip(calm.parameters(), wild.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


def test_a_gradient_that_is_never_finite_ends_it():
    model, precision = net(), Precision("fp16")
    nan = torch.full((), float("nan"))
    with pytest.raises(Overflow):
        precision.backward(model(X).sum() * nan, model.parameters())
    for _ in range(36):
        precision.overflowed()
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        precision.overflowed()


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("cls", [SAM, ZOSAM])
def test_it_trains(name, cls):
    model, precision = net(), Precision(name)
    optimizer = cls(base(model), rho=0.1)
    losses = [optimizer.step(closure_of(model, precision)) for _ in range(25)]
    assert all(loss.dtype == torch.float32 for loss in losses)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses[-1] < 0.9 * losses[0]


def test_fp32_does_nothing():
    model, precision = net(), Precision()
    with precision.autocast():
        assert not torch.is_autocast_enabled("cpu")
        precision.backward(model(X).sum(), model.parameters())
    precision.stepped()
    assert all(p.grad is None for p in model.parameters())
    assert precision.state_dict() == Precision().state_dict()


def test_state():
    precision, other = Precision("fp16"), Precision("fp16")
    precision.stepped()
    precision.overflowed()
    precision.stepped()
    other.load_state_dict(precision.state_dict())
    assert (other.scale, other.good) == (32768.0, 1)


def test_unknown_precisions_are_refused():
    with pytest.raises(ValueError, match="fp32, bf16, fp16"):
        Precision("fp8")
