"""Which way is faster: measured on the real shapes, once, and remembered per CPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .build import cache_folder
from .index import Geometry
from .library import MOVE, Calls
from .measure import DenseLayer, SparseLayer, best
from .plan import Conv
from .region import Unsupported

if TYPE_CHECKING:
    from .rewrite import Switch

Example = Sequence[tuple[torch.Size, torch.dtype]]
Choices = dict[str, list[str] | None]  # by region: the layers that stay dense, or None for all on torch
REPEATS = 2
MARGIN = 1.05  # a layer leaves the kernels only if torch gains more than noise
_known: dict[str, float] = {}


class kept_buffers:
    """Buffers of a model come out as they went in."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())

    def __enter__(self) -> None:
        self.values = [b.detach().clone() for b in self.buffers]

    def __exit__(self, *exception: object) -> None:
        with torch.no_grad():
            for buffer, value in zip(self.buffers, self.values, strict=True):
                buffer.copy_(value)


def samples(example: Example) -> list[Tensor]:
    """Random inputs of the example's shapes; zeros where it holds integers."""
    return [torch.randn(s) if d.is_floating_point else torch.zeros(s, dtype=d) for s, d in example]


def settle(module: nn.Module, switches: Sequence[Switch], example: Example, choices: Choices) -> None:
    """For every region decide which layers stay dense, then whether the kernels are worth it at all.

    What `choices` holds is done without measuring; what it does not is measured and left there.
    """
    open_ = [switch for switch in switches if switch.title not in choices]
    if open_:
        _measure(module, open_, example)
        choices.update({switch.title: switch.choice for switch in open_})
    for switch in switches:
        switch.choose(choices[switch.title])


def _measure(module: nn.Module, switches: Sequence[Switch], example: Example) -> None:
    seen: dict[Switch, tuple[Tensor, ...]] = {}
    hooks = [s.register_forward_pre_hook(lambda s, args: seen.setdefault(s, args) and None) for s in switches]
    with kept_buffers(module), torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                module(*samples(example))
            for hook in hooks:
                hook.remove()
            for switch, inputs in seen.items():
                _settle_region(switch, inputs)
        finally:
            for hook in hooks:
                hook.remove()
    for switch in switches:
        switch.wins = switch.wins and switch in seen


def _settle_region(switch: Switch, inputs: tuple[Tensor, ...]) -> None:
    kernels = switch.kernels
    try:
        kernels.ready(inputs)
        images, program = kernels.lowered(inputs)
    except (Unsupported, ValueError, OverflowError):
        switch.wins = False
        return
    layers = kernels.layers
    convs = [op for op in program.ops if isinstance(op, Conv)]
    ratios = {op.module: _layer_ratio(kernels, op.geometry, op.module, images) for op in convs}
    kernels.dense = {module for module, ratio in ratios.items() if ratio < 1 / MARGIN}
    kernels.programs.clear()
    shape = "|".join(f"{op.geometry}{_bucket(layers.density(op.module))}" for op in convs)
    steps = " ".join(step.kind for step in kernels.region.steps)
    inputs = tuple(x.detach() for x in inputs)
    key = _key("region", f"{kernels.lib.path.name} {shape} {steps}", images)
    switch.wins = _remember(key, lambda: _region_ratio(switch, inputs)) > 1.0
    kernels.programs.clear()  # their memory: training makes its own


def _layer_ratio(kernels: Any, g: Geometry, module: nn.Module, images: int) -> float:
    """Dense time / sparse time of one layer, forward and backward; the dense one pays for changing layouts."""
    mask = kernels.layers.mask(module)
    density = kernels.layers.density(module)

    def measure() -> float:
        shape = (g.outputs, g.inputs, g.kernel, g.kernel)
        active = torch.ones(shape, dtype=torch.bool) if mask is None else mask.reshape(shape)
        sparse, dense = SparseLayer(kernels.lib, g, active, images), DenseLayer(g, images)
        moved = [(g.inputs, g.height, g.width), (g.outputs, g.out_height, g.out_width)]
        plain = [torch.empty(images, *size).contiguous(memory_format=torch.channels_last) for size in moved]
        room = [torch.empty_like(sparse.x), torch.empty_like(sparse.y)]

        def move() -> None:
            for p, r in zip(plain, room, strict=True):
                _move(kernels, p, r)

        took = best({"sparse": sparse.both, "dense": dense.both, "move": move}, REPEATS)
        return (took["dense"] + 3 * took["move"]) / took["sparse"]

    return _remember(_key("layer", f"{kernels.lib.path.name} {g}{_bucket(density)}", images), measure)


def _move(kernels: Any, plain: Tensor, room: Tensor) -> None:
    n, c, h, w = plain.shape
    plane = kernels.layers.plane(h, w)
    threads = torch.get_num_threads()
    calls = Calls(kernels.lib)
    calls.add(MOVE, plain.data_ptr(), room.data_ptr(), n, c, h, w, plane, *plain.stride(), 1, threads)
    calls.make()


def _region_ratio(switch: Switch, inputs: tuple[Tensor, ...]) -> float:
    """Time of the region in torch / on the kernels, forward and backward, on the model as it is."""
    parameters = [p for p in switch.plain.parameters() if p.requires_grad]

    def run(region: Callable[..., Any]) -> Callable[[], object]:
        def once() -> None:
            with torch.enable_grad():
                given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
                out = region(*given)
                total = sum(y.sum() for y in (out if isinstance(out, tuple) else (out,)))
                torch.autograd.grad(total, [*parameters, *given], allow_unused=True)

        return once

    took = best({"plain": run(switch.plain), "kernels": run(switch.kernels)}, REPEATS)
    return took["plain"] / took["kernels"]


def _bucket(density: float) -> str:
    """Densities that are close share a measurement."""
    return f"d{round(density, 1 if density > 0.2 else 2):g}"


def _key(kind: str, what: str, images: int) -> str:
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return f"{cpu_name()} {torch.__version__} threads {torch.get_num_threads()} {kind} {digest} images {images}"


def cpu_name() -> str:
    """What the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _remember(key: str, measure: Callable[[], float]) -> float:
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
