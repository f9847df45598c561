"""The oracle of the kernel tests: float64 autograd, and how far torch's own float32 is from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from zosam.kernels import accelerate

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def error(got: Tensor, true: Tensor) -> float:
    return float((got.double() - true).norm())


def agree(
    model: nn.Module, sparse: Any, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None, slack: float = 1.0
) -> None:
    """Outputs, gradients and buffers as close to float64 as torch's own float32, within 2x (plus rounding).

    `slack` is how many times as far they may be, where sums cancel and little but rounding is left.
    """
    weigh = torch.linspace(-1, 1, 64, dtype=torch.float64)
    loss = loss or (lambda out: (out * weigh.to(out.dtype)[torch.arange(out.numel()) % 64].view(out.shape)).sum())
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    accelerate(model, sparse, x)
    results = []
    for net, dtype in ((exact, torch.float64), (plain, torch.float32), (model, torch.float32)):
        into = x.detach().clone().to(dtype).requires_grad_()
        out = net(into)
        loss(out).backward()
        tensors = {"out": out.detach(), "input": into.grad}
        tensors |= {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        tensors |= {name: b for name, b in net.named_buffers() if b.is_floating_point()}
        for name, mask in sparse.masks.items():
            if name in tensors:
                tensors[name] = tensors[name] * mask
        results.append(tensors)
    scale = max(1.0, *(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None))
    for name, true in results[0].items():
        assert true is not None
        ours, theirs = error(results[2][name], true), error(results[1][name], true)
        room = 4e-7 * (float(true.norm()) + scale * float(true.numel()) ** 0.5)
        assert ours <= slack * (2 * theirs + room), f"{name}: {ours:.2e}, torch {theirs:.2e}, norm {true.norm():.2e}"
        if name in sparse.masks:
            assert not results[2][name][~sparse.masks[name]].any()
