"""What the kernel tests share: a stand-in for a sparsity, and a choice that always falls on the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zosam.kernels import build, choose


class FixedMasks:
    """Random masks on every convolution and linear layer; pruned weights are zero."""

    def __init__(self, model: nn.Module, sparsity: float, seed: int = 0) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.masks: dict[str, torch.Tensor] = {}
        self.weights: dict[str, nn.Parameter] = {}
        self.dense_next = False
        for name, module in model.named_modules():
            if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)):
                key = f"{name}.weight" if name else "weight"
                self.masks[key] = torch.rand(module.weight.shape, generator=noise) >= sparsity
                self.weights[key] = module.weight
                with torch.no_grad():
                    module.weight.mul_(self.masks[key])

    def needs_dense_gradient(self) -> bool:
        return self.dense_next


@pytest.fixture(autouse=True)
def _kernels_exist() -> None:
    if build.load() is None:
        pytest.skip("no sparse kernels on this machine")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice falls on the kernels."""
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)


@pytest.fixture
def masks() -> type[FixedMasks]:
    return FixedMasks
