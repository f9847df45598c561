"""Sharpness against the exact maximum of a quadratic in a ball."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from zosam.lab.measure.sharpness import sharpness
from zosam.lab.measure.throughput import Speed, beside, ratios


class Bowl(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))


def test_a_bowl_rises_along_its_steepest_axis():
    bowl = Bowl()
    curvature = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    with torch.no_grad():
        bowl.w += 1e-3  # not exactly at the bottom, where there is no gradient
    found = sharpness(bowl, lambda: (curvature * bowl.w**2).sum() / 2, rho=0.1, steps=50)
    assert found == pytest.approx(0.5 * 5 * 0.1**2, rel=0.05)
    assert torch.equal(bowl.w.detach(), torch.full((3,), 1e-3, dtype=torch.float64))


def test_masked_weights_stay():
    bowl = Bowl()
    with torch.no_grad():
        bowl.w += 1e-3
    masks = {bowl.w: torch.tensor([True, False, True])}
    seen = []
    sharpness(bowl, lambda: seen.append(bowl.w[1].item()) or (bowl.w**2).sum(), masks=masks)
    assert set(seen) == {1e-3}


def test_the_weights_come_back_when_the_loss_fails():
    bowl = Bowl()

    def loss():
        if bowl.w.detach().any():
            raise RuntimeError
        return bowl.w.sum()

    with pytest.raises(RuntimeError):
        sharpness(bowl, loss)
    assert not bowl.w.detach().any()


def test_ratios_are_medians_of_rounds():
    times = {"a": [1.0, 2.0, 9.0], "b": [2.0, 4.0, 9.0]}
    assert ratios(times, "a") == {"a": 1.0, "b": 0.5}


def test_beside_runs_the_reference_right_before_each_step():
    order = []
    contestants = {"a": (lambda: order.append("a"), 1), "b": (lambda: order.append("b"), 2)}
    found = beside(contestants, lambda: order.append("ref"), rounds=2, warmup=1)
    assert order == ["ref", "a", "ref", "b", "ref", "b"] * 3
    assert {name: len(speed.rounds) for name, speed in found.items()} == {"a": 2, "b": 2}


def test_speeds_by_hand():
    now = [0.0]

    def takes(*seconds):
        turns = itertools.cycle(seconds)
        return lambda: now.__setitem__(0, now[0] + next(turns))

    contestants = {"slow": (takes(2.0, 2.0, 8.0), 1), "every second": (takes(1.0, 3.0), 2)}
    found = beside(contestants, takes(1.0), rounds=3, warmup=0, clock=lambda: now[0])
    assert found["slow"].rounds == [0.5, 0.5, 0.125]
    assert found["slow"].median == found["slow"].least == 0.5
    assert found["every second"].rounds == [0.5] * 3
    assert found["every second"].least == 0.5


def test_the_interval_of_a_median():
    assert Speed([3.0, 1.0, 2.0], 1.0).interval == (1.0, 3.0)
    assert Speed([float(i) for i in range(100)], 1.0).interval == (40.0, 59.0)
