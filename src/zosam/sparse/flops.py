"""What a sparse network costs: operations of inference and of a training step, layer by layer.

Dense counts come from `torch.utils.flop_counter` (two per multiply-add) and are scaled by density. A backward pass
costs two forwards, one for the gradient of the inputs and one for that of the weights, as in the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from zosam.optim.passes import Passes


@dataclass(frozen=True)
class Flops:
    """Operations for one input: `inference`, and `training` for a step of this optimizer and method."""

    layers: Mapping[str, float]  # of the forward pass, were the layer dense
    other: float  # of the forward pass, outside the prunable layers: attention scores and the like
    density: Mapping[str, float]
    gradient_density: Mapping[str, float]  # of the weight gradient that the optimizer or the method looks at
    forward: float = 1.0  # passes per step, on average
    backward: float = 1.0

    @property
    def inference(self) -> float:
        return self.other + self._sum(self.density)

    @property
    def training(self) -> float:
        """Every pass at the network's density; once a step, the weight gradient at its own."""
        looked_at = self._sum(self.gradient_density) - self._sum(self.density)
        return (self.forward + 2 * self.backward) * self.inference + looked_at

    @property
    def dense_inference(self) -> float:
        return self.other + sum(self.layers.values())

    @property
    def dense_training(self) -> float:
        """A step of the dense network with as many passes."""
        return (self.forward + 2 * self.backward) * self.dense_inference

    def _sum(self, density: Mapping[str, float]) -> float:
        return sum(f * density[n] for n, f in self.layers.items())

    def __str__(self) -> str:
        return (
            f"inference {self.inference:.3g} of {self.dense_inference:.3g} FLOPs"
            f" ({self.inference / self.dense_inference:.1%}), a training step {self.training:.3g} of"
            f" {self.dense_training:.3g} ({self.training / self.dense_training:.1%}), in"
            f" {self.forward:g} forward and {self.backward:g} backward passes"
        )


def layer_flops(model: nn.Module, weights: Mapping[str, Tensor], *inputs: Any) -> tuple[dict[str, float], float]:
    """The dense operations of a forward pass: by weight, and the rest; the model stays as it is."""

    def forward() -> Tensor:
        model(*inputs)
        return torch.zeros(())

    counter = _ByWeight(weights)
    passes = Passes(lambda: list(model.parameters()))
    # fused attention, which is also what no_grad takes, is not counted
    with passes.without_traces(), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        forward()
    return counter.layers, counter.other


class _ByWeight(TorchDispatchMode):
    """Counts operations as they run, under the name of the weight whose memory they read."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {w.untyped_storage().data_ptr(): n for n, w in weights.items()}
        self.layers, self.other = dict.fromkeys(weights, 0.0), 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            with self:  # an operation made of others: look at those
                parts = func.decompose(*args, **kwargs) if func is not torch.ops.prim.device.default else NotImplemented
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if count is not None:
            self._add(count(*args, **kwargs, out_val=out), (args, kwargs))
        return out

    def _add(self, flops: float, operands: Any) -> None:
        for operand in tree_leaves(operands):
            name = self.names.get(operand.untyped_storage().data_ptr()) if isinstance(operand, Tensor) else None
            if name is not None:
                self.layers[name] += flops
                return
        self.other += flops
