"""Trainings that several ranks run together, and the same in one process on the joined batch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam.distributed.ddp import SyncedNorm
from zosam.distributed.ranks import current


def shared_fixtures():
    """The conftest of all tests, as a module."""
    name = "zosam_tests_conftest"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "conftest.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


LONG = shared_fixtures().LONG  # make test-long


def net(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6) if norm else nn.Identity(), nn.Tanh(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def batch(step: int = 0, size: int = 24):
    data = torch.Generator().manual_seed(1 + step)
    return torch.randn(size, 1, 6, 6, generator=data), torch.randint(0, 5, (size,), generator=data)


def shard(*tensors):
    """This rank's part of a batch, as the data sets share it; all of it where there is one process."""
    everybody = current()
    return [t[everybody.rank :: everybody.world] for t in tensors]


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if dist.is_initialized() else model


def synced(model: nn.Module) -> nn.Module:
    """BatchNorm over all ranks, where there are some."""
    for module in model.modules():
        if dist.is_initialized() and isinstance(module, nn.BatchNorm2d):
            module.__class__ = SyncedNorm
            module.process_group = None
    return model


def closure(network, x, y, per_sample):
    def loss(keep=slice(None)):
        return F.cross_entropy(network(x[keep]), y[keep], reduction="none" if per_sample else "mean")

    return loss


def train(make, steps=20, norm=False, method=None, lr=0.05):
    """The weights after some steps, the optimizer and the sparse method."""
    model = synced(net(norm))
    network = wrapped(model)
    optimizer = make(torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9))
    sparse = None if method is None else method(network, optimizer)
    for step in range(steps):
        optimizer.step(closure(network, *shard(*batch(step)), optimizer.per_sample))
    return model, optimizer, sparse


def numbers(model: nn.Module) -> dict:
    """The state as arrays: they travel between processes as plain bytes."""
    return {n: t.detach().clone().numpy() for n, t in model.state_dict().items()}
