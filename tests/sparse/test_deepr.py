"""DeepR: fixed signs, sleep when the sign turns, wake as many by lot."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zosam.sparse import DeepR

from .toy import layers, masks, put, sgd, step

WEIGHT = [[0.5, -0.1, 0.3, -0.9], [0.2, 0.05, -0.4, 0.7]]
MASK = [[1, 1, 1, 0], [1, 1, 0, 0]]
ZERO = np.zeros((2, 4))


def made(lr=0.1, momentum=0.0, **settings):
    model = layers(WEIGHT)
    sparse = DeepR(model, sgd(model, lr, momentum=momentum), 0.375, **{"dense": (), "temperature": 0.0} | settings)
    put(sparse, [MASK], [WEIGHT])
    return sparse


def test_a_weight_whose_sign_turns_sleeps_and_another_wakes_at_zero():
    gradient = ZERO.copy()
    gradient[0, 0], gradient[0, 1], gradient[1, 0] = 10.0, -3.0, -10.0  # .5 -> -.5, -.1 -> .2, .2 -> 1.2
    woken = np.zeros((2, 4))
    for seed in range(120):
        sparse = made(l1=0.0, seed=seed)
        step(sparse, [gradient])
        mask, weight = masks(sparse)[0], sparse.weights["0.weight"].detach()
        assert mask.sum() == 5
        assert mask[[0, 1, 1], [2, 0, 1]].all()
        assert weight[0, 2].item() == pytest.approx(0.3)
        assert weight[1, 0].item() == pytest.approx(1.2)
        assert (weight.numpy()[np.array(mask) & ~np.array([[0, 0, 1, 0], [1, 1, 0, 0]], dtype=bool)] == 0).all()
        woken += mask
    places = [(0, 0), (0, 1), (0, 3), (1, 2), (1, 3)]  # 2 of these 5, sleepers among them
    assert np.array([woken[p] for p in places]) / 120 == pytest.approx(0.4, abs=0.18)


@pytest.mark.parametrize("maximize", [False, True])
def test_l1_pulls_towards_zero_on_both_sides(maximize):
    sparse = made(lr=1.0, l1=0.01)
    sparse.optimizer.param_groups[0]["maximize"] = maximize
    step(sparse, [ZERO])
    expected = (np.array(WEIGHT) - 0.01 * np.sign(WEIGHT)) * np.array(MASK)
    np.testing.assert_allclose(sparse.weights["0.weight"].detach().numpy(), expected, rtol=1e-5)


def test_the_sign_of_a_woken_weight_is_that_of_its_initialization():
    sparse = made(l1=0.0)
    step(sparse, [ZERO])
    assert sparse.positive["0.weight"].tolist() == [[True, False, True, False], [True, True, False, True]]
    put(sparse, [[[1, 1, 1, 1], [1, 0, 0, 0]]])
    gradient = ZERO.copy()
    gradient[0, 3] = -1.0  # initialized at -.9, woken at 0, pushed up: against its sign
    step(sparse, [gradient])
    assert sparse.weights["0.weight"][0, 3].item() == 0.0


def test_the_noise_has_the_promised_size_and_stays_on_active_weights():
    model = torch.nn.Linear(200, 100, bias=False)
    sparse = DeepR(model, sgd(model, 0.05), 0.5, dense=(), temperature=1e-4, l1=0.0, every=1000)
    before = model.weight.detach().clone()
    step(sparse, [np.zeros((100, 200))])
    moved = (model.weight.detach() - before)[sparse.masks["weight"]]
    assert moved.std().item() == pytest.approx(math.sqrt(2 * 0.05 * 1e-4), rel=0.03)
    assert abs(moved.mean().item()) < 2e-4
    assert not model.weight.detach()[~sparse.masks["weight"]].any()


def test_momentum_of_a_sleeper_is_forgotten():
    sparse = made(l1=0.0, momentum=0.9)
    gradient = ZERO.copy()
    gradient[0, 0], gradient[0, 2] = 10.0, 1.0
    step(sparse, [gradient])
    buffer = sparse.optimizer.state[sparse.weights["0.weight"]]["momentum_buffer"]
    assert buffer[0, 0] == 0
    assert buffer[0, 2] == 1
