"""Gradient variance against numpy over the same gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.measure.variance import GradientVariance, variance_at
from zosam.optim.masked import masks_of


def figures(gradients):
    rows = np.array(gradients, dtype=np.float64)
    return {
        "gradient_variance": rows.var(0, ddof=1).sum(),
        "gradient_norm": np.linalg.norm(rows, axis=1).mean(),
        "gradient_mean_norm": np.linalg.norm(rows.mean(0)),
    }


def watched(trial, steps):
    """The figures of a watcher, and the gradients that the base really used."""
    watch, seen = GradientVariance(trial.optimizer), []
    base = getattr(trial.optimizer, "base", trial.optimizer)

    def note(*_):
        params = list(trial.model.parameters())
        masks = masks_of(params)
        if params[0].grad is not None:  # RigL skips the steps that move its masks
            seen.append(torch.cat([(p.grad * masks.get(p, 1)).flatten() for p in params]).tolist())

    base.register_step_pre_hook(note)
    trial.step(steps)
    return watch, seen


@pytest.mark.parametrize("name", ["sgd", "sam", "zosam", "looksam"])
@pytest.mark.parametrize("sparse", [None, "rigl", "topkast", "snfs"])
def test_the_figures_are_those_of_numpy(trial, name, sparse):
    trial = trial(name, sparse)
    watch, seen = watched(trial, 7)
    first = len(seen)
    assert watch.take() == pytest.approx(figures(seen), rel=1e-5)
    trial.step(5)
    assert watch.take() == pytest.approx(figures(seen[first:]), rel=1e-5)


def test_a_watcher_from_before_the_sparse_method_sees_active_weights_only(trial):
    from zosam.sparse import METHODS

    trial = trial("sam")
    watch = GradientVariance(trial.optimizer)
    METHODS["random"](trial.model, trial.optimizer, 0.7)
    later = GradientVariance(trial.optimizer)
    trial.step(4)
    assert watch.take() == later.take()


@pytest.mark.parametrize("with_closure", [False, True])
def test_a_plain_torch_optimizer_can_be_watched(with_closure):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 5, 3)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    watch = GradientVariance(optimizer)
    for batch in x:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]).tolist())
            return loss

        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert watch.take() == pytest.approx(figures(seen), rel=1e-5)


def test_training_is_the_same_to_the_bit(trial, same):
    free, observed = trial("zosam", "rigl"), trial("zosam", "rigl")
    watch = GradientVariance(observed.optimizer)
    for _ in range(3):
        free.step(2)
        observed.step(2)
        watch.take()
    assert same(free.snapshot(), observed.snapshot())


def test_what_too_few_steps_cannot_say_is_left_out(trial):
    trial = trial("sgd")
    watch = GradientVariance(trial.optimizer)
    assert watch.take() == {}
    trial.step()
    assert set(watch.take()) == {"gradient_norm", "gradient_mean_norm"}
    watch.close()
    trial.step(2)
    assert watch.take() == {}


def test_variance_at_fixed_weights(trial, same):
    trial = trial("sgd")
    model, x, y = trial.model.eval(), trial.x, trial.y
    kept = {"4.weight": torch.rand(model[4].weight.shape) < 0.5}
    parts = (slice(0, 4), slice(4, 8), slice(8, 12))
    torch.manual_seed(3)  # this net draws noise in eval mode too
    gradients = []
    for part in parts:
        found = torch.autograd.grad(F.cross_entropy(model(x[part]), y[part]), list(model.parameters()))
        named = zip((n for n, _ in model.named_parameters()), found, strict=True)
        gradients.append(torch.cat([(g[kept[n]] if n in kept else g).flatten() for n, g in named]).tolist())
    torch.manual_seed(3)
    before, stream = trial.snapshot(), torch.get_rng_state()
    closures = [lambda part=part: F.cross_entropy(model(x[part]), y[part]) for part in parts]
    assert variance_at(model, closures, kept) == pytest.approx(figures(gradients), rel=1e-5)
    assert same(before, trial.snapshot())
    assert torch.equal(stream, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    model.train()
    variance_at(model, closures)
    assert model.training
    assert same(before, trial.snapshot())
    with pytest.raises(ValueError, match="two batches"):
        variance_at(model, closures[:1])
