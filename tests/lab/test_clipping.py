"""Clipping inside a step, against steps that are written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.clipping import clip_gradients
from zosam.optim import SAM, ZOSAM, Unperturbed
from zosam.sparse import Magnitude, RigL

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def loss_of(model):
    return F.cross_entropy(model(X.double()), Y)


def base(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def gradient(model):
    return torch.autograd.grad(loss_of(model), list(model.parameters()))


def length(tensors):
    return torch.cat([t.flatten() for t in tensors]).norm()


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_sam_with_masks_written_out(rho):
    max_norm = 0.05
    model, plain = net(), net()
    optimizer = SAM(base(model), rho=rho)
    sparse = Magnitude(model, optimizer, 0.6)
    clip_gradients(optimizer, max_norm)
    masks = [sparse.masks.get(n, torch.ones_like(p)) for n, p in plain.named_parameters()]
    speed = [torch.zeros_like(p) for p in plain.parameters()]
    with torch.no_grad():
        for p, m in zip(plain.parameters(), masks, strict=True):
            p.mul_(m)
    clipped = 0
    for _ in range(6):
        optimizer.step(lambda: loss_of(model))
        home = [p.detach().clone() for p in plain.parameters()]
        g = [a * m for a, m in zip(gradient(plain), masks, strict=True)]
        with torch.no_grad():
            for p, a in zip(plain.parameters(), g, strict=True):
                p.add_(rho * a / length(g))
        g = [a * m for a, m in zip(gradient(plain), masks, strict=True)]
        clipped += bool(length(g) > max_norm)
        g = [a * min(1.0, max_norm / (length(g) + 1e-6)) for a in g]  # torch adds the 1e-6
        with torch.no_grad():
            for p, h, v, a in zip(plain.parameters(), home, speed, g, strict=True):
                p.copy_(h - 0.5 * v.mul_(0.9).add_(a))
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    assert clipped == 6


def test_the_gradient_of_pruned_weights_does_not_count():
    """A mask that leaves little: measured with the rest, the gradient would be clipped far shorter."""
    model = net()
    optimizer = Unperturbed(base(model))
    Magnitude(model, optimizer, 0.8, budget="uniform")
    clip_gradients(optimizer, 1e-3)
    seen = []
    optimizer.base.register_step_pre_hook(lambda *_: seen.append(length([p.grad for p in model.parameters()]).item()))
    optimizer.step(lambda: loss_of(model))
    assert seen == [pytest.approx(1e-3, rel=2e-3)]


def test_a_short_gradient_is_left_alone_to_the_bit():
    a, b = net(), net()
    one, other = ZOSAM(base(a), rho=0.1), ZOSAM(base(b), rho=0.1)
    clip_gradients(one, 1e6)
    for _ in range(3):
        one.step(lambda: loss_of(a))
        other.step(lambda: loss_of(b))
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


def test_steps_that_only_move_masks_have_nothing_to_clip():
    model = net()
    optimizer = SAM(base(model), rho=0.1)
    sparse = RigL(model, optimizer, 0.5, every=2, steps=1000)
    clip_gradients(optimizer, 0.01)
    for _ in range(5):
        optimizer.step(lambda: loss_of(model))
    assert all(bool((w[~sparse.masks[n]] == 0).all()) for n, w in sparse.weights.items())
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_it_can_be_taken_back_and_refuses_nonsense():
    model = net()
    optimizer = Unperturbed(base(model))
    clip_gradients(optimizer, 1e-3).remove()
    optimizer.step(lambda: loss_of(model))
    assert length([p.grad for p in model.parameters()]) > 0.01
    with pytest.raises(ValueError, match="max_norm must be above 0"):
        clip_gradients(optimizer, 0.0)
