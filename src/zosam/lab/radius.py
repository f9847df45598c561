"""How far a run's optimizer climbs: a number, or a schedule such as `late:0.9,0.1`."""

from __future__ import annotations

import dataclasses
from typing import Any, overload

from zosam.lab.settings import Choice, Chosen, Kind, typed
from zosam.names import settings_of
from zosam.optim import schedules
from zosam.optim.schedules import Schedule

TABLE: dict[str, type] = {
    name.lower(): thing
    for name, thing in vars(schedules).items()
    if isinstance(thing, type) and dataclasses.is_dataclass(thing) and name != "Constant"
}
RADIUS = Kind("schedule of rho", TABLE, given=frozenset({"steps"}))
OWN = "own"  # that of the optimizer


class Radius(Chosen):
    """A field that holds a number, the choice of a schedule, or None for the optimizer's own rho."""

    def __init__(self) -> None:
        super().__init__(RADIUS, OWN)

    @overload  # type: ignore[override]
    def __get__(self, run: None, owner: type) -> Radius: ...
    @overload
    def __get__(self, run: object, owner: type) -> float | Choice | None: ...
    def __get__(self, run: object | None, owner: type) -> float | Choice | Radius | None:
        if run is None:
            return self
        found: float | Choice | None = run.__dict__[self.name]
        return found

    def __set__(self, run: object, value: Any) -> None:
        run.__dict__[self.name] = self.read(value)

    def read(self, value: Any) -> float | Choice | None:
        """A number, the words of a schedule, or nothing."""
        if value is None or value is self or value == OWN:
            return None
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return steady(self.kind.read(value))
        number: float = typed(self.name, value, float)
        if not number >= 0:
            raise ValueError(f"{self.name} must be 0 or more, not {number}")
        return number


def steady(radius: Choice) -> float | Choice:
    """The number, if a schedule gives the same one all along."""
    match rho_over(radius, 1):
        case schedules.Linear(start, end) | schedules.Cosine(start, end) if start == end:
            return end
        case schedules.Late(start, rho) if start in (0, 1) or not rho:
            return rho * (not start)
        case schedules.Proportional(rho_max=most, rho_min=least) if most == least:
            return most
    return radius


def rho_over(radius: float | Choice, steps: int) -> float | Schedule:
    """What an optimizer takes, in a training of so many steps."""
    if not isinstance(radius, Choice):
        return radius
    thing = RADIUS.thing(radius.name)
    known = {"steps": steps} if "steps" in settings_of(thing) else {}
    found: Schedule = thing(**known, **radius.settings)
    return found
