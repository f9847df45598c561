"""What other networks than ResNets are made of, against float64 autograd and torch's own random numbers."""

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

from zosam.kernels import accelerate, report
from zosam.lab.models.deit import DropPath

from .exact import QUICK, agree


@QUICK
@given(
    batch=st.integers(1, 18), groups=st.sampled_from([1, 2, 3, 6]), wider=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 5)), stride=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2, 3]), shift=st.integers(0, 3), sparsity=st.sampled_from([0.0, 0.7, 1.0]),
    size=st.tuples(st.integers(5, 11), st.integers(5, 11)), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_convolution(
    always: None, masks: Any, batch: int, groups: int, wider: int, kernel: tuple[int, int], stride: int, dilation: int,
    shift: int, sparsity: float, size: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    pad = [min(shift, dilation * (k - 1)) for k in kernel]
    if any(n + 2 * p <= dilation * (k - 1) for n, p, k in zip(size, pad, kernel, strict=True)):
        return
    model = nn.Sequential(nn.Conv2d(6, 6 * wider, kernel, stride, pad, dilation, groups), nn.Conv2d(6 * wider, 2, 1))
    agree(model, masks(model, sparsity, seed), torch.randn(batch, 6, *size))
    assert "2 of 2 layers on the kernels" in report(model)
    model.eval()
    with torch.no_grad():  # few pictures: pixels innermost
        x = torch.randn(1, 6, *size)
        torch.testing.assert_close(model(x), nn.Sequential.forward(model, x), rtol=1e-4, atol=1e-5)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu6": nn.ReLU6, "hardswish": nn.Hardswish, "silu": nn.SiLU, "gelu": nn.GELU, "relu": nn.ReLU,
}  # fmt: skip


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("training", [True, False])
def test_activations_behind_batch_norm_and_residuals(always: None, masks: Any, activation: str, training: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (
                nn.Conv2d(2, 8, 3, padding=1),
                nn.Conv2d(8, 8, 3, padding=1, groups=8),
                nn.Conv2d(8, 3, 1),
            )
            self.bn1, self.bn2, self.act = nn.BatchNorm2d(8), nn.BatchNorm2d(8), ACTIVATIONS[activation]()

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.bn1(self.a(x)))
            z = self.act(self.bn2(self.b(y)) + y)
            return self.act(self.c(z))

    torch.manual_seed(0)
    model = Net().train(training)
    nn.init.uniform_(model.bn1.weight, 2, 6)  # so that all pieces of the activations are met
    agree(model, masks(model, 0.4), torch.randn(13, 2, 7, 6))
    assert "3 of 3 layers on the kernels" in report(model)


@QUICK
@given(
    batch=st.integers(1, 18), kernel=st.integers(1, 4), stride=st.integers(1, 3), shift=st.integers(0, 2),
    largest=st.booleans(), counted=st.booleans(), behind=st.booleans(), seed=st.integers(0, 99),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
)  # fmt: skip
def test_pooling_over_windows(
    always: None, masks: Any, batch: int, kernel: int, stride: int, shift: int, largest: bool, counted: bool,
    behind: bool, size: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    pad = min(shift, kernel // 2)
    pool: nn.Module = nn.MaxPool2d(kernel, stride, pad)
    if not largest:
        pool = nn.AvgPool2d(kernel, stride, pad, count_include_pad=counted)
    between: list[nn.Module] = [nn.BatchNorm2d(5), nn.ReLU()] if behind and batch > 1 else []
    model = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), *between, pool, nn.Conv2d(5, 2, 1))
    agree(model, masks(model, 0.3, seed), torch.randn(batch, 2, *size))
    assert "2 of 2 layers on the kernels" in report(model)
    model.eval()
    with torch.no_grad():
        x = torch.randn(1, 2, *size)
        torch.testing.assert_close(model(x), nn.Sequential.forward(model, x), rtol=1e-4, atol=1e-5)


