"""An exponential moving average of the weights that keeps a sparse network sparse."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from zosam import files


class Ema:
    """A second network beside the one that trains; each update moves it a little towards that one.

    W̄ ← decay W̄ + (1 - decay) W, as in `torch.optim.swa_utils`: the first update takes the weights as they are. Buffers
    such as BatchNorm's statistics are averaged with them, as in timm and SViTE; whole numbers are copied. Where a mask
    is 0 the average is exactly 0, so a weight that grows starts from 0.

    Make it before the network is made sparse or fast: what hooks those put there would be copied too.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of a moving average must be at least 0 and below 1, not {decay}")
        self.decay, self.updates = decay, 0
        self.network = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> None:
        """Take in the weights after a step; `masks` are those of now, by the name of the weight."""
        ours, theirs = _tensors(self.network), _tensors(model)
        pairs = [(ours[name], tensor) for name, tensor in theirs.items()]
        moving = [(a, b) for a, b in pairs if a.is_floating_point() and self.updates]
        if moving:
            torch._foreach_lerp_([a for a, _ in moving], [b for _, b in moving], 1 - self.decay)
        for average, tensor in pairs:
            if not average.is_floating_point() or not self.updates:
                average.copy_(tensor)
        for name, mask in (masks or {}).items():
            ours[name].mul_(mask)
        self.updates += 1

    def restart(self) -> None:
        """Forget what was averaged, as after a rewind: the next update takes the weights as they are."""
        self.updates = 0

    def save(self, path: Path) -> None:
        """Write the averaged network as a plain state_dict."""
        layout = torch.contiguous_format
        tensors = {n: t.cpu().clone(memory_format=layout) for n, t in self.network.state_dict().items()}
        files.write(path, save(tensors, {"format": "pt"}))

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "network": self.network.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.updates = int(state["updates"])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once."""
    return {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
