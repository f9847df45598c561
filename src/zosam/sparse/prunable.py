"""Which weights of a model can be pruned: those of convolutions, linear layers and attention projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import UninitializedParameter

Pattern = str | type[nn.Module]

PRUNABLE: dict[type[nn.Module], tuple[str, ...]] = {
    nn.modules.conv._ConvNd: ("weight",),
    nn.Linear: ("weight",),
    nn.MultiheadAttention: ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}
SHORTCUTS = ("downsample", "shortcut", "skip", "convshortcut")  # what implementations call a residual projection


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every prunable weight by its name in the model, tied ones once; embeddings, norms and biases are left alone."""
    return {name: weight for name, (weight, _) in _owned(model).items()}


def _owned(model: nn.Module) -> dict[str, tuple[nn.Parameter, nn.Module]]:
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    found: dict[str, tuple[nn.Parameter, nn.Module]] = {}
    seen = set(embedded)
    for path, module in model.named_modules():
        for kind, attributes in PRUNABLE.items():
            if not isinstance(module, kind):
                continue
            for attribute in attributes:
                weight = module._parameters.get(attribute)
                if weight is not None and id(weight) not in seen:
                    seen.add(id(weight))
                    found[f"{path}.{attribute}" if path else attribute] = (weight, module)
    return found


def split(
    model: nn.Module,
    include: Sequence[Pattern] | Pattern,
    exclude: Sequence[Pattern] | Pattern,
    dense: Sequence[Pattern] | Pattern,
    preset: Sequence[str] | None,
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The weights to mask, and those that count as prunable but stay dense.

    Frozen weights (`requires_grad=False`) are left alone. `preset`, a method's own layers to keep dense, stands in
    for `dense` where it is given, and may match nothing.
    """
    owned = {n: (w, m) for n, (w, m) in _owned(model).items() if w.requires_grad}
    lazy = [n for n, (w, _) in owned.items() if isinstance(w, UninitializedParameter)]
    if lazy:
        raise ValueError(f"{lazy[0]} has no shape yet: run one batch through the model before making it sparse")
    if include:
        chosen = select(owned, include)
        owned = {n: o for n, o in owned.items() if n in chosen}
    left_alone = select(owned, exclude)
    owned = {n: o for n, o in owned.items() if n not in left_alone}
    if not owned:
        raise ValueError("this model has nothing to prune: no convolution, linear layer or attention projection")
    kept = select(owned, dense) if preset is None else select(owned, preset, strict=False)
    return (
        {n: w for n, (w, _) in owned.items() if n not in kept},
        {n: w for n, (w, _) in owned.items() if n in kept},
    )


def select(
    owned: Mapping[str, tuple[nn.Parameter, nn.Module]], patterns: Sequence[Pattern] | Pattern, strict: bool = True
) -> set[str]:
    """The names that match: shell patterns, module types, or the words `first`, `last` and `shortcut`."""
    names, chosen = list(owned), set()
    for pattern in (patterns,) if isinstance(patterns, (str, type)) else patterns:
        if pattern == "first":
            hits = names[:1]
        elif pattern == "last":
            hits = names[-1:]
        elif pattern == "shortcut":
            hits = [n for n, (w, _) in owned.items() if _is_shortcut(n, w)]
        elif isinstance(pattern, str):
            hits = [n for n, (_, module) in owned.items() if _matches(n, module, pattern)]
        else:
            hits = [n for n, (_, module) in owned.items() if isinstance(module, pattern)]
        if not hits and strict and pattern not in {"", "shortcut"}:
            raise ValueError(f"no prunable weight is called {pattern!r}; there are {', '.join(names)}")
        chosen.update(hits)
    return chosen


def _matches(name: str, module: nn.Module, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") or type(module).__name__ == pattern


def _is_shortcut(name: str, weight: nn.Parameter) -> bool:
    """A 1 x 1 convolution that its author calls a shortcut."""
    one_by_one = weight.dim() > 2 and set(weight.shape[2:]) == {1}
    return one_by_one and any(part.lower() in SHORTCUTS for part in name.split("."))
