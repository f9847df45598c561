"""Which weights of a model can be pruned, by which names they are chosen, and why the others are left out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.swa_utils import AveragedModel

from zosam.distributed.ddp import unwrapped

Pattern = str | type[nn.Module]
Patterns = Sequence[Pattern] | Pattern

WEIGHT_OF = (nn.modules.conv._ConvNd, nn.Linear)
PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
SHORTCUTS = ("downsample", "shortcut", "skip", "convshortcut")  # what implementations call a residual projection


@dataclass
class Candidate:
    """A matrix or more among a model's parameters, by all the names that it goes by."""

    weight: nn.Parameter
    owners: list[tuple[str, nn.Module]] = field(default_factory=list)
    kind: str = "other"  # "layer": pruned unless told otherwise; the others must be asked for by `include`
    problem: str = ""  # why it cannot be pruned as it is, and what to do
    lengths: nn.Parameter | None = None  # of weight_norm, which divides the slices of this weight by their norms

    @property
    def name(self) -> str:
        return self.owners[0][0]


@dataclass
class Split:
    """What becomes of a model's weights."""

    masked: dict[str, nn.Parameter]
    kept_dense: dict[str, nn.Parameter]  # counts as prunable, but stays dense
    left_out: dict[str, tuple[nn.Parameter, str]]  # does not count, and why
    transposed: set[str]  # of those masked, the ones that keep their inputs first
    lengths: dict[str, nn.Parameter]  # of those masked, the ones under weight_norm, with the lengths of their slices


