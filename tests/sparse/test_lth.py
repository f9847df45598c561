"""LTH: levels, rewinding, exact targets, and what a training loop is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from zosam.sparse import LTH

from .toy import largest, layers, masks, sgd, step

GEN = np.random.default_rng(0)
A, B = GEN.normal(size=(20, 10)), 0.5 * GEN.normal(size=(10, 20))


def grads():
    return [GEN.normal(size=(20, 10)), GEN.normal(size=(10, 20))]


def test_train_prune_rewind():
    model = layers(A.tolist(), B.tolist())
    sparse = LTH(model, sgd(model, 0.1, momentum=0.9), 0.9, steps=5, rewind=2, levels=3)
    saved = None
    for t in range(1, 18):
        # the last step of a level is followed by pruning: what it leaves is worked out beside it
        momentum = [sparse.optimizer.state[w].get("momentum_buffer") for w in sparse.weights.values()]
        momentum = [
            torch.zeros_like(w) if b is None else b.clone()
            for b, w in zip(momentum, sparse.weights.values(), strict=True)
        ]
        weights, old, gs = (
            [w.detach().clone() for w in sparse.weights.values()],
            [m.copy() for m in masks(sparse)],
            grads(),
        )
        step(sparse, gs)
        now = [w.detach() for w in sparse.weights.values()]
        if t == 2:
            saved = [w.clone() for w in now]
        if t in (5, 8, 11):
            level = {5: 1, 8: 2, 11: 3}[t]
            ends = [
                (w - 0.1 * (0.9 * b + torch.tensor(g, dtype=w.dtype) * torch.tensor(m))).numpy()
                for w, b, g, m in zip(weights, momentum, gs, old, strict=True)
            ]
            score = np.concatenate([np.where(m, np.abs(e), -1).ravel() for m, e in zip(old, ends, strict=True)])
            best = largest(score, round(400 * 0.1 ** (level / 3)))
            np.testing.assert_array_equal(np.concatenate([m.ravel() for m in masks(sparse)]), best)
            for w, s, m in zip(now, saved, masks(sparse), strict=True):
                assert torch.equal(w, s * torch.tensor(m))
            assert not sparse.optimizer.state
        assert sum(m.sum() for m in masks(sparse)) == sparse.expected_active()
    assert sparse.sparsity == pytest.approx(0.9)


def test_the_loop_is_told_where_it_is():
    model = layers(A.tolist())
    sparse = LTH(model, sgd(model), 0.5, steps=5, rewind=2, levels=2)
    assert sparse.total_steps(5) == 11
    assert [sparse.schedule_step(s) for s in range(12)] == [0, 1, 2, 3, 4, 2, 3, 4, 2, 3, 4, 5]


@pytest.mark.parametrize(("sparsity", "levels"), [(0.2, 1), (0.5, 4), (0.9, 11), (0.95, 14), (0.98, 18)])
def test_about_a_fifth_goes_at_each_level(sparsity, levels):
    model = nn.Linear(100, 100)
    assert LTH(model, sgd(model), sparsity, steps=100).levels == levels


def test_batchnorm_is_rewound_and_everything_is_resumed(trial, same):
    settings = {"steps": 3, "rewind": 1, "levels": 3}
    straight = trial("zosam", "lth", method_settings=settings)
    counts = []
    for _ in range(9):
        straight.step()
        counts.append(int(straight.model[1].num_batches_tracked))
    assert counts == [1, 2, 1, 2, 1, 2, 1, 2, 3]
    for at in (1, 2, 4, 5):
        first, second = (trial("zosam", "lth", method_settings=settings) for _ in range(2))
        first.step(at)
        second.step(3)
        second.model.load_state_dict(first.model.state_dict())
        second.sparse.load_state_dict(first.sparse.state_dict())
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.stream = first.stream
        second.step(9 - at)
        assert same(straight.snapshot(), second.snapshot())


def test_blocks_may_be_compiled_before_or_after():
    ends = []
    for when in ("never", "before", "after"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
        if when == "before":
            model[0] = torch.compile(model[0], backend="eager")
        sparse = LTH(model, sgd(model, 0.1), 0.5, steps=3, rewind=1, levels=1)
        if when == "after":
            model[0] = torch.compile(model[0], backend="eager")
        for _ in range(5):
            sparse.optimizer.zero_grad()
            model(torch.ones(4, 6)).square().sum().backward()
            sparse.optimizer.step()
        ends.append([p.clone() for p in model.parameters()])
        assert list(sparse.state_dict()["saved"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for end in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(end, ends[0], strict=True))


def test_settings_are_checked():
    model = nn.Linear(10, 10)
    with pytest.raises(ValueError, match="rewind must be a step"):
        LTH(model, sgd(model), 0.5, steps=10, rewind=10)
    with pytest.raises(ValueError, match="levels"):
        LTH(model, sgd(model), 0.5, steps=10, levels=0)
