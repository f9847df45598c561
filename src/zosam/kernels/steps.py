"""The operations that the kernels understand, and which modules are one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .dropping import drops
from .plan import Activation, Frame

CURVES: dict[Any, Activation] = {
    nn.GELU: "gelu", nn.ReLU6: "relu6", nn.Hardswish: "hardswish", nn.SiLU: "silu",
    F.gelu: "gelu", F.relu6: "relu6", F.hardswish: "hardswish", F.silu: "silu",
}  # fmt: skip
WINDOWS: dict[Any, tuple[bool, int]] = {  # whether they take the largest, and over how many axes
    nn.MaxPool1d: (True, 1), nn.MaxPool2d: (True, 2), nn.AvgPool1d: (False, 1), nn.AvgPool2d: (False, 2),
    F.max_pool1d: (True, 1), F.max_pool2d: (True, 2), F.avg_pool1d: (False, 1), F.avg_pool2d: (False, 2),
}  # fmt: skip


@dataclass
class Step:
    """One operation: conv, linear, batch_norm, layer_norm, relu, curve (another activation), add, identity, window (its
    largest or mean), pool (to the mean of all pixels), cat (channels side by side), noise (dropout), subsample (every
    n-th pixel) or pad_channels (with zeros)."""

    kind: str
    name: str
    inputs: list[str]
    module: nn.Module | None = None
    keepdim: bool = False
    inplace: bool = False
    stride: int = 1
    extra: tuple[int, int] = (0, 0)  # channels of zeros before and after
    axes: int = 2  # of a picture, or one of a line
    activation: Activation = ""
    frame: Frame | None = None
    draw: Callable[[Tensor], Tensor] | None = None


def both(sizes: Sequence[int], missing: int) -> tuple[int, int]:
    """Rows and columns; of a line there are columns alone."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (missing, sizes[0])


def frame_of(
    largest: bool, axes: int, kernel_size: Any = None, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Frame | None:  # fmt: skip
    """The windows, if they lie equally far apart on both axes and end inside the picture."""

    def several(value: Any) -> tuple[int, ...] | None:
        value = (value,) * axes if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
        return value if len(value) == axes and all(isinstance(v, int) for v in value) else None

    kernel, pads = several(kernel_size), several(padding)
    steps = kernel if stride is None or stride == [] else several(stride)
    if kernel is None or pads is None or steps is None or several(dilation) != (1,) * axes or len(set(steps)) > 1:
        return None
    if ceil_mode or divisor_override is not None or any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        return None
    return Frame(largest, both(kernel, 1), steps[0], both(pads, 0), count_include_pad)


def padding_of(conv: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    """Zeros on each side, also where they were asked for by a word."""
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    if conv.padding == "same":
        return tuple(d * (k - 1) // 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True))
    assert isinstance(conv.padding, tuple)
    return conv.padding


def module_step(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    """The step that a module's call stands for, or None."""
    kind: Any = type(module)
    inplace = bool(getattr(module, "inplace", False))
    if kind in (nn.Conv1d, nn.Conv2d) and _plain_conv(module):
        return Step("conv", name, inputs, module, axes=1 if kind is nn.Conv1d else 2)
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear):
        return Step("linear", name, inputs, module)
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        return Step("batch_norm", name, inputs, module, axes=1 if kind is nn.BatchNorm1d else 2)
    if kind is nn.LayerNorm and len(getattr(module, "normalized_shape", ())) == 1:
        return Step("layer_norm", name, inputs, module)
    if kind is nn.ReLU:
        return Step("relu", name, inputs, module, inplace=inplace)
    if kind in CURVES and getattr(module, "approximate", "none") == "none":
        return Step("curve", name, inputs, module, inplace=inplace, activation=CURVES[kind])
    if kind in WINDOWS:
        return _window(module, name, inputs)
    if kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d):
        axes = 1 if kind is nn.AdaptiveAvgPool1d else 2
        whole = getattr(module, "output_size", None) in (1, (1,) * axes)
        return Step("pool", name, inputs, module, keepdim=True, axes=axes) if whole else None
    dropping = False if kind is nn.Identity else drops(module)
    if dropping is None:
        return None
    return (
        Step("noise", name, inputs, module, inplace=inplace, draw=module)
        if dropping
        else Step("identity", name, inputs)
    )


def _window(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    largest, axes = WINDOWS[type(module)]
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")
    given = {key: getattr(module, key) for key in names if hasattr(module, key)}
    frame = None if getattr(module, "return_indices", False) else frame_of(largest, axes, **given)
    return None if frame is None else Step("window", name, inputs, module, frame=frame, axes=axes)


def _plain_conv(conv: Any) -> bool:
    """Stride 1 or 2, the same on both axes, as dilation is; zeros around, fewer than the kernel reaches."""
    if conv.padding == "same" and any(d * (k - 1) % 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)):
        return False
    return (
        len(set(conv.stride)) == 1
        and conv.stride[0] in (1, 2)
        and len(set(conv.dilation)) == 1
        and all(p <= d * (k - 1) for p, d, k in zip(padding_of(conv), conv.dilation, conv.kernel_size, strict=True))
        and conv.padding_mode == "zeros"
    )


def why_not(module: nn.Module) -> str:
    """Why the weights of a module never run on the kernels; empty if they may."""
    step = module_step(module, "", [])
    if (step is not None and step.kind in ("conv", "linear")) or type(module) is nn.MultiheadAttention:
        return ""
    name = type(module).__name__
    if isinstance(module, nn.RNNBase):
        return f"{name} is one call in torch, step after step"
    if type(module) in (nn.Conv1d, nn.Conv2d):
        return f"a {name} of such stride, dilation or padding runs in torch"
    return f"{name} runs in torch"
