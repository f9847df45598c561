"""The zoo's networks give the same on the kernels, and each says what runs there."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from zosam.kernels import accelerate, choose, report
from zosam.kernels import build as library

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LAYERS = {"vgg": [6, 2], "unet": [6, 2, 3], "mobilenet": [14, 1], "convnext": [2, 2], "mixer": [2, 2], "conv1d": [4, 1]}


@pytest.fixture(scope="module")
def zoo():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("zoo", BENCHMARKS / "zoo.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("network", list(LAYERS))
def test_a_network_of_the_zoo(zoo, network, monkeypatch):
    if library.load() is None:
        pytest.skip("no sparse kernels on this machine")
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    torch.manual_seed(0)
    build, shape = zoo.ZOO[network]
    model, x = build(), torch.randn(4, *shape)
    # so many weights that no channel is left without any: of a constant one batch norm makes much of its rounding
    masks = {n: torch.rand_like(p) >= 0.6 for n, p in model.named_parameters() if p.dim() > 1}
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    plain = copy.deepcopy(model)
    accelerate(model, masks, x)
    told = report(model)
    assert all(f"{n} of {n} layers on the kernels" in told for n in LAYERS[network]), told
    results = []
    for net in (plain, model):
        torch.manual_seed(1)
        net(x).square().sum().backward()
        results.append([p.grad for n, p in net.named_parameters() if n not in masks])
    scale = max(float(g.abs().max()) for g in results[0])  # a bias before batch norm has no gradient but rounding
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * scale)
