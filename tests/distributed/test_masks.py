"""Masks are decided together: from signed gradients of all ranks, the same on every one, or the training stops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam import accelerate
from zosam.distributed.ranks import current
from zosam.kernels import build
from zosam.optim import SAM, ZOSAM
from zosam.sparse import METHODS, Magnitude, RigL
from zosam.sparse.agreement import MasksDiffer

from . import trials


def scored(name, through_ddp):
    model = trials.net().double()
    network = trials.wrapped(model) if through_ddp else model
    x, y = trials.shard(*trials.batch())
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = METHODS[name](network, base, 0.7, loss=lambda: F.cross_entropy(network(x.double()), y))
    assert all(p.grad is None for p in model.parameters())
    return {n: m.numpy() for n, m in sparse.masks.items()}


@pytest.mark.parametrize("through_ddp", [False, True])
@pytest.mark.parametrize("name", ["snip", "grasp", "synflow"])
def test_static_methods_score_by_the_joined_batch(two, name, through_ddp):
    alone = scored(name, False)
    for masks in two(scored, name, through_ddp):
        for n, mask in alone.items():  # names are plain, wrapped or not
            np.testing.assert_array_equal(masks[n], mask)


def theta_gradient():
    def method(model, optimizer):
        return RigL(model, optimizer, 0.5, every=2, growth_gradient="theta", steps=1000)

    _, _, sparse = trials.train(lambda b: SAM(b, rho=0.1), steps=6, method=method)
    return {n: m.numpy() for n, m in sparse.masks.items()}


def test_growth_by_the_gradient_at_theta_is_that_of_all_ranks(two):
    alone = theta_gradient()
    for masks in two(theta_gradient):
        for n, mask in alone.items():
            np.testing.assert_array_equal(masks[n], mask)


def divergent():
    model = trials.net()
    network = trials.wrapped(model)
    x, y = trials.shard(*trials.batch())
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)
    sparse = RigL(network, optimizer, 0.5, every=2, steps=1000)
    optimizer.step(lambda: F.cross_entropy(network(x), y))
    grow = sparse.grow_score

    def wrong(name, weight):  # one rank has another opinion on one layer
        score = grow(name, weight)
        return torch.rand_like(score) if name == "3.weight" and current().rank == 1 else score

    sparse.grow_score = wrong
    optimizer.step(lambda: F.cross_entropy(network(x), y))
    with pytest.raises(MasksDiffer) as caught:
        optimizer.step(lambda: F.cross_entropy(network(x), y))
    return str(caught.value)


def test_masks_that_differ_stop_the_training_and_name_the_layer(two):
    for message in two(divergent):
        assert "RigL, step 2" in message
        assert "3.weight" in message
        assert "0.weight" not in message
        assert "7.weight" not in message


def other_weights():
    torch.manual_seed(current().rank)
    model = nn.Linear(8, 8)
    with pytest.raises(MasksDiffer, match="same weights and seed"):
        Magnitude(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5)


def test_masks_made_before_ranks_have_the_same_weights_are_refused(two):
    two(other_weights)


def accelerated(fast):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    data = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, 3, 12, 12, generator=data), torch.randint(0, 4, (32,), generator=data)
    x, y = trials.shard(x, y)
    network = DistributedDataParallel(model)
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rho=0.1)
    sparse = RigL(network, optimizer, 0.9, every=3, steps=1000)
    if fast:
        accelerate(model, sparse, x)
        assert "forward" in vars(model)
    for _ in range(5):
        optimizer.step(lambda: F.cross_entropy(network(x), y))
    return trials.numbers(model)


@pytest.mark.skipif(build.load() is None, reason="no compiled kernels on this machine")
def test_an_accelerated_model_trains_on_two_ranks(two):
    plain, fast = two(accelerated, False), two(accelerated, True)
    for name, value in plain[0].items():
        np.testing.assert_array_equal(fast[0][name], fast[1][name])
        np.testing.assert_allclose(fast[0][name], value, rtol=1e-3, atol=1e-4)
