"""Which weights of a model can be pruned: those of convolutions, linear layers and attention projections."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

PRUNABLE: dict[type[nn.Module], tuple[str, ...]] = {
    nn.modules.conv._ConvNd: ("weight",),
    nn.Linear: ("weight",),
    nn.MultiheadAttention: ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every prunable weight by its name in the model, tied ones once; embeddings, norms and biases are left alone."""
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    found: dict[str, nn.Parameter] = {}
    seen = set(embedded)
    for path, module in model.named_modules():
        for kind, attributes in PRUNABLE.items():
            if not isinstance(module, kind):
                continue
            for attribute in attributes:
                weight = module._parameters.get(attribute)
                if weight is not None and id(weight) not in seen:
                    seen.add(id(weight))
                    found[f"{path}.{attribute}" if path else attribute] = weight
    return found


def select(weights: dict[str, nn.Parameter], patterns: Sequence[str]) -> set[str]:
    """The names that match: shell patterns, or the words `first`, `last` and `1x1`."""
    names, chosen = list(weights), set()
    for pattern in patterns:
        if pattern == "first":
            hits = names[:1]
        elif pattern == "last":
            hits = names[-1:]
        elif pattern == "1x1":
            hits = [n for n, w in weights.items() if w.dim() > 2 and set(w.shape[2:]) == {1}]
        else:
            hits = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
            if not hits:
                raise ValueError(f"no prunable weight is called {pattern!r}; there are {', '.join(names)}")
        chosen.update(hits)
    return chosen
