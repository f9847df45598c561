"""The digits without the last few, so that two and four ranks can share every batch equally; and runs on them."""

from __future__ import annotations

import dataclasses

from torch import nn

from zosam.lab import data, models
from zosam.lab.data import Tensors
from zosam.lab.run import Run


def even(batch_size=96, seed=0, device="cpu", rank=0, world=1):
    """960 digits to train on."""
    whole = data.digits(batch_size, seed, device, rank, world)
    train = dataclasses.replace(whole.train, x=whole.train.x[:960], y=whole.train.y[:960])
    assert isinstance(train, Tensors)
    return dataclasses.replace(whole, train=train)


def tiny(num_classes=10):
    """A few thousand weights, with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, num_classes),
    )  # fmt: skip


def calm(num_classes=10):
    """The same small network without dropout."""
    return nn.Sequential(*(m for m in tiny(num_classes) if type(m) is not nn.Dropout))


data.DATA["even"] = even
models.MODELS["tiny"] = tiny
models.MODELS["calm"] = calm


def small(**settings):
    plain = {"model": "tiny", "data": "even", "batch_size": 96, "epochs": 2, "method": "rigl:every=4", "lr": 0.02}
    return Run(**plain | settings)
