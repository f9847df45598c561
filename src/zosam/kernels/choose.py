"""Which way is faster, the kernels or torch: region by region, and layer by layer inside."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from . import measure
from .execute import KernelRegion, Switch, Unsupported
from .index import Layers
from .plan import Conv
from .regions import alone, regions, splice
from .trace import trace

Choices = dict[str, list[str] | None]  # by region: the layers that stay dense, or None for all on torch
MARGIN = 1.05  # a layer leaves the kernels only if torch gains more than noise
ENOUGH_IMAGES = 32  # to time a region


@dataclass(frozen=True)
class Case:
    """What is measured: inputs of these shapes, forward and backward as in training, or forward alone."""

    example: tuple[tuple[torch.Size, torch.dtype], ...]
    backward: bool

    @property
    def batch(self) -> int:
        shape = self.example[0][0] if self.example else ()
        return int(shape[0]) if shape else 0

    def title(self, switch: Switch) -> str:
        """The name of a region's choice."""
        return switch.title if self.backward else f"{switch.title}, forward of {self.batch}"

    def samples(self) -> list[Tensor]:
        """Random inputs of the example's shapes; zeros where it holds integers."""
        return [torch.randn(s) if d.is_floating_point else torch.zeros(s, dtype=d) for s, d in self.example]


@dataclass
class Rewritten:
    """The graph to run, and its regions."""

    graph: GraphModule
    switches: list[Switch]
    case: Case

    @cached_property
    def arguments(self) -> dict[str, None]:
        """The names of what the graph takes."""
        return {str(node.target): None for node in self.graph.graph.nodes if node.op == "placeholder"}

    def describe(self) -> dict[str, str]:
        """Of each region what runs where, and how many times as fast that was measured to be."""
        gain = {s: f"{s.ratio:.1f} times as fast" if s.ratio and s.wins else "" for s in self.switches}
        return {switch.describe(): text for switch, text in gain.items()}


def rewrite(module: nn.Module, layers: Layers, case: Case, choices: Choices) -> Rewritten | None:
    """The module with its regions on the kernels, or None if there are none that gain."""
    graph = trace(module)
    if graph is None:
        return None
    found = regions(graph, lambda m: layers.mask(m) is not None)
    switches = [Switch(KernelRegion(layers.lib, layers, region, set()), alone(graph, region)) for region in found]
    nodes = {node.name: node for node in graph.graph.nodes}
    for region, switch in zip(found, switches, strict=True):
        splice(graph, region, switch, nodes)
    graph.recompile()
    settle(graph, switches, case, choices)
    if not any(switch.wins for switch in switches):
        return None
    if not _same(module, graph, case):
        warnings.warn("the traced model computes something else, so it runs as before", RuntimeWarning, stacklevel=5)
        return None
    return Rewritten(graph, switches, case)


class NoDropout(TorchFunctionMode):
    """Dropout lets everything pass: which entries it takes depends on how a tensor lies in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.attentions = [(m, m.dropout) for m in model.modules() if isinstance(m, nn.MultiheadAttention)]

    def __enter__(self) -> NoDropout:
        for module, _ in self.attentions:
            module.dropout = 0.0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for module, share in self.attentions:
            module.dropout = share

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.dropout, torch.dropout, torch.dropout_):
            return args[0]
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def _same(module: nn.Module, graph: GraphModule, case: Case) -> bool:
    """Whether both give the same output for one random input, up to rounding: a trace may miss what code does."""
    results = []
    inputs = case.samples()
    own = module.__dict__.get("forward", partial(type(module).forward, module))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(module), NoDropout(module):
        for forward in (own, graph):
            torch.manual_seed(0)
            results.append(forward(*inputs))
    if not all(isinstance(y, Tensor) for y in results):
        return True
    theirs, ours = results
    room = 1e-3 * float(theirs.abs().nan_to_num(0, 0, 0).max()) if theirs.numel() else 0.0
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-3, atol=room, equal_nan=True)


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
    with kept_buffers(module), torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                module(*case.samples())
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
        images, program = kernels.lowered(inputs)
    except (Unsupported, ValueError, OverflowError) as error:
        switch.wins, switch.why = False, str(error)
        return
    layers, lib = kernels.layers, kernels.lib
    convs = [op for op in program.ops if isinstance(op, Conv)]
    kernels.dense = set()
    if backward or not kernels.few(images):
        for number, op in enumerate(convs, 1):
            _show(f"measuring {which}, layer {number} of {len(convs)}")
            ratio = measure.layer_ratio(lib, op.geometry, layers.mask(op.module), images, backward)
            kernels.dense |= {op.module} if ratio < 1 / MARGIN else set()
    kernels.programs.clear()
    shape = "|".join(f"{op.geometry}{measure.bucket(layers.density(op.module))}" for op in convs)
    steps = " ".join(step.kind for step in kernels.region.steps)
    inputs = tuple(x.detach()[:ENOUGH_IMAGES] for x in inputs)
    key = measure.key("region", f"{lib.path.name} {shape} {steps}{'' if backward else ' forward'}", images)
    _show(f"measuring {which}, all of it")
    switch.ratio = measure.remember(key, lambda: _region_ratio(switch, inputs, backward))
    switch.wins = switch.ratio > 1.0
    kernels.programs.clear()  # their memory: training makes its own
    _show("")


def _show(text: str) -> None:
    """Progress, for those who watch: one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _region_ratio(switch: Switch, inputs: tuple[Tensor, ...], backward: bool) -> float:
    """Time of the region in torch / on the kernels, on the model as it is."""
    parameters = [p for p in switch.plain.parameters() if p.requires_grad]

    def run(region: Callable[..., Any]) -> Callable[[], object]:
        def once() -> None:
            if not backward:
                with torch.no_grad():
                    region(*inputs)
                return
            with torch.enable_grad():
                given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
                out = region(*given)
                total = sum(y.sum() for y in (out if isinstance(out, tuple) else (out,)))
                torch.autograd.grad(total, [*parameters, *given], allow_unused=True)

        return once

    return measure.ratio(run(switch.plain), run(switch.kernels))
