"""How masks are kept: hooks before and after each step of the base optimizer.

Before the step the gradient is still dense: the method may look at it and move its masks; then it is masked. After
the step the weights are masked.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.fsdp import local, shared_like, whole
from zosam.distributed.ranks import Ranks, current
from zosam.optim import travel
from zosam.optim.active import forget, mask_of, set_mask
from zosam.optim.base import SharpnessAware

Masks = dict[str, Tensor]


class MasksDiffer(RuntimeError):
    """The ranks of one training have different masks: it cannot go on."""


class Hold:
    """The part of a `Sparsity` that is bound to the optimizer."""

    dense_gradients: ClassVar[bool] = False  # the optimizer's state sees pruned weights too, and keeps it as they grow
    revives: ClassVar[bool] = False  # weights that come back bring a stored value and state, instead of zero

    weights: dict[str, nn.Parameter]
    masks: Masks
    steps: int
    watchers: list[Callable[[], None]]

    # --- what a method says ------------------------------------------------------------------------------------------

    def update(self) -> Masks | None:
        """New masks, looked for before a step while the gradient is still dense; None: leave them."""
        return None

    def takes_step(self, updated: bool) -> bool:
        """Whether the optimizer moves the weights in this step."""
        return True

    def needs_dense_gradient(self) -> bool:
        """Whether the coming step looks at the gradient of pruned weights."""
        return self.dense_gradients

    def mask_gradients(self) -> None:
        """Take away the gradient that the optimizer shall not see."""
        if not self.dense_gradients:
            self._mask({n: w.grad for n, w in self.weights.items()})

    def before_step(self) -> None:
        """The last change before the optimizer moves."""

    def after_step(self) -> None:
        """The first change after the optimizer has moved: pruned weights go back to zero."""
        self._mask({n: w.detach() for n, w in self.weights.items()})

    def replace(self, name: str, new: Tensor) -> None:
        """Set a mask: dropped weights go to zero, grown ones start at zero with clean optimizer state."""
        old, weight = self.masks[name], self.weights[name]
        new = shared_like(new, weight)
        lasting = old & new
        weight.mul_(lasting)
        if not self.dense_gradients:
            for state in self.state_of(weight):
                state.mul_(lasting)
        old.copy_(new)

    # --- what methods are made of ------------------------------------------------------------------------------------

    def commit(self, masks: Masks) -> None:
        """Take new masks; everything that may fail has been computed before."""
        for name, new in masks.items():
            self.replace(name, new)
        self._compare(masks)
        empty = [n for n, m in masks.items() if not bool(m.any())]
        if empty:
            warnings.warn(
                f"{type(self).__name__} has pruned all of {', '.join(empty)}: the network may be cut", stacklevel=3
            )
        for watcher in self.watchers:
            watcher()

    def state_of(self, weight: Tensor) -> list[Tensor]:
        """The optimizer's tensors of the weight's shape: momentum, second moments and what else there is."""
        state = self.optimizer.state.get(weight, {})
        return [s for s in state.values() if isinstance(s, Tensor) and s.shape == weight.shape]

    def setting(self, weight: Tensor, key: str) -> float:
        """A setting of the optimizer for this weight, such as `lr`; 0 where it has none."""
        return next(
            float(g.get(key, 0.0)) for g in self.optimizer.param_groups if any(p is weight for p in g["params"])
        )

    @property
    def sharpness(self) -> SharpnessAware | None:
        """The sharpness-aware optimizer around this one, whichever was made first."""
        return next(iter(travel.riders(self.optimizer, "sharpness_aware")), None)

    @property
    def ranks(self) -> Ranks:
        """The processes that keep these masks together."""
        wrapper = self.sharpness
        return current() if wrapper is None else wrapper.ranks

    def averaged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over all ranks, signs and all: what a score must be made of."""
        return {n: self.ranks.mean(t.detach(), "scores") for n, t in tensors.items()}

    def release(self) -> None:
        """Let go of the optimizer: masks are no longer kept."""
        for hook in self._hooks:
            hook.remove()
        travel.leave(self.optimizer, self._rider())
        for weight in self.weights.values():
            forget(weight)

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _bind(self, optimizer: Optimizer) -> None:
        """Find the base optimizer, and see that it holds these weights and nobody else masks them."""
        self.optimizer: Optimizer = optimizer.base if isinstance(optimizer, SharpnessAware) else optimizer
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [n for n, w in self.weights.items() if id(w) not in held]
        if missing:
            raise ValueError(
                f"the optimizer does not hold {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}:"
                " it must be made from the parameters of this very model"
            )
        taken = [n for n, w in self.weights.items() if mask_of(w) is not None]
        if taken:
            raise ValueError(
                f"another method keeps {taken[0]} sparse already{f', and {len(taken) - 1} more' if taken[1:] else ''}:"
                " release() that one first"
            )

    def _rider(self) -> travel.Rider:
        raise NotImplementedError

    def _hold(self) -> None:
        self._hooks: list[Any] = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ]
        for name, weight in self.weights.items():
            set_mask(weight, self.masks[name])
        travel.board(self.optimizer, "sparsity", self._rider())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hooks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold()  # torch drops the hooks of an optimizer that is copied

    def _compare(self, new: Masks) -> None:
        """Stop if some rank has other masks than the rest."""
        if self.ranks.world == 1:
            return
        device = next(iter(self.weights.values())).device
        found = [zlib.crc32(whole(new[n]).cpu().contiguous().numpy().data) if n in new else 0 for n in self.masks]
        sums = torch.tensor(found, device=device)
        highest, lowest = self.ranks.max(torch.stack([sums, -sums]), "masks").unbind()
        differ = [n for n, other in zip(self.masks, (highest != -lowest).tolist(), strict=True) if other]
        if differ:
            raise MasksDiffer(
                f"{type(self).__name__}, step {self.steps}: ranks have different masks for {', '.join(differ[:5])}"
                f"{' ...' if len(differ) > 5 else ''}; they must start from the same weights and seed, and see averaged"
                " gradients: wrap the model in DistributedDataParallel before it is made sparse"
            )

    def _mask(self, tensors: Mapping[str, Tensor | None]) -> None:
        present = [(local(t), local(self.masks[n])) for n, t in tensors.items() if t is not None]
        if present:  # a product with bytes is several times faster than one with bools
            torch._foreach_mul_([t for t, _ in present], [m.view(torch.uint8) for _, m in present])

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._rehearsal = travel.is_rehearsal(optimizer)
        if self._rehearsal:
            return None
        args, kwargs = _with_loss_known(args, kwargs)
        looks = self.needs_dense_gradient()
        if not looks:  # sparse kernels do not compute it then: nothing may depend on it
            self.mask_gradients()
        new = self.update()
        if new is not None:
            self.commit(new)
        if looks or new is not None:
            self.mask_gradients()
        self.before_step()
        if not self.takes_step(updated=new is not None):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
        self.steps += 1
        return args, kwargs

    @torch.no_grad()
    def _after(self, *_: object) -> None:
        if not self._rehearsal:
            self.after_step()


def _with_loss_known(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure of a plain torch optimizer now, so that the hook sees this step's gradient and not the last's."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (args[0], lambda: loss), {k: v for k, v in kwargs.items() if k != "closure"}
