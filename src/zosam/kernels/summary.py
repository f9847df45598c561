"""What runs on the kernels, what not and why: a line per region, or one for the whole model."""

from __future__ import annotations

from torch import nn

from .dispatch import Dispatcher
from .layers import Layers
from .steps import why_not


def _dispatchers(model: nn.Module) -> dict[str, Dispatcher]:
    found = {name: module.__dict__.get("forward") for name, module in model.named_modules()}
    return {name: forward for name, forward in found.items() if isinstance(forward, Dispatcher)}


def report(model: nn.Module) -> str:
    """One line per region of an accelerated model: what it holds, and whether kernels or torch run it."""
    told = []
    for name, dispatcher in _dispatchers(model).items():
        lines: dict[str, list[str]] = {}
        for (training, size, *_), version in dispatcher.versions.items():
            when = f"{'training' if training else 'forward'} of {size}"
            for line, gain in (version.describe() if version else {"torch runs all of it": ""}).items():
                lines.setdefault(line, []).append(f"{gain} {when}".strip())
        for line, cases in lines.items():
            always = len(cases) == len(dispatcher.versions)  # then only gains are worth a word
            said = ", ".join(c for c in cases if not always or "times" in c)
            told.append(f"{name or 'model'}: {line}" + f" ({said})" * bool(said))
    return "\n".join(told) or "not accelerated"


def summary(model: nn.Module, layers: Layers) -> tuple[bool, str]:
    """Whether the kernels run anything, and one line: how many sparse layers, how fast, what not and why."""
    ways: dict[str, set[nn.Parameter]] = {"training": set(), "evaluation": set()}
    speeds: dict[str, list[float]] = {}
    for dispatcher in _dispatchers(model).values():
        for version in filter(None, dispatcher.versions.values()):
            way = "training" if version.case.backward else "evaluation"
            for switch in version.switches:
                ways[way].update(w for w in switch.sparse_weights() if w is not None)
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
            reason = why_not(owner) or "torch is faster" + (f" in {missing[0]}" if len(missing) < 2 else "")
            names = reasons.setdefault(reason, [])
            names += [] if (name or key) in names else [name or key]
    on = sum(layers.is_sparse(p) for p in ways["evaluation"] | ways["training"])
    fast = ", ".join(f"{_range(ratios)} times as fast {when}" for when, ratios in speeds.items())
    told = f"{on} of {count} sparse layers on the kernels" if on else "nothing gains, the model runs as before"
    rest = "; ".join(f"{_names(names)}: {reason}" for reason, names in reasons.items())
    return bool(on), told + (f"; {fast}" if fast else "") + (f"; not {rest}" if rest else "")


def _range(ratios: list[float]) -> str:
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return low if low == high else f"{low} to {high}"


def _names(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
