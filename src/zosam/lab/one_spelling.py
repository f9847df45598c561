"""One address for trainings that are equal: their optimizer has one spelling, whichever way it was written."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from zosam import optim
from zosam.lab.assemble import OPTIMIZER
from zosam.lab.settings import Choice
from zosam.optim import Scale

if TYPE_CHECKING:
    from zosam.lab.run import Run


def one_spelling(what: Run) -> Choice:
    """The optimizer of a run as it stands in an address, whichever way it was written."""
    found = what.optimizer
    if found.name in optim.PRESETS:
        found = _spelled_out(found)
    if what.rho == 0 and found.name in optim.OPTIMIZERS:
        return OPTIMIZER.read("sgd")  # at rho = 0 every method is its base
    settings, scale = dict(found.settings), found.settings.get("scale")
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
