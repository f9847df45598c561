"""Operations: counted by torch, scaled by density, with each method's and optimizer's true cost."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from zosam.lab.models import resnet32
from zosam.optim import OPTIMIZERS
from zosam.sparse import MEST, SET, SNFS, RigL, TopKAST

from .toy import sgd, step

X = torch.randn(6, 10)
F1, F2 = 2 * 6 * 10 * 20, 2 * 6 * 20 * 5  # dense forwards of the two layers


def mlp():
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


def of(cls, optimizer=None, **settings):
    model = mlp()
    base = sgd(model, momentum=0.9)
    return cls(
        model, base if optimizer is None else OPTIMIZERS[optimizer](base), 0.5, budget="uniform", dense=(), **settings
    )


def test_dense_counts_are_those_of_torch():
    model = resnet32()
    x = torch.randn(2, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        model(x)
    before = [b.clone() for b in model.buffers()]
    found = SET(model, sgd(model), 0.9, steps=1000).flops(x)
    assert found.dense_inference == counter.get_total_flops() == pytest.approx(4 * 0.276e9, rel=0.01)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def test_static_and_set_cost_three_sparse_forwards():
    found = of(SET, steps=100).flops(X)
    assert found.inference == 0.5 * (F1 + F2)
    assert found.training == 3 * 0.5 * (F1 + F2)
    assert found.dense_training == 3 * (F1 + F2)
    assert "(50.0%)" in str(found)


def test_rigl_adds_one_dense_gradient_in_so_many_steps():
    sparse = of(RigL, every=10, steps=50, until=1.0)
    sparse_step, dense_gradient = 3 * 0.5 * (F1 + F2), 0.5 * (F1 + F2)
    assert sparse.flops(X).training == pytest.approx(sparse_step + dense_gradient / 10)
    sparse.steps = 50
    assert sparse.flops(X).training == pytest.approx(sparse_step)


def test_snfs_and_topkast():
    assert of(SNFS, steps=100, every=10).flops(X).training == pytest.approx(2 * 0.5 * (F1 + F2) + F1 + F2)
    found = of(TopKAST, backward_sparsity=0.25).flops(X)
    assert found.training == pytest.approx((2 * 0.5 + 0.75) * (F1 + F2))


@pytest.mark.parametrize(("optimizer", "forward", "backward"), [("sgd", 1, 1), ("sam", 2, 2)])
def test_passes_of_the_optimizer(optimizer, forward, backward):
    found = of(RigL, optimizer, every=10, steps=100).flops(X)
    passes = 0.5 * (F1 + F2) * (forward + 2 * backward)
    assert found.training == pytest.approx(passes + 0.1 * 0.5 * (F1 + F2))  # the dense gradient is taken once


def test_zosam_pays_for_its_forwards():
    sparse = of(SET, "zosam", steps=100)
    passes = sparse.sharpness.passes_per_step()
    expected = 0.5 * (F1 + F2) * (passes["forward"] + 2 * passes["backward"])
    assert passes["backward"] == 1
    assert passes["forward"] > 1
    assert sparse.flops(X).training == pytest.approx(expected)


def test_mest_soft_costs_more_while_it_is_denser():
    sparse = of(MEST, soft=True, extra=0.5, every=2, steps=4, until=1.0)
    step(sparse, [torch.zeros(20, 10), torch.zeros(5, 20)])
    assert sparse.flops(X).training == pytest.approx(3 * 0.75 * (F1 + F2))
    for _ in range(5):
        step(sparse, [torch.zeros(20, 10), torch.zeros(5, 20)])
    assert sparse.flops(X).training == pytest.approx(3 * 0.5 * (F1 + F2))


def test_attention_is_counted_by_weight_and_scores_are_not_pruned():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    found = SET(model, sgd(model), 0.5, steps=1000).flops(torch.randn(3, 7, 16))
    tokens = 3 * 7
    assert found.layers == {
        "self_attn.in_proj_weight": 2 * tokens * 16 * 48,
        "self_attn.out_proj.weight": 2 * tokens * 16 * 16,
        "linear1.weight": 2 * tokens * 16 * 32,
        "linear2.weight": 2 * tokens * 16 * 32,
    }
    assert found.other == 2 * 2 * 3 * 7 * 7 * 16  # queries times keys, and the average over values
