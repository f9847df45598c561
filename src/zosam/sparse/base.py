"""A model kept sparse: masks bound in place to its weights, kept by hooks on the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.ddp import unwrapped
from zosam.distributed.fsdp import any_sharded, local, shared_like, whole
from zosam.optim import travel
from zosam.random_stream import stream
from zosam.sparse import budgets
from zosam.sparse.budgets import Budget
from zosam.sparse.masks import Hold, Masks
from zosam.sparse.patterns import NM, Unstructured, structure
from zosam.sparse.prunable import Pattern, split
from zosam.sparse.report import Account
from zosam.sparse.top_k import laid_out_like, top_of_all

Counts = int | Mapping[str, int]  # for all layers together, or for each


class Sparsity(Account, Hold):
    """Masks on the convolutions and linear layers of any model; pruned weights are exactly zero, always.

    No module is replaced and no key renamed: the model's `state_dict` stays plain. `sparsity` is the share of zeros
    over all prunable weights, those of layers kept dense included (`over="masked"`: without them). `budget` splits
    what is left over the layers, `dense` names layers to keep dense, `include` and `exclude` what is prunable at
    all: shell patterns on names, module types, or `first`, `last`, `shortcut`. `pattern` asks for structure.
    Where layers compete, `at_least` saves so many weights of each from being pruned.

    A subclass says which weights to keep: `choose` at the start, then `update` or `after_step`.
    """

    budget: ClassVar[str] = "erk"  # how layers share the budget, unless told; "global": they compete
    per_layer: ClassVar[bool] = True  # whether the method needs a count for each layer, so that "global" is refused
    dense: ClassVar[tuple[str, ...]] = ()  # layers kept dense, unless told
    over: ClassVar[str] = "all"  # of which weights the sparsity is a share, unless told
    at_least: ClassVar[int] = 0  # weights that each layer keeps where layers compete, unless told
    patterns: ClassVar[tuple[str, ...]] = ("n:m", "block")  # the structures that the method can keep
    sharded: ClassVar[bool] = False  # whether weights may be those of fully_shard; all ranks then decide on whole ones

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.9,
        *,
        budget: str | Budget | None = None,
        dense: Sequence[Pattern] | Pattern | None = None,
        include: Sequence[Pattern] | Pattern = (),
        exclude: Sequence[Pattern] | Pattern = (),
        over: str | None = None,
        at_least: int | None = None,
        pattern: str | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, not {sparsity}")
        model = unwrapped(model)
        self.model, self.target, self.seed, self.steps = model, sparsity, seed, 0
        self.weights, self.kept_dense = split(
            model, include, exclude, dense or (), self.dense if dense is None else None
        )
        if any_sharded(self.weights.values()) and not self.sharded:
            raise ValueError(
                f"{type(self).__name__} does not work on the parameters of fully_shard: wrap the model in"
                " DistributedDataParallel, or take random, magnitude, set, rigl, svite, mest, gmp or lth"
            )
        self.pattern = self._structure(pattern)
        self.least = self.at_least if at_least is None else at_least
        self.active, self.counts = self._budget(budget, over)
        self.masks: Masks = {n: torch.ones_like(w, dtype=torch.bool) for n, w in self.weights.items()}
        self.watchers: list[Callable[[], None]] = []  # called after every change of the masks
        self._bind(optimizer)
        with torch.no_grad():
            self.commit(self.choose())
        self._hold()

    # --- what a method says ------------------------------------------------------------------------------------------

    def choose(self) -> Masks:
        """The masks to start with."""
        raise NotImplementedError(f"{type(self).__name__} does not say which weights to keep")

    def expected_active(self) -> int:
        """How many weights of the masked layers are active now, by the method's own schedule."""
        return self.active

    def schedule_step(self, step: int) -> int:
        """Where in its schedule and data order a training stands at `step`: further back for a method that rewinds."""
        return step

    def total_steps(self, steps: int) -> int:
        """How many optimizer steps a training needs whose schedule is `steps` long."""
        return steps

    def extra_state(self) -> dict[str, Any]:
        """What else a method must save: numbers, and tensors by name."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None: ...

    # --- what methods are made of ------------------------------------------------------------------------------------

    def best(self, scores: Mapping[str, Tensor], counts: Counts) -> Masks:
        """Masks of the highest scores: so many of all layers together, or of each."""
        scores = {n: whole(s) for n, s in scores.items()}
        units = {n: self.pattern.fold(s) for n, s in scores.items()}
        if isinstance(counts, int):
            if self.least:
                units = {n: u.masked_fill(self.pattern.pick(u, self.least), torch.inf) for n, u in units.items()}
            chosen = top_of_all(units, counts // self.pattern.size)
        else:
            chosen = {n: self.pattern.pick(u, counts[n] // self.pattern.size) for n, u in units.items()}
        like = scores if any_sharded(self.weights.values()) else self.weights
        return {n: self.pattern.unfold(mask, like[n]) for n, mask in chosen.items()}

    def on_the_way(self, path: Callable[[int, int], float]) -> Counts:
        """Whole counts for `path(size, kept)`, which leads from a dense pool to what the budget keeps of it."""
        unit = self.pattern.size
        if not self.counts:
            return round(path(sum(w.numel() for w in self.weights.values()), self.active) / unit) * unit
        exact = {n: path(self.weights[n].numel(), c) / unit for n, c in self.counts.items()}
        whole = budgets.round_to(
            exact, round(sum(exact.values())), {n: w.numel() // unit for n, w in self.weights.items()}
        )
        return {n: c * unit for n, c in whole.items()}

    def stream(self, name: str = "") -> torch.Generator:
        """A private random stream for this step and layer."""
        device = next(iter(self.weights.values())).device
        return stream(device, "mask", self.seed, self.steps, name)

    def noise(self, name: str, weight: Tensor) -> Tensor:
        """Uniform random scores for a layer, from a private stream."""
        flat = torch.rand(weight.numel(), generator=self.stream(name), device=weight.device)
        return laid_out_like(weight, flat)

    def finite(self, name: str, score: Tensor) -> Tensor:
        """The score, if all of it is finite."""
        score = whole(score)
        if not bool(score.sum().isfinite()) and not bool(score.isfinite().all()):  # the sum is cheap, and may overflow
            raise FloatingPointError(f"{type(self).__name__}: the scores of {name} are not finite; masks stay")
        return score

    # --- what users ask ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Masks and method state; they ride in the optimizer's own `state_dict` too."""
        about = {"method": type(self).__name__, "sparsity": self.target, "steps": self.steps}
        return {**about, "masks": {n: m.clone() for n, m in self.masks.items()}, **self.extra_state()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of another method, model or sparsity."""
        ours = self.state_dict()
        if state.get("method") != ours["method"] or state.keys() != ours.keys():
            whose = state.get("method", f"something with {', '.join(state)}")
            raise ValueError(f"this is not the state of {ours['method']} but of {whose}")
        if state["sparsity"] != ours["sparsity"]:
            raise ValueError(f"this is a state of sparsity {state['sparsity']}, not {ours['sparsity']}")
        shapes, expected = ({n: tuple(m.shape) for n, m in s["masks"].items()} for s in (state, ours))
        if shapes != expected:
            other = sorted(n for n in {*shapes, *expected} if shapes.get(n) != expected.get(n))
            raise ValueError(f"these masks belong to another model or setting: {', '.join(other[:5])} differ")

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take masks and method state; those of another model or method are refused, and nothing is changed."""
        self.check_state(state)
        self.load_extra_state({k: v for k, v in state.items() if k not in {"method", "sparsity", "steps", "masks"}})
        self.steps = int(state["steps"])
        new = {n: shared_like(m.to(self.masks[n].device), self.masks[n]) for n, m in state["masks"].items()}
        # weights are touched where masks change alone: a trainer may send the masks of now through here
        changed = {n: m for n, m in new.items() if not torch.equal(local(m), local(self.masks[n]))}
        for name, mask in changed.items():
            self.masks[name].copy_(mask)
        self._mask({n: self.weights[n].detach() for n in changed})

    # --- what travels with the optimizer -----------------------------------------------------------------------------

    def pack(self) -> travel.Luggage:
        """The state by weight: what is not of one weight lies beside the first."""
        luggage: travel.Luggage = {w: {} for w in self.weights.values()}
        first = next(iter(luggage.values()))
        for key, value in self.state_dict().items():
            if isinstance(value, Mapping) and value.keys() == self.weights.keys():
                for name, tensor in value.items():
                    # as bytes, which everything that sends tensors can send
                    luggage[self.weights[name]][key] = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
            else:
                first[key] = value
        return luggage

    def check(self, luggage: travel.Luggage) -> None:
        self.check_state(self._together(luggage))

    def unpack(self, luggage: travel.Luggage) -> None:
        self.load_state_dict(self._together(luggage))

    def _rider(self) -> travel.Rider:
        return self

    def _together(self, luggage: travel.Luggage) -> dict[str, Any]:
        """The state that `pack` has taken apart."""
        mine = {n: luggage[w] for n, w in self.weights.items() if w in luggage}
        if not mine:
            raise ValueError(
                f"this state holds no masks (was it saved without {type(self).__name__}?): load it into the optimizer"
                " before the sparse method is made"
            )
        state: dict[str, Any] = {}
        for name, items in mine.items():
            for key, value in items.items():
                if isinstance(value, Tensor):
                    state.setdefault(key, {})[name] = value.bool() if value.dtype == torch.uint8 else value
                else:
                    state[key] = value
        return state

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _structure(self, spec: str | None) -> Unstructured:
        found = structure(spec)
        if spec is not None and found.kind not in self.patterns:
            can = f"it can keep {' and '.join(self.patterns)}" if self.patterns else "it works on single weights"
            raise ValueError(f"{type(self).__name__} cannot keep the pattern {spec}: {can}")
        for name, weight in self.weights.items():
            found.check(name, weight)
        return found

    def _budget(self, rule: str | Budget | None, over: str | None) -> tuple[int, dict[str, int]]:
        """How many weights may be active, in all and in each layer."""
        shapes = {n: tuple(w.shape) for n, w in self.weights.items()}
        masked, whole = (sum(w.numel() for w in ws.values()) for ws in (self.weights, self.kept_dense))
        if isinstance(self.pattern, NM):
            n, m = self.pattern.n, self.pattern.group
            if rule is not None or over == "all" or abs(self.target - (1 - n / m)) > 1e-9:
                raise ValueError(
                    f"pattern {n}:{m} fixes every masked layer: pass sparsity={1 - n / m:g}, no budget and no over"
                )
            return masked * n // m, {name: w.numel() * n // m for name, w in self.weights.items()}
        rule = self.budget if rule is None else rule
        if rule == "global" and self.per_layer:
            raise ValueError(
                f"{type(self).__name__} needs a count for each layer: choose uniform, er or erk, not global"
            )
        active = budgets.allowance(self.target, masked, whole, self.over if over is None else over)
        active -= active % self.pattern.size
        return active, budgets.counts(rule, shapes, active, self.pattern.size)
