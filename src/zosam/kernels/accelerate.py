"""accelerate(model, sparse, example): the same model, with its sparse layers on the sparse kernels."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import library
from .choose import Choices, kept_buffers
from .dispatch import Dispatcher, Inputs, in_order
from .layers import Layers, Masks
from .summary import summary
from .trace import trace

Example = Tensor | Mapping[str, Tensor]
log = logging.getLogger("zosam")
_chosen: WeakKeyDictionary[nn.Module, dict[str, Choices]] = WeakKeyDictionary()


def accelerate(
    model: nn.Module,
    sparse: Masks | Mapping[str, Tensor] | None = None,
    example: Example | Sequence[Example] | None = None,
    choices: dict[str, Choices] | None = None,
) -> nn.Module:
    """Run the sparse layers of `model`, and what lies between them, on the sparse CPU kernels.

    Parameters, buffers, `state_dict`, optimizers and masks stay what they are; only `model.forward` is replaced.
    `sparse` holds the masks: a `zosam.sparse.Sparsity`, or a dict of masks by parameter name. Without it the weights'
    own zeros are the pattern, for use under `torch.no_grad()` alone.

    `example` is one batch as in training: a tensor, or a dict if the model takes its inputs by name. It may be a list
    of batches of several sizes: for each the faster way is measured, in training and in evaluation, layer by layer. A
    size that differs from all of them by more than a factor of two is measured when it first comes. What the kernels do
    not understand runs as before, and where they would not be faster nothing changes; one line on the log "zosam" says
    so. `restore(model)` takes it back, `report(model)` tells what runs where.

    Measurements differ from time to time, and with them the last bits. What `zosam.kernels.choices(model)` told of an
    earlier time, given as `choices`, is done again without measuring; other batch sizes go the way of the nearest.
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
    examples = [example] if isinstance(example, Tensor | Mapping) else list(example or ())
    if not examples:
        raise ValueError("accelerate needs an example: one batch of inputs as they come in training")
    for one in examples:
        if not isinstance(one, Tensor | Mapping):
            raise TypeError(f"the example must be a tensor, or a dict of them by name, not {type(one).__name__}")
    layers = Layers(lib, model, sparse)
    if not layers.any_sparse(model):
        warnings.warn("accelerate found no masks for this model: it runs dense", RuntimeWarning, stacklevel=2)
        return model
    names = {module: name for name, module in model.named_modules()}
    _chosen[model] = {name: dict(regions) for name, regions in (choices or {}).items()}
    for module, inputs in _entry_points(model, examples):
        if layers.any_sparse(module):
            own = _chosen[model].setdefault(names[module], {})
            dispatcher = Dispatcher(module, layers, inputs, own, measures=choices is None)
            if dispatcher.gains():
                module.forward = dispatcher
    gains, told = summary(model, layers)
    log.log(logging.INFO if gains else logging.WARNING, "accelerate: %s", told)
    return model


def choices(model: nn.Module) -> dict[str, Choices]:
    """What `accelerate` chose for this model, as plain values for a JSON file or a checkpoint.

    By part of the model and region of that part: the layers that stay dense inside, or None if torch runs it all.
    """
    return {part: dict(regions) for part, regions in _chosen.get(model, {}).items()}


def in_use(model: nn.Module) -> str | None:
    """The build of the kernels that some of the model runs on, such as "x86-64-v4"; None if all of it runs on torch."""
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


def _entry_points(model: nn.Module, examples: Sequence[Example]) -> list[tuple[nn.Module, Inputs]]:
    """The model itself, or where torch.fx cannot follow it, its outermost parts that can be followed."""
    names = list(inspect.signature(model.forward).parameters)
    given: Inputs = [in_order(names, (), e) if isinstance(e, Mapping) else (e,) for e in examples]
    whole = all(not isinstance(e, Mapping) or len(args) == len(e) for e, args in zip(examples, given, strict=True))
    if whole and trace(model, len(given[0])) is not None:
        return [(model, given)]
    seen: dict[nn.Module, Inputs] = {}

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = [x for x in kwargs.values() if isinstance(x, Tensor)]  # such calls are left alone
        seen.setdefault(module, []).append((*args, *([None] if named else [])))

    hooks = [m.register_forward_pre_hook(see, with_kwargs=True) for m in model.modules()]
    try:
        with torch.no_grad(), kept_buffers(model), torch.random.fork_rng(devices=[]):
            for example in examples:
                model(**example) if isinstance(example, Mapping) else model(example)
    finally:
        for hook in hooks:
            hook.remove()

    def parts(module: nn.Module) -> list[tuple[nn.Module, Inputs]]:
        found = []
        for child in module.children():
            inputs = seen.get(child, [])
            tensors = all(isinstance(x, Tensor) for args in inputs for x in args)
            if inputs and tensors and trace(child, len(inputs[0])) is not None:
                found.append((child, inputs[:: max(1, len(inputs) // len(examples))]))
            else:
                found += parts(child)
        return found

    return parts(model)
