"""ZO-SAM: climb along a zero-order estimate of the gradient, so that a step needs one backward only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import Direction, SharpnessAware
from zosam.optim.geometry import largest
from zosam.optim.pair import Buffers, keep_freed_memory, settle, standing_in
from zosam.optim.passes import Closure, NoBackward, part_of_batch, require_finite
from zosam.optim.probes import DISTRIBUTIONS, Replayed, draw, drawn, made, momentum, orthonormal, require_momentum
from zosam.optim.schedules import Schedule

Guide = Callable[["ZOSAM"], "Tensor | Sequence[Tensor]"]
GUIDES = ("momentum", "gradient", "subspace")
TIE = 1e-12  # two equal losses: go up along u, as far as with any other difference
SUBSPACE = 4  # last gradients that span, with the momentum, the guided subspace


class ZOSAM(SharpnessAware):
    """Zero-order SAM: two forward passes instead of a backward find where to climb.

    With u_i random over the active weights, ĝ = (1/m) Σ (L(θ+δu_i) − L(θ−δu_i)) / 2δ · u_i; the gradient is then
    taken at θ + ρ ĝ/‖ĝ‖. Ji et al., "ZO-SAM: zero-order sharpness-aware minimization for efficient sparse training",
    Algorithm 1. With m = 1 the estimate is ±u: a random direction with a chosen sign (compare `RandomSAM`).

    directions      m, the number of random directions; each costs two forward passes.
    estimator       "rge" as above; "cge" takes each active coordinate in turn, 2k passes: exact, for small models.
    delta           how far the probes go, δ‖u‖; by default `rho`, so the probes are the two candidates themselves.
    distribution    "gaussian", or "rademacher": signs, cheaper to draw.
    norm            "active": the perturbation is rho long over the active weights. "paper": Algorithm 1 to the letter,
                    u covers pruned weights too and is masked after it was normalised: about rho √(active/all) long.
    guide           probe along what training suggests instead of at random, and let the probes choose the sign and
                    weights: "momentum", "gradient" (the last one), "subspace" (the span of momentum and the last four
                    gradients) or a function of the optimizer that gives one or several vectors.
    noise           the share of random direction mixed into each guided one.
    pair            run both candidates with a graph and take the gradient of the one with the larger loss: the same
                    choice in 2 forwards and 1 backward, for twice the memory of activations, which this process
                    then keeps between steps. Needs step(closure).
    batch_fraction  probe on every n-th sample: with one direction only the sign of the difference matters.
    every           keep a perturbation for that many steps.
    replay          draw directions again from their seed instead of storing them.
    own_directions  on several ranks, each probes along m directions of its own, on its own part of the batch: with W
                    ranks W·m directions for the passes of m. Every rank draws those of the others again.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        directions: int = 1,
        estimator: Literal["rge", "cge"] = "rge",
        delta: float | None = None,
        distribution: Literal["gaussian", "rademacher"] = "gaussian",
        norm: Literal["active", "paper"] = "active",
        guide: Literal["momentum", "gradient", "subspace"] | Guide | None = None,
        pair: bool = False,
        batch_fraction: float = 1.0,
        every: int = 1,
        seed: int = 0,
        *,
        noise: float = 0.0,
        replay: bool = False,
        own_directions: bool = False,
    ) -> None:
        super().__init__(base, rho, seed)
        for name, value, known in (
            ("estimator", estimator, ("rge", "cge")),
            ("distribution", distribution, DISTRIBUTIONS),
            ("norm", norm, ("active", "paper")),
            ("guide", guide if isinstance(guide, str) else None, (None, *GUIDES)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(str(k) for k in known)}, not {value!r}")
        if directions < 1 or every < 1:
            raise ValueError(f"directions and every must be 1 or more, not {directions} and {every}")
        if delta is not None and not delta > 0:
            raise ValueError(f"delta must be above 0, not {delta}")
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must be between 0 and 1, not {noise}")
        if noise and guide is None:
            raise ValueError("noise is mixed into a guided direction: give a guide, or leave it out")
        if directions > 1 and (guide is not None or estimator == "cge"):
            raise ValueError("directions counts random ones: a guide and cge have as many as they have")
        if guide is not None and estimator == "cge":
            raise ValueError("cge probes every coordinate and needs no guide")
        if guide in {"momentum", "subspace"}:
            require_momentum(base, f"guide={guide!r}")
        if pair and (directions > 1 or delta is not None or batch_fraction != 1 or estimator == "cge" or every > 1):
            raise ValueError("pair compares two candidates on the whole batch: one direction, no delta, no every")
        if pair and guide == "subspace":
            raise ValueError("pair compares two candidates, the subspace has more; take another guide")
        if replay and (guide is not None or pair or every > 1 or estimator == "cge" or norm == "paper"):
            raise ValueError(
                "replay is for random directions that nothing keeps: no guide, pair, every, cge or paper norm"
            )
        if own_directions and (guide is not None or pair or estimator == "cge"):
            raise ValueError("own_directions are random ones: a guide, pair and cge have the same on all ranks")
        self.directions, self.estimator, self.delta, self.distribution = directions, estimator, delta, distribution
        self.norm, self.guide, self.pair, self.every = norm, guide, pair, every
        self.noise, self.replay, self.part = noise, replay, part_of_batch(batch_fraction)
        self.own_directions = own_directions

    @classmethod
    def fast(cls, base: Optimizer, rho: float | Schedule = 0.05, **settings: Any) -> ZOSAM:
        """The cheapest steps that still look at the loss: signs as the direction, probed on an eighth of the batch and
        kept for two steps. In the second of them the choice is of the batch before: benchmarks/signs.py.
        """
        return cls(base, rho, **{"batch_fraction": 1 / 8, "distribution": "rademacher", "every": 2, **settings})

    # --- where to climb ------------------------------------------------------------------------------------------

    def climb(self, closure: Closure) -> Direction:
        if self.pair:
            raise TypeError("pair=True works with step(closure) only; for the two-phase form leave it out")
        held = self.recall("perturbation") if self.steps % self.every else None
        if held is not None:
            return held if self.norm == "paper" else self.unit(held)  # masks may have moved since
        if self.replay:
            return self._replayed(closure)
        perturbation = self._normalised(self.estimate(closure))
        if self.every > 1:
            self.remember("perturbation", perturbation)
        return perturbation

    def estimate(self, closure: Closure) -> Tensor:
        """The zero-order gradient; under norm="paper" with the pruned coordinates after the active ones."""
        if self.estimator == "cge":
            return self._by_coordinates(closure)
        total = torch.zeros(())
        probes: Iterable[Tensor] = self._probes()
        differences = self._agreed([self._difference(closure, self._normalised(u)) for u in probes])
        if self.own_directions:
            probes = (self._draw(self._pruned(), str(i)) for i in range(len(differences)))
        for u, difference in zip(probes, differences, strict=True):
            slope = difference * float(self.length(u)) / (2 * self._reach())
            total = total + u * (slope / len(differences))
        return total

    def _difference(self, closure: Closure, e: Tensor | Replayed) -> float:
        """L(θ + he) − L(θ − he), under the same noise."""
        with self.displaced(e, by=self._reach()) as move:
            up = self.evaluate(closure, self.part)
            move(e, -self._reach())
            down = self.evaluate(closure, self.part)
        self._note("loss_up", up)
        self._note("loss_down", down)
        return float(up.double() - down.double())

    def _agreed(self, differences: list[float]) -> list[float]:
        """Of all ranks: the mean of each, or all that they have where directions are their own.

        These numbers are all that the ascent sends. A loss that is not finite on one rank stops every rank alike.
        """
        exchange = self.ranks.all_of if self.own_directions else self.ranks.mean_of
        agreed = exchange(differences, self.coordinates.device, "ascent")
        require_finite(torch.tensor(agreed, dtype=torch.float64))
        return [d or TIE for d in agreed]

    def _mine(self) -> range:
        """The numbers of the directions that this rank probes."""
        first = self.ranks.rank * self.directions if self.own_directions else 0
        return range(first, first + self.directions)

    def _reach(self) -> float:
        return max(self._rhos()) if self.delta is None else self.delta

    def _normalised(self, u: Tensor) -> Tensor:
        return self.unit(u)[: len(self.coordinates)]

    def _probes(self) -> list[Tensor]:
        """The vectors to probe along."""
        if self.own_directions:
            self.require_whole("own_directions")
        guided = self._guided()
        if not guided:
            return [self._draw(self._pruned(), str(i)) for i in self._mine()]
        if self.noise:
            a, b = (1 - self.noise) ** 0.5, self.noise**0.5
            size = len(self.coordinates)
            guided = [a * self.unit(v) + b * self.unit(self._draw(len(v) - size, str(i))) for i, v in enumerate(guided)]
        return guided

    def _pruned(self) -> int:
        """How many pruned weights a random direction covers too."""
        return self.coordinates.total - sum(self.coordinates.whole_sizes) if self.norm == "paper" else 0

    def _draw(self, pruned: int, salt: str) -> Tensor:
        """One parameter after another, as `replay` does; then so many entries for pruned weights."""
        space, generator = self.coordinates, self.generator(salt)
        parts = list(drawn(space, self.distribution, generator))
        if pruned and space.shards.rank == 0:  # where ranks hold parts, one of them has these
            parts.append(draw(pruned, self.distribution, space, generator))
        return made(torch.cat(parts), space.dtype)

    def _guided(self) -> list[Tensor]:
        """What training suggests; nothing before there is a momentum or a gradient."""
        if self.guide is None:
            return []
        if callable(self.guide):
            given = self.guide(self)
            return [given] if isinstance(given, Tensor) else list(given)
        speed = momentum(self.base, self.coordinates) if self.guide != "gradient" else None
        last = [self.recall(f"gradient {i}") for i in range(self._gradients())]
        shards = self.coordinates.shards
        found = [v for v in (speed, *last) if v is not None and bool(largest(v, shards) != 0)]
        return orthonormal(found, shards) if self.guide == "subspace" else found

    def _gradients(self) -> int:
        """How many of the last gradients the guide wants."""
        return {"gradient": 1, "subspace": SUBSPACE}.get(self.guide, 0) if isinstance(self.guide, str) else 0

    def _by_coordinates(self, closure: Closure) -> Tensor:
        space, differences = self.coordinates, []
        size = sum(space.whole_sizes)
        for j in range(size):
            e = torch.zeros(size, dtype=space.dtype, device=space.device)
            e[j] = 1.0
            differences.append(self._difference(closure, space.part(e)))
        slopes = [d / (2 * self._reach()) for d in self._agreed(differences)]
        return space.part(torch.tensor(slopes, dtype=space.dtype, device=space.device))

    def _replayed(self, closure: Closure) -> Direction:
        """The same estimate of directions that are drawn again instead of stored."""
        lengths: dict[int, float] = {}
        differences = []
        for i in self._mine():
            u = self._replay(i)
            lengths[i] = u.norm()
            differences.append(self._difference(closure, u * (1 / lengths[i])))
        terms = []
        for i, difference in enumerate(self._agreed(differences)):
            u = self._replay(i)
            terms.append((difference * (lengths[i] if i in lengths else u.norm()), u.terms[0][1]))
        total = Replayed(terms, self.distribution, self.coordinates)
        return total * (1 / max(total.norm(), torch.finfo(self.coordinates.dtype).tiny))

    def _replay(self, i: int) -> Replayed:
        return Replayed([(1.0, lambda: self.generator(str(i)))], self.distribution, self.coordinates)

    # --- which gradient to hand down -----------------------------------------------------------------------------

    def update(self, closure: Closure) -> None:
        if not self.pair:
            super().update(closure)
            return
        self.require_whole("pair=True")
        keep_freed_memory()
        space, step = self.coordinates, self._normalised(self._probes()[0]) * self._radius()
        offsets = [offset.to(p) for p, offset in zip(space.params, space.dense(step), strict=True)]
        (up, up_buffers), (down, down_buffers) = (self._candidate(closure, offsets, sign) for sign in (1, -1))
        self._note("loss_up", up)
        self._note("loss_down", down)
        rises = self._agreed([float(up.detach().double() - down.detach().double())])[0] > 0
        loss, buffers = (up, up_buffers) if rises else (down, down_buffers)
        del up, down  # the other one's graph makes room for this one's backward
        self._passes.mean_loss = self._passes.agreed(loss)
        self.zero_grad(set_to_none=True)
        loss.backward()
        self._passes.averaging.require()
        settle(buffers)
        self._passes.loss = loss.detach()
        self._passes.add(None, forward=2, backward=1)
        self.descend()

    def _candidate(self, closure: Closure, offsets: list[Tensor], sign: int) -> tuple[Tensor, Buffers]:
        """The loss at θ ± the offsets with its graph, and the buffers as that pass leaves them."""
        params = self.coordinates.params
        self._passes.replay()
        with torch.enable_grad(), NoBackward(), self._passes.averaging.sending(gradients=True, buffers=False):
            candidates = torch._foreach_add(params, offsets, alpha=sign)
            with standing_in(dict(zip(params, candidates, strict=True))) as buffers:
                loss = self._passes.call(closure)
        return loss, buffers

    def descend(self) -> None:
        n = self._gradients()
        for i in reversed(range(1, n)):
            older = self.recall(f"gradient {i - 1}")
            if older is not None:
                self.remember(f"gradient {i}", older)
        if n:
            self.remember("gradient 0", self.grads())

    def passes_per_step(self) -> dict[str, float]:
        probes = {"subspace": 1 + SUBSPACE}.get(str(self.guide), 1 if self.guide else self.directions)
        pairs = sum(self.coordinates.whole_sizes) if self.estimator == "cge" else probes
        part = 1.0 if self.part is None else 1 / self.part.step
        forward = 2.0 if self.pair else 1.0 + 2 * pairs * part / self.every
        return {"forward": forward, "backward": 1.0}
