"""One picture or a few, in evaluation: pixels lie innermost, and what comes out is what torch says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from zosam.kernels import accelerate, build, execute, report
from zosam.lab.models import digits_net
from zosam.lab.models.resnet_cifar import CifarResNet

from .exact import QUICK, error


def pixel_programs(model: nn.Module) -> int:
    """How many programs have their pixels innermost."""
    forward: Any = model.forward
    switches = [s for version in forward.versions.values() if version for s in version.switches]
    return sum(p.pixels for s in switches for p in s.kernels.programs.values())


def agrees(model: nn.Module, sparse: Any, x: Tensor) -> None:
    """As close to float64 as torch's own float32, within 2x (plus rounding)."""
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    accelerate(model, sparse, x)
    with torch.no_grad():
        true = exact(x.double())
        ours, theirs = error(model(x), true), error(plain(x), true)
    assert ours <= 2 * theirs + 1e-6 * (float(true.norm()) + float(true.numel()) ** 0.5)
    assert pixel_programs(model)


@QUICK
@given(
    batch=st.integers(1, 2), inputs=st.integers(1, 5), outputs=st.integers(1, 9),
    height=st.integers(5, 19), width=st.integers(5, 35), kernel=st.sampled_from([1, 3, 5, 7]),
    stride=st.sampled_from([1, 2]), shift=st.integers(0, 6), sparsity=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    bias=st.booleans(), last=st.booleans(), seed=st.integers(0, 99), band=st.sampled_from([320 * 1024, 1000]),
)  # fmt: skip
def test_convolution(
    always: None, masks: Any, monkeypatch: pytest.MonkeyPatch, batch: int, inputs: int, outputs: int, height: int,
    width: int, kernel: int, stride: int, shift: int, sparsity: float, bias: bool, last: bool, seed: int, band: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    monkeypatch.setattr("zosam.kernels.operations.index.BAND_BYTES", band)
    monkeypatch.setattr(execute, "FEW", 0)
    pad = min(shift, kernel - 1)
    if min(height, width) + 2 * pad < kernel:
        return
    model = nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, pad, bias=bias)).eval()
    x = torch.randn(batch, inputs, height, width)
    if last:
        x = x.to(memory_format=torch.channels_last)
    agrees(model, masks(model, sparsity, seed), x)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", [(32, 32), (9, 7)])
def test_whole_networks(
    always: None, masks: Any, monkeypatch: pytest.MonkeyPatch, batch: int, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(execute, "FEW", 0)
    torch.manual_seed(0)
    model = CifarResNet(8, 8, 10, zero_pad=True).eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    agrees(model, masks(model, 0.9), torch.randn(batch, 3, *size))


def test_layers_that_torch_computes_inside(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zosam.kernels.choose.remember", lambda key, measure: 0.5 if " layer " in key else 2.0)
    torch.manual_seed(0)
    model = digits_net().eval()
    agrees(model, masks(model, 0.9), torch.randn(1, 1, 8, 8))
    assert "0 of" in report(model)


def test_with_a_graph_or_batch_statistics_pictures_lie_innermost(always: None, masks: Any) -> None:
    model = digits_net().eval()
    accelerate(model, masks(model, 0.9), torch.randn(16, 1, 8, 8))
    x = torch.randn(1, 1, 8, 8)
    model(x).sum().backward()
    assert not pixel_programs(model)
    with torch.no_grad():
        model.train()(torch.randn(2, 1, 8, 8))
        assert not pixel_programs(model)
        model.eval()(x)
    assert pixel_programs(model)


@pytest.mark.parametrize(
    ("quarters", "sixteenths", "expected"), [(8, 7, True), (8, 12, False), (3, 5, True), (3, 8, False)]
)
def test_vectors_hold_what_fills_them(always: None, masks: Any, quarters: int, sixteenths: int, expected: bool) -> None:
    """Rows of two vectors of pixels are full, three quarters of a vector are not: pictures must fill half as much."""
    lib = build.load()
    assert lib is not None
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)).eval()
    x = torch.randn(sixteenths * lib.lanes // 16, 3, 5, quarters * lib.lanes // 4)
    accelerate(model, masks(model, 0.9), x)
    with torch.no_grad():
        model(x)
    assert bool(pixel_programs(model)) == expected
