"""torch's own transformer layers, and linear layers whose weights belong to others, against float64 autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, report, restore

from .exact import agree


class AllMasks:
    """Random masks on every matrix; pruned weights are zero."""

    def __init__(self, model: nn.Module, sparsity: float) -> None:
        noise = torch.Generator().manual_seed(0)
        matrices = {n: p for n, p in model.named_parameters() if p.dim() == 2}
        self.masks = {n: torch.rand(p.shape, generator=noise) >= sparsity for n, p in matrices.items()}
        with torch.no_grad():
            for name, p in matrices.items():
                p.mul_(self.masks[name])

    def needs_dense_gradient(self) -> bool:
        return False


def encoder(**more: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 40, **{"dropout": 0.0, "batch_first": True, **more})
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(24), enable_nested_tensor=False)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder(always: None, batch_first: bool, norm_first: bool, activation: str, training: bool) -> None:
    model = encoder(batch_first=batch_first, norm_first=norm_first, activation=activation).train(training)
    agree(model, AllMasks(model, 0.7), torch.randn(3, 5, 24))
    assert sum(int(line.partition(": ")[2].partition(": ")[2][0]) for line in report(model).splitlines()) == 8


class Classifier(nn.Module):
    """A user's own network around layers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 24), nn.Linear(24, 3)
        self.layer = nn.TransformerEncoderLayer(24, 3, 40, dropout=0.0, batch_first=True)
        self.attend = nn.MultiheadAttention(24, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.embed(x))
        y, _ = self.attend(x, x, x, need_weights=False)
        return self.head((x + y).mean(1))


def test_inside_a_users_network(always: None) -> None:
    torch.manual_seed(0)
    model = Classifier()
    agree(model, AllMasks(model, 0.5), torch.randn(4, 7, 6))
    assert "layers on the kernels" in report(model)


@pytest.mark.parametrize("way", ["mask", "padding", "causal", "one sequence"])
def test_what_is_no_plain_use_goes_the_old_way(always: None, way: str) -> None:
    model = encoder()
    sparse, x = AllMasks(model, 0.7), torch.randn(3, 5, 24)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    given: dict[str, Any] = {
        "mask": {"mask": mask},
        "padding": {"src_key_padding_mask": torch.rand(3, 5) > 0.8},
        "causal": {"mask": mask, "is_causal": True},
        "one sequence": {},
    }[way]
    x = x[0] if way == "one sequence" else x
    torch.testing.assert_close(model(x, **given), plain(x, **given), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(x, **given), plain(torch.randn_like(x)))


def test_an_encoder_with_a_mask_still_has_layers_to_gain(always: None) -> None:
    """Attention with a mask is torch's, the linear layers behind it are not."""
    model, x = encoder(), torch.randn(3, 5, 24)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    sparse, plain = AllMasks(model, 0.7), copy.deepcopy(model)
    accelerate(model, sparse, {"src": x, "mask": mask})
    assert report(model).count("1 of 1 layers on the kernels") == 4
    torch.testing.assert_close(model(x, mask), plain(x, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_does_not_cut_and_the_same_seed_drops_the_same(
    always: None, batch_first: bool, norm_first: bool
) -> None:
    model = encoder(dropout=0.2, batch_first=batch_first, norm_first=norm_first)
    sparse, x = AllMasks(model, 0.7), torch.randn(3, 5, 24)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    gains = "2.0 times as fast training of 3, 2.0 times as fast forward of 3"
    assert f"4 of 4 layers on the kernels ({gains})" in report(model)
    results = []
    for net in (plain, model):
        torch.manual_seed(1)
        out = net(x)
        out.square().sum().backward()
        after = torch.rand(())
        results.append([out.detach(), after, *(p.grad for n, p in net.named_parameters() if n not in sparse.masks)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(model(x), results[0][0], atol=0.1)  # another draw


class Tied(nn.Module):
    """Weights that are used by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.weight = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.inner(x)), self.weight)


def test_weights_used_by_hand(always: None) -> None:
    torch.manual_seed(0)
    model = Tied()
    sparse = AllMasks(model, 0.5)
    agree(model, sparse, torch.randn(9, 6))
    assert "2 of 2 layers on the kernels" in report(model)
    model.weight = nn.Parameter(torch.randn(5, 8) * sparse.masks["weight"])
    x = torch.randn(9, 6)
    torch.testing.assert_close(model(x), restore(copy.deepcopy(model))(x), rtol=1e-4, atol=1e-5)
