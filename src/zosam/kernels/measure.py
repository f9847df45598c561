"""Times, measured once and remembered per CPU: a layer on the kernels, and by torch in its fastest layout."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ctypes import addressof
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from zosam.machine import cache_folder, cpu_name

from . import library
from .index import Geometry, LayerIndex, layout_for, plane
from .library import CONV_BACKWARD, CONV_FORWARD, MOVE, Library

Clock = Callable[[], float]
Name = TypeVar("Name")
REPEATS = 2
APART, DOUBTED = 1.25, 10.0  # ratios between these are told by two tries
TRIES, MOST_TRIES, ENOUGH_SECONDS = 4, 12, 0.25  # others take more, short ones many
ENOUGH_BLOCKS = 2  # of pictures, to time a layer
_known: dict[str, float] = {}


def best(
    functions: Mapping[Name, Callable[[], object]], repeats: int = REPEATS, clock: Clock = time.perf_counter
) -> dict[Name, float]:
    """The least time of each, taken in turns so that a busy machine treats them alike."""
    least = dict.fromkeys(functions, float("inf"))
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if round_:  # the first round warms up
                least[name] = min(least[name], clock() - start)
    return least


def ratio(slow: Callable[[], object], fast: Callable[[], object]) -> float:
    """Time of one / time of the other: the least of tries in turns, as few as it takes to see the second win.

    One thread is timed by its CPU time, so that other work on the machine does not count.
    """
    clock: Clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    took, began, found = [float("inf"), float("inf")], time.perf_counter(), 0.0
    for tries in range(1, MOST_TRIES + 1):
        for i, function in enumerate((slow, fast)):
            start = clock()
            function()
            took[i] = min(took[i], clock() - start)
        found = took[0] / max(took[1], 1e-9)
        enough = found < 1 / APART or time.perf_counter() - began > ENOUGH_SECONDS
        if (tries > 1 and APART < found < DOUBTED) or (tries >= TRIES and enough):
            break
    return found


class Layer(ABC):
    """A layer on random data, ready to be timed."""

    @abstractmethod
    def forward(self) -> object: ...

    @abstractmethod
    def backward(self, into: bool = True, of_weight: bool = True) -> None: ...

    def both(self) -> None:
        self.forward()
        self.backward()

    def calls(self) -> dict[str, Callable[[], object]]:
        return {
            "forward": self.forward,
            "input_gradient": lambda: self.backward(of_weight=False),
            "weight_gradient": lambda: self.backward(into=False),
            "backward": self.backward,
        }


class SparseLayer(Layer):
    """A layer on the kernels, in the blocked layout."""

    def __init__(self, lib: Library, g: Geometry, mask: Tensor, images: int) -> None:
        self.lib = lib
        self.weight = torch.randn(mask.shape) * mask
        self.index = LayerIndex(g, mask, self.weight.stride(), lib.lanes)
        self.index.shape.images = images
        blocks = -(-images // lib.lanes)
        shape = self.index.shape
        self.x = torch.randn(blocks * g.inputs * shape.in_plane)
        self.y = torch.randn(blocks * g.outputs * shape.out_plane)
        self.dx, self.dw = torch.empty_like(self.x), torch.zeros_like(self.weight)
        self.stats = torch.empty(blocks * g.outputs * 3 * lib.lanes)
        self.source, self.gradient = library.Source(x=self.x.data_ptr()), library.Source(x=self.y.data_ptr())
        self.out = torch.empty_like(self.y)

    def forward(self) -> None:
        sink = library.Sink(out=self.out.data_ptr(), stats=self.stats.data_ptr())
        i = self.index
        self.lib.call(
            CONV_FORWARD, addressof(i.shape), addressof(self.source), addressof(i.forward), self.weight.data_ptr(),
            addressof(sink), torch.get_num_threads(), 0,
        )  # fmt: skip

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        sink = library.Sink(out=self.dx.data_ptr() if into else 0)
        i = self.index
        self.lib.call(
            CONV_BACKWARD, addressof(i.shape), addressof(self.gradient), addressof(self.source), addressof(i.forward),
            addressof(i.transposed), addressof(i.counts), self.weight.data_ptr(), addressof(sink),
            self.dw.data_ptr() if of_weight else 0, 0, torch.get_num_threads(), 0,
        )  # fmt: skip


class DenseLayer(Layer):
    """The same layer in torch, in its fastest layout."""

    def __init__(self, g: Geometry, images: int) -> None:
        layout, self.g = layout_for(g), g
        self.x = torch.randn(images, g.inputs, g.height, g.width).contiguous(memory_format=layout)
        self.y = torch.randn(images, g.outputs, g.out_height, g.out_width).contiguous(memory_format=layout)
        self.weight = torch.randn(g.weight).contiguous(memory_format=layout)

    def forward(self) -> Tensor:
        g = self.g
        return F.conv2d(self.x, self.weight, None, g.stride, g.pad, g.dilation, g.groups)

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        g = self.g
        torch.ops.aten.convolution_backward(
            self.y, self.x, self.weight, None, [g.stride] * 2, g.pad, [g.dilation] * 2, False, [0, 0], g.groups,
            [into, of_weight, False],
        )  # fmt: skip


def clearly_sparse(g: Geometry, density: float, images: int, lanes: int) -> bool:
    """Whether a layer gains without any doubt, on full vectors: many weights for each output, most of them pruned."""
    taps = g.kernel[0] * g.kernel[1]
    return density <= 0.2 and images >= lanes and g.inputs // g.groups * taps >= 128 and taps >= g.stride**2


def layer_ratio(lib: Library, g: Geometry, mask: Tensor | None, images: int, backward: bool) -> float:
    """Dense time / sparse time of one layer, both with or without backward; the dense one pays for changing layouts."""
    images = min(images, ENOUGH_BLOCKS * lib.lanes)
    active = torch.ones(g.weight, dtype=torch.bool) if mask is None else mask.reshape(g.weight)

    def measure() -> float:
        sparse, dense = SparseLayer(lib, g, active, images), DenseLayer(g, images)
        moved = [(g.inputs, g.height, g.width), (g.outputs, g.out_height, g.out_width)]
        plain = [torch.empty(images, *size).contiguous(memory_format=torch.channels_last) for size in moved]
        blocked = [torch.empty_like(sparse.x), torch.empty_like(sparse.y)]

        def move() -> None:
            for p, b in zip(plain, blocked, strict=True):
                n, c, h, w = p.shape
                size = (n, c, h, w, plane(h, w, lib.lanes))
                lib.call(MOVE, p.data_ptr(), b.data_ptr(), *size, *p.stride(), 1, torch.get_num_threads())

        def moved_and_dense() -> None:
            for _ in range(3 if backward else 1):
                move()
            dense.both() if backward else dense.forward()

        return ratio(moved_and_dense, sparse.both if backward else sparse.forward)

    density = float(active.sum()) / max(active.numel(), 1)
    what = f"{lib.path.name} {g}{bucket(density)}{'' if backward else ' forward'}"
    return remember(key("layer", what, images), measure)


def bucket(density: float) -> str:
    """Densities that are close share a measurement."""
    return f"d{round(density, 1 if density > 0.2 else 2):g}"


def key(kind: str, what: str, images: int) -> str:
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return f"{cpu_name()} {torch.__version__} threads {torch.get_num_threads()} {kind} {digest} images {images}"


def remember(key: str, measure: Callable[[], float]) -> float:
    """A measurement from this process, from the cache file, or made now; a cache that fails is no error."""
    if key in _known:
        return _known[key]
    path = cache_folder() / "choices.json"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        _known.update({k: v for k, v in json.loads(path.read_text()).items() if k not in _known})
    if key not in _known:
        _known[key] = measure()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump(_known, file, indent=1)
            os.replace(name, path)
        except OSError:
            pass
    return _known[key]


def forget() -> None:
    """Drop every remembered measurement, so that the next accelerate measures afresh."""
    _known.clear()
    (cache_folder() / "choices.json").unlink(missing_ok=True)
