"""N:M and blocks: every mask has the structure, at every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from zosam.names import settings_of
from zosam.sparse import DSR, LTH, MEST, METHODS, Magnitude, RigL

from .toy import largest, layers, sgd


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 8))


def groups(mask, size):
    return mask.movedim(1, -1).reshape(-1, size)


def train(sparse, model, steps=6):
    x = torch.randn(4, 4, 6, 6)
    for _ in range(steps):
        sparse.optimizer.zero_grad()
        model(x).square().mean().backward()
        sparse.optimizer.step()
        yield


def build(method, model, sparsity, pattern):
    cls = METHODS[method]
    wanted = {
        "every": 2,
        "steps": 2 if method == "lth" else 5,
        "until": 1.0,
        "levels": 2,
        "rounds": 4,
        "loss": lambda: model(torch.ones(2, 4, 6, 6)).square().sum(),
    }
    known = {k: v for k, v in wanted.items() if k in settings_of(cls)}
    return cls(model, sgd(model, 0.01, momentum=0.9), sparsity, pattern=pattern, **known)


def test_every_method_keeps_n_of_m_or_says_that_it_cannot(sparse_method):
    model = net()
    if "n:m" not in METHODS[sparse_method].patterns:
        with pytest.raises(ValueError, match="cannot keep the pattern 2:4"):
            build(sparse_method, model, 0.5, "2:4")
        return
    sparse = build(sparse_method, model, 0.5, "2:4")
    for _ in train(sparse, model):
        for mask in sparse.masks.values():
            assert (groups(mask, 4).sum(1) == 2).all()
    assert sparse.masked_sparsity == 0.5


def test_every_method_keeps_blocks_or_says_that_it_cannot(sparse_method):
    model = net()
    if "block" not in METHODS[sparse_method].patterns:
        with pytest.raises(ValueError, match="cannot keep the pattern block:4"):
            build(sparse_method, model, 0.7, "block:4")
        return
    sparse = build(sparse_method, model, 0.7, "block:4")
    for _ in train(sparse, model):
        for mask in sparse.masks.values():
            assert torch.isin(groups(mask, 4).sum(1), torch.tensor([0, 4])).all()
        assert sum(int(m.sum()) for m in sparse.masks.values()) == sparse.expected_active()
    assert sparse.expected_active() % 4 == 0
    assert abs(sparse.expected_active() - 0.3 * sum(w.numel() for w in sparse.weights.values())) < 4 + 0.7 * sum(
        w.numel() for w in sparse.kept_dense.values()
    )


def test_blocks_are_ranked_by_their_sum():
    weight = np.random.default_rng(0).normal(size=(4, 8))
    model = layers(weight.tolist())
    sparse = Magnitude(model, sgd(model), 0.5, pattern="block:4")
    best = largest(np.abs(weight).reshape(8, 4).sum(1), 4).repeat(4).reshape(4, 8)
    np.testing.assert_array_equal(sparse.masks["0.weight"].numpy(), best)


def test_n_of_m_by_hand():
    model = layers([[0.1, -0.9, 0.5, 0.2, 4.0, 3.0, 2.0, 1.0]])
    sparse = Magnitude(model, sgd(model), 0.5, pattern="2:4")
    assert sparse.masks["0.weight"].tolist() == [[False, True, True, False, True, True, False, False]]


def test_the_table_names_the_pattern():
    model = layers([[0.1, -0.9, 0.5, 0.2]])
    assert str(Magnitude(model, sgd(model), 0.5, pattern="2:4")).startswith("Magnitude (2:4): 50.00%")


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (RigL, {"pattern": "2:4", "sparsity": 0.9}, "pass sparsity=0.5"),
        (RigL, {"pattern": "2:4", "sparsity": 0.5, "budget": "erk"}, "no budget"),
        (RigL, {"pattern": "4:2", "sparsity": 0.5}, "N below M"),
        (RigL, {"pattern": "rows", "sparsity": 0.5}, "must be N:M"),
        (
            RigL,
            {"pattern": "block:5", "sparsity": 0.5},
            r"does not fit 0\.weight \(4 inputs, no multiple of 5\); 2\.weight \(.*: keep such layers dense",
        ),
        (DSR, {"pattern": "2:4", "sparsity": 0.5}, "works on single weights"),
        (LTH, {"pattern": "2:4", "sparsity": 0.5}, "it can keep block"),
        (MEST, {"pattern": "2:4", "sparsity": 0.5, "soft": True}, "has none"),
    ],
)
def test_what_does_not_fit_is_refused(cls, settings, message):
    model = net()
    with pytest.raises(ValueError, match=message):
        cls(model, sgd(model), **settings, steps=10)
