"""Any model: what is masked, what is left alone, and how to say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zosam.lab.models import resnet32
from zosam.optim import SAM
from zosam.optim.active import mask_of
from zosam.sparse import MEST, SET, Magnitude, RigL
from zosam.sparse.prunable import prunable

from .toy import sgd


class Zoo(nn.Module):
    """Every kind of layer, one tied pair, one frozen."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.conv1d = nn.Conv1d(8, 8, 3, padding=1)
        self.conv3d = nn.Conv3d(1, 2, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        h = h + self.conv1d(h.transpose(1, 2)).transpose(1, 2)
        h = self.attention(h, h, h)[0]
        return self.head(self.b(self.frozen(self.a(h)))).mean(1)


def test_all_kinds_of_layers_and_nothing_else():
    model = Zoo()
    sparse = SET(model, sgd(model, 0.1, momentum=0.9), 0.6, every=1, steps=1000)
    assert set(sparse.masks) == {
        "conv1d.weight", "conv3d.weight", "grouped.weight", "up.weight", "attention.in_proj_weight",
        "attention.out_proj.weight", "cross.q_proj_weight", "cross.k_proj_weight", "cross.v_proj_weight",
        "cross.out_proj.weight", "a.weight",
    }  # fmt: skip
    frozen, embed = model.frozen.weight.clone(), model.embed.weight.clone()
    for _ in range(4):
        sparse.optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.arange(10).view(2, 5)), torch.tensor([0, 1])).backward()
        sparse.optimizer.step()
        for name, weight in sparse.weights.items():
            assert not weight.detach()[~sparse.masks[name]].any()
    assert model.b.weight is model.a.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert not torch.equal(model.embed.weight, embed)
    assert set(model.state_dict()) == set(Zoo().state_dict())


@pytest.mark.filterwarnings("ignore:Magnitude has pruned all")
@pytest.mark.parametrize(
    ("settings", "masked"),
    [
        ({"include": ["layer3"]}, 11),
        ({"include": ["layer*.conv1.weight", "fc"]}, 16),
        ({"exclude": ["layer?.0"]}, 34 - 8),
        ({"exclude": [nn.Linear]}, 33),
        ({"exclude": "Conv2d"}, 1),
        ({"dense": ["first", "last", "shortcut"]}, 30),
        ({"dense": "conv1"}, 33),
    ],
)
def test_include_exclude_and_dense(settings, masked):
    model = resnet32()
    sparse = Magnitude(model, sgd(model), 0.9, **settings)
    assert len(sparse.masks) == masked
    everything = sum(w.numel() for w in prunable(model).values())
    seen = sum(w.numel() for w in (*sparse.weights.values(), *sparse.kept_dense.values()))
    assert (seen == everything) == ("dense" in settings)  # what is kept dense counts, what is excluded does not
    assert sparse.sparsity == pytest.approx(0.9, abs=1e-4)


def test_the_table_tells_both_sparsities():
    model = resnet32()
    text = str(MEST(model, sgd(model), 0.9, steps=1000))
    assert "89.40% of all prunable weights are zero (90.00% of the masked ones)" in text
    assert len(text.splitlines()) == 2 + 34
    assert text.count("kept dense") == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exclude": ["stem"]}, "no prunable weight is called 'stem'; there are 0.weight, 2.weight"),
        ({"budget": "earl"}, "did you mean 'er'"),
        ({"sparsity": 1.0}, "below 1"),
        ({"sparsity": -0.1}, "at least 0"),
        ({"sparsity": 0.99, "dense": ["first"]}, "cannot be reached"),
        ({"sparsity": 0.999, "budget": "uniform"}, "leave no weight in 2.weight"),
        ({"every": 0}, "every must be 1"),
        ({"until": 0.0}, "until must be"),
        ({"steps": 0}, "steps must be"),
        ({"steps": None}, "pass steps="),
        ({"drop_fraction": 1.5}, "drop_fraction"),
        ({"budget": "global"}, "needs a count for each layer"),
        ({"over": "some"}, "over"),
        ({"include": [nn.Conv2d]}, "no prunable weight"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(settings, message):
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=message):
        SET(model, sgd(model), **{"sparsity": 0.5, "steps": 100} | settings)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_models_that_cannot_be_masked():
    embedding, lazy = nn.Embedding(3, 4), nn.Sequential(nn.LazyLinear(5))
    with pytest.raises(ValueError, match="nothing to prune"):
        SET(embedding, sgd(embedding), steps=1000)
    with pytest.raises(ValueError, match="run one batch"):
        SET(lazy, sgd(embedding), steps=1000)
    with pytest.raises(ValueError, match="this very model"):
        SET(nn.Linear(4, 4), sgd(nn.Linear(4, 4)), steps=1000)


def test_one_method_at_a_time():
    model = nn.Linear(10, 10)
    optimizer = SAM(sgd(model, 0.1))
    first = RigL(model, optimizer, 0.5, steps=1000)
    with pytest.raises(ValueError, match="release"):
        RigL(model, optimizer, 0.9, steps=1000)
    first.release()
    second = RigL(model, optimizer, 0.9, steps=1000)
    optimizer.step(lambda: model(torch.ones(1, 10)).square().sum())
    assert second.sparsity == 0.9
    assert not model.weight.detach()[~second.masks["weight"]].any()
    assert mask_of(model.weight) is second.masks["weight"]


def test_a_moving_average_can_be_masked():
    model, average = nn.Linear(10, 10), nn.Linear(10, 10)
    sparse = SET(model, sgd(model), 0.5, steps=1000)
    sparse.apply_to(average)
    assert torch.equal(average.weight != 0, sparse.masks["weight"])
