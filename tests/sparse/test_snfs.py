"""SNFS: momentum decides which layers grow, and where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zosam.sparse import SNFS

from .toy import largest, layers, masks, put, sgd, step

GEN = np.random.default_rng(3)
A, B = GEN.normal(size=(5, 4)).round(2), GEN.normal(size=(6, 5)).round(2)
MASK_A, MASK_B = largest(GEN.random((5, 4)), 10), largest(GEN.random((6, 5)), 15)
GRAD_A, GRAD_B = GEN.normal(size=(5, 4)).round(2), 3 * GEN.normal(size=(6, 5)).round(2)


def made(**settings):
    model = layers(A.tolist(), B.tolist())
    sparse = SNFS(model, sgd(model, momentum=0.9), 0.5, every=5, drop_fraction=0.4, **settings, steps=10**9)
    put(sparse, [MASK_A, MASK_B], [A, B], steps=4)
    return sparse


def test_growth_goes_to_the_layer_and_the_place_of_the_largest_momentum():
    sparse = made()
    step(sparse, [GRAD_A, GRAD_B])  # fills the momentum, of pruned weights too
    step(sparse, [np.zeros_like(GRAD_A), np.zeros_like(GRAD_B)])
    kept_a = largest(np.where(MASK_A, np.abs(A), -1), 10 - 4)
    kept_b = largest(np.where(MASK_B, np.abs(B), -1), 15 - 6)
    mean_a, mean_b = np.abs(GRAD_A[MASK_A]).mean(), np.abs(GRAD_B[MASK_B]).mean()
    share = 10 * mean_a / (mean_a + mean_b)
    grow_a = int(share) + (share % 1 > 0.5)
    expected = [
        largest(np.where(kept, np.inf, np.abs(g)), kept.sum() + n)
        for kept, g, n in ((kept_a, GRAD_A, grow_a), (kept_b, GRAD_B, 10 - grow_a))
    ]
    for found, wanted in zip(masks(sparse), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert masks(sparse)[0].sum() != 10  # weights have moved between the layers
    assert sum(m.sum() for m in masks(sparse)) == 25


def test_momentum_of_pruned_weights_is_kept_and_they_stay_zero():
    sparse = made()
    step(sparse, [GRAD_A, GRAD_B])
    buffer = sparse.optimizer.state[sparse.weights["0.weight"]]["momentum_buffer"]
    np.testing.assert_allclose(buffer.numpy(), GRAD_A, rtol=1e-6)
    assert not sparse.weights["0.weight"].detach()[~sparse.masks["0.weight"]].any()


def test_under_adamw_momentum_is_in_units_of_the_gradient():
    model = layers(A.tolist())
    sparse = SNFS(model, torch.optim.AdamW(model.parameters(), lr=0.0), 0.5, every=100, steps=1000)
    step(sparse, [GRAD_A])
    m, v = 0.1 * GRAD_A, 0.001 * GRAD_A**2
    np.testing.assert_allclose(sparse.momentum("0.weight").numpy(), m / (np.sqrt(v) + 1e-8), rtol=1e-4)


def test_a_nearly_dense_layer_that_earns_much_drops_no_more_than_its_zeros():
    sparse = made()
    full = np.ones_like(MASK_A)
    full[0, :2] = False  # 10 % zeros, below the 20 % of the rule
    put(sparse, [full, largest(GEN.random((6, 5)), 7)], [A, B], steps=5)
    for share, kept in ((0.9, 18 - 1), (0.1, 18 - 7)):  # 10 % of 18; 40 % of 18
        assert int(sparse._surviving("0.weight", share).sum()) == kept


def test_an_optimizer_without_momentum_is_refused():
    model = layers(A.tolist())
    sparse = SNFS(model, sgd(model), 0.5, every=1, steps=1000)
    step(sparse, [GRAD_A])
    with pytest.raises(ValueError, match="SGD with momentum"):
        step(sparse, [GRAD_A])


def test_a_layer_that_was_never_used_keeps_its_mask_and_the_others_move():
    sparse = made()
    layer = sparse.weights["1.weight"]
    for _ in range(2):
        sparse.weights["0.weight"].grad, layer.grad = torch.tensor(GRAD_A, dtype=torch.float32), None
        sparse.optimizer.step()
    np.testing.assert_array_equal(masks(sparse)[1], MASK_B)
    assert (masks(sparse)[0] != MASK_A).any()
    assert masks(sparse)[0].sum() == 10
