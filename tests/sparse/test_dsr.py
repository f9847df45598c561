"""DSR: one threshold that adapts, and growth in proportion to what survives."""

from __future__ import annotations

import numpy as np
import pytest

from zosam.lab.models import resnet32
from zosam.sparse import DSR

from .toy import layers, masks, put, sgd, step

A = [[0.5, 0.02, 0.3, 0.9], [0.2, 0.4, 0.4, 0.7]]
B = [[0.01, 0.03, 0.6, 0.2], [0.2, 0.4, 0.4, 0.7], [0.2, 0.4, 0.4, 0.7]]
MASK_A = [[1, 1, 1, 1], [1, 1, 1, 0]]
MASK_B = [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
ZERO = [np.zeros((2, 4)), np.zeros((3, 4))]


def made(threshold, drop_fraction=0.5, **settings):
    model = layers(A, B)
    sparse = DSR(
        model,
        sgd(model),
        0.45,
        dense=(),
        every=5,
        threshold=threshold,
        drop_fraction=drop_fraction,
        **settings,
        steps=1000,
    )
    put(sparse, [MASK_A, MASK_B], [A, B], steps=5)
    return sparse


def test_drop_below_one_threshold_and_grow_where_more_survive():
    for seed in range(30):
        sparse = made(0.1, seed=seed)
        step(sparse, ZERO)
        a, b = masks(sparse)
        # dropped: .02 in A; .01 and .03 in B. Survivors 6 and 2, so 3 grow as 2.25 : .75, rounded 2 : 1 -> A has only
        # room for 2 (its dropped place and its empty one), B gets 1
        assert (a.sum(), b.sum()) == (8, 3)
        assert b[0].tolist() == [False, False, True, True]  # not where one was just dropped


@pytest.mark.parametrize(
    ("threshold", "dropped", "after"),
    [
        (0.1, 3, 0.2),  # fewer than 0.9 * 5.5
        (0.35, 6, 0.35),  # between 4.95 and 6.05
        (0.45, 8, 0.225),  # more than 1.1 * 5.5
    ],
)
def test_the_threshold_doubles_and_halves(threshold, dropped, after):
    small = sum(w < threshold for w, m in zip(np.ravel(A), np.ravel(MASK_A), strict=True) if m)
    small += sum(w < threshold for w, m in zip(np.ravel(B), np.ravel(MASK_B), strict=True) if m)
    assert small == dropped
    sparse = made(threshold)
    step(sparse, ZERO)
    assert sparse.threshold == pytest.approx(after)
    assert sum(m.sum() for m in masks(sparse)) == 11


def test_a_layer_keeps_its_largest_weight():
    sparse = made(0.65)  # nothing in B reaches it
    step(sparse, ZERO)
    assert masks(sparse)[1][0, 2]
    assert sparse.weights["1.weight"][0, 2].item() == pytest.approx(0.6)


def test_the_threshold_is_saved():
    sparse, other = made(0.1), made(0.7)
    step(sparse, ZERO)
    other.load_state_dict(sparse.state_dict())
    assert other.threshold == sparse.threshold == 0.2


def test_the_published_share_and_layers():
    """20,000 of the 147,000 active weights of WRN-28-2 at 90 %; first, last and shortcuts dense."""
    model = resnet32()
    sparse = DSR(model, sgd(model), 0.9, steps=100)
    assert sparse.drop_fraction == pytest.approx(20_000 / 147_000, abs=0.005)
    assert set(sparse.kept_dense) >= {"conv1.weight", "fc.weight"}
    assert all(w.shape[2:] == (3, 3) for w in sparse.weights.values())
    assert sparse.end == 95
