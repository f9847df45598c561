"""Which convolutions torch may be given in channels_last: on the CPU some write past their memory in the backward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

FEWEST = 16  # channels that a strided 1 x 1 convolution must read: the floats of the widest vectors (oneDNN issue 6035)


def bears_channels_last(model: nn.Module) -> bool:
    """Whether all convolutions of a network may be given channels_last: what lies so before them reaches them too.

    Convolutions that only a forward knows cannot be asked: where a module of another kind has a weight of four
    dimensions, it may not.
    """
    return all(map(_bears_it, model.modules()))


def _bears_it(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        inputs = module.in_channels // module.groups
        return convolution_bears_it(inputs, module.kernel_size, module.stride, module.dilation)
    known = isinstance(module, (nn.ConvTranspose2d, ParametrizationList))
    return known or all(p.dim() != 4 for p in module.parameters(recurse=False))


def convolution_bears_it(inputs: int, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether one may that reads so many channels for each output."""
    narrow = set(kernel) == {1} and max(stride) > 1 and inputs < FEWEST
    return not narrow and max(dilation) == 1
