"""Regions are found where the kernels can help, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels.regions import regions
from zosam.kernels.trace import trace
from zosam.lab.models import digits_net, resnet20


def found(model: nn.Module) -> list[tuple[str, list[str]]]:
    graph = trace(model)
    assert graph is not None
    return [(r.kind, [s.kind for s in r.steps]) for r in regions(graph, lambda module: True)]


def test_a_whole_network_is_one_region_and_its_head() -> None:
    kinds = found(digits_net())
    assert [kind for kind, _ in kinds] == ["image", "rows"]
    assert kinds[0][1][0] == "conv"
    assert kinds[0][1][-1] == "pool"
    assert kinds[1][1] == ["linear"]


def test_a_shortcut_without_weights_does_not_cut() -> None:
    kinds = found(resnet20())
    assert [kind for kind, _ in kinds] == ["image", "rows"]
    assert kinds[0][1].count("pad_channels") == 2


class Named(nn.Module):
    """Inputs are given by name, as all else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(input=F.max_pool2d(input=self.conv(x), kernel_size=2), dim=(2, 3))


def test_a_call_may_give_its_input_by_name() -> None:
    assert [steps for _, steps in found(Named())] == [["conv", "window", "pool"]]


class Thin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.conv(self.conv(x)[:, :, ::2, ::2]), (0, 0, 0, 0, 1, 1))


def test_slices_and_pads_that_are_no_shortcut_cut() -> None:
    assert [steps for _, steps in found(Thin())] == [["conv"], ["conv"]]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, stride=3),
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
        nn.Conv2d(4, 4, 3, dilation=(1, 2)),
        nn.Conv2d(4, 4, 4, padding="same"),
        nn.Conv2d(4, 4, 3, padding=3),
        nn.Conv1d(4, 4, 3, stride=3),
        nn.Conv3d(4, 4, 3),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(4, 4, 3),
    ],
)
def test_other_convolutions_are_left_to_torch(conv: nn.Module) -> None:
    assert found(nn.Sequential(conv, nn.ReLU())) == []


def test_what_is_not_understood_cuts() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.LPPool2d(2, 2), nn.Conv2d(2, 2, 3), nn.Tanh())
    assert [steps for _, steps in found(model)] == [["conv", "relu"], ["conv"]]


class OwnConv(nn.Conv2d):
    """A user's subclass may compute anything."""


def test_subclasses_are_not_taken_for_what_they_derive_from() -> None:
    assert found(nn.Sequential(OwnConv(2, 2, 3))) == []


class Means(nn.Module):
    def __init__(self, dims: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.conv, self.dims, self.keepdim = nn.Conv2d(2, 2, 3), dims, keepdim

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)).mean(self.dims, keepdim=self.keepdim)


def test_means_over_pixels_only() -> None:
    assert found(Means((2, 3), False))[0][1][-1] == "pool"
    assert found(Means((-1, -2), True))[0][1][-1] == "pool"
    assert found(Means((1, 2), False))[0][1][-1] == "relu"


def test_code_that_cannot_be_followed_gives_none() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else torch.zeros_like(x)

    assert trace(Branch()) is None


class Unpacks(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(4, 6), way

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.way == "a tensor":
            q, k, v = y.unflatten(-1, (3, 2)).permute(1, 0, 2)
        elif self.way == "a part of it":
            parts = y.permute(1, 0)
            q, k, v = parts[0], parts[1], parts[2]
        else:
            q, k, v = y.chunk(3, dim=-1)
        return q + 2 * k - v


@pytest.mark.parametrize("way", ["a tensor", "a part of it", "a tuple"])
def test_what_is_unpacked_keeps_its_gradient(way: str) -> None:
    model, x = Unpacks(way), torch.randn(5, 4)
    graph = trace(model)
    assert graph is not None
    gradients = []
    for forward in (model, graph):
        (forward(x) ** 2).sum().backward()
        gradients.append(model.linear.weight.grad.clone())
        model.zero_grad()
    assert torch.allclose(*gradients)


def test_a_tensor_that_is_unpacked_has_one_gradient() -> None:
    graph = trace(Unpacks("a tensor"))
    assert graph is not None
    seen, waiting = set(), [graph(torch.randn(5, 4)).grad_fn]
    while waiting:
        node = waiting.pop()
        seen.add(node.name())
        waiting += [n for n, _ in node.next_functions if n is not None]
    assert "UnbindBackward0" in seen
    assert "SelectBackward0" not in seen
