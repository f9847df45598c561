"""Which way is faster, the kernels or torch: region by region, and layer by layer inside.

Times are measured once and remembered per CPU, in this process and in a file of the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from zosam import files
from zosam.machine import cache_folder, cpu_name

from .build import Library
from .execute import Unsupported
from .operations.convolution import Conv
from .operations.index import Geometry
from .operations.timed import rivals
from .timing import ratio
from .trace import untouched

if TYPE_CHECKING:
    from .dispatch import Switch

Choices = dict[str, list[str] | None]  # by region: the layers that stay dense, or None for all on torch
WORTH_IT = 1.02  # what a region, and a model, must gain
MARGIN = 1.05  # a layer leaves the kernels only if torch gains more than noise
ENOUGH_IMAGES = 32  # to know the choice for more
FEW_IMAGES = 16  # to time a region, or a model
ENOUGH_BLOCKS = 2  # of pictures, to time a layer
_known: dict[str, float] = {}


@dataclass(frozen=True)
class Case:
    """What is measured: inputs of these shapes, forward and backward as in training, or forward alone."""

    example: tuple[tuple[torch.Size, torch.dtype], ...]
    backward: bool

    @property
    def batch(self) -> int:
        shape = self.example[0][0] if self.example else ()
        return int(shape[0]) if shape else 0

    def first(self, images: int) -> Case:
        """The same with no more than so many images."""
        few = ((torch.Size((min(s[0], images), *s[1:])) if s and s[0] == self.batch else s, d) for s, d in self.example)
        return Case(tuple(few), self.backward)

    def title(self, switch: Switch) -> str:
        """The name of a region's choice."""
        return f"{switch.title}, {'training' if self.backward else 'forward'} of {self.batch}"

    def samples(self) -> list[Tensor]:
        """Random inputs of the example's shapes; zeros where it holds integers. The user's random numbers stay."""
        own = torch.Generator()
        return [
            torch.randn(s, generator=own) if d.is_floating_point else torch.zeros(s, dtype=d) for s, d in self.example
        ]


def settle(module: nn.Module, switches: Sequence[Switch], case: Case, choices: Choices) -> None:
    """For every region decide which layers stay dense, then whether the kernels are worth it at all.

    What `choices` holds is done without measuring; what it does not is measured and left there.
    """
    open_ = [switch for switch in switches if case.title(switch) not in choices]
    if open_:
        _measure(module, open_, case)
        choices.update({case.title(switch): switch.choice for switch in open_})
    for switch in switches:
        switch.choose(choices[case.title(switch)])


def _measure(module: nn.Module, switches: Sequence[Switch], case: Case) -> None:
    seen: dict[Switch, tuple[Tensor, ...]] = {}
    hooks = [s.register_forward_pre_hook(lambda s, args: seen.setdefault(s, args) and None) for s in switches]
    with untouched(module):
        try:
            with torch.no_grad():
                module(*case.first(ENOUGH_IMAGES).samples())
            for hook in hooks:
                hook.remove()
            for number, (switch, inputs) in enumerate(seen.items(), 1):
                _settle_region(switch, inputs, case.backward, f"part {number} of {len(seen)}")
        finally:
            for hook in hooks:
                hook.remove()
    for switch in switches:
        switch.wins = switch.wins and switch in seen


def _settle_region(switch: Switch, inputs: tuple[Tensor, ...], backward: bool, which: str) -> None:
    kernels = switch.kernels
    try:
        kernels.ready(inputs)
        shaped = kernels.shaped(inputs)
        images, program = shaped[0].shape[0], kernels.planned(shaped)
    except (Unsupported, ValueError, OverflowError) as error:
        switch.wins, switch.why = False, str(error)
        return
    layers, lib = kernels.layers, kernels.lib
    convs = [op for op in program.ops if isinstance(op, Conv)]
    kernels.dense = set()
    pixels = not backward and kernels.few(images, program)
    if not pixels:
        for number, op in enumerate(convs, 1):
            if clearly_sparse(op.geometry, layers.density(op.module), images, lib.lanes):
                continue
            _show(f"measuring {which}, layer {number} of {len(convs)}")
            ratio = layer_ratio(lib, op.geometry, layers.mask(op.module), images, backward)
            kernels.dense |= {op.module} if ratio < 1 / MARGIN else set()
    kernels.programs.clear()
    shape = "|".join(f"{op.geometry}{bucket(layers.density(op.module))}" for op in convs)
    steps = " ".join(step.kind for step in kernels.region.steps)
    inputs = tuple(x.detach()[:FEW_IMAGES] for x in inputs)
    way = "" if backward else " forward, pixels" if pixels else " forward"
    name = key("region", f"{lib.path.name} {shape} {steps}{way}", images)
    _show(f"measuring {which}, all of it")
    parameters = [p for p in switch.plain.parameters() if p.requires_grad]
    switch.ratio = remember(name, lambda: _ratio(switch.plain, kernels, inputs, parameters, backward))
    switch.wins, switch.key = switch.ratio > WORTH_IT, name
    kernels.programs.clear()
    _show("")


