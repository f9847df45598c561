"""Static methods against scores worked out in numpy."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.models import resnet20
from zosam.sparse import SNIP, GraSP, Magnitude, Random, SynFlow

from .toy import largest, layers, masks, sgd

GEN = np.random.default_rng(0)
W1, W2 = GEN.normal(size=(4, 3)).round(2), GEN.normal(size=(2, 4)).round(2)
X, Y = GEN.normal(size=(5, 3)).round(2), GEN.normal(size=(5, 2)).round(2)


def two_layers():
    return layers(W1.tolist(), W2.tolist()).double()


def squared(model):
    with torch.no_grad():  # double() has rounded through float
        model[0].weight.copy_(torch.tensor(W1))
        model[1].weight.copy_(torch.tensor(W2))
    return lambda: 0.5 * ((model(torch.tensor(X)) - torch.tensor(Y)) ** 2).sum()


def gradients(w1, w2):
    """Of 0.5 |W2 W1 x - y|²."""
    error = X @ w1.T @ w2.T - Y
    return (error @ w2).T @ X, error.T @ (X @ w1.T)


def split(flat):
    return flat[: W1.size].reshape(W1.shape), flat[W1.size :].reshape(W2.shape)


def expect(sparse, score1, score2, k):
    best = largest(np.concatenate([score1.ravel(), score2.ravel()]), k)
    for found, wanted in zip(masks(sparse), split(best), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.75])
def test_snip_keeps_the_largest_weight_times_gradient(sparsity):
    model = two_layers()
    sparse = SNIP(model, sgd(model), sparsity, loss=squared(model))
    g1, g2 = gradients(W1, W2)
    expect(sparse, np.abs(W1 * g1), np.abs(W2 * g2), round((1 - sparsity) * 20))


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.75])
def test_grasp_keeps_the_smallest_of_minus_theta_hg(sparsity):
    model = two_layers()
    sparse = GraSP(model, sgd(model), sparsity, loss=squared(model))
    g1, g2 = gradients(W1, W2)
    h = 1e-5  # H g is the derivative of the gradient along g
    up, down = gradients(W1 + h * g1, W2 + h * g2), gradients(W1 - h * g1, W2 - h * g2)
    hg1, hg2 = ((u - d) / (2 * h) for u, d in zip(up, down, strict=True))
    removed_first = -W1 * hg1, -W2 * hg2  # the paper's score: the largest are removed
    expect(sparse, -removed_first[0], -removed_first[1], round((1 - sparsity) * 20))


@pytest.mark.parametrize("rounds", [1, 7, 100])
def test_synflow_keeps_the_flow(rounds):
    model = two_layers()
    sparse = SynFlow(model, sgd(model), 0.7, loss=squared(model), rounds=rounds)
    m1, m2 = np.ones_like(W1, dtype=bool), np.ones_like(W2, dtype=bool)
    for k in range(1, rounds + 1):
        a1, a2 = np.abs(W1) * m1, np.abs(W2) * m2
        s1 = a1 * a2.sum(0)[:, None]  # each weight times what flows into it and out of it
        s2 = a2 * a1.sum(1)[None, :]
        s1[~m1], s2[~m2] = -1, -1
        m1, m2 = split(largest(np.concatenate([s1.ravel(), s2.ravel()]), round(20 * 0.3 ** (k / rounds))))
    np.testing.assert_array_equal(masks(sparse)[0], m1)
    np.testing.assert_array_equal(masks(sparse)[1], m2)


def test_synflow_does_not_collapse_at_99_percent_and_leaves_the_model_alone():
    torch.manual_seed(0)
    model = resnet20()
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse = SynFlow(model, sgd(model), 0.99, loss=lambda: F.cross_entropy(model(x), y))
    assert all(bool(m.any()) for m in sparse.masks.values())
    assert sparse.n_active == round(0.01 * 268_336)
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        expected = before[name] * sparse.masks[name] if name in sparse.masks else before[name]
        assert torch.equal(value, expected)
    assert model.training


@pytest.mark.parametrize("cls", [SNIP, GraSP, SynFlow])
def test_scoring_leaves_no_trace(cls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
    before, stream, calls = copy.deepcopy(model.state_dict()), torch.get_rng_state(), []

    def loss():
        calls.append(1)
        return F.cross_entropy(model(x), y)

    sparse = cls(model, sgd(model), 0.5, loss=loss)
    assert len(calls) == 1  # SNIP costs one forward and one backward
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        if name not in sparse.masks:
            assert torch.equal(value, before[name]), name


def test_grasp_and_snip_reach_through_attention():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    for cls in (SNIP, GraSP):
        net = copy.deepcopy(model)
        sparse = cls(net, sgd(net), 0.5, loss=lambda net=net: net(x).square().mean() + net(x)[0, 0, 0])
        assert "self_attn.in_proj_weight" in sparse.masks
        assert sparse.masks["self_attn.in_proj_weight"].any()


def test_magnitude_keeps_the_largest():
    model = two_layers()
    expect(Magnitude(model, sgd(model), 0.6), np.abs(W1), np.abs(W2), 8)


def test_magnitude_inside_each_layer():
    model = two_layers()
    sparse = Magnitude(model, sgd(model), 0.5, budget="uniform")
    np.testing.assert_array_equal(masks(sparse)[0], largest(np.abs(W1), 6))
    np.testing.assert_array_equal(masks(sparse)[1], largest(np.abs(W2), 4))


def test_random_draws_every_weight_alike():
    hits = np.zeros((4, 3))
    for seed in range(300):
        model = two_layers()
        hits += masks(Random(model, sgd(model), 0.5, budget="uniform", seed=seed))[0]
    assert hits.sum() == 300 * 6
    assert np.abs(hits / 300 - 0.5).max() < 0.12  # more than four standard deviations


def test_layer_collapse_is_announced():
    model = layers([[9.0, 8.0], [7.0, 6.0]], [[0.1, 0.2]])
    with pytest.warns(UserWarning, match=r"pruned all of 1\.weight"):
        Magnitude(model, sgd(model), 0.5)


def test_every_layer_can_be_given_some_weights():
    model = layers([[9.0, 8.0], [7.0, 6.0]], [[0.1, 0.2]])
    sparse = Magnitude(model, sgd(model), 0.5, min_per_layer=1)
    assert [m.tolist() for m in masks(sparse)] == [[[True, True], [False, False]], [[False, True]]]


def test_what_cannot_be_scored_is_refused_and_nothing_is_pruned():
    model = two_layers()
    with pytest.raises(ValueError, match="pass loss="):
        SNIP(model, sgd(model), 0.5)
    with pytest.raises(FloatingPointError, match="not finite"):
        SNIP(model, sgd(model), 0.5, loss=lambda: squared(model)() * torch.nan)
    with pytest.raises(ValueError, match="does not call this model"):
        SynFlow(model, sgd(model), 0.5, loss=lambda: torch.zeros(()))
    with torch.no_grad():
        model[0].weight.zero_()
    with pytest.raises(FloatingPointError, match="nothing flows"):
        SynFlow(model, sgd(model), 0.5, loss=lambda: model(torch.tensor(X)).sum())
    assert all(bool(w.all()) for w in [model[1].weight])
