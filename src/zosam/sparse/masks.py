"""How masks are kept: by hooks on the gradients of the weights, and before and after each step of the optimizer.

A gradient is masked as it comes, so what is measured or clipped before the step is what the optimizer will use; where
an update looks at all of it, it is kept aside, or nothing of it is used. Before the step masks may move: weights that
are dropped take the step once more, weights that are grown wait for the next. After the step weights are masked.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.distributed.fsdp import any_sharded, local, shared_like
from zosam.distributed.ranks import Ranks, current
from zosam.optim import state_hooks
from zosam.optim.base import SharpnessAware
from zosam.optim.masked import forget, set_mask
from zosam.optim.snapshot import Written
from zosam.optim.vector import came_masked, know_zeros
from zosam.sparse.base_optimizers import bases, unscaled, with_loss_known
from zosam.sparse.dense_gradients import DenseGradients
from zosam.sparse.state import Masks, MaskState, SavedPart


class MaskHooks(MaskState):
    """The part of a `Sparsity` that is bound to weights and optimizers."""

    dense_gradients: ClassVar[bool] = False  # the optimizer's state sees pruned weights too, and keeps it as they grow
    revives: ClassVar[bool] = False  # weights that come back bring a stored value and state, instead of zero
    update_reads_gradient: ClassVar[bool] = False  # updates may ask for `gradient`: the dense one must be computed
    at_start: ClassVar[bool] = True  # whether step 0 may change the masks as well
    every: int = 1  # steps from one update to the next
    end: float = math.inf  # the step from which on the masks stay
    steps_after_update: ClassVar[bool] = True  # the optimizer moves the weights also where the masks have just changed

    # --- what a method says ------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether the masks may change at this step: then, before it, the method is asked for an `update`."""
        return self.steps % self.every == 0 and self.steps < self.end and (self.steps > 0 or self.at_start)

    def update(self) -> Masks | None:
        """New masks, before a step at which they are due; None: leave them. Layers that are not among them stay."""
        return None

    def update_needs_gradient(self) -> bool:
        """Whether the coming `update` asks for `gradient`, that of pruned weights included."""
        return self.update_reads_gradient and self.due()

    def needs_dense_gradient(self) -> bool:
        """Whether the gradient of pruned weights must be computed for the coming step."""
        return self.dense_gradients or self.update_needs_gradient()

    def gradient_wanted(self, name: str) -> Tensor | None:
        """Where the coming step looks at the gradient of a layer, if it looks at pruned weights; None: everywhere."""
        return None

    def gradient_mask(self, name: str) -> Tensor | None:
        """Where the optimizer sees the gradient of a layer; None: everywhere."""
        return None if self.dense_gradients else self.masks[name]

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """The last change before an optimizer moves these weights."""

    def settle(self, weights: Mapping[str, Tensor]) -> None:
        """The first change after an optimizer has moved these weights: pruned ones go back to zero."""
        self._multiply([(w.detach(), self.masks[n]) for n, w in weights.items()])

    def after_step(self) -> None:
        """What a method does once all its weights have moved."""

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
        raise NotImplementedError

    def state_of(self, weight: Tensor) -> list[Tensor]:
        """The optimizer's tensors of the weight's shape: momentum, second moments and what else there is."""
        found = (o.state.get(weight, {}) for o in self.optimizers)
        return [s for state in found for s in state.values() if isinstance(s, Tensor) and s.shape == weight.shape]

    @property
    def optimizer(self) -> Optimizer:
        """The base optimizer; of several, the one that steps first."""
        return self.optimizers[0]

    @property
    def sharpness(self) -> SharpnessAware | None:
        """The sharpness-aware optimizer around it, whichever was made first."""
        return self._registers[0].wrapper  # type: ignore[no-any-return]

    @property
    def ranks(self) -> Ranks:
        """The processes that keep these masks together."""
        wrapper = self.sharpness
        return current() if wrapper is None else wrapper.ranks

    def release(self) -> None:
        """Let go of weights and optimizer: masks are no longer kept, and what is zero may grow."""
        for hook in self._hooks:
            hook.remove()
        for (optimizer, part), register in zip(self._parts.items(), self._registers, strict=True):
            register.remove(part)
            if not register.is_masked():
                optimizer.defaults = dict(optimizer.defaults)
        for weight in self.weights.values():
            forget(weight)

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _bind(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        """Find the base optimizers, and see that they hold these weights and nobody else masks them."""
        self.optimizers: list[Optimizer] = bases(optimizers, self.weights)
        self._registers = [state_hooks.register(optimizer) for optimizer in self.optimizers]

    def _hold(self) -> None:
        self._held_in_parts = any_sharded(self.weights.values())
        self._hooks: list[Any] = []
        self._parts = {optimizer: SavedPart(self, optimizer) for optimizer in self.optimizers}
        self._watched: SharpnessAware | None = None  # the wrapper whose steps we know of
        self._checked = False  # the weights were, before this step
        self._rehearsal = self._begun = self._open = False  # a step that does not count, the first, one under way
        self._clean: dict[str, tuple[weakref.ref[Tensor], int, bool]] = {}  # gradients as they were masked, or came so
        self._came_so: list[str] = []  # of those that this step takes
        self._dense = DenseGradients(self.weights, self.masks)
        self._moved: list[str] = []  # layers whose masks have moved in this step
        for optimizer, register in zip(self.optimizers, self._registers, strict=True):
            self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))
            register.add("sparsity", self._parts[optimizer])
            optimizer.defaults = state_hooks.Masked(optimizer.defaults)
        for name, weight in self.weights.items():
            set_mask(weight, self.masks[name])
            self._hooks.append(weight.register_post_accumulate_grad_hook(partial(self._accumulated, name)))
        kept = () if self._held_in_parts else self.masks.values()  # as bytes: to view them takes as long as a product
        self._bytes = {id(m): (m, m.view(torch.uint8)) for m in kept}
        self._written = Written(self.model, self.weights, self.masks)
        self._watch()

    def __getstate__(self) -> dict[str, Any]:
        made = {"_registers", "_hooks", "_parts", "_watched", "_clean", "_dense", "_written", "_bytes"}
        return {k: v for k, v in self.__dict__.items() if k not in made} | {"_unpruned": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._registers = [state_hooks.register(optimizer) for optimizer in self.optimizers]
        self._hold()  # torch drops the hooks of an optimizer that is copied

    # --- gradients ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _accumulated(self, name: str, weight: Tensor) -> None:
        """A gradient has come."""
        gradient = weight.grad
        if gradient is None or gradient.requires_grad:
            return
        if self.update_needs_gradient():
            known, version, _ = self._clean.get(name, (None, -1, False))
            self._see(name, adds=known is not None and known() is gradient and gradient._version <= version + 1)
            if not self.steps_after_update:
                return
        mask = self.gradient_mask(name)
        if mask is not None:
            came_so = mask is self.masks[name] and came_masked(weight, gradient)
            self._multiply([] if came_so else [(gradient, mask)])
            self._clean[name] = (weakref.ref(gradient), gradient._version, came_so)

    def _see(self, name: str, adds: bool) -> None:
        """A gradient has come that the coming update looks at; `adds`: to what was masked since it came."""
        if self.steps_after_update:
            self._dense.keep(name, adds)

    def _mask_gradients(self) -> None:
        pairs: list[tuple[Tensor, Tensor]] = []
        clean, self._clean, self._came_so = self._clean, {}, []
        for name, weight in self.weights.items():
            gradient, mask = weight.grad, self.gradient_mask(name)
            if gradient is None or mask is None:
                continue
            if name not in clean or clean[name][0]() is not gradient or clean[name][1] != gradient._version:
                pairs.append((gradient, mask))
            elif clean[name][2]:
                self._came_so.append(name)
        self._multiply(pairs)

    def _multiply(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Mask each tensor; a product with bytes is several times faster than one with bools."""
        if self._held_in_parts:
            pairs = [(local(t), local(m)) for t, m in pairs]
        masks = [self._bytes[id(m)][1] if id(m) in self._bytes else m.view(torch.uint8) for _, m in pairs]
        if masks:
            torch._foreach_mul_([t for t, _ in pairs], masks)

    # --- weights -----------------------------------------------------------------------------------------------------

    def is_as_made(self, name: str) -> bool:
        return name in self._unpruned and self._written.same(name)

    def _watch(self) -> None:
        """Look at the weights before a sharpness-aware step moves them about."""
        wrapper = self.sharpness
        if wrapper is not None and wrapper is not self._watched:
            self._hooks.append(wrapper.register_step_pre_hook(self._look_ahead))
            self._watched = wrapper

    def _look_ahead(self, *_: object) -> None:
        self._zero_stray_weights()
        self._checked = True

    @torch.no_grad()
    def _zero_stray_weights(self) -> None:
        """Say so, and mask them, if somebody else has given pruned weights values since the last step."""
        if not self.optimizer.state and state_hooks.is_rehearsal(self.optimizer):
            return
        if wrong := self._written.not_zero(self._written.changed(waits=self.due())):
            self._written.say_that_they_are_not_zero(type(self).__name__, wrong)
            MaskHooks.settle(self, self.weights)
        elif self._unpruned:
            self._say_if_fresh()
        self._unpruned = {}
        self._written.say_if_replaced(type(self).__name__)

    # --- steps -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rehearsal = not optimizer.state and state_hooks.is_rehearsal(optimizer)
        self._rehearsal = rehearsal or (hasattr(optimizer, "found_inf") and not unscaled(optimizer))
        if self._rehearsal:
            return None
        args, kwargs = with_loss_known(args, kwargs) if len(args) > 1 or kwargs else (args, kwargs)
        if optimizer is self.optimizers[0]:
            self._lead()
        elif not self._begun:
            raise RuntimeError(
                f"{type(self).__name__}: step the optimizers one after the other in the order given, the"
                f" {type(self.optimizer).__name__} of {', '.join(self._parts[self.optimizer].weights)} first"
            )
        self.before_step(self._parts[optimizer].weights)
        return args, kwargs

    def _lead(self) -> None:
        if self._open:  # the last of several optimizers has not stepped since
            self.after_step()
        self._watch()
        if not self._checked:
            self._zero_stray_weights()
        self._checked = False
        needs_gradient = self.update_needs_gradient()
        if needs_gradient and self.steps_after_update:
            self._dense.keep_others()
        if not needs_gradient or self.steps_after_update:  # kernels do not compute the rest: nothing may depend on it
            self._mask_gradients()
        new = self.update() if self.due() else None
        self._dense.kept.clear()
        self._moved = list(new or ())
        if new is not None:
            self.commit(new)
        if new is not None and not self.steps_after_update:
            for p in (p for o in self.optimizers for group in o.param_groups for p in group["params"]):
                p.grad = None
        self.steps += 1
        self._begun = self._open = True

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: object) -> None:
        if self._rehearsal:
            return
        held = self._parts[optimizer].weights
        self.settle(held)
        if not self.dense_gradients:
            for state, mask in ((s, self.masks[n]) for n in self._moved if n in held for s in self.state_of(held[n])):
                state.mul_(mask)  # what was dropped before the step has taken it
        if optimizer is not self.optimizers[-1]:
            return
        if self._open:
            self.after_step()
        known, self._came_so = self._came_so, []  # of others a gradient may have been infinite, and zero times that
        know_zeros(self.weights[n] for n in known)
        self._written.note()
        self._open = False
