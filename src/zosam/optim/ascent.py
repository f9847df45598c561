"""What methods are made of: gradients and losses, directions and lengths, a way out and back, numbers and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.distributed.ranks import ALONE, Ranks, current, joins_others
from zosam.optim.closure_checks import not_finite
from zosam.optim.passes import Closure, Keep, Passes
from zosam.optim.perturb import Perturbation
from zosam.optim.recall import Memory
from zosam.optim.scale import Scale, check_metric
from zosam.optim.scaling import Scaling
from zosam.optim.schedules import Schedule
from zosam.optim.vector import ActiveWeights
from zosam.random_stream import Draw


class Ascent(Optimizer):
    """The verbs of a sharpness-aware optimizer; vectors run over the active weights of perturbed groups."""

    per_sample: ClassVar[bool] = False  # whether the closure must return one loss per sample instead of their mean
    takes_metric: ClassVar[bool] = True  # whether groups may say in which metric they climb
    per_rank: bool = False  # whether each rank climbs along the gradient of its own part of the batch

    base: Optimizer
    scale: Scale
    schedule: Schedule | None
    seed: int
    steps: int
    diagnostics: dict[str, float] | None
    _ranks: Ranks | None
    _scaling: Scaling | None

    def _start_afresh(self) -> None:
        self._passes = Passes(self._parameters, self.per_sample, lambda: self.ranks)
        self._perturbation, self._memory = Perturbation(), Memory()
        self._space: ActiveWeights | None = None
        self._within = self._space_checked = False  # a step is under way; its active weights are right
        self._lengths: Tensor | None = None  # T of this step, once it was asked for
        self._share, self._scaling = 1.0, None  # by which the loss of this ascent is multiplied

    # --- directions and lengths --------------------------------------------------------------------------------------

    def along_gradient(self, gradient: Tensor) -> Tensor:
        """The steepest way up that is one unit long in the scale's metric: T²g/‖Tg‖."""
        return self.scaled(self.active.unit(self.scaled(gradient)))

    def along(self, vector: Tensor) -> Tensor:
        """A drawn or probed direction that is one unit long in the scale's metric: Tu/‖u‖."""
        return self.scaled(self.active.unit(vector))

    def scaled(self, vector: Tensor) -> Tensor:
        """T times the vector."""
        if self.scale.metric is None and not any(g.get("scale") for g in self.base.param_groups):
            return vector
        if self._lengths is None or not self._within:
            metrics = {id(p): g.get("scale", self.scale.metric) for g in self.base.param_groups for p in g["params"]}
            self._lengths = self.scale.lengths(self.active, [metrics[id(p)] for p in self.active.params])
        return vector if self._lengths is None else self._lengths * vector

    def rhos(self) -> list[float]:
        """How far each perturbed group climbs."""
        return [check_rho(g["rho"]) for g in self.base.param_groups if g.get("perturb", True)]

    def _put_rho_into_groups(self, rho: float | Schedule) -> None:
        """Every group gets a rho if it brings none, also one that is added later."""
        before = self.base.defaults.get("rho")  # of an optimizer that was wrapped around this base before
        self.base.defaults["rho"] = number = check_rho(0.0 if callable(rho) else rho)
        for group in self.param_groups:
            if "rho" not in group or group["rho"] == before:
                group["rho"] = number
            elif self.schedule is not None and group.get("perturb", True):
                raise ValueError("a group has a rho of its own, which the schedule would overwrite: take it out")
            self._check_group(group, number)
        self._set_rho()

    def _check_group(self, group: dict[str, Any], usual_rho: float | None = None) -> None:
        """Refuse what has no effect in a group, or another than is meant; `usual_rho` is its rho if it brought none."""
        check_metric(group.get("scale"))
        if group.get("maximize") and (self.schedule is not None or group.get("rho", self.base.defaults["rho"])):
            raise ValueError(
                f"{type(self).__name__} climbs to where the loss is higher, which under maximize=True is the way down:"
                " leave that out, and return the negative of what is to be maximized"
            )
        for key, usual in (("rho", usual_rho), ("scale", None)):
            if group.get(key) is None or group[key] == usual:
                continue
            if not group.get("perturb", True):
                raise ValueError(f"{key}={group[key]!r} of a group with perturb=False has no effect: leave it out")
            if key == "scale" and not self.takes_metric:
                name = type(self).__name__
                raise ValueError(f"scale={group[key]!r} of a group has no effect on {name}: leave it out")

    def _set_rho(self) -> list[float]:
        """Let the schedule write rho for the coming step; how far each perturbed group climbs."""
        if self.schedule is not None:
            for group in (g for g in self.param_groups if g.get("perturb", True)):
                group["rho"] = check_rho(self.schedule(self.steps, float(group["lr"])))
        return self.rhos()

    def offset(self, direction: Tensor, radius: float | None = None) -> Tensor:
        """`rho` times the direction, group by group; or `radius` times it, in groups that climb at all."""
        rhos = {id(p): g["rho"] for g in self.base.param_groups for p in g["params"]}
        each = [rhos[id(p)] if radius is None else radius * (rhos[id(p)] > 0) for p in self.active.params]
        return direction * (each[0] if len(set(each)) == 1 else self.active.spread(each))

    @contextmanager
    def displaced(self, direction: Tensor, by: float | None = None) -> Iterator[None]:
        """Go `rho` times the direction (or `by` times), and come back exactly to where it began."""
        space = self.active
        began = self._perturbation.where(space)
        try:
            self._perturbation.add(space, self.offset(direction) if by is None else direction * by)
            yield
        finally:
            if began is None:
                self._perturbation.restore()
            else:
                self._perturbation.go_back_to(space, began)

    # --- losses and gradients ----------------------------------------------------------------------------------------

    def evaluate(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The loss, forward only; nothing in the model changes, and the random streams do not move."""
        return self._passes.evaluate(closure, keep)

    def loss_at(self, offset: Tensor, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The loss at the weights plus the offset; they stay there until the next one, or until the climb ends."""
        self._perturbation.move_to(self.active, offset)
        return self.evaluate(closure, keep)

    def losses_around(self, offset: Tensor, closure: Closure, keep: Keep | None = None) -> tuple[Tensor, Tensor]:
        """The losses at the weights plus and minus the offset, as precise as the device has numbers."""
        up, down = (self.loss_at(way, closure, keep).to(self.active.widest) for way in (offset, -offset))
        self.note("loss_up", up)
        self.note("loss_down", down)
        return up, down

    def gradient(self, closure: Closure, keep: Keep | None = None, local: bool = False) -> Tensor:
        """The loss; its gradient is left in `p.grad`: that of all ranks' batches or, if `local`, of this one's."""
        return self._passes.gradient(closure, keep, local)

    def clean_gradient(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The gradient at θ to climb along, over the active weights: this rank's own if `per_rank`."""
        if self.per_rank:
            self.require_full_weights("per_rank")
        self.gradient(closure, keep, local=True)
        scale = self.loss_scale()
        found = self.grads() if scale == 1 else self.grads() / scale
        return found if self.per_rank else self.shared(found)

    def loss_scale(self) -> float:
        """By which the loss of this ascent is multiplied."""
        return self._share * (1.0 if self._scaling is None else self._scaling.factor)

    def shared(self, gradient: Tensor) -> Tensor:
        """The mean over all ranks of a gradient that each has taken by itself; fully_shard has taken it already."""
        return gradient if self.active.shards.world > 1 else self.ranks.mean(gradient, "ascent")

    def agreed(self, losses: Sequence[Tensor]) -> list[float]:
        """Losses or their differences, as the mean over all ranks: the one moment in which a decision waits for them.

        These numbers are all that a zero-order ascent sends. One that is not finite stops every rank alike.
        """
        ranks, values = self.ranks, torch.stack(list(losses))
        found: list[float] = (values if ranks.world == 1 else ranks.mean(values, "ascent")).tolist()
        for value in found:
            if not abs(value) < float("inf"):
                raise not_finite(value)
        return found

    def grads(self) -> Tensor:
        """The gradient in `p.grad`, over the active weights."""
        space = self.active
        return space.gather([p.grad for p in space.params])

    def hand_down(self, gradient: Tensor) -> None:
        """Put a gradient over the active weights into `p.grad`; that of pruned weights stays as it was found."""
        space = self.active
        space.scatter(gradient, [p.grad for p in space.params])

    def note(self, name: str, value: Tensor | float) -> None:
        """Keep a diagnostic of this step, if anybody asked for them."""
        if self.diagnostics is not None:
            self.diagnostics[name] = float(value)

    # --- from step to step -------------------------------------------------------------------------------------------

    def remember(self, name: str, vector: Tensor) -> None:
        """Keep a vector over the active weights for later steps; it is checkpointed, and follows the masks."""
        self._memory.put(name, vector, self.active)

    def recall(self, name: str) -> Tensor | None:
        """What was remembered under that name, over the active weights of now."""
        return self._memory.get(name, self.active)

    def forget(self) -> None:
        """Drop all that was remembered, as after a rewind of the weights."""
        self._memory = Memory()

    def draw(self, salt: str = "", signs: bool = False, more: int = 0) -> Tensor:
        """Normal numbers, or signs, over the active weights, the same for the same (seed, step) everywhere.

        `more` of them stand at the end, on the first of ranks that hold parts.
        """
        space, source = self.active, self.numbers(salt)
        make, size = source.signs if signs else source.normal, sum(space.full_sizes)
        if space.shards.world == 1:
            return make(size + more, 0, space.dtype, space.device)
        firsts = [sum(space.full_sizes[:i]) + start for i, start in enumerate(space.starts)]
        pieces = list(zip(firsts, space.sizes, strict=True))
        pieces += [(size, more)] if space.shards.rank == 0 else []
        return torch.cat([make(n, first, space.dtype, space.device) for first, n in pieces])

    def numbers(self, salt: str = "") -> Draw:
        """Private random numbers of this step."""
        return Draw("direction", self.seed, self.steps, salt)

    # --- who takes the step ------------------------------------------------------------------------------------------

    @property
    def active(self) -> ActiveWeights:
        """The active weights of the groups that are perturbed; they do not change within a step."""
        if self._space is None or not self._space_checked:
            params = [
                p for g in self.base.param_groups if g.get("perturb", True) for p in g["params"] if p.requires_grad
            ]
            if self._space is None or not self._space.fits(params):
                self._space = ActiveWeights(params)
            self._space_checked = self._within
        return self._space

    @property
    def is_displaced(self) -> bool:
        """Whether the weights are perturbed just now."""
        return self._perturbation.is_active

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler calls `step()` on skipped steps too: while there are weights to bring back."""
        return self.is_displaced

    @property
    def ranks(self) -> Ranks:
        """The processes that take the step together: all of the default group, unless it is set."""
        if self._ranks is None:
            return current() if joins_others() else ALONE
        return self._ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def check_finite(self) -> bool:
        """Whether a loss that is not finite is refused also where a look at it would wait for the device."""
        return bool(self._passes.check_finite)

    @check_finite.setter
    def check_finite(self, check: bool) -> None:
        self._passes.check_finite = check

    @property
    def passes(self) -> dict[str, float]:
        """Forward and backward passes so far, in units of whole batches."""
        return self._passes.count

    def require_full_weights(self, what: str) -> None:
        """Refuse what needs ranks with all weights each."""
        if self.active.shards.world > 1:
            raise ValueError(f"{what} needs all weights on every rank: use DistributedDataParallel, or leave it out")

    def _parameters(self) -> list[Tensor]:
        found: list[Tensor] = [p for g in self.base.param_groups for p in g["params"]]
        return found


def check_rho(rho: Any) -> float:
    if not isinstance(rho, (int, float)) or not 0 <= rho < float("inf"):
        raise ValueError(f"rho must be a number, 0 or more, not {rho!r}")
    return float(rho)
