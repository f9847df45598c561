"""A model kept sparse: masks bound in place to its weights, kept by hooks on the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.names import find
from zosam.optim.base import SharpnessAware
from zosam.sparse.budgets import BUDGETS, Budget
from zosam.sparse.layers import prunable, select
from zosam.stream import stream

Masks = dict[str, Tensor]


class Sparsity:
    """Masks on the convolutions and linear layers of any model; pruned weights are exactly zero, always.

    No module is replaced and no key renamed: the model's `state_dict` stays plain. Before each step of the base
    optimizer the gradient is still dense, then it is masked; after it the weights are masked. `sparsity` is the
    share of zeros over all prunable weights, those of layers kept dense included.

    A subclass says which weights to keep: `choose` once, and a dynamic method `update` between steps.
    """

    budget: ClassVar[str] = "erk"  # how layers share the budget, unless told
    dense: ClassVar[tuple[str, ...]] = ()  # layers kept dense, unless told
    dense_gradients: ClassVar[bool] = False  # whether the optimizer's state shall see the gradient of pruned weights

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.9,
        *,
        budget: str | Budget | None = None,
        dense: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, not {sparsity}")
        self.model, self.target, self.seed, self.steps = model, sparsity, seed, 0
        self.optimizer = optimizer.base if isinstance(optimizer, SharpnessAware) else optimizer
        found = prunable(model)
        found = {n: w for n, w in found.items() if n not in select(found, exclude)} if exclude else found
        self._check(found)
        kept = select(found, self.dense if dense is None else dense)
        self.kept_dense = {n: w for n, w in found.items() if n in kept}
        self.weights = {n: w for n, w in found.items() if n not in kept}
        self.active = self._active()
        self.counts = self._counts(self.budget if budget is None else budget)
        self.masks: Masks = {n: torch.ones_like(w, dtype=torch.bool) for n, w in self.weights.items()}
        with torch.no_grad():
            self._commit(self.choose())
        if isinstance(optimizer, SharpnessAware):
            optimizer.masks.update({w: self.masks[n] for n, w in self.weights.items()})
        self._hold()

    # --- what a method says --------------------------------------------------------------------------------------

    def choose(self) -> Masks:
        """The masks to start with."""
        raise NotImplementedError(f"{type(self).__name__} does not say which weights to keep")

    def update(self) -> Masks | None:
        """New masks, looked for before a step while the gradient is still dense; None: leave them."""
        return None

    def takes_step(self, updated: bool) -> bool:
        """Whether the optimizer moves the weights in this step."""
        return True

    def needs_dense_gradient(self) -> bool:
        """Whether the coming step looks at the gradient of pruned weights."""
        return self.dense_gradients

    def extra_state(self) -> dict[str, Any]:
        """What else a method must save: numbers and tensors."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None: ...

    # --- what users ask ------------------------------------------------------------------------------------------

    @property
    def sparsity(self) -> float:
        """The share of zeros over all prunable weights, as it is now."""
        total = sum(w.numel() for w in (*self.weights.values(), *self.kept_dense.values()))
        return sum(int((~m).sum()) for m in self.masks.values()) / total

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "masks": {n: m.clone() for n, m in self.masks.items()}, **self.extra_state()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take masks and method state; those of another model are refused, and nothing is changed."""
        masks = state["masks"]
        theirs = {n: tuple(m.shape) for n, m in masks.items()}
        ours = {n: tuple(m.shape) for n, m in self.masks.items()}
        if theirs != ours:
            other = sorted(n for n in {*theirs, *ours} if theirs.get(n) != ours.get(n))
            raise ValueError(f"these masks belong to another model or setting: {', '.join(other[:5])} differ")
        self.steps = int(state["steps"])
        self.load_extra_state({k: v for k, v in state.items() if k not in {"steps", "masks"}})
        for name, mask in self.masks.items():
            mask.copy_(masks[name])
        self._mask(self.weights)

    def release(self) -> None:
        """Let go of the optimizer: masks are no longer kept."""
        for hook in self._hooks:
            hook.remove()

    def __str__(self) -> str:
        rows = [("layer", "shape", "active", "of", "density")]
        for name, weight in self.weights.items():
            active = int(self.masks[name].sum())
            rows.append((name, "x".join(map(str, weight.shape)), f"{active:,}", f"{weight.numel():,}",
                         f"{active / weight.numel():.1%}"))  # fmt: skip
        for name, weight in self.kept_dense.items():
            n = weight.numel()
            rows.append((name, "x".join(map(str, weight.shape)), f"{n:,}", f"{n:,}", "kept dense"))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
                 for row in rows]  # fmt: skip
        masked = sum(w.numel() for w in self.weights.values())
        zeros = sum(int((~m).sum()) for m in self.masks.values())
        head = f"{type(self).__name__}: {self.sparsity:.2%} of all prunable weights are zero"
        return "\n".join([head + (f" ({zeros / masked:.2%} of the masked ones)" if self.kept_dense else ""), *lines])

    # --- how it is done ------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        self._hooks = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hooks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold()  # torch drops the hooks of an optimizer that is copied

    def stream(self, name: str = "") -> torch.Generator:
        """A private random stream for this step and layer."""
        device = next(iter(self.weights.values())).device
        return stream(device, "mask", self.seed, self.steps, name)

    def _check(self, found: dict[str, nn.Parameter]) -> None:
        if not found:
            raise ValueError("this model has nothing to prune: no convolution, linear layer or attention projection")
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [n for n, w in found.items() if id(w) not in held and w.requires_grad]
        if missing:
            raise ValueError(
                f"the optimizer does not hold {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}:"
                " it must be made from the parameters of this very model"
            )

    def _active(self) -> int:
        """How many weights the masked layers may keep in all."""
        whole = sum(w.numel() for w in self.kept_dense.values())
        masked = sum(w.numel() for w in self.weights.values())
        active = round((1 - self.target) * (whole + masked)) - whole
        if not 0 < active <= masked:
            raise ValueError(
                f"sparsity {self.target} cannot be reached: the layers kept dense leave {max(active, 0):,} of"
                f" {masked:,} weights for the others; lower it or keep fewer layers dense"
            )
        return active

    def _counts(self, rule: str | Budget) -> dict[str, int]:
        """How many weights each layer keeps; nothing is fixed where all layers compete (`"global"`)."""
        if rule == "global":
            return {}
        budget = find({**BUDGETS, "global": None}, rule, "budget") if isinstance(rule, str) else rule
        assert budget is not None
        counts = budget({n: tuple(w.shape) for n, w in self.weights.items()}, self.active)
        empty = [n for n, count in counts.items() if count == 0]
        if empty:
            raise ValueError(f"sparsity {self.target} leaves no weight in {', '.join(empty)}; lower it or exclude them")
        return counts

    def _commit(self, masks: Masks) -> None:
        """Take new masks: dropped weights go to zero, grown ones start at zero with clean optimizer state."""
        for name, new in masks.items():
            old, weight = self.masks[name], self.weights[name]
            lasting = old & new
            weight.mul_(lasting)
            for state in self._state_of(weight):
                state.mul_(lasting)
            old.copy_(new)

    def _state_of(self, weight: Tensor) -> list[Tensor]:
        state = self.optimizer.state.get(weight, {})
        return [s for s in state.values() if isinstance(s, Tensor) and s.shape == weight.shape]

    def _mask(self, tensors: Mapping[str, Tensor | None]) -> None:
        present = [(t, self.masks[n]) for n, t in tensors.items() if t is not None]
        if present:
            torch._foreach_mul_([t for t, _ in present], [m for _, m in present])

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _with_loss_known(args, kwargs)
        new = self.update()
        if new is not None:
            self._commit(new)
        if not self.dense_gradients:
            self._mask({n: w.grad for n, w in self.weights.items()})
        if not self.takes_step(updated=new is not None):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
        self.steps += 1
        return args, kwargs

    @torch.no_grad()
    def _after(self, *_: object) -> None:
        self._mask({n: w.detach() for n, w in self.weights.items()})


def _with_loss_known(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure of a plain torch optimizer now, so that the hook sees this step's gradient and not the last's."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (args[0], lambda: loss), {k: v for k, v in kwargs.items() if k != "closure"}
