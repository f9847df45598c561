"""Sharpness: how far the loss can rise within a small ball around the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from zosam.optim.coordinates import Coordinates


def sharpness(
    model: nn.Module,
    loss: Callable[[], Tensor],
    rho: float = 0.05,
    steps: int = 10,
    masks: Mapping[Tensor, Tensor] | None = None,
) -> float:
    """max L(θ+ε) − L(θ) over ‖ε‖ ≤ ρ, by projected gradient ascent from the gradient's own direction.

    `loss` returns the loss of the model as it stands, without random parts (eval mode). `masks` keeps ε on the
    active weights. The weights come back exactly.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    space = Coordinates(params, masks or {})
    home = space.read()
    offset, worst = torch.zeros_like(home), 0.0
    try:
        for step in range(steps + 1):
            with torch.no_grad():
                space.write(home + offset)
            with torch.enable_grad():
                value = loss()
                gradient = space.gather(torch.autograd.grad(value, params, allow_unused=True))
            if step == 0:
                start = value.item()
            worst = max(worst, value.item() - start)
            offset += rho * gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            offset *= rho / offset.norm().clamp_min(rho)
    finally:
        with torch.no_grad():
            space.write(home)
    return worst
