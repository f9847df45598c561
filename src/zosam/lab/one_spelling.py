"""One address for trainings that are equal: optimizer and method have one spelling, whichever way they were written."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from zosam import optim
from zosam.lab.assemble import METHOD, OPTIMIZER, rho_of
from zosam.lab.settings import Choice
from zosam.optim import Central, Scale
from zosam.sparse import METHODS
from zosam.sparse.static import Static

if TYPE_CHECKING:
    from zosam.lab.run import Run


def one_method(what: Run) -> Choice:
    """The sparse method of a run as it stands in an address."""
    found = what.method
    if what.sparsity == 0 and issubclass(METHODS.get(found.name, object), Static):
        return METHOD.read("dense")  # masks that prune nothing and never move
    if found.settings.get("candidates") != 1:
        return found
    rest = {name: value for name, value in found.settings.items() if name != "candidates"}
    return METHOD.read(str(Choice(found.name, "", rest)))  # all of them are candidates unless one says otherwise


def one_optimizer(what: Run) -> Choice:
    """The optimizer of a run as it stands in an address."""
    found = what.optimizer
    if found.name in optim.PRESETS:
        found = _spelled_out(found)
    if what.rho == 0 and found.name in optim.OPTIMIZERS:
        return OPTIMIZER.read("sgd")  # at rho = 0 every method is its base
    settings, scale = dict(found.settings), found.settings.get("scale")
    decide = settings.get("decide")
    if isinstance(decide, Central) and decide.radius is not None and decide.radius == rho_of(what):
        settings["decide"] = dataclasses.replace(decide, radius=None)
    if isinstance(scale, Scale) and scale == Scale(scale.metric):
        settings["scale"] = scale.metric
    if found.name == "sam" and (scale == "element" or (isinstance(scale, Scale) and scale.metric == "element")):
        del settings["scale"]
        settings["eta"] = scale.eta if isinstance(scale, Scale) else Scale.eta
        found = Choice("asam", "", settings)
    same = settings == found.settings and found.name == what.optimizer.name
    return found if same else OPTIMIZER.read(str(Choice(found.name, "", settings)))


@cache
def _spelled_out(preset: Choice) -> Choice:
    """A preset such as zosam.fast as the optimizer that it makes, with the settings in which that one differs."""

    def base() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1, 1))], lr=0.1, momentum=0.9)

    made = optim.PRESETS[preset.name](base(), **preset.settings)
    plain = type(made)(base()).settings()
    settings = {n: getattr(made, n) for n, text in made.settings().items() if text != plain[n]}
    return OPTIMIZER.read(str(Choice(made.method().lower(), "", settings)))
