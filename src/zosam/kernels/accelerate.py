"""accelerate(model, sparse, example): the same model, with its sparse layers on the sparse kernels."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import build
from .choose import Choices
from .dispatch import Dispatcher
from .regions import Layers, Masks
from .timing import times
from .trace import Example, by_place, entry_points, why_not

log = logging.getLogger("zosam")
_chosen: WeakKeyDictionary[nn.Module, dict[str, Choices]] = WeakKeyDictionary()
_gained: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


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
    lib = build.load()
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
    for module, inputs in entry_points(model, examples):
        if layers.any_sparse(module):
            own = _chosen[model].setdefault(names[module], {})
            dispatcher = Dispatcher(module, layers, inputs, own, measures=choices is None)
            if dispatcher.gains():
                module.forward = dispatcher
    gains, told = _summary(model, layers)
    _gained[model] = told
    log.log(logging.INFO if gains else logging.WARNING, "accelerate: %s", told)
    return model


class FirstBatch:
    """Waits in front of a model's forward for the first batch, to measure on it."""

    def __init__(self, model: nn.Module) -> None:
        self.handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.handle.remove()
        signature = inspect.signature(model.forward)
        given = dict(zip(by_place(signature), args, strict=False)) | kwargs
        named = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        example = named or [x for x in args[:1] if isinstance(x, Tensor)]  # one that has no name
        try:
            signature.bind(**named)
        except TypeError:
            example = []
        if example:
            accelerate(model, example=example)
        else:
            log.warning("accelerate: the model needs more than tensors by name, so it runs as before")


def accelerate_at_first_batch(model: nn.Module) -> nn.Module:
    """As `accelerate` without `sparse`, for use under `torch.no_grad()`: its example is the first batch that comes."""
    restore(model)
    FirstBatch(model)
    return model


def choices(model: nn.Module) -> dict[str, Choices]:
    """What `accelerate` chose for this model, as plain values for a JSON file or a checkpoint.

    By part of the model and region of that part: the layers that stay dense inside, or None if torch runs it all.
    """
    return {part: dict(regions) for part, regions in _chosen.get(model, {}).items()}


def gained(model: nn.Module) -> str:
    """The line that `accelerate` put on the log: how many layers are on the kernels, how much faster that was measured
    to be, and what is not there and why."""
    return _gained.get(model, "not accelerated")


def in_use(model: nn.Module) -> str | None:
    """The build of the kernels that some of the model runs on, such as "x86-64-v4"; None if all of it runs on torch."""
    lib = build.load() if any(isinstance(m.__dict__.get("forward"), Dispatcher) for m in model.modules()) else None
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
    for waiting in _waiting(model):
        waiting.handle.remove()
    _chosen.pop(model, None)
    _gained.pop(model, None)
    return model


# --- what runs where --------------------------------------------------------------------------------------------------


def _dispatchers(model: nn.Module) -> dict[str, Dispatcher]:
    found = {name: module.__dict__.get("forward") for name, module in model.named_modules()}
    return {name: forward for name, forward in found.items() if isinstance(forward, Dispatcher)}


def _waiting(model: nn.Module) -> list[FirstBatch]:
    return [hook for hook in model._forward_pre_hooks.values() if isinstance(hook, FirstBatch)]


def report(model: nn.Module) -> str:
    """One line per region of an accelerated model: what it holds, and whether kernels or torch run it.

    Then one for each sparse layer that no kernel knows, and why. Gains are as measured when such a layer first came on
    this CPU; `zosam.kernels.forget()` lets the next `accelerate` measure again.
    """
    if _waiting(model):
        return "not measured yet: the first batch will be measured, and then runs where it is faster"
    told = []
    for name, dispatcher in _dispatchers(model).items():
        lines: dict[str, list[str]] = {}
        measured = sorted(dispatcher.versions.items(), key=lambda item: (not item[0][0], item[0][1]))
        for (training, size, *_), version in measured:
            when = f"{'training' if training else 'forward'} of {size}"
            for line, gain in (version.describe() if version else {"torch runs all of it": ""}).items():
                lines.setdefault(line, []).append(f"{gain} {when}".strip())
        for line, cases in lines.items():
            always = len(cases) == len(dispatcher.versions)  # then only gains are worth a word
            said = ", ".join(c for c in cases if not always or "times" in c)
            told.append(f"{name or 'model'}: {line}" + f" ({said})" * bool(said))
    told += _unknown(model)
    nothing = "torch runs all of it: the kernels gain nothing here" if model in _chosen else "not accelerated"
    return "\n".join(told) or nothing


def _unknown(model: nn.Module) -> list[str]:
    """Sparse layers of an accelerated model that are not on the kernels and never can be."""
    found = list(_dispatchers(model).values())
    switches = [s for d in found for version in filter(None, d.versions.values()) for s in version.switches]
    on = {weight for switch in switches for weight in switch.weights(sparse=True) if weight is not None}
    told = {}
    for name, owner in model.named_modules() if found else ():
        own = {w for w in owner._parameters.values() if w is not None and found[0].layers.is_sparse(w)}
        if own - on and (reason := why_not(owner)):
            told[name or "model"] = reason
    return [f"{name}: {reason}" for name, reason in told.items()]


def _summary(model: nn.Module, layers: Layers) -> tuple[bool, str]:
    """Whether the kernels run anything, and one line: how many sparse layers, how fast, what not and why."""
    ways: dict[str, set[nn.Parameter]] = {"training": set(), "evaluation": set()}
    speeds: dict[str, list[float]] = {}
    for dispatcher in _dispatchers(model).values():
        for version in filter(None, dispatcher.versions.values()):
            way = "training" if version.case.backward else "evaluation"
            for switch in version.switches:
                ways[way].update(w for w in switch.weights(sparse=True) if w is not None)
            if version.ratio is not None:
                speeds.setdefault(f"in {way} at batch {version.case.batch}", []).append(version.ratio)
    reasons: dict[str, list[str]] = {}
    count = 0
    for name, owner, key in ((n, m, k) for n, m in model.named_modules() for k in m._parameters):
        weight = owner._parameters[key]
        if weight is None or not layers.is_sparse(weight):
            continue
        count += 1
        missing = [way for way, found in ways.items() if weight not in found]
        if layers.serving:
            missing = [way for way in missing if way == "evaluation"]
        if missing:
            reason = why_not(owner) or layers.why.get(weight) or "runs in torch as it is called here"
            reason += f" in {missing[0]}" if len(missing) < 2 and reason == "torch is faster" else ""
            names = reasons.setdefault(reason, [])
            names += [] if (name or key) in names else [name or key]
    on = sum(layers.is_sparse(p) for p in ways["evaluation"] | ways["training"])
    fast = ", ".join(f"{_range(ratios)} times as fast {when}" for when, ratios in speeds.items())
    told = f"{on} of {count} sparse layers on the kernels" if on else "nothing gains, the model runs as before"
    rest = "; ".join(f"{_names(names)}: {reason}" for reason, names in reasons.items())
    return bool(on), told + (f"; {fast}" if fast else "") + (f"; not {rest}" if rest else "")


def _range(ratios: list[float]) -> str:
    low, high = times(min(ratios)), times(max(ratios))
    return low if low == high else f"{low} to {high}"


def _names(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