def plain(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, DataParallel, torch.compile or a moving average."""
    while True:
        inside = unwrapped(model)
        inside = inside._orig_mod if hasattr(inside, "_orig_mod") else inside  # type: ignore[assignment]
        inside = inside.module if isinstance(inside, AveragedModel | nn.DataParallel) else inside
        if inside is model:
            return model
        model = inside


def plain_name(name: str) -> str:
    """A name as the model has it that is neither compiled nor checkpointed."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def plain_state(model: nn.Module) -> dict[str, Any]:
    """The state_dict of the user's own module, by plain names."""
    return {plain_name(name): value for name, value in plain(model).state_dict().items()}


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every weight that is pruned unless told otherwise, by its name in the model, tied ones once."""
    return {c.name: c.weight for c in candidates(model) if c.kind == "layer" and not c.problem}


def candidates(model: nn.Module) -> list[Candidate]:
    """All parameters with two dimensions or more, in the order of the model."""
    found: dict[int, Candidate] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        for attribute, weight in module._parameters.items():
            if weight is None:
                continue
            if not isinstance(weight, UninitializedParameter) and weight.dim() < 2:
                continue
            name, owner = plain_name(f"{path}.{attribute}" if path else attribute), module
            if isinstance(module, ParametrizationList):
                owner = modules[path.rpartition(".parametrizations.")[0] if ".parametrizations." in path else ""]
            kind, problem = "other", "masks are for real numbers"
            if weight.is_floating_point():
                kind, problem = _kind(owner, module, path.rpartition(".")[2], attribute)
            if kind == "part":
                continue
            c = found.setdefault(id(weight), Candidate(weight, kind=kind))
            if kind == "layer" and c.kind == "other":
                c.owners.insert(0, (name, owner))
            else:
                c.owners.append((name, owner))
            if "embedding" in (kind, c.kind):  # a head that is tied to one as well
                c.kind = "embedding"
            elif kind == "layer":
                c.kind = "layer"
            c.problem, c.lengths = c.problem or problem, c.lengths or _lengths(module, attribute)
    return list(found.values())


def split(model: nn.Module, include: Patterns, exclude: Patterns, dense: Patterns, preset: Patterns | None) -> Split:
    """The weights to mask, those that count as prunable but stay dense, and those left out.

    Frozen weights (`requires_grad=False`) are left out. `preset`, a method's own layers to keep dense, stands in for
    `dense` where it is given, and may match nothing.
    """
    everything = candidates(model)
    trainable = {c.name: c for c in everything if c.weight.requires_grad}
    layers = {n: c for n, c in trainable.items() if c.kind == "layer"}
    lazy = [n for n, c in layers.items() if isinstance(c.weight, UninitializedParameter)]
    if lazy:
        raise ValueError(f"{lazy[0]} has no shape yet: run one batch through the model before making it sparse")
    owned = {n: trainable[n] for n in trainable if n in select(layers, include, trainable)} if include else layers
    left_alone = select(owned, exclude)
    owned = {n: c for n, c in owned.items() if n not in left_alone}
    problems = [f"{n}: {c.problem}" for n, c in owned.items() if c.problem]
    if problems:
        raise ValueError("; ".join(problems) + ". Or leave such weights out with exclude=")
    if not owned:
        others = [n for n in trainable if n not in layers]
        hint = f"; include= takes others, such as {others[0]}" if others else ""
        raise ValueError(f"this model has nothing to prune: no convolution, linear, recurrent or attention layer{hint}")
    kept = select(owned, dense) if preset is None else select(owned, preset, strict=False)
    out = {c.name: (c.weight, _why(c, left_alone)) for c in everything if c.name not in owned}
    return Split(
        {n: c.weight for n, c in owned.items() if n not in kept},
        {n: c.weight for n, c in owned.items() if n in kept},
        out,
        {n for n, c in owned.items() if n not in kept and is_transposed(c.owners[0][1])},
        {n: c.lengths for n, c in owned.items() if n not in kept and c.lengths is not None},
    )


def select(
    owned: Mapping[str, Candidate],
    patterns: Patterns,
    others: Mapping[str, Candidate] | None = None,
    strict: bool = True,
) -> set[str]:
    """The names that match: shell patterns, module types, or the words `first`, `last` and `shortcut`.

    A pattern that no weight of `owned` matches is looked for in `others`.
    """
    names, chosen = list(owned), set()
    for pattern in (patterns,) if isinstance(patterns, (str, type)) else patterns:
        if pattern == "first":
            hits = names[:1]
        elif pattern == "last":
            hits = names[-1:]
        elif pattern == "shortcut":
            hits = [n for n, c in owned.items() if is_shortcut(n, c.weight)]
        else:
            hits = list(_matching(owned, pattern)) or list(_matching(others or {}, pattern))
        if not hits and strict and pattern not in {"", "shortcut"}:
            raise ValueError(f"no prunable weight is called {pattern!r}; there are {', '.join(others or names)}")
        chosen.update(hits)
    return chosen


def _matching(owned: Mapping[str, Candidate], pattern: Pattern) -> Iterator[str]:
    for name, candidate in owned.items():
        if any(_matches(alias, module, pattern) for alias, module in candidate.owners):
            yield name


def _matches(name: str, module: nn.Module, pattern: Pattern) -> bool:
    if not isinstance(pattern, str):
        return isinstance(module, pattern)
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") or type(module).__name__ == pattern


def is_shortcut(name: str, weight: nn.Parameter) -> bool:
    """A 1 x 1 convolution that its author calls a shortcut."""
    one_by_one = weight.dim() > 2 and set(weight.shape[2:]) == {1}
    return one_by_one and any(part.lower() in SHORTCUTS for part in name.split("."))


def is_transposed(module: nn.Module) -> bool:
    """Whether a layer keeps its weight with the inputs first, as the `Conv1D` of transformers does."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _kind(owner: nn.Module, holder: Any, parametrized: str, attribute: str) -> tuple[str, str]:
    """What a parameter is: layer, embedding, other, or only a part of one; and why it cannot be pruned."""
    problem = ""
    if holder is not owner:  # parametrized: masking what it is made of must zero the weight itself
        result = getattr(owner, parametrized)
        if getattr(holder, attribute).shape != result.shape:
            return "part", ""
        if not _keeps_zeros(holder, attribute):
            problem = f"its {type(holder[0]).__name__} does not leave zeros at zero: remove that parametrization"
        attribute = parametrized
    elif attribute.endswith("_orig") and hasattr(owner, attribute.removesuffix("_orig") + "_mask"):
        attribute = attribute.removesuffix("_orig")
        problem = f"torch prunes it already: torch.nn.utils.prune.remove(module, {attribute!r}) first"
    elif attribute.endswith("_g") and hasattr(owner, attribute.removesuffix("_g") + "_v"):
        return "part", ""
    elif attribute.endswith("_v") and hasattr(owner, attribute.removesuffix("_v") + "_g"):  # the older weight_norm
        attribute = attribute.removesuffix("_v")
    elif attribute.endswith("_orig") and hasattr(owner, attribute.removesuffix("_orig") + "_u"):  # older spectral_norm
        attribute = attribute.removesuffix("_orig")
    if isinstance(owner, EMBEDDINGS):
        return "embedding", "its gradient is sparse: make it with sparse=False" if owner.sparse else problem
    if isinstance(owner, WEIGHT_OF) or is_transposed(owner):
        return ("layer" if attribute == "weight" else "other"), problem
    if isinstance(owner, nn.MultiheadAttention):
        return ("layer" if attribute in PROJECTIONS else "other"), problem
    if isinstance(owner, RECURRENT):
        return ("layer" if attribute.startswith("weight_") else "other"), problem
    return "other", problem


def _lengths(holder: nn.Module, attribute: str) -> nn.Parameter | None:
    """The lengths that weight_norm, the newer or the older, gives to the slices of this parameter."""
    key = f"{attribute.removesuffix('_v')}_g" if attribute.endswith("_v") else ""
    if isinstance(holder, ParametrizationList) and attribute == "original1":
        key = "original0" if type(holder[0]).__name__ == "_WeightNorm" else ""
    return holder._parameters.get(key)


def refuse_empty_slice(name: str, values: torch.Tensor, lengths: torch.Tensor) -> None:
    """Refuse a weight that weight_norm would divide by zero: each slice that has a length must hold some value."""
    if not bool(values.ne(0).float().sum_to_size(lengths.shape).all()):
        raise ValueError(
            f"{name}: weight_norm divides each slice by its norm, and these masks leave nothing but zeros in some:"
            " exclude the layer or keep it dense, take a lower sparsity, or remove weight_norm from it"
        )


@torch.no_grad()
def _keeps_zeros(holder: Any, attribute: str) -> bool:
    """Whether zeros in what a weight is made of are zeros in the weight."""
    twin = copy.deepcopy(holder)
    made_of = getattr(twin, attribute)
    pruned = torch.rand(made_of.shape, generator=torch.Generator().manual_seed(0)).to(made_of.device) < 0.5
    made_of.masked_fill_(pruned, 0)
    return not bool(twin()[pruned].any())


def _why(candidate: Candidate, excluded: set[str]) -> str:
    if not candidate.weight.requires_grad:
        return "frozen"
    if candidate.name in excluded:
        return "excluded"
    if not candidate.weight.is_floating_point():
        return "not of real numbers"
    return {"embedding": "embedding", "layer": "not included"}.get(candidate.kind, "no layer that is known")
