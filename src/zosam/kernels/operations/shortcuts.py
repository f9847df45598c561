"""Bare shortcuts, x[:, :, ::n, ::n] and then channels of zeros around: one fixed 1 x 1 convolution."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.fx import Node
from torch.nn import functional as F

from zosam.optim.masked import set_mask

from .base import Step
from .convolution import plan_layer
from .index import Geometry

if TYPE_CHECKING:
    from ..plan import Planner


def of_call(node: Node, inputs: list[str]) -> Step | None:
    if node.target is operator.getitem:
        return _subsample(node, inputs)
    if node.target is F.pad:
        before = node.all_input_nodes[0]
        understood = before.target is operator.getitem and _subsample(before, []) is not None
        return _pad_channels(node, inputs) if understood else None
    return None


def _subsample(node: Node, inputs: list[str]) -> Step | None:
    stride = node.args[1][-1].step if isinstance(node.args[1], tuple) and isinstance(node.args[1][-1], slice) else None
    whole, every = slice(None), slice(None, None, stride)
    if stride not in (1, 2) or node.args[1] != (whole, whole, every, every):
        return None
    readers = list(node.users)
    if len(readers) != 1 or readers[0].target is not F.pad or _pad_channels(readers[0], []) is None:
        return None
    return Subsample(node.name, inputs, on="image", stride=int(stride))


def _pad_channels(node: Node, inputs: list[str]) -> Step | None:
    filled = {"mode": "constant", "value": None} | dict(node.kwargs)
    sizes = node.args[1] if len(node.args) == 2 else None
    if filled["mode"] != "constant" or filled["value"] not in (None, 0):
        return None
    if not isinstance(sizes, tuple) or len(sizes) != 6 or any(sizes[:4]):
        return None
    before, after = sizes[4:]
    if not (isinstance(before, int) and isinstance(after, int) and before >= 0 and after >= 0):
        return None
    return PadChannels(node.name, inputs, on="image", extra=(before, after))


@dataclass
class Subsample(Step):
    """Every n-th pixel of every n-th row."""

    stride: int = 1
    kind = "subsample"

    def plan(self, planner: Planner) -> None:
        readers = [other.kind for other in planner.region.steps if self.name in other.inputs]
        if readers != [PadChannels.kind] or self.name in planner.region.outputs:
            raise ValueError("fewer pixels, but not more channels")


@dataclass
class PadChannels(Step):
    """Channels of zeros before and after; it plans the pixels that are skipped as well."""

    extra: tuple[int, int] = (0, 0)
    kind = "pad_channels"

    def plan(self, planner: Planner) -> None:
        steps = planner.region.steps
        before = next((s for s in steps if s.name == self.inputs[0] and isinstance(s, Subsample)), None)
        if before is None:
            raise ValueError("more channels, but not fewer pixels")
        like = planner.view(before.inputs[0])[1].like
        if self.module is None:
            self.module = Selection(like.channels, before.stride, self.extra)
        assert isinstance(self.module, Selection)
        outputs = self.module.out_channels
        geometry = Geometry(like.channels, outputs, like.height, like.width, stride=before.stride)
        plan_layer(planner, self, self.module, geometry, before.inputs[0])


class Selection(nn.Conv2d):
    """A fixed 1 x 1 convolution that takes every n-th pixel and puts channels of zeros around."""

    def __init__(self, inputs: int, stride: int, extra: tuple[int, int]) -> None:
        super().__init__(inputs, inputs + sum(extra), 1, stride, bias=False)
        self.weight.requires_grad_(False).zero_()
        self.weight[range(extra[0], extra[0] + inputs), range(inputs)] = 1.0
        set_mask(self.weight, self.weight != 0)
