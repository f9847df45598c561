"""Real accelerate: windows, clipping, checkpoints, against a loop by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from zosam.integrations.hf_accelerate import accumulate
from zosam.optim import OPTIMIZERS, LookSAM

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

NAMES = ["bare", "sgd", "sam", "zosam", "rwp"]
PURE = sorted(n for n in OPTIMIZERS if n != "esam")


@pytest.fixture(autouse=True)
def _afresh():
    """accelerate keeps the number of micro-batches for the whole process."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Loop:
    """A training as accelerate's users write it."""

    def __init__(self, training, scaler=None):
        self.training = training
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        self.accelerator = accelerate.Accelerator(gradient_accumulation_steps=training.accumulate, cpu=True)
        self.accelerator.scaler = scaler  # on a CPU accelerate makes none of its own
        self.net = training.net()
        optimizer = training.optimizer(self.net)
        self.sparse = training.sparse(self.net, optimizer)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.net, optimizer, training.loader)
        if scaler is not None:  # so that it unscales before it clips
            self.accelerator.native_amp, self.accelerator.state._mixed_precision = True, "fp16"

    def epoch(self, spoil=lambda: None):
        for x, y in self.loader:

            def closure(x=x, y=y):
                return F.cross_entropy(self.model(x), y)

            with accumulate(self.accelerator, self.model, self.optimizer, closure):
                self.accelerator.backward(closure())
                spoil()
                if self.accelerator.sync_gradients and self.training.clip:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.training.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            assert not getattr(self.optimizer.optimizer, "is_displaced", False)

    def ends_with(self):
        return self.training.ends_with(self.net, self.sparse)


@pytest.mark.parametrize("name", PURE)
def test_one_batch_at_a_time_is_a_step_with_a_closure(Training, same, name):
    training = Training(name)
    loop, model = Loop(training), training.net()
    optimizer = training.optimizer(model)
    sparse = training.sparse(model, optimizer)
    for _ in range(training.epochs):
        for x, y in loop.loader:

            def closure(x=x, y=y):
                loop.optimizer.zero_grad()
                loss = F.cross_entropy(loop.model(x), y)
                loop.accelerator.backward(loss)
                return loss

            loop.optimizer.step(closure)
            optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
    same(loop.ends_with(), training.ends_with(model, sparse))


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_it_ends_in_the_bits_of_a_loop_by_hand(Training, same, name, steps, clip):
    training = Training(name, steps, clip)
    loop = Loop(training)
    for _ in range(training.epochs):
        loop.epoch()
    same(loop.ends_with(), training.by_hand())


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_resumed_in_fresh_objects_it_ends_in_the_bits_of_the_undisturbed_run(Training, same, tmp_path, name, steps):
    training = Training(name, steps, 0.3, epochs=3)
    loop = Loop(training)
    loop.epoch()
    loop.accelerator.save_state(str(tmp_path))
    loop = Loop(training)
    loop.epoch()  # something of its own, to be overwritten
    loop = Loop(training)
    loop.accelerator.load_state(str(tmp_path))
    for _ in range(2):
        loop.epoch()
    same(loop.ends_with(), training.by_hand())


@pytest.mark.parametrize("name", ["sam", "gsam", "zosam"])
def test_a_scaler_changes_nothing_but_rounding_and_skips_what_overflows(Training, name):
    training = Training(name, 2, 0.3)
    loop = Loop(training, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    for _ in range(training.epochs):
        loop.epoch()
    expected = training.by_hand()
    for key, value in loop.ends_with().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4)
    before = {n: t.clone() for n, t in loop.net.named_parameters()}
    loop.epoch(spoil=lambda: loop.net[0].weight.grad.fill_(torch.inf))
    assert all(torch.equal(p, before[n]) for n, p in loop.net.named_parameters())
    loop.epoch()
    assert loop.optimizer.optimizer.steps == 9  # of twelve
    assert not torch.equal(loop.net[0].weight, before["0.weight"])


def test_micro_batches_that_accelerate_would_skip_are_refused_with_the_way_out(Training):
    loop = Loop(Training("sam", 2))
    x, y = next(iter(loop.loader))
    with loop.accelerator.accumulate(loop.model):
        loop.optimizer.step(lambda: F.cross_entropy(loop.model(x), y))  # accelerate does not call it
    with (
        loop.accelerator.accumulate(loop.model),
        pytest.raises(RuntimeError, match=r"hf_accelerate\.accumulate"),
    ):
        loop.optimizer.step(lambda: F.cross_entropy(loop.model(x), y))


def test_a_body_that_leaves_no_gradient_is_refused(Training):
    loop = Loop(Training("sam", 2))
    x, y = next(iter(loop.loader))

    def closure():
        return F.cross_entropy(loop.model(x), y)

    with (
        pytest.raises(RuntimeError, match="left no gradient"),
        accumulate(loop.accelerator, loop.model, loop.optimizer, closure),
    ):
        loop.optimizer.step(closure)
    assert not loop.optimizer.optimizer.is_displaced


def test_an_exception_in_the_body_leaves_clean_weights(Training):
    loop = Loop(Training("sam", 2))
    before = [p.detach().clone() for p in loop.net.parameters()]
    x, y = next(iter(loop.loader))

    def closure():
        return F.cross_entropy(loop.model(x), y)

    def interrupted():
        assert loop.optimizer.optimizer.is_displaced
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        accumulate(loop.accelerator, loop.model, loop.optimizer, closure),
    ):
        interrupted()
    assert all(torch.equal(p, b) for p, b in zip(loop.net.parameters(), before, strict=True))


def test_a_state_goes_through_the_wrapped_optimizer():
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(6, 3)
    wrapped = accelerator.prepare(LookSAM(torch.optim.SGD(model.parameters(), lr=0.1)))
    wrapped.step(lambda: model(torch.ones(2, 6)).square().mean())
    state = copy.deepcopy(wrapped.state_dict())
    wrapped.load_state_dict(state)
    assert wrapped.optimizer.steps == 1


def test_a_method_made_on_the_prepared_optimizer_is_one_made_before(Training, same):
    ends = []
    for first in (True, False):
        training = Training("zosam")
        model = training.net()
        optimizer = training.optimizer(model)
        sparse = training.sparse(model, optimizer) if first else None
        accelerator = accelerate.Accelerator(cpu=True)
        prepared, wrapped, loader = accelerator.prepare(model, optimizer, training.loader)
        sparse = sparse or training.sparse(prepared, wrapped)
        for x, y in loader:
            wrapped.step(lambda x=x, y=y, net=prepared: F.cross_entropy(net(x), y))
        ends.append(training.ends_with(model, sparse))
    same(*ends)
