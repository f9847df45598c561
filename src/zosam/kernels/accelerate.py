"""accelerate(model, sparse, example): the same model, with its sparse layers on the sparse kernels."""

from __future__ import annotations

import inspect
import logging
import math
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import library
from .choose import Case, Choices, Rewritten, kept_buffers, rewrite
from .index import Layers, Masks
from .trace import trace

log = logging.getLogger("zosam")
LEAVES = {nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.LayerNorm, nn.Embedding}
_chosen: WeakKeyDictionary[nn.Module, dict[str, Choices]] = WeakKeyDictionary()


def accelerate(
    model: nn.Module,
    sparse: Masks | Mapping[str, Tensor] | None = None,
    example: Tensor | Sequence[Tensor] | None = None,
    choices: dict[str, Choices] | None = None,
) -> nn.Module:
    """Run the sparse layers of `model`, and what lies between them, on the sparse CPU kernels.

    Parameters, buffers, `state_dict`, optimizers and masks stay what they are; only `model.forward` is replaced.
    `sparse` holds the masks: a `zosam.sparse.Sparsity`, or a dict of masks by parameter name. Without it the weights'
    own zeros are the pattern, for use under `torch.no_grad()` alone. `example` is one batch as in training, on which
    the faster way is measured, layer by layer; of a list of batches each is measured for evaluation, and other batch
    sizes go the way of the nearest. What the kernels do not understand runs as before, and where they would not
    be faster nothing changes. `restore(model)` takes it back, `report(model)` tells what runs where.

    Measurements differ from time to time, and with them the last bits. What `zosam.kernels.choices(model)` told of an
    earlier time, given as `choices`, is done again without measuring.
    """
    if isinstance(model, DataParallel | DistributedDataParallel):
        name = type(model).__name__
        raise TypeError(f"accelerate takes the model inside of {name}: accelerate(model.module, ...), before or after")
    _refuse_other_devices(model)
    _refuse_compiled(model)
    _check(choices)
    restore(model)
    lib = library.load()
    if lib is None:
        return model
    examples = [example] if isinstance(example, Tensor) else list(example or ())
    if not examples:
        raise ValueError("accelerate needs an example: one batch of inputs as they come in training")
    for one in examples:
        if not isinstance(one, Tensor):
            raise TypeError(f"the example must be a tensor, not {type(one).__name__}")
    layers = Layers(lib, model, sparse)
    if not layers.any_sparse(model):
        warnings.warn("accelerate found no masks for this model: it runs dense", RuntimeWarning, stacklevel=2)
        return model
    names = {module: name for name, module in model.named_modules()}
    _chosen[model] = {name: dict(regions) for name, regions in (choices or {}).items()}
    for module, inputs in _entry_points(model, examples):
        if layers.any_sparse(module):
            dispatcher = Dispatcher(module, layers, inputs, _chosen[model].setdefault(names[module], {}))
            if dispatcher.gains():
                module.forward = dispatcher
    told = report(model)
    log.info("accelerate: %s", told.replace("\n", "; "))
    return model


def choices(model: nn.Module) -> dict[str, Choices]:
    """What `accelerate` chose for this model, as plain values for a JSON file or a checkpoint.

    By part of the model and region of that part: the layers that stay dense inside, or None if torch runs it all.
    """
    return {part: dict(regions) for part, regions in _chosen.get(model, {}).items()}


def in_use(model: nn.Module) -> str | None:
    """The build of the kernels that some of the model runs on, such as "avx512"; None if all of it runs on torch."""
    lib = library.load() if any(isinstance(m.__dict__.get("forward"), Dispatcher) for m in model.modules()) else None
    return None if lib is None else lib.variant


def _refuse_other_devices(model: nn.Module) -> None:
    others = sorted({str(p.device) for p in model.parameters() if p.device.type != "cpu"})
    if others:
        raise ValueError(f"the sparse kernels are for CPUs, and this model lies on {others[0]}: leave accelerate out")


def _refuse_compiled(model: nn.Module) -> None:
    """torch.compile follows the plain code: it would never call the kernels."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise TypeError(
                f"{name or 'this model'} is compiled, and torch.compile would run it dense: give accelerate the model"
                " without it (the one that torch.compile was given, or before model.compile()), and train that one"
            )


def _check(choices: dict[str, Choices] | None) -> None:
    """They come out of files."""
    fine = choices is None or (
        isinstance(choices, dict)
        and all(isinstance(part, dict) for part in choices.values())
        and all(dense is None or isinstance(dense, list) for part in choices.values() for dense in part.values())
    )
    if not fine:
        raise ValueError("these are no choices of kernels: give what zosam.kernels.choices(model) returned")


def restore(model: nn.Module) -> nn.Module:
    """Give an accelerated model its own forward back."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, Dispatcher):
            module.__dict__.pop("forward")
            if forward.own is not None:
                module.__dict__["forward"] = forward.own
    _chosen.pop(model, None)
    return model


def report(model: nn.Module) -> str:
    """One line per region of an accelerated model: what it holds, and whether kernels or torch run it."""
    told = []
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if not isinstance(forward, Dispatcher):
            continue
        lines: dict[str, list[str]] = {}
        for (case, *_), version in forward.versions.items():
            when = "in training" if case is True else f"forward of {case}"
            for line, gain in (version.describe() if version else {"torch runs all of it": ""}).items():
                lines.setdefault(line, []).append(f"{gain} {when}".strip())
        for line, cases in lines.items():
            always = len(cases) == len(forward.versions)  # then only gains are worth a word
            said = ", ".join(c for c in cases if not always or "times" in c)
            told.append(f"{name or 'model'}: {line}" + f" ({said})" * bool(said))
    return "\n".join(told) or "not accelerated"


