"""Steps that ranks take together are those of one process on their joined batch, and little is sent for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam.distributed.ranks import ALONE, Ranks, current
from zosam.names import fitting
from zosam.optim import (
    ASAM,
    ESAM,
    OPTIMIZERS,
    RWP,
    SAM,
    ZOSAM,
    Central,
    Gaussian,
    Momentum,
    Pair,
    Subspace,
    Worst,
)
from zosam.sparse import RigL

from . import trials

VARIANTS = {
    **{name: (cls, {}) for name, cls in OPTIMIZERS.items() if name != "esam"},
    "esam": (ESAM, {"gamma": 1.0}),  # with less, each rank keeps samples of its own
    "three": (ZOSAM, {"probe": Gaussian(3)}),
    "pair": (ZOSAM, {"decide": Pair()}),
    "momentum": (ZOSAM, {"probe": Momentum()}),
    "subspace": (ZOSAM, {"probe": Subspace()}),
    "every": (ZOSAM, {"every": 3}),
    "filter": (ZOSAM, {"scale": "filter"}),
    "element": (ASAM, {"eta": 0.1}),
    "arwp": (RWP, {"eta": 0.1}),
}


def variant(name):
    cls, settings = VARIANTS[name]
    return lambda base: cls(base, **fitting(cls, rho=0.1), **settings)


def sparse(model, optimizer):
    return RigL(model, optimizer, 0.5, every=2, steps=1000)


def weights(names, norm, masked):
    """On each rank: the weights after 6 steps of each variant, with two updates of the masks."""
    method = sparse if masked else None
    return {n: trials.numbers(trials.train(variant(n), 6, norm, method)[0]) for n in names}


def agree(per_rank, alone):
    for name, state in alone.items():
        for key, value in state.items():
            for other in per_rank[1:]:
                assert np.array_equal(per_rank[0][name][key], other[name][key]), (name, key)
            np.testing.assert_allclose(per_rank[0][name][key], value, rtol=0, atol=1e-5, err_msg=f"{name}: {key}")


def test_two_ranks_are_one_process_on_the_joined_batch(two):
    agree(two(weights, list(VARIANTS), False, True), weights(list(VARIANTS), False, True))


def test_and_without_masks(two):
    names = ["zosam", "sam", "pair", "momentum"]
    agree(two(weights, names, False, False), weights(names, False, False))


def test_so_are_four(four):
    names = ["zosam", "sam", "pair", "three"]
    agree(four(weights, names, False, True), weights(names, False, True))


@pytest.mark.parametrize("ranks", ["two", "four"])
def test_and_with_synchronised_batchnorm(ranks, request):
    names = ["zosam", "sam", "pair", "sgd"]
    agree(request.getfixturevalue(ranks)(weights, names, True, False), weights(names, True, False))


def traffic(settings, steps):
    """Bytes by our count, and by that of torch's own function."""
    handed, real = [], dist.all_reduce
    real_gather = dist.all_gather

    def counting(tensor, *args, **kwargs):
        handed.append(tensor.numel() * tensor.element_size())
        return real(tensor, *args, **kwargs)

    def gathering(into, tensor, *args, **kwargs):
        handed.append(tensor.numel() * tensor.element_size())
        return real_gather(into, tensor, *args, **kwargs)

    current().sent.clear()
    dist.all_reduce, dist.all_gather = counting, gathering
    try:
        model, _, _ = trials.train(lambda b: ZOSAM(b, rho=0.1, **settings), steps=steps)
    finally:
        dist.all_reduce, dist.all_gather = real, real_gather
    return dict(current().sent), handed, trials.numbers(model)


@pytest.mark.parametrize(
    ("settings", "m"),
    [
        ({}, 1),
        ({"probe": Gaussian(5)}, 5),
        ({"decide": Worst()}, 2),
        ({"decide": Central(batch_fraction=1 / 2)}, 1),
    ],
)
def test_the_ascent_sends_eight_bytes_for_each_direction(two, settings, m):
    for sent, handed, state in (found := two(traffic, settings, 4)):
        assert sent == {"ascent": 4 * 8 * m, "loss": 4 * 8}
        assert handed == [8 * m, 8] * 4  # one message for the ascent, one for the loss
        assert all(np.array_equal(state[k], found[0][2][k]) for k in state)


def sam_traffic(per_rank):
    current().sent.clear()
    _, optimizer, _ = trials.train(lambda b: SAM(b, per_rank=per_rank), steps=1, method=sparse)
    return current().sent["ascent"], len(optimizer.active)


def test_sam_sends_the_gradient_of_active_weights_or_nothing(two):
    for sent, active in two(sam_traffic, False):
        assert sent == 4 * active
    assert all(sent == 0 for sent, _ in two(sam_traffic, True))


def one_step_per_rank():
    model, _, _ = trials.train(lambda b: SAM(b, rho=0.3, per_rank=True), steps=1)
    return trials.numbers(model)


