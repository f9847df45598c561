"""How the learning rate goes over a training: constant, in steps or along a cosine, after a warm-up.

All times are in epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zosam.lab.settings import Choice, Kind


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same from the end of the warm-up on.

    lr          the learning rate after the warm-up.
    epochs      the length of the training.
    warmup      epochs in which it rises in a straight line.
    warmup_lr   where the warm-up begins.
    per_epoch   it changes between epochs only, instead of at every step.
    """

    lr: float
    epochs: float
    warmup: float = 0.0
    warmup_lr: float = 0.0
    per_epoch: bool = False

    def __post_init__(self) -> None:
        for name in ("warmup", "warmup_lr"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.warmup_lr and not self.warmup:
            raise ValueError(
                f"warmup_lr={self.warmup_lr:g} has no effect without a warm-up: say warmup=5, or leave it out"
            )
        if self.per_epoch and not self.warmup and not self.moves_within_epochs():
            raise ValueError(
                "per_epoch has no effect: this learning rate changes between epochs as it is; leave it out"
            )
        if not self.warmup <= self.epochs:
            raise ValueError(f"the warm-up of {self.warmup:g} epochs is longer than the training, {self.epochs:g}")
        if self.warmup and self.warmup_lr == self.lr:
            raise ValueError(f"the warm-up begins at the learning rate, {self.lr:g}, where it ends: leave it out")
        if self.warmup == self.epochs and type(self) is not Constant:
            raise ValueError("the warm-up is as long as the training, and nothing is left for the curve: say constant")
        if self.per_epoch and self.epochs <= 1:
            raise ValueError("per_epoch leaves the learning rate as it is in a training of one epoch: say constant")

    def __call__(self, epoch: float) -> float:
        """The learning rate after so many epochs, or parts of them."""
        at = math.floor(epoch) if self.per_epoch else epoch
        if at < self.warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * at / self.warmup
        return self.curve(at)

    def curve(self, epoch: float) -> float:
        """The learning rate after so many epochs, if there were no warm-up."""
        return self.lr

    def moves_within_epochs(self) -> bool:
        """Whether the curve changes at other times than between two epochs."""
        return False


@dataclass(frozen=True, kw_only=True)
class Cosine(Constant):
    """Half a cosine from the learning rate to `minimum`, where the last `cooldown` epochs stay.

    As in timm the warm-up replaces the beginning of the cosine: it does not push it back.
    """

    minimum: float = 0.0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.minimum < self.lr and self.minimum:
            raise ValueError(f"minimum must be below the learning rate and 0 or more, not {self.minimum}")
        if not 0 <= self.cooldown <= self.epochs - self.warmup or self.cooldown == self.epochs:
            raise ValueError(f"cooldown must fit into what follows the warm-up, {self.cooldown:g} epochs do not")

    def curve(self, epoch: float) -> float:
        falling = self.epochs - self.cooldown
        if epoch >= falling:
            return self.minimum
        return self.minimum + (self.lr - self.minimum) * (1 + math.cos(math.pi * epoch / falling)) / 2

    def moves_within_epochs(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Steps(Constant):
    """Times `factor` at each of the epochs `at`; by default at half and at three quarters."""

    at: tuple[float, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factor > 0 or self.factor == 1:
            raise ValueError(f"factor must be above 0, and not 1, which is constant; not {self.factor}")
        if not all(0 < epoch < self.epochs for epoch in self.at):
            raise ValueError(f"steps must be at epochs between 0 and {self.epochs:g}, not at {self.at}")
        if list(self.at) != sorted(set(self.at)):
            raise ValueError(f"steps must be one after the other, not at {self.at}")

    def curve(self, epoch: float) -> float:
        return float(self.lr * self.factor ** sum(epoch >= step for step in self.all_steps()))

    def all_steps(self) -> tuple[float, ...]:
        return self.at or usual_steps(self.epochs)

    def moves_within_epochs(self) -> bool:
        return any(step % 1 for step in self.all_steps())


def usual_steps(epochs: float) -> tuple[float, ...]:
    return epochs / 2, 3 * epochs / 4


def with_usual_steps(choice: Choice, epochs: float) -> Choice:
    """The same schedule; steps at their usual epochs as if nobody had given any."""
    if choice.settings.get("at") != usual_steps(epochs) or SCHEDULES.get(choice.name) is not Steps:
        return choice
    rest = {name: value for name, value in choice.settings.items() if name != "at"}
    return SCHEDULE.read(str(Choice(choice.name, "", rest)))


SCHEDULES: dict[str, type[Constant]] = {"cosine": Cosine, "steps": Steps, "constant": Constant}
SCHEDULE = Kind("schedule", SCHEDULES, given=frozenset({"lr", "epochs"}))
