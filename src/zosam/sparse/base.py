"""A model kept sparse: masks on its weights, and what every sparse method is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.fsdp import any_sharded, whole
from zosam.random_stream import stream
from zosam.sparse import budgets
from zosam.sparse.agreement import require_same
from zosam.sparse.budgets import Budget
from zosam.sparse.masks import MaskHooks
from zosam.sparse.patterns import NM, Unstructured, structure
from zosam.sparse.prunable import Patterns, plain, refuse_empty_slice, split
from zosam.sparse.report import Report
from zosam.sparse.state import Masks
from zosam.sparse.top_k import laid_out_like, top_of_all

Counts = int | Mapping[str, int]  # for all layers together, or for each


def total(counts: Counts) -> int:
    """How many weights of all layers together."""
    return counts if isinstance(counts, int) else sum(counts.values())


class NoGradient(ValueError):
    """A layer has no gradient in this step."""


class Sparsity(Report, MaskHooks):
    """Masks on the layers of any model; pruned weights are exactly zero, always.

    No module is replaced and no key renamed: the model's `state_dict` stays plain. `sparsity` is the share of zeros
    over all prunable weights, those of layers kept dense included (`over="masked"`: without them). `budget` splits
    what is left over the layers, `dense` names layers to keep dense, `include` and `exclude` what is prunable at
    all: shell patterns on names, module types, or `first`, `last`, `shortcut`. `pattern` asks for structure.
    Where layers compete, `min_per_layer` saves so many weights of each from being pruned.

    `optimizer` is torch's own, a sharpness-aware one around it, or a list of torch's own that hold the weights
    together and step one after the other, in that order.

    A subclass says which weights to keep: `choose` at the start, then `update` or `after_step`.
    """

    budget: ClassVar[str] = "erk"  # how layers share the budget, unless told; "global": they compete
    per_layer: ClassVar[bool] = True  # whether the method needs a count for each layer, so that "global" is refused
    dense: ClassVar[tuple[str, ...]] = ()  # layers kept dense, unless told
    over: ClassVar[str] = "all"  # of which weights the sparsity is a share, unless told
    min_per_layer: int = 0  # weights that each layer keeps where layers compete, unless told
    patterns: ClassVar[tuple[str, ...]] = ("n:m", "block")  # the structures that the method can keep
    seed: int = 0  # of what it draws, unless told
    draws: ClassVar[bool] = True  # whether it draws random numbers, or a seed has no effect
    nothing_at_zero: ClassVar[bool] = True  # whether at sparsity 0 it trains as if it were not there
    sharded: ClassVar[bool] = False  # whether weights may be those of fully_shard; all ranks then decide on whole ones

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        budget: str | Budget | None = None,
        dense: Patterns | None = None,
        include: Patterns = (),
        exclude: Patterns = (),
        over: str | None = None,
        min_per_layer: int | None = None,
        pattern: str | None = None,
        seed: int | None = None,
    ) -> None:
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, not {sparsity}")
        self.target_sparsity, self.steps = sparsity, 0
        if seed is not None and not self.draws:
            raise ValueError(f"seed={seed} has no effect on {type(self).__name__}, which draws nothing: leave it out")
        self.seed = self.seed if seed is None else seed
        self.pattern = self._check(budget, over, min_per_layer, pattern, self.dense if dense is None else dense)
        self.model = plain(model)
        found = split(self.model, include, exclude, dense or (), self.dense if dense is None else None)
        self.weights, self.kept_dense, self.left_out = found.masked, found.kept_dense, found.left_out
        self._lengths = found.lengths
        if any_sharded(self.weights.values()) and not self.sharded:
            raise ValueError(
                f"{type(self).__name__} does not work on the parameters of fully_shard: wrap the model in"
                " DistributedDataParallel, or take random, magnitude, set, rigl, svite, mest, gmp or lth"
            )
        self._check_shapes(found.transposed)
        if min_per_layer is not None:
            self.min_per_layer = min_per_layer
        self.n_active, self.n_active_by_layer = self._budget(budget, over)
        self.masks: Masks = {n: torch.ones_like(w, dtype=torch.bool) for n, w in self.weights.items()}
        self.watchers: list[Callable[[], None]] = []  # called after every change of the masks
        self._bind(optimizer)
        with torch.no_grad():
            self._unpruned = {n: w.detach().clone() for n, w in self.weights.items()}
            self.commit(self.choose())
        self._hold()

    # --- what a method says ------------------------------------------------------------------------------------------

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        """What settings that are None stand for at this sparsity, in a training of so many steps and an epoch of so
        many, where those are known."""
        return {}

    def choose(self) -> Masks:
        """The masks to start with."""
        raise NotImplementedError(f"{type(self).__name__} does not say which weights to keep")

    def expected_active(self) -> int:
        """How many weights of the masked layers are active now, by the method's own schedule."""
        return self.n_active

    def schedule_step(self, step: int) -> int:
        """Where in its schedule and data order a training stands at `step`: further back for a method that rewinds."""
        return step

    def total_steps(self, steps: int) -> int:
        """How many optimizer steps a training needs whose schedule is `steps` long."""
        return steps

    # --- what methods are made of ------------------------------------------------------------------------------------

    def commit(self, masks: Masks) -> None:
        for name in self._lengths.keys() & masks.keys():
            lasting = whole(masks[name]) if self.revives else whole(masks[name] & self.masks[name])
            values = lasting if self.revives else whole(self.weights[name].detach()) * lasting  # what grows is zero
            refuse_empty_slice(name, values, self._lengths[name])
        for name, new in masks.items():
            self.replace(name, new)
        require_same(masks, self.masks, self.ranks, f"{type(self).__name__}, step {self.steps}")
        empty = [n for n, m in masks.items() if not bool(m.any())]
        if empty:
            message = f"{type(self).__name__} has pruned all of {', '.join(empty)}: the network may be cut"
            warnings.warn(message, stacklevel=3)
        for watcher in self.watchers:
            watcher()

    def best(self, scores: Mapping[str, Tensor], counts: Counts) -> Masks:
        """Masks of the highest scores: so many of all layers together, or of each."""
        scores = {n: whole(s) for n, s in scores.items()}
        units = {n: self.pattern.fold(s) for n, s in scores.items()}
        if isinstance(counts, int):
            if self.min_per_layer:
                units = {
                    n: u.masked_fill(self.pattern.pick(u, self.min_per_layer), torch.inf) for n, u in units.items()
                }
            chosen = top_of_all(units, counts // self.pattern.size)
        else:
            chosen = {n: self.pattern.pick(u, counts[n] // self.pattern.size) for n, u in units.items()}
        like = scores if any_sharded(self.weights.values()) else self.weights
        return {n: self.pattern.unfold(mask, like[n]) for n, mask in chosen.items()}

    def smallest_pruned(self, counts: Counts) -> Masks:
        """Masks of the largest of the weights that are active now: so many of all layers together, or of each."""
        sizes = {n: w.detach().abs().masked_fill(~self.masks[n], -1) for n, w in self.weights.items()}
        return self.best(sizes, counts)

    def counts_along(self, path: Callable[[int, int], float]) -> Counts:
        """Whole counts for `path(size, kept)`, which leads from a dense pool to what the budget keeps of it."""
        unit = self.pattern.size
        if not self.n_active_by_layer:
            return round(path(sum(w.numel() for w in self.weights.values()), self.n_active) / unit) * unit
        exact = {n: path(self.weights[n].numel(), c) / unit for n, c in self.n_active_by_layer.items()}
        whole = budgets.round_to(
            exact, round(sum(exact.values())), {n: w.numel() // unit for n, w in self.weights.items()}
        )
        return {n: c * unit for n, c in whole.items()}

    def stream(self, name: str = "") -> torch.Generator:
        """A private random stream for this step and layer, of the CPU: the same numbers on every device."""
        return stream("mask", self.seed, self.steps, name)

    def noise(self, name: str, weight: Tensor) -> Tensor:
        """Uniform random scores for a layer, from a private stream."""
        flat = torch.rand(weight.numel(), generator=self.stream(name)).to(weight.device)
        return laid_out_like(weight, flat)

    def gradient(self, name: str) -> Tensor:
        """The gradient of a layer, that of pruned weights included, for methods that grow by it."""
        if not self.needs_dense_gradient():
            raise RuntimeError(
                f"{type(self).__name__} asks for a gradient at a step for which update_needs_gradient() is False"
            )
        found = self.weights[name].grad
        if found is None:
            raise NoGradient(f"{type(self).__name__} asks for the gradient of {name}, and there is none")
        return self.telling(name, self._dense.get(name, self.ranks) if self.steps_after_update else found)

    def telling(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient, if it tells where to grow: where all of it is zero, this step has left the layer out."""
        if not bool((found := self.finite(name, gradient)).any()):
            raise NoGradient(f"{type(self).__name__} asks for the gradient of {name}, and all of it is zero")
        return found

    def finite(self, name: str, score: Tensor) -> Tensor:
        """The score, if all of it is finite."""
        score = whole(score)
        if not bool(score.sum().isfinite()) and not bool(score.isfinite().all()):  # the sum is cheap, and may overflow
            raise FloatingPointError(f"{type(self).__name__}: the scores of {name} are not finite; masks stay")
        return score

    def setting(self, weight: Tensor, key: str) -> float:
        """A setting of the optimizer for this weight, such as `lr`; 0 where it has none."""
        groups = (g for o in self.optimizers for g in o.param_groups)
        return next(float(g.get(key, 0.0)) for g in groups if any(p is weight for p in g["params"]))

    def pull(self, weight: Tensor, along: Tensor, strength: float) -> None:
        """Let the optimizer move a weight against `along` as well, if it moves it in this step."""
        if weight.grad is not None:
            weight.grad.add_(along, alpha=-strength if self.setting(weight, "maximize") else strength)

    def averaged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over all ranks, signs and all: what a score must be made of."""
        return {n: self.ranks.mean(t.detach(), "scores") for n, t in tensors.items()}

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _check(
        self,
        budget: str | Budget | None,
        over: str | None,
        min_per_layer: int | None,
        pattern: str | None,
        dense: Patterns,
    ) -> Unstructured:
        """Refuse settings that no model can have; the structure that `pattern` names."""
        found, rule = structure(pattern), self.budget if budget is None else budget
        if pattern is not None and found.kind not in self.patterns:
            can = f"it can keep {' and '.join(self.patterns)}" if self.patterns else "it works on single weights"
            raise ValueError(f"{type(self).__name__} cannot keep the pattern {pattern}: {can}")
        if isinstance(found, NM):
            sparsity = 1 - found.density
            if budget is not None or over is not None or abs(self.target_sparsity - sparsity) > 1e-9:
                raise ValueError(
                    f"pattern {pattern} fixes every masked layer: pass sparsity={sparsity:g}, no budget and no over"
                )
        elif rule == "global" and self.per_layer:
            raise ValueError(
                f"{type(self).__name__} needs a count for each layer: choose uniform, er or erk, not global"
            )
        budgets.check(rule, self.over if over is None else over)
        if over not in (None, self.over) and not dense:
            raise ValueError(f"over={over!r} has no effect where no layer is kept dense: leave it out, or say dense=")
        if min_per_layer is not None:
            if min_per_layer < 0:
                raise ValueError(f"min_per_layer must be 0 or more weights, not {min_per_layer}")
            if rule != "global" or isinstance(found, NM):
                raise ValueError(
                    f'min_per_layer={min_per_layer} has no effect where layers do not compete: take budget="global", or'
                    " leave it out"
                )
        return found

    def _check_shapes(self, transposed: set[str]) -> None:
        """Refuse a model whose layers cannot have the structure."""
        wrong = [p for n, w in self.weights.items() if (p := self.pattern.problem(n, w, n in transposed))]
        if wrong:
            raise ValueError(
                f"pattern {self.pattern.name} does not fit {'; '.join(wrong)}: keep such layers dense or exclude them"
            )

    def _budget(self, rule: str | Budget | None, over: str | None) -> tuple[int, dict[str, int]]:
        """How many weights may be active, in all and in each layer."""
        shapes = {n: tuple(w.shape) for n, w in self.weights.items()}
        masked, whole = (sum(w.numel() for w in ws.values()) for ws in (self.weights, self.kept_dense))
        if isinstance(self.pattern, NM):
            n, m = self.pattern.n, self.pattern.group
            return masked * n // m, {name: w.numel() * n // m for name, w in self.weights.items()}
        active = budgets.allowance(self.target_sparsity, masked, whole, self.over if over is None else over)
        active -= active % self.pattern.size
        return active, budgets.counts(self.budget if rule is None else rule, shapes, active, self.pattern.size)
