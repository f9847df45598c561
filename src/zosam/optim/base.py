"""The base of every sharpness-aware optimizer: a step as a transaction around any torch optimizer."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, overload
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim import guards, state_hooks
from zosam.optim.ascent import check_rho
from zosam.optim.passes import Closure, Keep
from zosam.optim.saved import Saved
from zosam.optim.scale import Metric, Scale
from zosam.optim.scaling import Scaling
from zosam.optim.schedules import Schedule
from zosam.optim.snapshot import Snapshot


class SharpnessAware(Saved):
    """A torch optimizer around another: climb to a nearby point, take the gradient there, let the base step.

    It shares the base's `param_groups` and `state`, so schedulers and checkpoints see one optimizer. `rho`, how far to
    climb, lies in the groups as a number; a schedule writes it there before each step. A method says where to climb
    (`climb`) and, if it changes the gradient found there, which one to hand down (`descend`).

        optimizer.step(closure)                  # the closure returns the loss; with or without backward inside

        optimizer.ascend(closure)                # the two-phase form, for loops that own forward and backward
        loss(model(x), y).backward()
        optimizer.step()

    A step is all or nothing: an exception, a loss that is not finite or Ctrl-C in the closure leaves weights,
    buffers and random streams as they were. Of all passes of a step the first full one with a gradient counts:
    it moves BatchNorm statistics and random streams, and its loss is returned. Where `torch.distributed` is up, the
    ranks take the step that one process would take on their joined batch, in DistributedDataParallel or fully_shard.
    """

    _ascended: bool  # `ascend` was called, and its step is awaited
    _climbed: bool  # and rho was above 0
    _ascent: Tensor | None  # the offset that it has climbed
    _statistics: Snapshot | None  # buffers as its pass that counts has left them
    _left: dict[int, tuple[ref[Tensor] | None, int]] | None  # gradients, as our last step has left them
    matters: ClassVar[float] = 1e-5  # a perturbation shorter than this share of the weights' length changes nothing

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        scale: Metric | Scale | None = None,
        seed: int = 0,
    ) -> None:
        bare = isinstance(base, Optimizer) and state_hooks.unwrapped(base) is base
        if not bare or isinstance(base, (SharpnessAware, torch.optim.LBFGS)):
            guards.refuse_base(type(self).__name__, type(base).__name__)
        self.base, self.seed, self.steps = base, seed, 0
        self.scale = scale if isinstance(scale, Scale) else Scale(scale)
        self.schedule = rho if callable(rho) else None
        self.diagnostics = None  # set it to {} to find each step's figures there
        self.keep: Keep | None = None  # the samples that the pass at the displaced point takes; None: all
        self.gathers = False  # set by whoever gathers micro-batches as they must be
        self._ranks = None
        self._start_afresh()
        # the way torch itself makes an optimizer that registers no parameters of its own
        Optimizer.__setstate__(self, {"defaults": base.defaults})
        self._put_rho_into_groups(rho)
        state_hooks.register(base).wrap(self)

    # --- what a method says ------------------------------------------------------------------------------------------

    def climb(self, closure: Closure) -> Tensor | None:
        """Where to go, over the active weights, for rho = 1: `along_gradient` or `along` something; None: stay."""
        raise NotImplementedError(f"{type(self).__name__} does not say where to climb")

    def descend(self) -> None:
        """Change, in `p.grad`, the gradient taken at the displaced point before the base uses it."""

    def passes_per_step(self) -> dict[str, float]:
        """The forward and backward passes of a step, on average: what the method promises to cost."""
        return {"forward": 1.0, "backward": 1.0}

    # --- a step ------------------------------------------------------------------------------------------------------

    @overload  # type: ignore[override]
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Closure) -> Tensor: ...
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:
        """One step; with a closure all of it, without one the end of what `ascend` began.

        After `ascend`, a closure is one more micro-batch, gathered at the point climbed to.
        """
        if closure is None or self._ascended:
            return self._finish(closure)
        if strange := self._strange_gradients():
            guards.refuse_gathered(strange)
        if "accelerate.state" in sys.modules and not self.gathers:
            guards.refuse_skipped_micro_batches()
        with self._transaction():
            if any(self._set_rho()):
                self.update(closure)
            else:  # at rho = 0 every method is its base optimizer, to the bit
                self.gradient(closure)
            loss = self._passes.mean_loss
        self._step_base()
        return loss

    def update(self, closure: Closure) -> None:
        """Leave in `p.grad` what the base shall use."""
        direction = self.climb(closure)
        self._go(direction)
        loss = self.gradient(closure, self.keep)
        self._perturbation.restore()
        if direction is not None and self.diagnostics is not None:
            self.note("cosine", self.active.cosine(direction, self.grads()))
            if loss is not self._passes.loss and self.keep is None:  # there was a clean pass before, at θ
                self.note("loss_rise", loss.mean() - self._passes.loss.mean())
        self.descend()

    @torch.no_grad()
    def ascend(
        self, closure: Closure, *, stay: bool = True, scaler: torch.amp.GradScaler | None = None, share: float = 1.0
    ) -> Keep | None:
        """Climb, and stay there until `step()` or `restore()`; random streams and BatchNorm do not notice.

        - `stay`: whether the weights stay at the point climbed to, with gradients cleared, for the pass that follows.
          Without, they are as they were, and each of several micro-batches goes there: `with optimizer.perturbed()`.
        - `scaler`: the GradScaler of a loop in half precision, for a closure that does not scale its loss itself.
        - `share`: by which the closure multiplies its loss, such as 1/4 if it divides by four micro-batches.

        Returns which samples the method wants in that pass; None: all of them.
        """
        state_hooks.refuse_without_masks(self)
        grads = [p.grad for p in self._parameters()]
        with self._transaction(), Scaling() as scaling:
            self._share, self._scaling = share, scaling
            self._climbed, direction = any(self._set_rho()), None
            try:
                direction = self.climb(scaling.scaled(closure, scaler)) if self._climbed else None
            except FloatingPointError:
                if scaling.scaler is None:
                    raise
            if scaling.scaler is not None and (direction is None or not bool(direction.isfinite().all())):
                self._climbed, direction = False, None  # the loss was scaled too far: the scaler will skip this step
            self._ascent = None if direction is None else self.offset(direction)
            self._statistics = self._passes.take() if stay and self._passes.counted else None
            self._passes.begin_again()
            self._ascended = True
            self._go(direction)
            if not stay:
                self._perturbation.restore()
        for p, g in zip(self._parameters(), grads, strict=True):
            p.grad = None if stay else g
        if self._statistics is not None:
            self._statistics.note_versions()
        return self.keep

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Be at the point that `ascend(closure, stay=False)` has found, for one micro-batch; then back."""
        if not self._ascended:
            raise RuntimeError("nothing was climbed: call optimizer.ascend(closure, stay=False) first")
        with torch.no_grad():
            if self._ascent is not None and not self.is_displaced:
                self._perturbation.add(self.active, self._ascent)
        try:
            yield
        finally:
            with torch.no_grad():
                self._perturbation.restore()

    @torch.no_grad()
    def restore(self) -> None:
        """Bring displaced weights back, bit for bit, and give the ascent up; does nothing where there is none.

        A parameter that somebody else has written since, such as a loaded checkpoint, is left as it is.
        """
        self._perturbation.restore()
        self._perturbation.forget_last()
        self._ascended = self._climbed = False
        self._ascent = self._statistics = None

    @property
    def ascended(self) -> bool:
        """Whether `ascend` was called and `step()` has yet to follow."""
        return self._ascended

    # --- one optimizer with the base ---------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.base.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        return self.base.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.restore()
        check_rho(param_group.get("rho", 0.0))
        self._check_group(param_group)
        self.base.add_param_group(param_group)

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _go(self, direction: Tensor | None) -> None:
        """From wherever the climb has ended to the weights plus rho times the direction."""
        if direction is None:
            self._perturbation.restore()
            return
        offset = self.offset(direction)
        self._look_at(offset)
        self._perturbation.move_to(self.active, offset)

    def _look_at(self, offset: Tensor) -> None:
        """Note how far it goes, and say it once if that is too short to matter."""
        due = self.steps + 1 >= guards.LOOK_AT_STEP and not self._remarks.looked  # two steps, to see rho rise
        looks = due and self._remarks.looks(self.steps, max(self.rhos()))
        if looks or self.diagnostics is not None:
            moved, length = float(self.active.norm(offset)), float(self._perturbation.length(self.active))
            self.note("relative_length", moved / length if length else 0.0)
            self._remarks.on_length(moved, length, self.matters if looks else 0.0)

    def _finish(self, closure: Closure | None) -> Tensor | None:
        """End what `ascend` began, or take a step of the base."""
        loss = None
        if closure is not None:
            with self.perturbed():
                gathered = guards.GatheringBackward(self._parameters(), self._strange_gradients())
                loss = self._passes.gather(closure, gathered)
        ascended, climbed, statistics = self._ascended, self._climbed, self._statistics
        self.restore()
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return loss
        if scale is not None:
            torch._foreach_div_([p.grad for p in self._parameters() if p.grad is not None], scale)
        if statistics is not None and statistics.moves_since() <= self._passes.moves:  # by one pass
            statistics.restore_buffers()
        if climbed:
            self.descend()
        self._step_base(climbed=ascended or not any(self._set_rho()))
        return loss

    def _step_base(self, climbed: bool = True) -> None:
        rehearsal = not self.state and state_hooks.is_rehearsal(self.base)
        self.base.step()
        grads = [(p, p.grad) for p in self._parameters()]
        self._left = {id(p): (None, 0) if g is None else (ref(g), g._version) for p, g in grads}
        self.steps += not rehearsal
        self._remarks.bare_steps = 0 if climbed or rehearsal else self._remarks.on_bare_step()

    def _strange_gradients(self) -> list[Tensor]:
        """Gradients that our last step has not left behind, but for those of parameters that are new since."""
        found = []
        for p in self._parameters():
            if (g := p.grad) is not None:
                seen, version = (None, 0) if self._left is None else self._left.get(id(p), (ref(g), g._version))
                if seen is None or seen() is not g or version != g._version:
                    found.append(g)
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing: an exception takes back what the step has changed."""
        self.restore()
        self.keep, self._lengths = None, None
        before, grads = dict(self.passes), [(p, p.grad) for p in self._parameters()]
        (self.diagnostics or {}).clear()
        self._within = True
        with self._passes.together():
            try:
                yield
            except BaseException:
                self.restore()
                for p, grad in grads:
                    p.grad = grad
                raise
            finally:
                self._within = self._space_checked = False
                self._share, self._scaling = 1.0, None
                self._perturbation.forget_last()
        for name, count in self.passes.items():
            self.note(f"{name}_passes", count - before[name])

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._left, self._remarks = None, guards.Remarks(type(self).__name__)
        self._ascended = self._climbed = False
        self._ascent = self._statistics = None