def _show(text: str) -> None:
    """Progress, for those who watch: one line that is written over, unless somebody else draws there."""
    if sys.stderr.isatty() and sys.stderr is sys.__stderr__:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _ratio(
    plain: Callable[..., Any], fast: Callable[..., Any], inputs: Sequence[Tensor], parameters: list[Any], backward: bool
) -> float:
    """Time of one / of the other, on the model as it is."""

    def run(function: Callable[..., Any]) -> Callable[[], object]:
        def once() -> None:
            if not backward:
                with torch.no_grad():
                    function(*inputs)
                return
            with torch.enable_grad():
                given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
                out = function(*given)
                found = [y for y in _tensors(out) if y.requires_grad]
                if found:
                    total = torch.stack([y.sum() for y in found]).sum()
                    torch.autograd.grad(total, [*parameters, *filter(_differs, given)], allow_unused=True)

        return once

    return ratio(run(plain), run(fast))


def _tensors(out: Any) -> list[Tensor]:
    """The tensors of what a module gives."""
    if isinstance(out, Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return [x for part in parts for x in _tensors(part)]


def _differs(x: Tensor) -> bool:
    return x.requires_grad


def whole_ratio(
    module: nn.Module,
    own: Callable[..., Any],
    graph: GraphModule,
    switches: Sequence[Switch],
    case: Case,
    before: Callable[..., object],
) -> float:
    """Time of the whole module in torch / with its regions on the kernels: what its user will see."""
    case = case.first(FEW_IMAGES)
    inputs = case.samples()

    def fast(*given: Tensor) -> Any:
        before(given)
        return graph(*given)

    what = f"{graph.code} {case} {[(s.key, s.choice) for s in switches]}"
    parameters = [p for p in module.parameters() if p.requires_grad]
    with untouched(module):
        name = key("whole", what, case.batch)
        return remember(name, lambda: _ratio(own, fast, inputs, parameters, case.backward))


def clearly_sparse(g: Geometry, density: float, images: int, lanes: int) -> bool:
    """Whether a layer gains without any doubt, on full vectors: many weights for each output, most of them pruned."""
    taps = g.kernel[0] * g.kernel[1]
    return density <= 0.2 and images >= lanes and g.inputs // g.groups * taps >= 128 and taps >= g.stride**2


def layer_ratio(lib: Library, g: Geometry, mask: Tensor | None, images: int, backward: bool) -> float:
    """Dense time / sparse time of one layer, both with or without backward; the dense one pays for changing layouts."""
    images = min(images, ENOUGH_BLOCKS * lib.lanes)
    active = torch.ones(g.weight, dtype=torch.bool) if mask is None else mask.reshape(g.weight)
    density = float(active.sum()) / max(active.numel(), 1)
    what = f"{lib.path.name} {g}{bucket(density)}{'' if backward else ' forward'}"
    return remember(key("layer", what, images), lambda: ratio(*rivals(lib, g, active, images, backward)))


def bucket(density: float) -> str:
    """Densities that are close share a measurement."""
    return f"d{round(density, 1 if density > 0.2 else 2):g}"


def key(kind: str, what: str, images: int) -> str:
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return f"{cpu_name()} {torch.__version__} threads {torch.get_num_threads()} {kind} {digest} images {images}"


def remember(key: str, measure: Callable[[], float]) -> float:
    """A measurement from this process, from the cache file, or made now."""
    if key not in _known:
        _read()
    if key not in _known:
        _known[key] = measure()
    return _known[key]


@contextlib.contextmanager
def written_down() -> Iterator[None]:
    """What is measured in here is then written to the cache file; one that fails is no error."""
    known = len(_known)
    try:
        yield
    finally:
        if len(_known) > known:
            _read()
            with contextlib.suppress(OSError):
                files.write(cache_folder() / "choices.json", json.dumps(_known, indent=1).encode())


def _read() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads((cache_folder() / "choices.json").read_bytes())
        _known.update({k: v for k, v in found.items() if k not in _known})


def forget() -> None:
    """Drop every remembered measurement, so that the next accelerate measures afresh."""
    _known.clear()
    (cache_folder() / "choices.json").unlink(missing_ok=True)
