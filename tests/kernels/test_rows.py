"""Linear layers and what lies between them in a transformer, against float64 autograd."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, report
from zosam.lab.models.deit import Layer

from .exact import QUICK, agree


@QUICK
@given(
    rows=st.integers(1, 40), inputs=st.integers(1, 20), outputs=st.integers(1, 20),
    sparsity=st.sampled_from([0.0, 0.9, 1.0]), bias=st.booleans(), deep=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_linear(
    always: None, masks: Any, rows: int, inputs: int, outputs: int, sparsity: float, bias: bool, deep: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias), nn.ReLU(), nn.Linear(outputs, 3))
    x = torch.randn(rows, 3, inputs) if deep else torch.randn(rows, inputs)
    agree(model, masks(model, sparsity, seed), x)
    assert "2 of 2 layers on the kernels" in report(model)


class Mlp(nn.Module):
    """A residual branch: layer norm, linear, an activation, linear."""

    def __init__(self, dim: int, inside: int, affine: bool = True, activation: Callable[..., Tensor] = F.gelu) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=affine)
        self.fc1, self.fc2, self.activation = nn.Linear(dim, inside), nn.Linear(inside, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.activation(self.fc1(self.norm(x))))


@QUICK
@given(
    rows=st.integers(1, 70), dim=st.integers(1, 20), inside=st.integers(1, 20), affine=st.booleans(),
    sparsity=st.sampled_from([0.0, 0.8, 1.0]), mean=st.sampled_from([0.0, 100.0]), scale=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_layer_norm_and_gelu(
    always: None, masks: Any, rows: int, dim: int, inside: int, affine: bool, sparsity: float, mean: float,
    scale: float, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    model = nn.Sequential(Mlp(dim, inside, affine), Mlp(dim, inside), nn.LayerNorm(dim, eps=1e-3))
    agree(model, masks(model, sparsity, seed), scale * torch.randn(rows, dim) + mean, slack=8.0)
    assert "4 of 4 layers on the kernels" in report(model)


@pytest.mark.parametrize("rows", [16, 5], ids=["whole tiles", "filled up"])
def test_rows_leave_as_tensors_of_their_own(always: None, masks: Any, rows: int) -> None:
    """Nothing stands between the kernels and what follows in the graph, and what follows may edit in place."""
    model, plain = (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(2))
    accelerate(model, masks(model, 0.5), torch.randn(rows, 4))
    plain.load_state_dict(model.state_dict())
    x = torch.randn(rows, 4)
    for net in (model, plain):
        y = net(x)
        assert "Region" in y.grad_fn.name() or net is plain
        y.mul_(2).square().sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        mask = (p != 0) if p.dim() == 2 else torch.ones_like(p)
        torch.testing.assert_close(p.grad, q.grad * mask)


@pytest.mark.parametrize("images", [1, 3, 9])
def test_a_transformer_is_one_region_between_two_attentions(always: None, masks: Any, images: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(24, 3, 0.0) for _ in range(3)))
    agree(model, masks(model, 0.7), torch.randn(images, 5, 24))
    assert [line.rpartition(": ")[2].partition(" (")[0] for line in report(model).splitlines()] == [
        f"{count} of {count} layers on the kernels" for count in (1, 4, 4, 3)
    ]


def test_gelu_in_numbers(always: None, masks: Any) -> None:
    """x * Phi(x), and its slope, at points worked out with math.erf."""
    points = [-12.0, -5.0, -1.0, -1e-4, 0.0, 1e-4, 0.5, 3.0, 12.0]
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.GELU(), nn.Linear(1, 1, bias=False))
    sparse = masks(model, 0.0)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.fill_(1.0)
    x = torch.tensor(points)[:, None].requires_grad_()
    accelerate(model, sparse, x.detach())
    assert "2 of 2 layers on the kernels" in report(model)
    out = model(x)
    out.sum().backward()
    assert x.grad is not None
    for point, value, slope in zip(points, out[:, 0].tolist(), x.grad[:, 0].tolist(), strict=True):
        below = 0.5 * math.erfc(-point / math.sqrt(2))
        density = math.exp(-point * point / 2) / math.sqrt(2 * math.pi)
        assert value == pytest.approx(point * below, rel=2e-5, abs=1e-30)
        assert slope == pytest.approx(below + point * density, rel=2e-6, abs=1e-7)


class Branches(nn.Module):
    """GELU of a sum, a GELU with two readers, and a ReLU behind a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 9)
        self.c, self.d = nn.Linear(9, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.a(x))
        z = F.gelu(self.b(y) + y)
        return self.d(F.relu(F.gelu(self.c(z))))


@pytest.mark.parametrize("sparsity", [0.0, 0.6])
def test_gelu_where_it_cannot_be_folded(always: None, masks: Any, sparsity: float) -> None:
    torch.manual_seed(0)
    model = Branches()
    agree(model, masks(model, sparsity), torch.randn(21, 6))
    assert "4 of 4 layers on the kernels" in report(model)


def test_gelu_between_convolutions(always: None, masks: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Conv2d(5, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.GELU(),
        nn.Conv2d(4, 3, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    agree(model, masks(model, 0.5), torch.randn(11, 2, 9, 7))
    assert "3 of 3 layers on the kernels" in report(model)


def test_what_is_not_understood_stays_with_torch(always: None, masks: Any) -> None:
    """The other GELU, and a layer norm over more than the last dimension."""
    model = Mlp(6, 7, activation=lambda x: F.gelu(x, approximate="tanh"))
    model.norm = nn.LayerNorm((4, 6))
    sparse, x = masks(model, 0.5), torch.randn(3, 4, 6)
    expected = copy.deepcopy(model)(x)
    accelerate(model, sparse, x)
    assert len(report(model).splitlines()) == 2
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
