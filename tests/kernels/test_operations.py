"""Every operation of a region against float64 autograd, on shapes that nobody would choose."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, choose, report

from .exact import QUICK, agree


@QUICK
@given(
    batch=st.integers(1, 19), inputs=st.integers(1, 5), outputs=st.integers(1, 9),
    height=st.integers(5, 13), width=st.integers(5, 13), kernel=st.sampled_from([1, 3, 5, 7]),
    stride=st.sampled_from([1, 2]), shift=st.integers(0, 6), sparsity=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    bias=st.booleans(), last=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_convolution(
    always: None, masks: Any, batch: int, inputs: int, outputs: int, height: int, width: int, kernel: int,
    stride: int, shift: int, sparsity: float, bias: bool, last: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    pad = min(shift, kernel - 1)
    if min(height, width) + 2 * pad < kernel:
        return
    model = nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, pad, bias=bias))
    x = torch.randn(batch, inputs, height, width)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    agree(model, masks(model, sparsity, seed), x)
    assert "1 of 1 layers on the kernels" in report(model)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "kernel", "stride"),
    [
        *((3, 16, 32, 3, 1), (16, 16, 32, 3, 1), (16, 32, 32, 3, 2), (32, 32, 16, 3, 1), (32, 64, 16, 3, 2)),
        *((3, 32, 32, 3, 1), (32, 32, 32, 3, 1), (32, 64, 32, 3, 2), (32, 64, 32, 1, 2), (64, 64, 16, 3, 1)),
        *((64, 128, 16, 3, 2), (64, 128, 16, 1, 2), (128, 128, 8, 3, 1)),  # ResNet-32
        *((64, 256, 32, 1, 1), (256, 64, 32, 1, 1), (512, 256, 16, 1, 1), (512, 512, 8, 3, 2), (2048, 512, 4, 1, 1)),
        *((16, 160, 32, 3, 1), (160, 160, 32, 3, 1), (160, 320, 32, 3, 2), (640, 640, 8, 3, 1)),  # WRN-28-10
        *((3, 64, 32, 7, 2),),  # an ImageNet stem
    ],
)
def test_layers_of_the_papers_networks(
    always: None, masks: Any, inputs: int, outputs: int, size: int, kernel: int, stride: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False))
    agree(model, masks(model, 0.95), torch.randn(2, inputs, size, size))


class Basic(nn.Module):
    """A residual block with batch norm, as in a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Early(nn.Module):
    """A residual block that normalises first, as in a wide ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        same = stride == 1 and inside == outside
        self.shortcut = None if same else nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + shortcut


class Bare(Basic):
    """He's shortcut without weights."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if not isinstance(self.shortcut, nn.Identity):
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 3))
        return F.relu(out + x)


class Net(nn.Module):
    def __init__(self, block: Callable[[int, int, int], nn.Module], pool: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.blocks = nn.Sequential(block(6, 6, 1), block(6, 10, 2), block(10, 10, 1))
        self.bn, self.relu, self.pool = nn.BatchNorm2d(10, momentum=None), nn.ReLU(inplace=True), pool

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn(self.blocks(self.stem(x))))
        return F.adaptive_avg_pool2d(out, 1).flatten(1) if self.pool else out


