"""Exact budgets: every method, on a ResNet-32, a small ViT and an MLP, at the sparsities that papers report."""

from __future__ import annotations

import copy
import os
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.models import resnet32
from zosam.names import settings_of
from zosam.sparse import METHODS


class SmallViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 4, 4)
        self.position = nn.Parameter(torch.zeros(1, 4, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


torch.manual_seed(0)
NETS = {"resnet32": resnet32(), "vit": SmallViT(), "mlp": mlp()}
X, Y = torch.randn(2, 3, 8, 8), torch.tensor([1, 2])


SPARSITIES = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99]
EVERY = [(net, sparsity) for net in NETS for sparsity in SPARSITIES]
SOME = [(net, sparsity) for net, sparsity in EVERY if net != "resnet32" or sparsity == 0.9]  # that one is slow


@pytest.mark.parametrize(("net", "sparsity"), EVERY if os.environ.get("ZOSAM_LONG") else SOME)
def test_the_count_is_exact(sparse_method, net, sparsity):
    model, cls = copy.deepcopy(NETS[net]), METHODS[sparse_method]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss():
        return F.cross_entropy(model(X), Y)

    wanted = {
        "loss": loss,
        "every": 1,
        "steps": 2 if sparse_method == "lth" else 4,
        "rewind": 1,
        "levels": 2,
        "rounds": 3,
    }
    if net != "resnet32":
        wanted["dense"] = ()  # the presets name layers of residual networks
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pruned all of")  # so little is left that single-shot methods cut
        sparse = cls(model, optimizer, sparsity, **{k: v for k, v in wanted.items() if k in settings_of(cls)})
        if not hasattr(sparse, "score"):  # masks of the others move
            for _ in range(4):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
    masked, dense = (sum(w.numel() for w in ws.values()) for ws in (sparse.weights, sparse.kept_dense))
    zeros = sum(int((~m).sum()) for m in sparse.masks.values())
    if sparse.over == "masked":
        assert masked - zeros == round((1 - sparsity) * masked)
    else:
        assert masked + dense - zeros == round((1 - sparsity) * (masked + dense))
    assert masked + dense == sum(
        p.numel() for n, p in model.named_parameters() if p.dim() > 1 and not n.startswith("position")
    )
    if sparse.n_active_by_layer and sparse_method not in {"dsr", "snfs"}:
        assert {n: int(m.sum()) for n, m in sparse.masks.items()} == sparse.n_active_by_layer


@pytest.mark.parametrize(("nominal", "of_all"), [(0.90, 0.894), (0.95, 0.944), (0.98, 0.973)])
def test_mest_reports_both_sparsities(nominal, of_all):
    model = copy.deepcopy(NETS["resnet32"])
    sparse = METHODS["mest"](model, torch.optim.SGD(model.parameters(), lr=0.1), nominal, steps=100)
    assert len(sparse.weights) == 30
    assert sparse.masked_sparsity == pytest.approx(nominal, abs=1e-6)
    assert sparse.sparsity == pytest.approx(of_all, abs=6e-4)
