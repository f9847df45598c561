"""The laws again, on two ranks: every optimizer, and every sparse method, under DistributedDataParallel."""

from __future__ import annotations

import copy
import io
import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam.distributed.ranks import current
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS

from . import trials

Trial, same = trials.shared_fixtures().Trial, trials.shared_fixtures().same


class Together(Trial):
    """The small training of all tests, on this rank's part of its batch, through DistributedDataParallel."""

    def __post_init__(self):
        super().__post_init__()
        assert self.network is not None  # before any step, as in every program

    @property
    def network(self):
        if "_network" not in vars(self):
            self._network = DistributedDataParallel(self.model)
            self.x, self.y = trials.shard(self.x, self.y)
        return self._network

    def mean_loss(self):
        return F.cross_entropy(self.network(self.x), self.y)

    def loss(self, keep=slice(None)):
        network = self.network
        reduction = "none" if getattr(self.optimizer, "per_sample", False) else "mean"
        return F.cross_entropy(network(self.x[keep]), self.y[keep], reduction=reduction)

    def gathered(self):
        """The parameters of every rank."""
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return current().gather(flat, "test")

    def alike(self):
        first, *others = self.gathered()
        return all(torch.equal(first, other) for other in others)


def rho_zero(name, method):
    ours, plain = Together(name, method, rho=0.0), Together(method=method, bare=True)
    ours.step(4)
    plain.step(4)
    assert same(ours.snapshot(), plain.snapshot())  # buffers too, which DDP takes over from rank 0


def both_closure_forms(name, method):
    pure, torch_form = Together(name, method), Together(name, method, torch_form=True)
    pure.step(4)
    torch_form.step(4)
    assert same(pure.snapshot(), torch_form.snapshot())
    assert pure.alike()


def buffers_once_a_step(name, method):
    t = Together(name, method)
    t.step(3)
    assert t.model[1].num_batches_tracked == t.model[5].num_batches_tracked == 3
    assert t.model[7].edited == 3


def same_noise(name, method):
    t = Together(name, method)
    for _ in range(3):
        t.model[3].drawn.clear()
        t.step()
        assert len(set(t.model[3].drawn)) == 1


def all_or_nothing(name, method):
    t = Together(name, method)
    t.step(2)
    before, stream = t.snapshot(), torch.get_rng_state()
    for bad_call in (1, 2, 3):
        calls = 0

        def closure(keep=slice(None), bad_call=bad_call):
            nonlocal calls
            calls += 1
            loss = t.loss(keep)
            if calls == bad_call:
                raise KeyboardInterrupt
            return loss

        try:
            t.optimizer.step(closure)
        except KeyboardInterrupt:
            assert same(t.snapshot(), before)
            assert torch.equal(torch.get_rng_state(), stream)
        else:
            assert calls < bad_call
            break
    t.step()
    assert t.alike()


def two_phases(name, method):
    whole, phased = Together(name, method), Together(name, method)
    for _ in range(4):
        torch.set_rng_state(whole.stream)
        keep = phased.optimizer.ascend(phased.closure)
        phased.loss(slice(None) if keep is None else keep).mean().backward()
        phased.optimizer.step()
        whole.step()
        assert same(whole.weights(), phased.weights())


def promised_passes(name, method):
    t = Together(name, method)
    t.step(10)
    promised = t.optimizer.passes_per_step()
    assert {k: n / 10 for k, n in t.optimizer.passes.items()} == pytest.approx(promised, abs=0.02)


def resume(name, method):
    straight = Together(name, method)
    straight.step(3)
    file = io.BytesIO()
    sparse = None if straight.sparse is None else straight.sparse.state_dict()
    state = {"model": straight.model.state_dict(), "optimizer": straight.optimizer.state_dict(), "sparse": sparse}
    torch.save({**state, "rng": straight.stream}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    straight.step(3)
    resumed = Together(name, method)
    resumed.step()
    resumed.model.load_state_dict(state["model"])
    if sparse is not None:
        resumed.sparse.load_state_dict(state["sparse"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.stream = state["rng"]
    resumed.step(3)
    assert same(straight.snapshot(), resumed.snapshot())


def masks(name, method):
    """Pruned weights are zero, budgets exact, and both the same on all ranks."""
    t = Together(name, method)
    for _ in range(4):
        assert sum(int(m.sum()) for m in t.sparse.masks.values()) == t.sparse.expected_active()
        t.step()
        assert all(bool((w.detach()[~t.sparse.masks[n]] == 0).all()) for n, w in t.sparse.weights.items())
    mine = torch.cat([m.flatten() for m in t.sparse.masks.values()]).to(torch.uint8)
    first, second = current().gather(mine, "test")
    assert torch.equal(first, second)
    assert t.alike()


def a_copy_goes_its_own_way(name, method):
    t = Together(name, method)
    t.step(2)
    twin = copy.copy(t)
    twin.model, twin.optimizer, twin.sparse = copy.deepcopy((t.model, t.optimizer, t.sparse))
    twin._network = DistributedDataParallel(twin.model)
    t.step(2)
    twin.step(2)
    assert same(t.weights(), twin.weights())


STEP_LAWS = (
    rho_zero,
    both_closure_forms,
    buffers_once_a_step,
    same_noise,
    all_or_nothing,
    two_phases,
    promised_passes,
    resume,
    a_copy_goes_its_own_way,
)


def kept(law, cases):
    """Run a law on this rank for each case; the failures, by case."""
    failures = {}
    for name, method in cases:
        try:
            globals()[law](name, method)
        except AssertionError as error:
            failures[f"{name} {method}"] = repr(error)
    return failures


@pytest.mark.parametrize("law", STEP_LAWS, ids=lambda law: law.__name__)
def test_laws_of_the_step(two, law):
    # one optimizer of each kind: its gradient, a part, a memory, two, probes, noise
    names = sorted(OPTIMIZERS) if trials.LONG else ["esam", "gsam", "looksam", "rwp", "sam", "zosam"]
    cases = [(name, method) for name in names for method in ((None, "rigl") if trials.LONG else ("rigl",))]
    assert two(kept, law.__name__, cases) == [{}, {}]


def test_laws_of_the_masks(two):
    cases = [("zosam", method) for method in sorted(METHODS)]
    names, methods = ("sam", "looksam", "esam"), ("rigl", "snfs", "mest", "deepr")
    cases += itertools.product(names, methods) if trials.LONG else zip(names, methods[1:], strict=True)
    assert two(kept, "masks", cases) == [{}, {}]


def test_methods_resume(two):
    """Every one, or those that know more than their masks: when to prune, where to rewind to, averages, signs."""
    names = sorted(METHODS) if trials.LONG else ["deepr", "dsr", "gmp", "lth", "mest", "snfs", "topkast"]
    assert two(kept, "resume", [("zosam", method) for method in names]) == [{}, {}]