def test_per_rank_each_climbs_its_own_way_and_the_gradients_there_are_averaged(two):
    found = two(one_step_per_rank)
    x, y = trials.batch()
    mean = None
    for rank in range(2):
        model = trials.net()
        loss = F.cross_entropy(model(x[rank::2]), y[rank::2])
        g = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([t.flatten() for t in g]).norm()
        with torch.no_grad():
            for p, t in zip(model.parameters(), g, strict=True):
                p.add_(0.3 * t / norm)
        there = torch.autograd.grad(F.cross_entropy(model(x[rank::2]), y[rank::2]), list(model.parameters()))
        mean = [t / 2 for t in there] if mean is None else [m + t / 2 for m, t in zip(mean, there, strict=True)]
    for (name, p), m in zip(trials.net().named_parameters(), mean, strict=True):
        np.testing.assert_array_equal(found[0][name], found[1][name])
        np.testing.assert_allclose(found[0][name], (p - 0.05 * m).detach().numpy(), atol=1e-6)


def family_per_rank():
    found = {}
    for name in ("sam", "asam", "esam", "gsam", "looksam"):
        model, _, _ = trials.train(lambda b, name=name: OPTIMIZERS[name](b, rho=0.1, per_rank=True), steps=6)
        found[name] = trials.numbers(model)
    return found


def test_per_rank_the_weights_stay_the_same_on_all_ranks(two):
    first, second = two(family_per_rank)
    for name, state in first.items():
        assert all(np.array_equal(state[k], second[name][k]) for k in state), name


def unwrapped_model():
    model = trials.net()
    x, y = trials.shard(*trials.batch())
    messages = []
    for make in (SAM, ZOSAM, OPTIMIZERS["sgd"], lambda b: ZOSAM(b, decide=Pair())):
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(RuntimeError, match="nobody averages") as caught:
            optimizer.step(lambda: F.cross_entropy(model(x), y))
        messages.append(str(caught.value))
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.ranks = ALONE
    before = sum(current().sent.values())
    optimizer.step(lambda: F.cross_entropy(model(x), y))
    assert sum(current().sent.values()) == before
    groups = [dist.new_group([rank]) for rank in range(current().world)]
    network = DistributedDataParallel(model, process_group=groups[current().rank])
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="averaged over 1 ranks"):
        optimizer.step(lambda: F.cross_entropy(network(x), y))
    optimizer.ranks = Ranks(groups[current().rank])
    optimizer.step(lambda: F.cross_entropy(network(x), y))
    return messages


def test_a_model_that_nobody_averages_is_refused(two):
    for messages in two(unwrapped_model):
        assert all("DistributedDataParallel" in m for m in messages)


def not_finite(make_name, bad_rank, bad_call):
    """One rank's loss is not a number in one pass; both must refuse the step, and go on after it."""
    model = trials.net()
    network = trials.wrapped(model)
    make = variant(make_name)
    optimizer = make(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    x, y = trials.shard(*trials.batch())
    fine = trials.closure(network, x, y, optimizer.per_sample)
    optimizer.step(fine)
    before, calls = trials.numbers(model), 0

    def spoiled(keep=slice(None)):
        nonlocal calls
        calls += 1
        loss = fine(keep)
        return loss * float("nan") if current().rank == bad_rank and calls == bad_call else loss

    with pytest.raises(FloatingPointError, match="not taken"):
        optimizer.step(spoiled)
    after = trials.numbers(model)
    assert all(np.array_equal(before[k], after[k]) for k in before)
    optimizer.step(fine)
    return trials.numbers(model)


@pytest.mark.parametrize("bad_call", [1, 2])
@pytest.mark.parametrize("name", ["zosam", "pair", "sam", "esam", "gsam", "three"])
def test_a_loss_that_is_not_finite_on_one_rank_stops_all(two, name, bad_call):
    first, second = two(not_finite, name, 1, bad_call)
    assert all(np.array_equal(first[k], second[k]) for k in first)


def norm_gradients():
    """Outputs, gradients of two orders and statistics of BatchNorm over all ranks."""
    torch.manual_seed(3)
    x = torch.randn(8, 3, 4, 4, dtype=torch.float64)
    found = []
    for momentum in (0.1, None):
        norm = nn.BatchNorm2d(3, momentum=momentum, dtype=torch.float64)
        nn.init.uniform_(norm.weight)
        trials.synced(norm)
        (mine,) = trials.shard(x.clone())
        mine.requires_grad_()
        for _ in range(2):
            out = norm(mine)
        (g,) = torch.autograd.grad(out.pow(3).mean(), mine, create_graph=True)
        (h,) = torch.autograd.grad(g.pow(2).sum(), mine)
        found += [t.detach().numpy() for t in (out, g, h, norm.running_mean, norm.running_var)]
        assert norm.num_batches_tracked == 2
    return found


def test_batchnorm_over_all_ranks_is_torchs_own_on_the_joined_batch(two):
    whole, parts = norm_gradients(), two(norm_gradients)
    for i, expected in enumerate(whole):
        for rank in range(2):
            part = parts[rank][i]
            scale = [1, 0.5, 0.25][i % 5] if i % 5 < 3 else 1  # a rank's mean is over half as many
            mine = expected[rank::2] if i % 5 < 3 else expected
            np.testing.assert_allclose(part * scale, mine, rtol=1e-9, atol=1e-12)
