"""Feature maps: which layer is which, against a forward pass by hand, and the concentration of known maps."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.measure.features import concentration, feature_maps, figure_concentration, figure_features, shown
from zosam.lab.models import build

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def resnet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("resnet32", 10)
        model(X)  # BatchNorm statistics that are not the initial ones
    return model


@torch.no_grad()
def test_layers_are_those_of_the_papers_resnet(resnet):
    resnet.train()
    found = feature_maps(resnet, X, (1, 3, 13, 17, 31))
    resnet.eval()
    stem = F.relu(resnet.bn1(resnet.conv1(X)))
    assert torch.equal(found[1], stem)
    out = stem
    after = {}
    for i, block in enumerate([*resnet.layer1, *resnet.layer2, *resnet.layer3]):
        after[2 * i + 2] = F.relu(block.bn1(block.conv1(out)))  # the shortcut's convolution does not count
        out = after[2 * i + 3] = block(out)
    for n in (3, 13, 17, 31):
        assert torch.equal(found[n], after[n])
    assert found[31].shape == (2, 128, 8, 8)


def test_nothing_is_left_behind(resnet):
    resnet.train()
    before = {n: t.clone() for n, t in resnet.state_dict().items()}
    feature_maps(resnet, X, (3,))
    assert resnet.training
    assert all(torch.equal(t, before[n]) for n, t in resnet.state_dict().items())
    assert not any(module._forward_hooks for module in resnet.modules())


def test_layers_without_maps(resnet):
    with pytest.raises(ValueError, match="layer 33 does not exist: this network has 32 layers, 31 of which give maps"):
        feature_maps(resnet, X, (3, 33))
    with pytest.raises(ValueError, match="layer 32 gives no maps"):
        feature_maps(resnet, X, (32,))
    with pytest.raises(ValueError, match="has 20 layers"):
        feature_maps(build("resnet20", 10), X, (3, 17, 31))


@torch.no_grad()
def test_activations_in_place_and_before_the_convolution():
    torch.manual_seed(0)
    activation, twice = nn.ReLU(inplace=True), nn.Sequential(nn.ReLU(), nn.Tanh())
    net = nn.Sequential(nn.Conv2d(3, 2, 3), activation, nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3), twice)
    found = feature_maps(net, X, (1, 2, 3))
    first = net[0](X).relu()
    assert torch.equal(found[1], first)
    assert torch.equal(found[2], net[2](first))  # none follows before the next layer: its own output
    assert torch.equal(found[3], net[3](found[2]).relu())  # the first of two


def test_concentration_of_known_maps():
    even = torch.ones(1, 2, 10, 10)
    point = torch.zeros(1, 2, 10, 10)
    point[0, 1, 4, 7] = 3.0
    assert concentration(even) == pytest.approx(0.1)
    assert concentration(point) == 1.0
    assert concentration(torch.cat((even, point))) == pytest.approx(0.55)
    ramp = torch.arange(100.0).view(1, 1, 10, 10)
    assert concentration(ramp) == pytest.approx(sum(i * i for i in range(90, 100)) / sum(i * i for i in range(100)))
    assert concentration(torch.zeros(1, 1, 4, 4)) == 0


def test_the_strongest_channels():
    maps = torch.zeros(1, 3, 2, 2)
    maps[0, 1], maps[0, 2] = 2.0, -4.0
    assert torch.allclose(shown(maps), torch.tensor(-2 / 3))
    assert shown(maps, 1).tolist() == [[[-4, -4], [-4, -4]]]
    assert shown(maps, 2).tolist() == [[[-1, -1], [-1, -1]]]


def test_figures_are_json(resnet):
    models = {"a": resnet, "b": resnet}
    made = figure_features(models, {"bird": X[0], "airplane": X[1]}, (3, 31))
    assert made["rows"] == ["bird, a", "bird, b", "airplane, a", "airplane, b"]
    assert made["tiles"][0] == made["tiles"][1] != made["tiles"][2]
    expected = feature_maps(resnet, X, (31,))[31][1].mean(0)
    assert torch.allclose(torch.tensor(made["tiles"][3][1]), expected, rtol=1e-3)
    assert made["inputs"][0] == made["inputs"][1] != made["inputs"][2]
    bird = torch.tensor(made["inputs"][0]).permute(2, 0, 1)
    assert (bird.min(), bird.max()) == (0, 255)
    assert torch.equal(bird.flatten().argsort()[-1:], X[0].flatten().argsort()[-1:])  # its brightest point
    bars = figure_concentration(models, X, (3, 31))
    assert bars["groups"] == ["layer 3", "layer 31"]
    assert bars["series"][0]["values"][1] == concentration(feature_maps(resnet, X, (31,))[31])
    assert json.loads(json.dumps([made, bars], allow_nan=False)) == [made, bars]
