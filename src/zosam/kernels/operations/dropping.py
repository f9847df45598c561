"""Layers that drop something at random: each multiplies its input by noise, which torch draws as ever.

Dropout of ones is that noise. So a region asks the layer itself to drop from ones, in the shape and layout that its
input would have, and multiplies: the same seed drops the same entries with the kernels and without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional as F

from .attention import turned_dropout
from .base import Buffer, Identity, Op, Step, Traffic, arguments
from .edges import as_image, plain_shape
from .elementwise import Pass

if TYPE_CHECKING:
    from ..lower import Run, Writer
    from ..plan import Planner

Draw = Callable[[Tensor], Tensor]  # drops entries of what it is given
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
PATHS = ("DropPath", "StochasticDepth")  # as timm, torchvision and transformers call it, alone or behind a prefix


@dataclass
class Drop(Step):
    """Dropout or a relative at work."""

    draw: Draw | None = None
    kind = "noise"

    def plan(self, planner: Planner) -> None:
        name, view = planner.view(self.inputs[0])
        view = planner.once(name, view)
        assert self.draw is not None
        noise, out = view.like.another(), view.like.another()
        planner.add(Noise(self.draw, noise))  # now: random numbers come in the order of the steps
        op = planner.maker[out] = Pass(view, out=out, noise=noise)
        planner.put(self, op, out)


@dataclass(eq=False)
class Noise(Op):
    """What dropout multiplies with, drawn by torch: `draw` drops entries of ones."""

    draw: Draw
    out: Buffer

    def traffic(self) -> Traffic:
        return Traffic(writes=[self.out])

    def write(self, to: Writer, backwards: int) -> None:
        to.script.pause(partial(self._drop, to))

    def _drop(self, to: Writer, run: Run) -> None:
        """Dropout of ones, in the shape and layout that torch would give it: the same seed drops the same entries."""
        shape = plain_shape(run.kind, run.lead, to.memory.shape(self.out))
        layout = to.layout if len(shape) == 4 else torch.contiguous_format
        drawn = self.draw(torch.empty(shape, memory_format=layout).fill_(1.0))
        to.memory.move_in(as_image(drawn, run.kind), self.out)


def of_module(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    dropping = False if type(module) is nn.Identity else drops(module)
    if dropping is None:
        return None
    inplace = bool(getattr(module, "inplace", False))
    return Drop(name, inputs, module, inplace, draw=module) if dropping else Identity(name, inputs)


def of_call(node: Node, inputs: list[str]) -> Step | None:
    if node.target is turned_dropout:
        return Drop(node.name, inputs, draw=partial(turned_dropout, rate=cast(float, node.args[1])))
    if node.target is not F.dropout:
        return None
    given = arguments(node, "input", "p", "training", "inplace")
    rate, training = given.get("p", 0.5), given.get("training", True)
    if len(inputs) != 1 or not isinstance(rate, float | int) or not isinstance(training, bool):
        return None
    if not training or rate == 0:
        return Identity(node.name, inputs)
    return Drop(node.name, inputs, inplace=given.get("inplace") is True, draw=partial(F.dropout, p=rate))


def is_drop_path(module: nn.Module) -> bool:
    """Whether a layer of this name is one by what it does, too."""
    return type(module).__name__.endswith(PATHS) and _multiplies(module)


def drops(module: nn.Module) -> bool | None:
    """Whether a layer multiplies with noise now, or lets all pass; None if it is another kind of layer."""
    if type(module) in DROPOUT:
        rate: Any = module.p
        return bool(module.training and rate > 0)
    if not is_drop_path(module):
        return None
    rates = [getattr(module, name) for name in ("drop_prob", "p", "rate") if hasattr(module, name)]
    return module.training and rates not in ([0], [0.0], [None])


def _multiplies(module: nn.Module) -> bool:
    """Whether a layer without weights gives its input times what it gives of ones."""
    if next(module.parameters(), None) is not None:
        return False
    for shape in ((16, 3, 2), (16, 3, 2, 2)):
        x = torch.linspace(1, 2, torch.Size(shape).numel()).view(shape)
        results = []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for given in (x, torch.ones_like(x)):
                    torch.manual_seed(0)
                    results.append(module.forward(given))
        except Exception:  # whatever a stranger's layer does with such inputs
            return False
        if not torch.allclose(results[0], x * results[1]):
            return False
    return True
