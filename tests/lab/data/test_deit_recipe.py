"""DeiT's data recipe behaves as published: the numbers are timm's, its formulas written out."""

import random

import numpy as np
import pytest
import torch
from scipy.stats import beta, ks_2samp, kstest
from torch.nn import functional as F

from zosam.lab.data import randaugment
from zosam.lab.data.batches import visit
from zosam.lab.data.mix import erase, mix
from zosam.lab.data.pictures import Pictures
from zosam.lab.data.scan import Listing
from zosam.lab.train import classification


def test_smoothed_mixed_labels_are_timms():
    """Its targets: weight times the one-hot of y with 1 - s + s/C and s/C, plus the rest of its opposite; its loss is
    the sum of -target log p, and the mean over the batch."""
    classes, smoothing = 5, 0.1
    x, y = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 1])
    out, shares = mix(x, y, classes, np.random.default_rng(1))
    weight = shares[0, 0].item()
    one_hot = torch.full((6, classes), smoothing / classes)
    one_hot[torch.arange(6), y] = 1 - smoothing + smoothing / classes
    target = weight * one_hot + (1 - weight) * one_hot.flip(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, classes))
    expected = (-target * F.log_softmax(model(out), 1)).sum(1).mean()
    torch.testing.assert_close(classification(model, out, shares, label_smoothing=smoothing)(), expected)


def draws(count=1500, size=32):
    """The weights of mixup and of cutmix in so many batches, by which way each went."""
    x = torch.stack([torch.zeros(1, size, size), torch.ones(1, size, size)])
    found = {"mixup": [], "cutmix": []}
    rng = np.random.default_rng(0)
    for _ in range(count):
        out, shares = mix(x, torch.tensor([0, 1]), 2, rng)
        found["cutmix" if set(out[0].unique().tolist()) <= {0.0, 1.0} else "mixup"].append(shares[0, 0].item())
    return found


def test_mixup_and_cutmix_are_drawn_as_published():
    found = draws()
    assert len(found["cutmix"]) / 1500 == pytest.approx(0.5, abs=0.05)  # switch_prob
    assert kstest(found["mixup"], beta(0.8, 0.8).cdf).pvalue > 1e-3
    rng, expected = np.random.default_rng(1), []
    for _ in range(4000):  # timm's rand_bbox and the correction of lam after it
        cut = int(32 * np.sqrt(1 - rng.beta(1.0, 1.0)))
        centre = rng.integers(0, 32, 2)
        low, high = np.clip(centre - cut // 2, 0, 32), np.clip(centre + cut // 2, 0, 32)
        expected.append(1 - np.prod(high - low) / 32**2)
    assert ks_2samp(found["cutmix"], expected).pvalue > 1e-3


def test_rand_augment_draws_as_published(monkeypatch):
    """rand-m9-mstd0.5-inc1: two changes of 15 with replacement, each with chance 1/2, at N(9, 0.5) cut at 10."""
    assert len(randaugment.CHANGES) == 15
    seen = []
    changes = tuple(
        lambda picture, strength, random, n=n: seen.append((n, strength)) or [*picture, n] for n in range(15)
    )
    monkeypatch.setattr(randaugment, "CHANGES", changes)
    made = [len(randaugment.rand_augment([], random.Random(seed))) for seed in range(4000)]
    assert np.bincount(made) / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    counts = np.bincount([n for n, _ in seen], minlength=15) / len(seen)
    assert counts == pytest.approx([1 / 15] * 15, abs=0.015)
    strengths = 10 * np.array([s for _, s in seen])
    assert strengths.max() <= 10
    assert np.median(strengths) == pytest.approx(9, abs=0.05)
    assert (strengths == 10).mean() == pytest.approx(0.0228, abs=0.01)  # beyond two standard deviations
    assert np.mean(strengths < 8.5) == pytest.approx(0.1587, abs=0.02)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_repeated_augmentation_is_deits(world):
    """RASampler: every index three times in a row, every world-th of them, and the first n / world of those."""
    count = 48
    listing = Listing(("a", "b"), tuple(f"{i}.jpg" for i in range(count)), tuple(i % 2 for i in range(count)))
    order = visit(count, True, 5, 2).tolist()
    repeated = [index for index in order for _ in range(3)]
    for rank in range(world):
        keys = Pictures(listing, 4, 32, "deit", seed=5, rank=rank, world=world).keys(2)
        assert [number for _, number in keys] == repeated[rank::world][: count // world]


def test_erased_rectangles_are_as_published():
    """2 to 33 % of the area, and between 0.3 and 1 / 0.3 in shape, uniform in its logarithm."""
    rng, ratios, areas = np.random.default_rng(0), [], []
    x = erase(torch.full((600, 1, 96, 96), 50.0), rng, chance=1.0)
    for picture in x:
        rows, columns = (picture[0] != 50).any(1), (picture[0] != 50).any(0)
        tall, wide = int(rows.sum()), int(columns.sum())
        assert torch.equal(picture[0] != 50, rows[:, None] & columns)  # one rectangle
        ratios.append(np.log(tall / wide))
        areas.append(tall * wide / 96**2)
    assert np.exp(np.abs(ratios)).max() <= 1 / 0.3 * 1.15  # sides are whole numbers
    assert kstest(ratios, "uniform", args=(np.log(0.3), -2 * np.log(0.3))).pvalue > 1e-3
    assert 0.018 < min(areas) < 0.03
    assert 0.3 < max(areas) < 0.345
