"""What weight decay spares, against lists written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zosam.lab import models
from zosam.lab.assemble import build_optimizer
from zosam.lab.decay_groups import decay_groups, norms_climb, without_decay
from zosam.lab.run import Run


def resnet32_weights():
    """All convolutions and the classifier of ResNet-32."""
    names = ["conv1.weight", "fc.weight", "layer2.0.downsample.0.weight", "layer3.0.downsample.0.weight"]
    for layer in (1, 2, 3):
        for block in range(5):
            names += [f"layer{layer}.{block}.conv1.weight", f"layer{layer}.{block}.conv2.weight"]
    return names


def deit_weights():
    """The patch embedding, twelve times four projections, and the head of DeiT."""
    names = ["patch_embed.proj.weight", "head.weight"]
    for block in range(12):
        names += [f"blocks.{block}.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]
    return names


@pytest.mark.parametrize(
    ("model", "decayed", "count"),
    [("resnet32", resnet32_weights(), 34), ("deit_tiny:image_size=32,patch_size=16", deit_weights(), 50)],
)
def test_the_networks_of_the_paper(model, decayed, count):
    network = models.build(model, 10)
    names = {p: name for name, p in network.named_parameters()}
    weights, rest = decay_groups(network, 0.05)
    assert len(decayed) == count
    assert sorted(names[p] for p in weights["params"]) == sorted(decayed)
    assert weights["weight_decay"] == 0.05
    assert rest["weight_decay"] == 0.0
    assert {*weights["params"], *rest["params"]} == set(network.parameters())
    assert len(weights["params"]) + len(rest["params"]) == len(names)
    if model.startswith("deit"):
        assert {"cls_token", "pos_embed", "norm.weight", "blocks.3.norm1.bias"} <= {names[p] for p in rest["params"]}


class Odd(nn.Module):
    """A norm with a weight of three dimensions, a bias of two, a scalar, and a table that it spares itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([2, 3, 3])
        self.position_bias = nn.Parameter(torch.zeros(4, 4))
        self.temperature = nn.Parameter(torch.ones(()))
        self.table = nn.Embedding(5, 3)
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.frozen = nn.Parameter(torch.ones(3, 3), requires_grad=False)

    def no_weight_decay(self) -> set[str]:
        return {"table.weight"}


def test_by_what_it_is_not_by_its_shape_alone():
    model = Odd()
    assert without_decay(model) == ["position_bias", "temperature", "norm.weight", "norm.bias", "table.weight"]
    weights, rest = decay_groups(model, 0.1)
    assert [*weights["params"]] == [model.weight]
    assert model.frozen not in {*weights["params"], *rest["params"]}


def test_no_empty_groups():
    assert [g["weight_decay"] for g in decay_groups(nn.BatchNorm2d(3), 0.1)] == [0.0]
    assert [g["weight_decay"] for g in decay_groups(nn.Linear(3, 3, bias=False), 0.1)] == [0.1]


def test_a_step_decays_weights_and_nothing_else():
    """Without a gradient a step of SGD is θ - lr λ θ."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(decay_groups(model, 0.5), lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p, b, factor in zip(model.parameters(), before, (0.95, 1, 1, 1), strict=True):
        torch.testing.assert_close(p.detach(), b * factor, rtol=1e-6, atol=0)


def test_norms_alone_climb():
    network = models.build("resnet32", 10)
    names = {p: name for name, p in network.named_parameters()}
    groups = norms_climb(network, decay_groups(network, 0.05))
    climbs = {names[p] for g in groups if g["perturb"] for p in g["params"]}
    assert climbs == {n for n in names.values() if "bn" in n or "downsample.1" in n}
    assert sorted(names[p] for g in groups for p in g["params"]) == sorted(names.values())
    assert [(g["perturb"], g["weight_decay"]) for g in groups] == [(False, 0.05), (True, 0.0), (False, 0.0)]
    with pytest.raises(ValueError, match="has none"):
        norms_climb(nn.Linear(2, 2), [{"params": []}])


def test_a_run_that_perturbs_norms_only():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    seen, x = [], torch.randn(8, 3)
    optimizer = build_optimizer(Run(optimizer="sam", perturb_on="norms", rho=0.5), model, 10)
    home = [p.detach().clone() for p in model.parameters()]

    def closure():
        seen.append([p.detach().clone() for p in model.parameters()])
        return model(x).logsumexp(1).mean()

    optimizer.step(closure)
    moved = [not torch.equal(a, b) for a, b in zip(home, seen[1], strict=True)]
    assert moved == [False, False, True, True, False, False]
    far = torch.cat([(a - b).flatten() for a, b in zip(home, seen[1], strict=True)]).norm()
    assert float(far) == pytest.approx(0.5, rel=1e-5)
    assert Run(optimizer="sgd", perturb_on="norms") == Run(optimizer="sgd")  # nothing climbs there
    assert Run(optimizer="sam", perturb_on="norms") != Run(optimizer="sam")