def test_of_equal_ones_the_first_takes_the_gradient(always: None, masks: Any) -> None:
    """As in torch; here every window holds four zeros behind a ReLU."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 1, 1))
    sparse = masks(model, 0.0)
    x = torch.full((3, 1, 4, 4), -5.0)
    with torch.no_grad():
        for conv in (model[0], model[3]):
            conv.weight.fill_(1.0)
        model[0].bias.fill_(6.0)
    agree(model, sparse, x)


class UNet(nn.Module):
    """Skips past a smaller picture, put beside what comes back up."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.bn, self.up = nn.BatchNorm2d(4), nn.ConvTranspose2d(6, 3, 2, 2)
        self.c, self.d = nn.Conv2d(7, 5, 3, padding=1), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.bn(self.a(x)))
        y = self.up(F.silu(self.b(F.max_pool2d(skip, 2))))
        y = F.relu(self.c(torch.cat([y, skip], dim=1)))
        return self.d(torch.cat((y, skip, F.avg_pool2d(y[:, :3], 3, 1, 1)), 1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [2, 17])
def test_skips(always: None, masks: Any, training: bool, batch: int) -> None:
    torch.manual_seed(0)
    model = UNet().train(training)
    agree(model, masks(model, 0.4), torch.randn(batch, 2, 8, 6))
    told = report(model)
    assert "2 of 2 layers on the kernels" in told


class Dense(nn.Module):
    """A block of a DenseNet: everything before, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(9, 3, 1)
        self.bn = nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x, F.gelu(self.a(x))], 1)
        z = torch.cat([F.relu(self.b(F.relu(self.bn(y)))), y], 1)
        return F.avg_pool2d(self.c(z), 2)


@pytest.mark.parametrize("batch", [1, 18])
def test_channels_side_by_side(always: None, masks: Any, batch: int) -> None:
    torch.manual_seed(0)
    model = Dense()
    agree(model, masks(model, 0.3), torch.randn(max(batch, 2), 2, 6, 6))
    assert "3 of 3 layers on the kernels" in report(model)
    model.eval()
    with torch.no_grad():
        x = torch.randn(batch, 2, 6, 6)
        torch.testing.assert_close(model(x), Dense.forward(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 19])
@pytest.mark.parametrize("stride", [1, 2])
def test_lines(always: None, masks: Any, batch: int, stride: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(3, 6, 5, stride, 2), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 6, 3, dilation=2, groups=3),
        nn.MaxPool1d(2), nn.Conv1d(6, 4, 4), nn.SiLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    model.train(batch > 1)

    agree(model, masks(model, 0.5), torch.randn(batch, 3, 33))
    assert "3 of 3 layers on the kernels" in report(model)


def drop_nets() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "rows": (nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Dropout(0.4), nn.Linear(9, 6), nn.Dropout()), (5, 7, 6)),
        "path": (nn.Sequential(nn.Linear(6, 9), DropPath(0.5), nn.LayerNorm(9), nn.Linear(9, 2)), (11, 3, 6)),
        "pictures": (
            nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(5, 4, 1),
                          nn.Dropout2d(0.5), nn.BatchNorm2d(4)), (9, 2, 6, 5),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("which", ["rows", "path", "pictures"])
@pytest.mark.parametrize("last", [False, True])
def test_the_same_seed_drops_the_same(always: None, masks: Any, which: str, last: bool) -> None:
    torch.manual_seed(0)
    model, shape = drop_nets()[which]
    sparse, x = masks(model, 0.3), torch.randn(shape)
    if last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    exact = copy.deepcopy(model).double()
    accelerate(model, sparse, x)
    assert "2 of 2 layers on the kernels" in report(model)
    results = []
    for net, dtype in ((copy.deepcopy(model), torch.float32), (model, torch.float32)):
        given = x.to(dtype).requires_grad_()
        torch.manual_seed(3)
        out = net(given)
        (out * torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)).sum().backward()
        after = torch.rand(())
        own = [p.grad * sparse.masks.get(n, 1) for n, p in net.named_parameters() if p.grad is not None]
        results.append([out.detach(), after, given.grad, *own, *net.buffers()])
    assert len(list(exact.parameters())) == len(own)
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert (results[0][0] == 0).any() or which != "rows"
    with torch.no_grad():  # nor without a graph
        torch.manual_seed(3)
        torch.testing.assert_close(model(x), results[0][0], rtol=1e-4, atol=1e-5)


class NotAPath(nn.Module):
    """A layer that calls itself DropPath and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


def test_a_drop_path_by_name_alone_is_followed_as_code(always: None, masks: Any) -> None:
    kind = type("MyDropPath", (NotAPath,), {})
    model = nn.Sequential(nn.Linear(4, 5), kind(), nn.Linear(5, 3))
    agree(model, masks(model, 0.2), torch.randn(9, 4))


class Two(nn.Module):
    """Inputs by name; one that torch.fx cannot follow, with parts that it can."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(3, 4)
        self.branches = branches

    def forward(self, x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> dict[str, Tensor]:
        if self.branches and x.sum() > 1e9:
            x = -x
        found = self.a(x) if y is None else self.a(x) + self.b(y)
        return {"out": scale * found}


@pytest.mark.parametrize("alone", [True, False])
def test_arguments_that_are_not_given_stay_at_their_defaults(always: None, masks: Any, alone: bool) -> None:
    torch.manual_seed(0)
    model, x, y = Two(False), torch.randn(9, 5), torch.randn(9, 3)
    sparse = masks(model, 0.4)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x if alone else {"x": x, "y": y})
    assert ("2 of 2 layers on the kernels" if alone else "3 of 3 layers on the kernels") in report(model)
    for args in ((x,), (x, y), (x, None), (x, y, 3.0), (x, None, 3.0)):
        torch.testing.assert_close(model(*args)["out"], plain(*args)["out"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("branches", [True, False])
def test_inputs_by_name(always: None, masks: Any, branches: bool) -> None:
    torch.manual_seed(0)
    model = Two(branches)
    sparse, example = masks(model, 0.4), {"x": torch.randn(9, 5), "y": torch.randn(9, 3)}
    plain = copy.deepcopy(model)
    accelerate(model, sparse, example)
    assert ("2 of 2 layers on the kernels" if branches else "3 of 3 layers on the kernels") in report(model)
    x, y = example.values()
    calls: list[Any] = [((), example), ((x,), {"y": y}), ((), {"x": x}), ((x,), {}), ((), {**example, "scale": 2.0})]
    for args, kwargs in calls:
        results = []
        for net in (plain, model):
            net.zero_grad()
            out = net(*args, **kwargs)["out"]
            out.square().sum().backward()
            results.append([out.detach(), net.a[0].weight.grad * sparse.masks["a.0.weight"]])
        for theirs, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Linear(5, 8), kind(8, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(x))[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("training", [True, False])
def test_a_recurrent_layer_is_an_edge_and_says_so(
    always: None, masks: Any, kind: Any, training: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind).train(training)
    sparse = masks(model, 0.5)
    for name in ("cell.weight_ih_l0", "cell.weight_hh_l0"):
        sparse.masks[name] = torch.rand_like(model.get_parameter(name)) > 0.5
        model.get_parameter(name).data.mul_(sparse.masks[name])
    with caplog.at_level("INFO", "zosam"):
        accelerate(copy.deepcopy(model), sparse.masks, torch.randn(4, 6, 5))
    assert "2 of 4 sparse layers on the kernels" in caplog.text
    assert f"not cell: {kind.__name__} is one call in torch, step after step" in caplog.text
    for name in ("cell.weight_ih_l0", "cell.weight_hh_l0"):
        del sparse.masks[name]  # their gradient is torch's, of all weights
    agree(model, sparse, torch.randn(4, 6, 5))


class Named(nn.Module):
    """Takes its inputs by name alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(3, 4)

    def forward(self, *, x: Tensor, y: Tensor) -> Tensor:
        return self.a(x) + self.b(y)


def test_inputs_that_have_no_place(always: None, masks: Any) -> None:
    model, example = Named(), {"x": torch.randn(9, 5), "y": torch.randn(9, 3)}
    accelerate(model, masks(model, 0.4), example)
    assert report(model).count("1 of 1 layers on the kernels") == 2
    torch.testing.assert_close(model(**example), Named.forward(model, **example))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("build", [UNet, Dense])
def test_what_is_not_finite_reaches_the_loss(always: None, masks: Any, build: Any, value: float) -> None:
    """Also where every weight is pruned."""
    model = build().eval()
    sparse, x = masks(model, 1.0), torch.randn(5, 2, 8, 8)
    accelerate(model, sparse, x)
    assert model(x).isfinite().all()
    x[3, 1, 4, 4] = value
    assert model(x).sum().isnan()
