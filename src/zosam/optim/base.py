"""The base of every sharpness-aware optimizer: run closures, displace the weights, come back exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.distributed.ranks import Ranks, current
from zosam.optim import travel
from zosam.optim.active import masks_of
from zosam.optim.geometry import cosine, dot, norm, unit
from zosam.optim.memory import Memory
from zosam.optim.passes import Closure, Keep, Passes
from zosam.optim.schedules import Constant, Schedule
from zosam.optim.vector import Coordinates, signature
from zosam.random_stream import stream

Direction = Tensor | Iterable[Tensor]  # a vector over the active coordinates, or its parts, one per parameter
Move = Callable[[Direction, float], None]


class Home(NamedTuple):
    """Where displaced weights come back to."""

    space: Coordinates
    weights: Tensor
    written: list[int]  # the version of each parameter as we have left it


class SharpnessAware(Optimizer):
    """A torch optimizer around another: climb to a nearby point, take the gradient there, let the base step.

    It shares the base's `param_groups` and `state`, so schedulers and checkpoints see one optimizer. A method says
    where to climb (`climb`) and, if it changes the gradient found there, which one to hand down (`descend`).
    Both forms of use follow from these two:

        optimizer.step(closure)                  # the closure returns the loss; with or without backward inside

        optimizer.ascend(closure)                # the two-phase form, for loops that own forward and backward
        loss(model(x), y).backward()
        optimizer.step()

    A step is all or nothing: an exception, a loss that is not finite or Ctrl-C in the closure leaves weights,
    buffers and random streams as they were. Of all passes of a step the first full one with a gradient counts:
    it moves BatchNorm statistics and random streams, and its loss is returned.

    Where `torch.distributed` is up, the ranks take the step that one process would take on their joined batch: the
    model is wrapped in DistributedDataParallel or fully_shard, which averages gradients, and nothing else changes.
    """

    per_sample: ClassVar[bool] = False  # whether the closure must return one loss per sample instead of their mean
    per_rank: bool = False  # whether each rank climbs along the gradient of its own part of the batch
    _space: Coordinates | None
    _home: Home | None
    _last: Home | None  # where they came back to in this step: the next displacement need not read them again
    _within: bool  # a step is being taken
    _looked: bool  # and its coordinates were looked after
    _step_supports_amp_scaling = True  # GradScaler calls step() on skipped steps too, so that weights come back

    def __init__(self, base: Optimizer, rho: float | Schedule = 0.05, seed: int = 0) -> None:
        if not isinstance(base, Optimizer) or isinstance(base, SharpnessAware):
            raise TypeError(
                f"{type(self).__name__} wraps an optimizer such as torch.optim.SGD(model.parameters(), lr=0.1),"
                f" not {type(base).__name__}"
            )
        self.base, self.seed, self.steps = base, seed, 0
        self.schedule: Schedule = rho if callable(rho) else Constant(rho)
        self.diagnostics: dict[str, float] | None = None  # set it to {} to find each step's figures there
        self.keep: Keep | None = None  # the samples that the pass at the displaced point takes; None: all
        self._ranks: Ranks | None = None
        self._forget()
        # the way torch itself makes an optimizer that registers no parameters of its own
        Optimizer.__setstate__(self, {"defaults": dict(base.defaults)})
        self._rhos()
        self._board()

    # --- the verbs that methods are made of --------------------------------------------------------------------------

    def climb(self, closure: Closure) -> Direction | None:
        """Where to go, over the active coordinates, for rho = 1: mostly a `unit` vector; None: stay."""
        raise NotImplementedError(f"{type(self).__name__} does not say where to climb")

    def passes_per_step(self) -> dict[str, float]:
        """The forward and backward passes of a step, on average: what the method promises to cost."""
        return {"forward": 1.0, "backward": 1.0}

    def descend(self) -> None:
        """Change, in `p.grad`, the gradient taken at the displaced point before the base uses it."""

    def evaluate(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The loss, forward only; nothing in the model changes, and the random streams do not move."""
        return self._passes.evaluate(closure, keep)

    def gradient(self, closure: Closure, keep: Keep | None = None, local: bool = False) -> Tensor:
        """The loss; its gradient is left in `p.grad`: that of all ranks' batches or, if `local`, of this one's."""
        return self._passes.gradient(closure, keep, local)

    def clean_gradient(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The gradient at θ to climb along, over the active coordinates: this rank's own if `per_rank`."""
        if self.per_rank:
            self.require_whole("per_rank")
        self.gradient(closure, keep, local=True)
        return self.grads() if self.per_rank else self.shared(self.grads())

    def shared(self, gradient: Tensor) -> Tensor:
        """The mean over all ranks of a gradient that each has taken by itself; fully_shard has taken it already."""
        return gradient if self.coordinates.shards.world > 1 else self.ranks.mean(gradient, "ascent")

    def grads(self) -> Tensor:
        """The gradient in `p.grad`, over the active coordinates."""
        space = self.coordinates
        return space.gather([p.grad for p in space.params])

    def hand_down(self, gradient: Tensor) -> None:
        """Put a gradient over the active coordinates into `p.grad`; that of pruned weights stays as it was found."""
        space = self.coordinates
        space.scatter(gradient, [p.grad for p in space.params])

    def require_whole(self, what: str) -> None:
        """Refuse what needs ranks with all weights each."""
        if self.coordinates.shards.world > 1:
            raise ValueError(f"{what} needs all weights on every rank: use DistributedDataParallel, or leave it out")

    def unit(self, vector: Tensor) -> Tensor:
        """A vector over the active coordinates at length 1."""
        return unit(vector, self.coordinates.shards)

    def length(self, vector: Tensor) -> Tensor:
        return norm(vector, self.coordinates.shards)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return dot(a, b, self.coordinates.shards)

    @contextmanager
    def displaced(self, direction: Direction | None, by: float | None = None) -> Iterator[Move]:
        """Go `rho` times `direction` (or `by` times), and come back exactly to where it began.

        It gives a function that goes somewhere else instead: so many times a direction, from where it began too.
        """
        started = self._home and (self._home.space, self._home.space.read())

        def leave() -> None:
            if started is None or self._home is None:
                self._come_home()
            else:
                started[0].write(started[1])
                self._home = self._home._replace(written=started[0].versions())

        def move(direction: Direction, by: float) -> None:
            if started is None and self._untouched(self._home):
                self._last = self._home  # it is known where it began: no need to be there in between
            else:
                leave()
            self._displace(direction, by)

        try:
            if direction is not None:
                self._displace(direction, by)
                del direction
            yield move
        finally:
            leave()

    # --- what users call ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:  # type: ignore[override]
        """One step; with a closure all of it, without one the end of what `ascend` began."""
        if closure is None:
            self._finish()
            return None
        with self._whole():
            if any(self._rhos()):
                self.update(closure)
            else:  # at rho = 0 every method is its base optimizer, to the bit
                self.gradient(closure)
            loss = self._passes.mean_loss
        self.base.step()
        self.steps += 1
        return loss

    def update(self, closure: Closure) -> None:
        """Leave in `p.grad` what the base shall use."""
        direction = self.climb(closure)
        with self.displaced(direction):
            if self.diagnostics is None:
                direction = None  # not needed again, and as long as the active weights
            loss = self.gradient(closure, self.keep)
        if isinstance(direction, Tensor):
            self._note("cosine", cosine(direction, self.grads(), self.coordinates.shards))
            if loss is not self._passes.loss and self.keep is None:  # there was a clean pass before, at θ
                self._note("loss_rise", loss.mean() - self._passes.loss.mean())
        self.descend()

    @torch.no_grad()
    def ascend(self, closure: Closure) -> Keep | None:
        """Climb, and stay there until `step()` or `restore()`; gradients are cleared, BatchNorm does not notice.

        Returns which samples the method wants in the pass that follows; None: all of them.
        """
        with self._whole():
            self._passes.counted = True  # the pass that counts will be the caller's own
            climbs = any(self._rhos())
            direction = self.climb(closure) if climbs else None
            if direction is not None:
                self._displace(direction)
        self.zero_grad(set_to_none=True)
        self._ascended = climbs
        return self.keep

    @torch.no_grad()
    def restore(self) -> None:
        """Bring displaced weights back, bit for bit, and give the ascent up; does nothing where there is none.

        A parameter that somebody else has written since, such as a loaded checkpoint, is left as it is.
        """
        self._come_home()
        self._ascended = False

    # --- one optimizer with the base ---------------------------------------------------------------------------------

    @property
    def ascended(self) -> bool:
        """Whether `ascend` has climbed and `step()` has yet to follow."""
        return self._ascended

    @property
    def is_displaced(self) -> bool:
        """Whether the weights are away from home just now."""
        return self._home is not None

    @property
    def ranks(self) -> Ranks:
        """The processes that take the step together: all of the default group, unless it is set."""
        return current() if self._ranks is None else self._ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def passes(self) -> dict[str, float]:
        """Forward and backward passes so far, in units of whole batches."""
        return self._passes.count

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.base.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        return self.base.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.restore()
        check_rho(param_group.get("rho", 0.0))
        self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The base's, in which this optimizer's own state rides."""
        self._speaks_for_the_base()
        self.restore()
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._speaks_for_the_base()
        self.base.load_state_dict(state_dict)

    def pack(self) -> travel.Luggage:
        """What travels with the base: the method, its steps and what it remembers."""
        self.restore()
        own = {"method": type(self).__name__, "steps": self.steps, "memory": self._memory.state(self.coordinates)}
        return {travel.first_parameter(self.base): own}

    def check(self, luggage: travel.Luggage) -> None:
        own = next(iter(luggage.values()), None)
        if own is None:
            raise ValueError(
                f"this state holds nothing of {type(self).__name__}'s own (was it saved by the bare base optimizer?);"
                " load it into the base optimizer before that is wrapped"
            )
        if own["method"] != type(self).__name__:
            raise ValueError(f"this is a state of {own['method']}, not of {type(self).__name__}")

    def unpack(self, luggage: travel.Luggage) -> None:
        self.restore()
        own = next(iter(luggage.values()))
        self.steps = int(own["steps"])
        self._memory = Memory(own["memory"])

    # --- what a method may remember from step to step ----------------------------------------------------------------

    def remember(self, name: str, vector: Tensor) -> None:
        """Keep a vector over the active coordinates; it is checkpointed, and follows the masks."""
        self._memory.put(name, vector, self.coordinates)

    def recall(self, name: str) -> Tensor | None:
        """What was remembered under that name, over the coordinates of now."""
        return self._memory.get(name, self.coordinates)

    def forget(self) -> None:
        """Drop all that was remembered, as after a rewind of the weights."""
        self._memory = Memory()

    def generator(self, salt: str = "") -> torch.Generator:
        """A private random stream for this step: the same for the same (seed, step) everywhere, ours alone."""
        return stream(self.coordinates.device, "direction", self.seed, self.steps, salt)

    @property
    def coordinates(self) -> Coordinates:
        """The active weights of the groups that are perturbed; they do not change within a step."""
        if self._space is None or not self._looked:
            params = [p for g in self.param_groups if g.get("perturb", True) for p in g["params"] if p.requires_grad]
            masks = masks_of(params)
            if self._space is None or self._space.signature != signature(params, masks):
                self._space = Coordinates(params, masks)
            self._looked = self._within
        return self._space

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _rho(self, group: dict[str, Any]) -> float:
        """The group's own rho, or what the schedule says."""
        return check_rho(group["rho"] if "rho" in group else self.schedule(self.steps, float(group["lr"])))

    def _rhos(self) -> list[float]:
        return [self._rho(g) for g in self.param_groups if g.get("perturb", True)]

    def _parameters(self) -> list[Tensor]:
        return [p for g in self.param_groups for p in g["params"]]

    def _displace(self, direction: Direction, by: float | None = None) -> None:
        space, last = self.coordinates, self._last
        here = last.weights if last is not None and self._untouched(last) else space.read()
        radius = self._radius() if by is None else by
        home = Home(space, here, []) if self._home is None else self._home
        self._home = home
        if isinstance(direction, Tensor):
            space.write(here + direction * radius)
        else:
            radii = radius.split(space.sizes) if isinstance(radius, Tensor) else [radius] * len(space.sizes)
            space.write_parts(h + u * r for h, u, r in zip(here.split(space.sizes), direction, radii, strict=True))
        self._home = home._replace(written=space.versions())
        torch.clear_autocast_cache()  # it holds the weights of before, rounded
        if by is None and self.diagnostics is not None:
            self._note("relative_length", self.length(space.read() - here) / self.length(here))

    def _untouched(self, home: Home | None) -> bool:
        """Whether the weights are as we have left them."""
        return home is not None and home.space is self.coordinates and home.written == home.space.versions()

    def _come_home(self) -> None:
        if self._home is not None:
            back = self._home.space.write_where(self._home.weights, self._home.written)
            self._last = self._home._replace(written=self._home.space.versions()) if back and self._within else None
            self._home = None
            torch.clear_autocast_cache()

    def _radius(self) -> float | Tensor:
        """rho: one number, or one for each coordinate where groups differ."""
        rhos = {id(p): self._rho(g) for g in self.param_groups for p in g["params"]}
        each: list[float] = [rhos[id(p)] for p in self.coordinates.params]
        return each[0] if len(set(each)) == 1 else self.coordinates.spread(each)

    def _note(self, name: str, value: Tensor | float) -> None:
        """Keep a diagnostic of this step, if anybody asked for them."""
        if self.diagnostics is not None:
            self.diagnostics[name] = float(value)

    def _finish(self) -> None:
        self._come_home()
        ascended, self._ascended = self._ascended, False
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return
        if scale is not None:
            for p in self._parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
        if ascended:
            self.descend()
        rehearsal = travel.is_rehearsal(self.base)
        self.base.step()
        self.steps += not rehearsal

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All or nothing: an exception takes back what the step has changed."""
        self.restore()
        self.keep = None
        before = dict(self.passes)
        if self.diagnostics is not None:
            self.diagnostics.clear()
        self._within = True
        with self._passes.together():
            try:
                yield
            except BaseException:
                self.restore()
                raise
            finally:
                self._within = self._looked = False
                self._last = None
        for name, count in self.passes.items():
            self._note(f"{name}_passes", count - before[name])

    def _forget(self) -> None:
        self._passes = Passes(self._parameters, self.per_sample, lambda: self.ranks)
        self._memory = Memory()
        self._space = self._home = self._last = None
        self._within = self._looked = False
        self._ascended = False

    def _board(self) -> None:
        for older in travel.riders(self.base, "sharpness_aware"):
            travel.leave(self.base, older)
        travel.board(self.base, "sharpness_aware", self)

    def _speaks_for_the_base(self) -> None:
        if travel.riders(self.base, "sharpness_aware") != [self]:
            raise ValueError(f"another optimizer was wrapped around {type(self.base).__name__} since: save and load it")

    def __getstate__(self) -> dict[str, Any]:
        self.restore()
        # schedulers and scalers put a `step` bound to this very object here; torch's own copies drop hooks as well
        left = {"_passes", "_space", "_home", "_last", "_memory", "step"}
        kept = {k: v for k, v in self.__dict__.items() if k not in left and not k.startswith("_optimizer_")}
        return {**kept, "memory": self._memory.state(self.coordinates)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        self._memory = Memory(state.pop("memory"))
        Optimizer.__setstate__(self, state)
        self._board()


def check_rho(rho: float) -> float:
    if not rho >= 0:
        raise ValueError(f"rho must be 0 or more, not {rho}")
    return rho
