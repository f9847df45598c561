"""A window of micro-batches that climbs once: checkpoints, scalers and units in the middle of it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.optim import ESAM, GSAM, SAM, ZOSAM, LookSAM

X, Y = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3
PARTS = (slice(0, 8), slice(8, 16))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Narrow(nn.Module):
    """Gradients overflow here where the loss is scaled too far, as they do in half precision."""

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda g: torch.where(g.abs() > 1e3, torch.inf, g))
        return x


def loss_of(model, keep=slice(None), reduction="mean"):
    return F.cross_entropy(model(X[keep]), Y[keep], reduction=reduction)


def flat(model):
    return torch.cat([t.detach().flatten().float() for t in model.state_dict().values()])


def window(model, optimizer, between=lambda: None, share=1.0, scaler=None):
    """One window of two micro-batches; the closure of the climb multiplies its loss by `share`."""
    optimizer.zero_grad()
    told = {"share": share} if share != 1 else {}
    reduction = "none" if optimizer.per_sample else "mean"
    optimizer.ascend(lambda: loss_of(model, PARTS[0], reduction) * share, stay=False, scaler=scaler, **told)
    for keep in PARTS:
        with optimizer.perturbed():
            loss = loss_of(model, keep) / 2
            (loss if scaler is None else scaler.scale(loss)).backward()
        between()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def test_a_checkpoint_in_the_middle_of_a_window_does_not_end_it():
    models = [net(), net()]
    optimizers = [SAM(sgd(m), rho=0.3) for m in models]
    for _ in range(3):
        window(models[0], optimizers[0])
        window(models[1], optimizers[1], between=optimizers[1].state_dict)
        assert torch.equal(flat(models[0]), flat(models[1]))


@pytest.mark.parametrize("make", [GSAM, LookSAM], ids=lambda c: c.__name__)
def test_gradients_that_are_mixed_are_in_one_unit_whatever_the_climb_divides_by(make):
    models = [net(), net()]
    optimizers = [make(sgd(m), rho=0.3) for m in models]
    for _ in range(3):
        window(models[0], optimizers[0])
        window(models[1], optimizers[1], share=0.5)
        assert torch.equal(flat(models[0]), flat(models[1]))


@pytest.mark.parametrize("make", [SAM, GSAM, ZOSAM, lambda base, rho: ESAM(base, rho, seed=1)])
def test_a_window_under_a_scaler_is_one_without(make):
    models = [net(), net()]
    optimizers = [make(sgd(m), rho=0.3) for m in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for _ in range(3):
        window(models[0], optimizers[0])
        window(models[1], optimizers[1], scaler=scaler)
        torch.testing.assert_close(flat(models[0]), flat(models[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [SAM, GSAM], ids=lambda c: c.__name__)
def test_a_climb_whose_gradient_overflows_leaves_no_trace(make):
    """The weights would be displaced to nowhere, and BatchNorm would remember it for ever."""
    model = net()
    model.insert(1, Narrow())
    optimizer = make(sgd(model), rho=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    before = [p.detach().clone() for p in model.parameters()]
    window(model, optimizer, scaler=scaler)
    assert scaler.get_scale() == 2.0**19
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert flat(model).isfinite().all()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    window(model, optimizer, scaler=scaler)
    assert not torch.equal(model[0].weight, before[0])
    assert flat(model).isfinite().all()


@pytest.mark.parametrize("make", [SAM, GSAM, LookSAM, ZOSAM], ids=lambda c: c.__name__)
def test_a_loss_that_is_not_finite_is_left_to_the_scaler(make):
    """It skips the step and goes on, as without us."""
    model = net()
    optimizer, scaler = make(sgd(model), rho=0.3), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for bad in (False, True, False):
        before, steps = [p.detach().clone() for p in model.parameters()], optimizer.steps
        factor = torch.inf if bad else 1.0
        optimizer.zero_grad()
        optimizer.ascend(lambda factor=factor: loss_of(model) * factor, scaler=scaler)
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.steps == steps + (not bad)
        assert not optimizer.is_displaced
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)) == bad
    assert scaler.get_scale() == 2.0**9
    assert flat(model).isfinite().all()


@pytest.mark.parametrize("kinds", [(SAM, GSAM), (ZOSAM, LookSAM)], ids=str)
def test_one_scaler_with_several_optimizers(kinds):
    """As GANs have them: a step of one that overflows is skipped, the other's is taken."""

    def train(scaler):
        models = [net(), net()]
        optimizers = [kind(sgd(m), rho=0.3) for kind, m in zip(kinds, models, strict=True)]
        for step in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                overflows = step == 1 and model is models[0]
                if overflows and not scaler.is_enabled():
                    loss_of(model)  # the pass that moves BatchNorm
                    continue
                optimizer.zero_grad()
                optimizer.ascend(lambda model=model: loss_of(model), scaler=scaler)
                scaler.scale(loss_of(model) * (torch.inf if overflows else 1.0)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
            scaler.update()
        return [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models]

    scaled = train(torch.amp.GradScaler("cpu", init_scale=2.0**10))
    torch.testing.assert_close(scaled, train(torch.amp.GradScaler("cpu", enabled=False)), rtol=1e-5, atol=1e-6)


def test_a_perturbation_too_short_to_matter_is_said_in_windows_too():
    model = net()
    optimizer = SAM(sgd(model), rho=1e-7)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            window(model, optimizer)
    assert sum("of their length" in str(w.message) for w in said) == 1