Inputs = list[tuple[Any, ...]]  # of one module, for each example


def _entry_points(model: nn.Module, examples: Sequence[Tensor]) -> list[tuple[nn.Module, Inputs]]:
    """The model itself, or where torch.fx cannot follow it, its outermost parts that can be followed."""
    if trace(model) is not None:
        return [(model, [(example,) for example in examples])]
    seen: dict[nn.Module, Inputs] = {}
    hooks = [m.register_forward_pre_hook(lambda m, args: seen.setdefault(m, []).append(args)) for m in model.modules()]
    try:
        with torch.no_grad(), kept_buffers(model), torch.random.fork_rng(devices=[]):
            for example in examples:
                model(example)
    finally:
        for hook in hooks:
            hook.remove()

    def parts(module: nn.Module) -> list[tuple[nn.Module, Inputs]]:
        found = []
        for child in module.children():
            inputs = seen.get(child, [])
            tensors = all(isinstance(x, Tensor) for args in inputs for x in args)
            if inputs and tensors and trace(child) is not None:
                found.append((child, inputs[:: max(1, len(inputs) // len(examples))]))
            else:
                found += parts(child)
        return found

    return parts(model)


class Dispatcher:
    """Called as the module's forward; keeps one rewritten graph for each setting of the training flags."""

    def __init__(self, module: nn.Module, layers: Layers, examples: Inputs, choices: Choices) -> None:
        self.module, self.layers, self.choices = module, layers, choices
        shapes = [tuple((x.shape, x.dtype) for x in args) for args in examples]
        self.training_case = Case(shapes[0], backward=True)
        self.cases = {case.batch: case for case in (Case(shape, backward=False) for shape in shapes)}
        self.own: Callable[..., Any] | None = module.__dict__.get("forward")
        self.__signature__ = inspect.signature(self.own or module.forward)  # exporters ask for both
        self.__code__ = getattr(self.own or type(module).forward, "__code__", None)
        self.inner = [m for m in module.modules() if m is not module]
        self.structure = [(m, dict(m._modules)) for m in module.modules() if m._modules]
        own = [m for m in module.modules() if not m.__module__.startswith("torch.nn") or isinstance(m, nn.Dropout)]
        self.steered = [module, *own]
        bare = [m for m in module.modules() if type(m) not in LEAVES]  # whose tensors may stand in the graph themselves
        held = [(which, dict(which)) for m in bare for which in (m._parameters, m._buffers)]
        self.held = [(now, then) for now, then in held if then]
        self.ranks = [len(shape) for shape, _ in shapes[0]]
        self.versions: dict[tuple[Any, ...], Rewritten | None] = {}

    def version(self, batch: int) -> Rewritten | None:
        """The rewritten graph for the present training flags, on which a module's own code may depend, and batch size.

        In evaluation the choices of the nearest batch size are taken, as a factor.
        """
        case = self.training_case
        if not self.module.training:
            near = batch if batch in self.cases else min(self.cases, key=lambda n: abs(math.log(max(batch, 1) / n)))
            case = self.cases[near]
        key = (case.backward or case.batch, *[m.training for m in self.steered])
        if key not in self.versions:
            self.versions[key] = rewrite(self.module, self.layers, case, self.choices)
        return self.versions[key]

    def gains(self) -> bool:
        """Whether the kernels are worth it in training or in evaluation; what is chosen for both is then known."""
        modes = [(m, m.training) for m in self.module.modules()]
        try:
            if not self.layers.serving:
                self.module.train()
                self.version(self.training_case.batch)
            self.module.eval()
            for batch in self.cases:
                self.version(batch)
        finally:
            for module, training in modes:
                module.training = training
        return any(version is not None for version in self.versions.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        version = None
        if not self._plain(args):
            version = self.version(args[0].shape[0] if args and isinstance(args[0], Tensor) and args[0].dim() else 1)
        if version is None:
            return self.original(*args, **kwargs)
        count, names = len(version.arguments), version.arguments
        if len(args) > count or not kwargs.keys() <= names.keys():  # what the graph does not know must not be given
            if any(v is not None and v is not False for v in (*args[count:], *kwargs.values())):
                return self.original(*args, **kwargs)
            args, kwargs = args[:count], {}
        return version.graph(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _plain(self, args: tuple[Any, ...]) -> bool:
        """Whether something is going on that only the module's own code serves: hooks, autocast, transforms."""
        if (
            torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or torch._C._get_tracing_state() is not None
        ):
            return True
        for x, rank in zip(args, self.ranks, strict=False):
            if not isinstance(x, Tensor) or x.dim() != rank or torch._C._functorch.is_functorch_wrapped_tensor(x):
                return True
        for parent, parts in self.structure:
            if parent._modules != parts:  # a layer was replaced after the model was accelerated
                return True
        for now, then in self.held:
            for name, tensor in then.items():
                if now.get(name) is not tensor:  # another tensor was put in its place
                    return True
        for m in self.inner:
            if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
                return True
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copied model has its own parameters: it runs its own code until it is accelerated itself."""
        return _bind(type(self.module).forward, memo.get(id(self.module), self.module))

    def __reduce__(self) -> tuple[Any, ...]:
        return _bind, (type(self.module).forward, self.module)


def _bind(function: Callable[..., Any], module: nn.Module) -> Any:
    """A method that pickle can make: a loaded model runs its own code, as a copied one does."""
    return types.MethodType(function, module)
