"""Top-KAST: A computes, B learns, the rest waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zosam.sparse import TopKAST

from .toy import largest, layers, masks, sgd, step

WEIGHT = np.array([[0.5, -0.1, 0.3, -0.9], [0.25, 0.05, -0.4, 0.7]])
ONES = np.ones((2, 4))


def made(lr=0.1, every=1, **settings):
    model = layers(WEIGHT.tolist())
    return TopKAST(model, sgd(model, lr, **settings), 0.625, every=every, backward_sparsity=0.25)


def theta(sparse):
    return (sparse.weights["0.weight"].detach() + sparse.rest["0.weight"]).numpy()


def test_the_largest_compute_and_twice_as_many_learn():
    sparse = made()
    np.testing.assert_array_equal(masks(sparse)[0], largest(np.abs(WEIGHT), 3))  # .5 -.9 .7
    np.testing.assert_array_equal(sparse.learning["0.weight"].numpy(), largest(np.abs(WEIGHT), 6))
    np.testing.assert_allclose(theta(sparse), WEIGHT, rtol=1e-6)
    assert sparse.gradient_density() == {"0.weight": 0.75}


def test_only_b_learns():
    sparse = made(every=100)
    step(sparse, [ONES])
    np.testing.assert_allclose(theta(sparse), WEIGHT - 0.1 * largest(np.abs(WEIGHT), 6), rtol=1e-6)


def test_a_weight_that_has_become_large_comes_back_with_its_value():
    sparse = made()
    gradient = np.zeros((2, 4))
    gradient[1, 2] = 4.0  # -.4 -> -.8: in B, and now larger than .5 and .7
    step(sparse, [gradient])
    assert masks(sparse)[0].tolist() == [[False, False, False, True], [False, False, True, True]]
    assert sparse.weights["0.weight"][1, 2].item() == pytest.approx(-0.8)
    assert sparse.weights["0.weight"][0, 0].item() == 0.0
    assert sparse.rest["0.weight"][0, 0].item() == pytest.approx(0.5)  # kept aside


@pytest.mark.parametrize("decoupled", [False, True])
def test_weights_that_only_learn_decay_faster(decoupled):
    sparse = made(every=100, weight_decay=0.5)
    if decoupled:
        model = layers(WEIGHT.tolist())
        base = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        sparse = TopKAST(model, base, 0.625, every=100, backward_sparsity=0.25)
    step(sparse, [np.zeros((2, 4))])
    decay, density = 0.1 * 0.5, 3 / 8
    a, b = largest(np.abs(WEIGHT), 3), largest(np.abs(WEIGHT), 6)
    more = decay * (1 / density - 1)
    factor = (1 - decay) * (1 - more) if decoupled else 1 - decay - more
    expected = WEIGHT * np.where(a, 1 - decay, np.where(b, factor, 1.0))
    np.testing.assert_allclose(theta(sparse), expected, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_and_by_as_much_under_momentum(momentum):
    """At 10 % density a weight of B - A shrinks ten times as fast as one of A."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50, bias=False))
    sparse = TopKAST(model, sgd(model, 0.01, momentum=momentum, weight_decay=1e-3), 0.9, every=10**9)
    start, a, b = theta(sparse), masks(sparse)[0], sparse.learning["0.weight"].numpy()
    for _ in range(200):
        step(sparse, [np.zeros((50, 40))])
    shrunk = -np.log(theta(sparse) / start)
    assert shrunk[b & ~a].mean() / shrunk[a].mean() == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {"momentum": 0.9, "maximize": True}),
        ("AdamW", {}),
        ("Adafactor", {}),
        ("Muon", {}),
        ("NAdam", {"decoupled_weight_decay": True}),
    ],
)
def test_and_under_any_optimizer_that_has_decay_of_its_own(kind, settings):
    if not hasattr(torch.optim, kind):
        pytest.skip(f"this torch has no {kind}")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50, bias=False))
    base = getattr(torch.optim, kind)(model.parameters(), lr=0.001, weight_decay=1e-2, **settings)
    sparse = TopKAST(model, base, 0.9, every=10**9)
    start, a, b = theta(sparse), masks(sparse)[0], sparse.learning["0.weight"].numpy()
    for _ in range(40):
        step(sparse, [np.zeros((50, 40))])
    shrunk = -np.log(theta(sparse) / start)
    assert (shrunk[a] > 0).all()
    assert shrunk[b & ~a].mean() / shrunk[a].mean() == pytest.approx(10, rel=0.05)


def test_all_of_theta_is_saved():
    sparse, other = made(), made()
    step(sparse, [ONES])
    other.model.load_state_dict(sparse.model.state_dict())
    other.load_state_dict(sparse.state_dict())
    np.testing.assert_array_equal(theta(other), theta(sparse))
    for s in (sparse, other):
        step(s, [-3 * ONES])
    np.testing.assert_array_equal(theta(other), theta(sparse))


def test_state_of_what_does_not_learn_is_clean():
    sparse = made(momentum=0.9)
    step(sparse, [ONES])
    buffer = sparse.optimizer.state[sparse.weights["0.weight"]]["momentum_buffer"]
    assert torch.equal(buffer != 0, sparse.learning["0.weight"] & (buffer != 0))
    assert not buffer[~sparse.learning["0.weight"]].any()


def test_b_cannot_be_sparser_than_a():
    model = layers(WEIGHT.tolist())
    with pytest.raises(ValueError, match="backward_sparsity"):
        TopKAST(model, sgd(model), 0.5, backward_sparsity=0.6)
