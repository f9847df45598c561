"""Laws of the step: what every optimizer under every sparse method owes its user."""

from __future__ import annotations

import inspect

import pytest
import torch


def test_rho_zero_is_the_base_optimizer_to_the_bit(trial, same, optimizer_name, method):
    ours = trial(optimizer_name, method, rho=0.0)
    plain = trial(method=method, bare=True)
    ours.step(4)
    plain.step(4)
    assert same(ours.snapshot(), plain.snapshot())


def test_both_closure_forms_are_bit_equal(trial, same, optimizer_name, method):
    pure, torch_form = trial(optimizer_name, method), trial(optimizer_name, method, torch_form=True)
    pure.step(4)
    torch_form.step(4)
    assert same(pure.snapshot(), torch_form.snapshot())


def test_buffers_move_once_a_step(trial, optimizer_name, method):
    t = trial(optimizer_name, method)
    t.step(3)
    assert t.model[1].num_batches_tracked == 3
    assert t.model[5].num_batches_tracked == 3  # momentum=None: a wrong count would spoil the average
    assert t.model[7].edited == 3
    assert t.model[7].replaced == 3


def test_statistics_are_those_of_one_pass(trial, optimizer_name):
    t, one = trial(optimizer_name, rho=1e-9), trial(bare=True)
    one.mean_loss()
    t.step()
    for mine, theirs in zip(t.model[1].buffers(), one.model[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_every_pass_of_a_step_sees_the_same_noise(trial, optimizer_name, method):
    t = trial(optimizer_name, method)
    steps = []
    for _ in range(4):
        t.model[3].drawn.clear()
        t.step()
        steps.append(set(t.model[3].drawn))
    assert all(len(drawn) == 1 for drawn in steps)
    assert len(set.union(*steps)) == 4  # and other noise in other steps


def test_the_users_random_stream_moves_as_in_one_pass(trial, optimizer_name, method):
    ours, plain = trial(optimizer_name, method), trial(bare=True)
    plain.step(4)
    ours.step(4)
    assert torch.equal(ours.stream, plain.stream)


def test_an_exception_leaves_everything_as_before(trial, same, optimizer_name, method):
    t = trial(optimizer_name, method)
    t.step(3)
    before, stream, steps = t.snapshot(), torch.get_rng_state(), t.optimizer.steps
    for bad_call, error in ((1, RuntimeError), (2, KeyboardInterrupt), (3, RuntimeError)):
        calls = 0

        def closure(keep=slice(None), bad_call=bad_call, error=error):
            nonlocal calls
            calls += 1
            loss = t.loss(keep)
            if calls == bad_call:
                raise error
            return loss

        try:
            t.optimizer.step(closure)
        except error:
            assert same(t.snapshot(), before)
            assert torch.equal(torch.get_rng_state(), stream)
            assert t.optimizer.steps == steps
        else:
            assert calls < bad_call  # this step has fewer passes than that
            break


def test_a_loss_that_is_not_finite_is_refused_and_nothing_changes(trial, same, optimizer_name, method):
    t = trial(optimizer_name, method)
    t.step(3)
    before = t.snapshot()
    for bad in (float("nan"), float("inf")):
        with pytest.raises(FloatingPointError, match="not taken"):
            t.optimizer.step(lambda keep=slice(None), bad=bad: t.loss(keep) * bad)
        assert same(t.snapshot(), before)
    t.step()  # and training can go on


def test_the_two_phase_form_takes_the_same_steps(trial, same, optimizer_name, method):
    """Weights and statistics alike, to the bit."""
    whole, phased = trial(optimizer_name, method), trial(optimizer_name, method)
    for _ in range(6):
        torch.set_rng_state(whole.stream)
        keep = phased.optimizer.ascend(phased.closure)
        phased.loss(slice(None) if keep is None else keep).mean().backward()
        phased.optimizer.step()
        whole.step()
        assert same(whole.snapshot(), phased.snapshot())


def test_passes_are_as_many_as_promised(trial, optimizer_name, method):
    t = trial(optimizer_name, method)
    seen = {"forward": 0.0, "backward": 0.0}

    def closure(keep=slice(None)):
        part = len(t.y[keep]) / len(t.y)
        seen["forward"] += part
        seen["backward"] += part * torch.is_grad_enabled()
        return t.loss(keep)

    for _ in range(10):
        t.optimizer.step(closure)
    assert t.optimizer.passes == pytest.approx(seen)
    promised = t.optimizer.passes_per_step()
    assert {k: n / 10 for k, n in seen.items()} == pytest.approx(promised, abs=0.02)


def test_same_seed_same_directions(trial, same, optimizer_name):
    a, b, c = (trial(optimizer_name, settings={"seed": seed}) for seed in (3, 3, 4))
    for t in (a, b, c):
        t.step(3)
    assert same(a.snapshot(), b.snapshot())
    torch.manual_seed(99)  # what the user draws in between does not matter to the directions
    first, again, other = (t.optimizer.numbers().normal(4) for t in (a, b, c))
    assert torch.equal(first, again)
    draws = "seed" in inspect.signature(type(a.optimizer)).parameters  # those that draw nothing take no seed
    assert torch.equal(first, other) != draws
