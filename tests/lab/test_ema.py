"""The moving average of weights: torch's own on dense networks, exact zeros on sparse ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zosam.lab import serialize
from zosam.lab.ema import Ema
from zosam.optim import SAM
from zosam.sparse import RigL

X, Y = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)
    )


def trained(model, steps):
    """A training, step by step."""
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    for _ in range(steps):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
        yield


def test_torchs_own_on_a_dense_network():
    model = net()
    ours, theirs = Ema(model, 0.9), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in trained(model, 8):
        ours.update(model)
        theirs.update_parameters(model)
        for (name, a), b in zip(ours.network.state_dict().items(), theirs.module.state_dict().values(), strict=True):
            if a.is_floating_point():
                assert torch.equal(a, b), name
    assert not torch.equal(ours.network[0].weight, model[0].weight)


def test_buffers_are_averaged_as_in_timm_and_whole_numbers_copied():
    """v̄ ← decay v̄ + (1 - decay) v over everything in the state_dict, written out in double precision."""
    model = net()
    ema = Ema(model, 0.8)
    mean = None
    for step, _ in enumerate(trained(model, 6)):
        ema.update(model)
        now = model[1].running_mean.double()
        mean = now if mean is None else 0.8 * mean + 0.2 * now
        torch.testing.assert_close(ema.network[1].running_mean.double(), mean, rtol=1e-5, atol=1e-7)
        assert ema.network[1].num_batches_tracked == step + 1


def test_tied_weights_are_averaged_once():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    ema = Ema(model, 0.5)
    for value in (4.0, 8.0):
        nn.init.constant_(model[0].weight, value)
        ema.update(model)
    assert ema.network[1].weight is ema.network[0].weight
    assert ema.network[0].weight.item() == 6.0


def test_the_average_of_hand_made_weights():
    model = nn.Linear(3, 1, bias=False)
    ema = Ema(model, 0.5)
    mask = torch.tensor([[True, False, True]])
    for weights, active, expected in (
        ([4.0, 0.0, 2.0], [1, 0, 1], [4.0, 0.0, 2.0]),
        ([8.0, 0.0, 4.0], [1, 0, 1], [6.0, 0.0, 3.0]),
        ([8.0, 2.0, 0.0], [1, 1, 0], [7.0, 1.0, 0.0]),  # the second has grown, and starts from 0; the third is pruned
        ([8.0, 4.0, 0.0], [1, 1, 0], [7.5, 2.5, 0.0]),
        ([8.0, 4.0, 8.0], [1, 1, 1], [7.75, 3.25, 4.0]),  # the third is back, and nothing is left of its past
    ):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([weights]))
        mask.copy_(torch.tensor([active]))
        ema.update(model, {"weight": mask})
        assert ema.network.weight.tolist() == [expected]


def test_pruned_weights_are_zero_while_rigl_moves_its_masks():
    model = net()
    ema = Ema(model, 0.9)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    sparse = RigL(model, optimizer, 0.8, every=3, steps=100, until=1.0)
    patterns = set()
    for _ in range(14):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
        ema.update(model, sparse.masks)
        averages = dict(ema.network.named_parameters())
        for name, mask in sparse.masks.items():
            assert torch.count_nonzero(averages[name][~mask]) == 0
        patterns.add(sparse.masks["0.weight"].numpy().tobytes())
    assert len(patterns) > 2
    assert torch.count_nonzero(averages["0.weight"]) > 0
    assert not ema.network.training
    assert not any(p.requires_grad for p in ema.network.parameters())


def test_a_resumed_average_goes_on_bit_for_bit():
    model = net()
    ema = Ema(model, 0.9)
    other = Ema(net(), 0.9)
    for step, _ in enumerate(trained(model, 8)):
        ema.update(model)
        if step == 3:
            other.load_state_dict(serialize.loads(serialize.dumps(ema.state_dict())))
        elif step > 3:
            other.update(model)
    for a, b in zip(ema.network.state_dict().values(), other.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert ema.updates == other.updates == 8


def test_after_a_rewind_it_begins_anew():
    model = net()
    ema = Ema(model, 0.9)
    start = copy.deepcopy(model.state_dict())
    for _ in trained(model, 3):
        ema.update(model)
    model.load_state_dict(start)
    ema.restart()
    ema.update(model)
    for a, b in zip(ema.network.state_dict().values(), start.values(), strict=True):
        assert torch.equal(a, b)


def test_it_refuses_a_decay_that_never_moves():
    with pytest.raises(ValueError, match="below 1"):
        Ema(net(), 1.0)
