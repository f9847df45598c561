"""SynFlow: prune a little, score again, a hundred times, without looking at data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from zosam.sparse.prunable import candidates
from zosam.sparse.state import Masks
from zosam.sparse.static import ByLoss


class SynFlow(ByLoss):
    """Static: keep the largest |θ ∂R/∂θ|, R the flow of a one through |θ|, scored anew in 100 small rounds.

    R = 1ᵀ(∏|θ|)1: every parameter and buffer is replaced by its absolute value, the input by ones, and the outputs
    are summed. After round k of n a share (kept)^(k/n) is left. Tanaka et al., "Pruning neural networks without any
    data by iteratively conserving synaptic flow", NeurIPS 2020. `loss` is run once, forward only, to see what the
    model is called with. The published code works in single precision, which overflows in deep networks, and empties
    the 1 x 1 shortcuts of ResNets; here in double, and every layer keeps its best weight (`min_per_layer=1`).
    """

    min_per_layer: int = 1
    per_class: ClassVar[int] = 0  # it looks at the shape of a batch alone

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        rounds: int = 100,
        **settings: Any,
    ) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be 1 or more, not {rounds}")
        self.rounds = rounds
        super().__init__(model, optimizer, sparsity, **settings)

    def choose(self) -> Masks:
        inputs = self._ones()
        net = copy.deepcopy(self.model).cpu().double().eval()  # in double, which not every device has
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.abs_()
        weights = {c.name: c.weight for c in candidates(net) if c.name in self.weights}
        masks = {n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items()}
        for k in range(1, self.rounds + 1):
            share = k / self.rounds
            scores = {n: s.masked_fill(~masks[n], -1) for n, s in self._flow(net, weights, inputs).items()}
            masks = self.best(scores, self.counts_along(lambda size, kept, share=share: size * (kept / size) ** share))  # type: ignore[misc]
            for name, weight in weights.items():
                weight.mul_(masks[name])
        return {n: m.to(self.weights[n].device) for n, m in masks.items()}

    def _flow(self, net: nn.Module, weights: dict[str, nn.Parameter], inputs: tuple[Any, ...]) -> dict[str, Tensor]:
        device = next(iter(weights.values())).device
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            outputs = net(*inputs[0], **inputs[1])
            flow = torch.stack([o.sum() for o in tree_leaves(outputs) if _floating(o)]).sum()
            found = torch.autograd.grad(flow, list(weights.values()), allow_unused=True)
        scores = {
            n: torch.zeros_like(w) if g is None else (w.detach() * g).abs()
            for (n, w), g in zip(weights.items(), found, strict=True)
        }
        if not any(bool(s.any()) for s in scores.values()):
            raise FloatingPointError("SynFlow: nothing flows from the input to the output; nothing was pruned")
        return {n: self.finite(n, s) for n, s in scores.items()}

    def _ones(self) -> tuple[Any, ...]:
        """What the model is called with in `loss`: one sample of it, and ones in the place of numbers."""
        seen: list[tuple[Any, ...]] = []
        hook = self.model.register_forward_pre_hook(lambda m, a, kw: seen.append((a, kw)), with_kwargs=True)
        try:
            with self.scoring(), torch.no_grad():
                self.loss()
        finally:
            hook.remove()
        if not seen:
            raise ValueError("SynFlow: the loss does not call this model, so the shape of its input is unknown")

        def one(value: Any) -> Any:
            if _floating(value):
                return torch.ones_like(value[:1], dtype=torch.float64, device="cpu")
            return value.cpu() if isinstance(value, Tensor) else value

        whole: tuple[Any, ...] = tree_map(one, seen[0])
        return whole


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
