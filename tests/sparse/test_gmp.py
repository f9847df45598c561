"""GMP: the cubic schedule, by numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zosam.sparse import GMP

from .toy import largest, layers, masks, sgd, step

GEN = np.random.default_rng(0)
A, B = GEN.normal(size=(20, 10)), 0.1 * GEN.normal(size=(10, 20))
ZERO = [np.zeros((20, 10)), np.zeros((10, 20))]


@pytest.mark.filterwarnings("ignore:GMP has pruned all")
@pytest.mark.parametrize("budget", ["uniform", "global"])
def test_the_smallest_go_along_a_cube(budget):
    model = layers(A.tolist(), B.tolist())
    sparse = GMP(model, sgd(model), 0.8, every=10, steps=40, until=1.0, budget=budget)
    assert sparse.sparsity == 0
    for t in range(1, 51):
        step(sparse, ZERO)
        at = min(t // 10 * 10, 40)
        left = round(400 * (1 - 0.8 * (1 - (1 - at / 40) ** 3)))
        assert sum(m.sum() for m in masks(sparse)) == left == sparse.expected_active()
        if budget == "global":
            both = largest(np.abs(np.concatenate([A.ravel(), B.ravel()])), left)
            np.testing.assert_array_equal(np.concatenate([m.ravel() for m in masks(sparse)]), both)
        else:
            each = int(masks(sparse)[0].sum())
            assert each in (left // 2, left - left // 2)
            np.testing.assert_array_equal(masks(sparse)[0], largest(np.abs(A), each))
    assert sparse.sparsity == pytest.approx(0.8)


def test_what_is_pruned_does_not_come_back():
    model = layers(A.tolist(), B.tolist())
    sparse = GMP(model, sgd(model, 0.1), 0.5, every=1, steps=7, until=1.0)
    before = [np.ones_like(m) for m in masks(sparse)]
    for _ in range(9):
        step(sparse, [GEN.normal(size=(20, 10)), GEN.normal(size=(10, 20))])
        now = [m.copy() for m in masks(sparse)]
        assert not any((n & ~b).any() for n, b in zip(now, before, strict=True))
        before = now
    assert sparse.sparsity == 0.5
    assert not torch.cat([w.detach()[~sparse.masks[n]] for n, w in sparse.weights.items()]).any()
