"""Scores on class-balanced samples, and what a method is told of its training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.distributed.ranks import ALONE
from zosam.lab.assemble import build_method, build_optimizer
from zosam.lab.data import load
from zosam.lab.run import Run
from zosam.lab.scoring import balanced, scoring_loss
from zosam.sparse import METHODS


@pytest.fixture(scope="module")
def digits():
    return load("digits", 32, 0)


def test_ten_of_each_class(digits):
    x, y, _ = balanced(digits, 10, ALONE)
    assert torch.bincount(y).tolist() == [10] * 10
    seen = [(a, int(b)) for xs, ys in digits.train.epoch(0) for a, b in zip(xs, ys, strict=True)]
    for digit in (0, 7):  # the first of the epoch, by hand
        first = [a for a, b in seen if b == digit][:10]
        assert torch.equal(x[y == digit], torch.stack(first))


def test_grasp_scores_at_its_temperature(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y, _ = balanced(digits, 10, ALONE)
    for name, temperature in (("grasp", 200.0), ("snip", 1.0)):
        found = scoring_loss(model, digits, METHODS[name])()
        torch.testing.assert_close(found, F.cross_entropy(model(x) / temperature, y))


@pytest.mark.parametrize(
    ("spelled", "every", "end"),
    [("snfs", 45, 900), ("rigl", 100, 675), ("svite", 9, 720), ("rigl:every=7,until=0.5", 7, 450), ("gmp", 100, 675)],
)
def test_a_schedule_follows_from_the_length_of_the_run(digits, spelled, every, end):
    what = Run(data="digits", model="digits_net", method=spelled, sparsity=0.5, batch_size=32, epochs=20)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    assert len(digits.train) == 45
    sparse = build_method(what, model, build_optimizer(what, model, 900), digits, 20 * 45)
    assert (sparse.every, sparse.end) == (every, end)
