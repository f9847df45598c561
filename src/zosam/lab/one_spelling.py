"""One address for trainings that are equal: optimizer and method have one spelling, whichever way they were written."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zosam import optim
from zosam.lab import data, models
from zosam.lab.assemble import METHOD, OPTIMIZER, climbs, rho_of
from zosam.lab.precision import usual_distance
from zosam.lab.radius import rho_over
from zosam.lab.settings import Choice
from zosam.names import default_of, settings_of
from zosam.optim import Central, Rademacher, Scale, Worst
from zosam.sparse import METHODS

if TYPE_CHECKING:
    from zosam.lab.run import Run


SAM_BY_ANOTHER_NAME: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gsam", {"alpha": 0.0}),
    ("looksam", {"k": 1}),
    ("esam", {"beta": 1.0, "gamma": 1.0}),
)


def spell_in_one_way(what: Run) -> None:
    """Write a run as all those are written that train alike."""
    object.__setattr__(what, "rho", one_radius(what))
    if OPTIMIZER.knows(what.optimizer):
        optimizer = one_optimizer(what)
        if optimizer.name not in (what.optimizer.name, "sgd"):
            object.__setattr__(what, "rho", rho_of(what))
        object.__setattr__(what, "optimizer", optimizer)
    object.__setattr__(what, "method", one_method(what))
    if what.model == models.NETWORKS.read("wrn"):
        object.__setattr__(what, "model", models.NETWORKS.read("wrn28_10"))  # the best known of them has two names


def one_radius(what: Run) -> float | Choice | None:
    """The rho of a run as it stands in an address."""
    if isinstance(what.rho, Choice) and what.rho.name == "proportional" and str(what.schedule) == "constant":
        follows = rho_over(what.rho, 1)
        return follows(0, what.lr) if callable(follows) else follows
    return what.rho


def one_optimizer(what: Run) -> Choice:
    """The optimizer of a run as it stands in an address."""
    found = what.optimizer
    if found.name in optim.PRESETS:
        found = _spelled_out(found)
    settings = dict(found.settings)
    if found.name in optim.OPTIMIZERS and (what.rho == 0 or settings.get("sigma") == 0):
        return OPTIMIZER.read("sgd")  # at rho = 0 every method is its base
    name = found.name
    if any(name == other and here.items() <= settings.items() for other, here in SAM_BY_ANOTHER_NAME):
        name, settings = "sam", {k: v for k, v in settings.items() if k in settings_of(optim.SAM)}
    scale, decide = settings.get("scale"), settings.get("decide")
    if isinstance(decide, Central):
        given = {name: d for name, d in (("radius", decide.radius), ("delta", decide.delta)) if d is not None}
        if given == usual_distance(what.precision, rho_of(what)):
            settings["decide"] = Central(batch_fraction=decide.batch_fraction)
    if isinstance(decide, Worst) and settings.get("probe") == Rademacher(1):
        settings["decide"] = Central(batch_fraction=decide.batch_fraction)  # of two, which are +u and -u
    if isinstance(scale, Scale) and scale == Scale(scale.metric):
        settings["scale"] = scale = scale.metric
    if name == "sam" and (scale == "element" or isinstance(scale, Scale)):  # that has settings with this metric alone
        del settings["scale"]
        name, settings["eta"] = "asam", scale.eta if isinstance(scale, Scale) else Scale.eta
    same = settings == found.settings and name == what.optimizer.name
    return found if same else OPTIMIZER.read(str(Choice(name, "", settings)))


def one_method(what: Run) -> Choice:
    """The sparse method of a run as it stands in an address."""
    found, kind = what.method, METHODS.get(what.method.name)
    if kind is None:
        return found
    if what.sparsity == 0 and kind.nothing_at_zero:
        return METHOD.read("dense")
    settings = {name: one_order(kind, name, value) for name, value in found.settings.items()}
    size = data.size_of(what.data)
    epoch = None if size is None else -(-size.train // what.batch_size)
    unless_told: dict[str, Any] = kind.unless_told(what.sparsity, epoch and what.epochs * epoch, epoch)
    if OPTIMIZER.knows(what.optimizer) and not climbs(what):
        unless_told = {**unless_told, "growth_gradient": "theta"}  # there is one gradient
    for name, value in unless_told.items():
        given = settings.get(name)
        if given == value or (isinstance(given, float) and math.isclose(given, value)):
            del settings[name]
    return found if settings == found.settings else METHOD.read(str(Choice(found.name, "", settings)))


def one_order(kind: type, name: str, value: Any) -> Any:
    """Patterns of names in one order, each once; those of the method itself in its own."""
    if name not in {"dense", "include", "exclude"}:
        return value
    patterns, usual = {value} if isinstance(value, str) else set(value), default_of(kind, name)
    return usual if patterns == set(usual) else tuple(sorted(patterns - {""}))


@cache
def _spelled_out(preset: Choice) -> Choice:
    """A preset such as zosam.fast as the optimizer that it makes, with the settings in which that one differs."""

    def base() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1, 1))], lr=0.1, momentum=0.9)

    made = optim.PRESETS[preset.name](base(), **preset.settings)
    plain = type(made)(base()).settings()
    settings = {n: getattr(made, n) for n, text in made.settings().items() if text != plain[n]}
    return OPTIMIZER.read(str(Choice(made.method().lower(), "", settings)))
