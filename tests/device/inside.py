"""Run in a process of its own, where the device `pretend` exists: see test_device.py."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from pretend import Pretend, There, counted

from zosam.names import fitting, settings_of
from zosam.optim import OPTIMIZERS, ZOSAM, Central, Gaussian, Pair, Subspace, Worst
from zosam.sparse import METHODS

DEVICE = torch.device("pretend:0")


@pytest.fixture(autouse=True)
def _pretend():
    with Pretend():
        yield


class Small(torch.nn.Module):
    """A network with a norm, dropout and buffers of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.second, self.last = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1), torch.nn.Linear(6 * 9, 5)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.norm(self.first(x))))).flatten(1))


def batch():
    data = torch.Generator().manual_seed(1)
    return torch.randn(12, 1, 6, 6, generator=data), torch.randint(0, 5, (12,), generator=data)


def training(device, optimizer="sgd", method=None, **settings):
    """A model, its optimizer, its masks and a function that takes a step."""
    model = Small().to(device)
    x, y = (t.to(device) for t in batch())
    cls = OPTIMIZERS[optimizer]
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = cls(base, **fitting(cls, rho=0.1), **settings)

    def loss():
        return F.cross_entropy(model(x), y)

    sparse = None
    if method is not None:
        known = settings_of(METHODS[method])
        wanted = {"every": 2, "loss": loss, "steps": 100, "rounds": 5}
        sparse = METHODS[method](model, wrapped, 0.7, **{k: v for k, v in wanted.items() if k in known})
    reduction = "none" if cls.per_sample else "mean"

    def step(n=1):
        for _ in range(n):
            wrapped.step(lambda keep=slice(None): F.cross_entropy(model(x[keep]), y[keep], reduction=reduction))

    return model, wrapped, sparse, step


def weights(model):
    return [t.detach().cpu() for t in model.state_dict().values()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_the_device_tells_what_a_gpu_would_tell():
    here, there = torch.ones(3), torch.ones(3).to(DEVICE)
    assert isinstance(there, There)
    assert there.device == DEVICE
    with pytest.raises(RuntimeError, match="one device"):
        here + there
    with pytest.raises(RuntimeError, match="one device"):
        there[torch.tensor([True, False, True])]
    assert torch.equal((there * 2).cpu(), here * 2)
    assert counted(lambda: float(there.sum())) != []


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_takes_the_steps_of_the_cpu(optimizer):
    a, b = training("cpu", optimizer, "rigl"), training(DEVICE, optimizer, "rigl")
    for t in (a, b):
        t[3](4)
    assert same(a[0], b[0])
    assert all(p.device == DEVICE for p in b[0].parameters())


LONG = bool(os.environ.get("ZOSAM_LONG"))  # every pair; else every method, one of three optimizers each in turn
PAIRS = [(o, m) for m in sorted(METHODS) for o in sorted(OPTIMIZERS)]
TURNS = [(("sam", "zosam", "rwp")[i % 3], m) for i, m in enumerate(sorted(METHODS))]


@pytest.mark.parametrize(("optimizer", "keeps"), PAIRS if LONG else TURNS)
def test_every_method_keeps_the_masks_of_the_cpu(optimizer, keeps):
    a, b = training("cpu", optimizer, keeps), training(DEVICE, optimizer, keeps)
    for t in (a, b):
        t[3](3)
    assert same(a[0], b[0])
    assert all(torch.equal(a[2].masks[n], b[2].masks[n].cpu()) for n in a[2].masks)


PARTS = [
    {"probe": Gaussian(3)}, {"probe": Subspace(2)}, {"decide": Worst()}, {"decide": Pair()},
    {"decide": Central(batch_fraction=1 / 2)}, {"scale": "filter"}, {"scale": "element"}, {"every": 2},
]  # fmt: skip


@pytest.mark.parametrize("settings", PARTS, ids=str)
def test_every_part_of_an_ascent(settings):
    a, b = training("cpu", "zosam", **settings), training(DEVICE, "zosam", **settings)
    for t in (a, b):
        t[3](3)
    assert same(a[0], b[0])


@pytest.mark.parametrize("way", ["to the CPU", "to the device"])
@pytest.mark.parametrize("optimizer", ["looksam", "zosam", "s2sam"])
def test_a_state_goes_on_on_another_device(optimizer, way):
    first, then = (DEVICE, "cpu") if way == "to the CPU" else ("cpu", DEVICE)
    whole, begun, resumed = training(then, optimizer, "rigl"), training(first, optimizer, "rigl"), None
    whole[3](4)
    begun[3](2)
    resumed = training(then, optimizer, "rigl")
    resumed[0].load_state_dict({k: v.cpu() for k, v in begun[0].state_dict().items()})
    resumed[1].load_state_dict(moved(begun[1].state_dict()))
    resumed[3](2)
    assert same(whole[0], resumed[0])


def moved(state):
    """A state as a file would hold it: on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {k: moved(v) for k, v in state.items()}
    if isinstance(state, list):
        return [moved(v) for v in state]
    return copy.copy(state)


def per_step(optimizer, method=None, **settings):
    """Waits of one step in the middle of a training, between two updates of the masks."""
    _, _, _, step = training(DEVICE, optimizer, method, **settings)
    step(3)
    return len(counted(step))


def test_how_often_a_step_waits_for_the_device():
    plain = per_step("sgd")
    assert plain == 0
    assert per_step("rwp") == 0
    assert per_step("randomsam") == 0
    assert per_step("sam") == 0
    assert per_step("zosam") == 1  # the decision
    assert per_step("zosam", probe=Gaussian(4)) == 1
    assert per_step("rwp", eta=0.1) == 0
    assert per_step("sam", scale="filter") == 0
    assert per_step("sgd", "rigl") == 0  # an update waits, the steps between do not
    _, _, _, step = training(DEVICE, "sgd", "rigl")
    step(2)
    assert len(counted(step)) > 0


def test_what_is_planted_is_found():
    """A forgotten .to(device) in an optimizer of one's own."""

    class Forgetful(ZOSAM):
        def climb(self, closure):
            return self.along(torch.randn(len(self.active)))

    model = Small().to(DEVICE)
    x, y = (t.to(DEVICE) for t in batch())
    optimizer = Forgetful(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="one device"):
        optimizer.step(lambda: F.cross_entropy(model(x), y))