@pytest.mark.parametrize("block", [Basic, Bare, Early])
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sparsity", [0.0, 0.8])
@pytest.mark.parametrize("size", [(13, 9, 7), (8, 8, 8), (2, 5, 12)])
def test_residual_nets(
    always: None, masks: Any, block: Any, pool: bool, training: bool, sparsity: float, size: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    model = Net(block, pool)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    model.train(training)
    agree(model, masks(model, sparsity), torch.randn(size[0], 2, *size[1:]))
    assert "on the kernels" in report(model)


def test_a_mean_far_from_zero_costs_no_digits(always: None, masks: Any) -> None:
    """Sums of squares alone would lose the variance here."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    sparse = masks(model, 0.0)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(1000.0)
    agree(model, sparse, torch.randn(16, 1, 6, 6))


def test_layers_kept_dense_inside_a_region(monkeypatch: pytest.MonkeyPatch, masks: Any) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5 if " layer " in key else 2.0)
    model = Net(Basic, pool=True)
    agree(model, masks(model, 0.5), torch.randn(9, 2, 8, 8))
    assert "0 of 8 layers on the kernels" in report(model)


def test_two_graphs_at_once_and_in_place_passes_between(always: None, masks: Any) -> None:
    """Activations of a graph survive other passes until its backward."""
    torch.manual_seed(0)
    model = Net(Basic, pool=True)
    sparse, a, b = masks(model, 0.7), torch.randn(9, 2, 8, 8), torch.randn(9, 2, 8, 8)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, a)
    grads = []
    for net in (plain, model):
        first, second = net(a).square().sum(), net(b).square().sum()
        with torch.no_grad():
            net(b)
        first.backward()
        second.backward()
        grads.append([p.grad.clone() for n, p in net.named_parameters() if n not in sparse.masks])
    for theirs, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_the_output(always: None, masks: Any, value: float) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    sparse = masks(model, 0.0)
    x = torch.randn(9, 1, 6, 6)
    x[4, 0, 2, 3] = value
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    theirs, ours = plain(x), model(x)
    assert torch.equal(theirs.isfinite(), ours.isfinite())
    ours.sum().backward()
    plain.zero_grad()
    theirs.sum().backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad.isfinite(), other.grad.isfinite())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("rows", [False, True])
def test_a_pruned_weight_swallows_nothing(always: None, masks: Any, value: float, batch: int, rows: bool) -> None:
    """Every weight is pruned, so nothing is multiplied; but zero times infinity is not zero."""
    layers: list[nn.Module] = [nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)] if rows else [nn.Conv2d(2, 3, 3), nn.ReLU()]
    model = nn.Sequential(*layers).eval()
    sparse = masks(model, 1.0)
    x = torch.randn(batch, 6) if rows else torch.randn(batch, 2, 6, 6)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    assert torch.isfinite(model(x)).all()
    x.view(-1)[-1] = value
    for context in (torch.enable_grad(), torch.no_grad()):
        with context:
            assert model(x).isnan().any()
            assert torch.equal(model(x).isnan(), plain(x).isnan())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("place", ["0.weight", "0.bias", "1.bias", "3.bias"])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("rows", [False, True])
def test_what_overflows_inside_reaches_the_loss(
    always: None, masks: Any, place: str, value: float, batch: int, rows: bool
) -> None:
    """Also from a channel of which every weight behind it is pruned."""
    torch.manual_seed(0)
    kind: Any = nn.Linear if rows else lambda *sizes: nn.Conv2d(*sizes, kernel_size=3, padding=1)
    norm = nn.LayerNorm(6) if rows else nn.BatchNorm2d(6)
    model = nn.Sequential(kind(4, 6), norm, nn.ReLU(), kind(6, 6), nn.ReLU(), kind(6, 5)).eval()
    sparse, x = masks(model, 0.5), 100 * torch.rand((batch, 4) if rows else (batch, 4, 8, 8))
    sparse.masks["0.weight"][2] = True
    with torch.no_grad():
        for name in ("3.weight", "5.weight"):
            sparse.masks[name][:, 2] = False
            model.get_parameter(name)[:, 2] = 0
        accelerate(model, sparse, x)
        assert "3 of 3 layers on the kernels" in report(model)
        model.get_parameter(place)[2] = value
        expected = nn.Sequential.forward(model, x).sum()
        assert not expected.isfinite() or (value == 3e38 and place != "0.weight")
        assert model(x).sum().isfinite() == expected.isfinite()
    out = model(x).sum()
    assert out.isfinite() == expected.isfinite()
    out.backward()
    for name, mask in sparse.masks.items():
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        assert not gradient[~mask].any()


def test_a_spread_that_overflows_is_no_number(always: None, masks: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    sparse, x = masks(model, 0.0), torch.randn(9, 3)
    accelerate(model, sparse, x)
    with torch.no_grad():
        model[0].bias[1] = 1e30
    assert model(x).isnan().all()
    assert nn.Sequential.forward(model, x).isnan().all()
