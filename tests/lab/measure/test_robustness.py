"""Accuracy on corrupted pictures, with a network whose answers are known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from zosam.lab.data.cifar_c import Corrupted
from zosam.lab.measure.robustness import corrupted, figure_corrupted, summary


class Brightest(nn.Module):
    """Calls the channel that is brightest on average."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen = []

    def forward(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        assert x.is_contiguous()
        self.seen.append(len(x))
        return x.mean((2, 3)) * self.scale


def part(name, severity, right, count=20):
    """Pictures of which the first `right` are labelled as Brightest will call them."""
    x = np.zeros((count, 32, 32, 3), np.uint8)
    y = torch.arange(count) % 3
    x[np.arange(count), :, :, y.numpy()] = 255
    y[right:] = (y[right:] + 1) % 3
    return Corrupted(name, severity, x, y, batch_size=8)


PARTS = (part("fog", 1, 20), part("fog", 2, 10), part("snow", 1, 5))


def test_accuracy_of_each_part():
    model, ticks = Brightest().train(), []
    found = corrupted(model, PARTS, tick=lambda done, of: ticks.append((done, of)))
    assert found == {("fog", 1): 1.0, ("fog", 2): 0.5, ("snow", 1): 0.25}
    assert ticks == [(1, 3), (2, 3), (3, 3)]
    assert model.training
    assert model.seen == [8, 8, 4] * 3
    assert summary(found, 1.0) == pytest.approx({"clean": 1.0, "mean": 1.75 / 3, "gap": 1.25 / 3})


def test_limit_takes_the_first_pictures():
    model = Brightest()
    assert corrupted(model, PARTS, limit=10) == {("fog", 1): 1.0, ("fog", 2): 1.0, ("snow", 1): 0.5}
    assert model.seen == [8, 2] * 3
    with pytest.raises(ValueError, match="limit"):
        corrupted(model, PARTS, limit=0)


def test_modes_of_parts_of_the_network_come_back():
    model = nn.Sequential(Brightest(), nn.Dropout(0.5)).train()
    model[1].eval()
    corrupted(model, PARTS[:1])
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_the_figure_is_json():
    found = {("fog", 1): 1.0, ("fog", 2): 0.5, ("snow", 1): 0.25}
    made = figure_corrupted({"SGD": found, "SAM": found}, limit=1000)
    assert (made["rows"], made["columns"]) == (["fog", "snow"], [1, 2])
    assert made["panels"][1]["values"] == [[100.0, 50.0], [25.0, None]]
    assert "first 1,000 pictures" in made["note"]
    assert json.loads(json.dumps(made)) == made
