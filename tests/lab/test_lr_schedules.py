"""Learning rates equal torch's and timm's, step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim import lr_scheduler

from zosam.lab.length import stretched
from zosam.lab.lr_schedules import SCHEDULE, Constant, Cosine, Steps

STEPS = 7  # of an epoch


def rates(schedule):
    return [schedule(step / STEPS) for step in range(round(schedule.epochs * STEPS))]


def torchs(make, lr, steps):
    """What a scheduler of torch's gives at every step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def close(a, b):
    assert len(a) == len(b)
    assert a == pytest.approx(b, rel=1e-9, abs=1e-15)


def test_cosine_is_torchs():
    close(
        rates(Cosine(lr=0.1, epochs=16, minimum=0.01)),
        torchs(lambda o: lr_scheduler.CosineAnnealingLR(o, 16 * STEPS, eta_min=0.01), 0.1, 16 * STEPS),
    )
    to_zero = torchs(lambda o: lr_scheduler.CosineAnnealingLR(o, 16 * STEPS), 0.1, 16 * STEPS)
    close(rates(Cosine(lr=0.1, epochs=16)), to_zero)


def test_cosine_with_a_cooldown_is_torchs_and_then_its_minimum():
    falls = torchs(lambda o: lr_scheduler.CosineAnnealingLR(o, 12 * STEPS, eta_min=0.01), 0.1, 12 * STEPS)
    close(rates(Cosine(lr=0.1, epochs=16, minimum=0.01, cooldown=4)), falls + [0.01] * 4 * STEPS)


def test_steps_are_torchs():
    milestones = [8 * STEPS, 12 * STEPS]
    expected = torchs(lambda o: lr_scheduler.MultiStepLR(o, milestones, 0.1), 0.1, 16 * STEPS)
    close(rates(Steps(lr=0.1, epochs=16, at=(8, 12))), expected)
    close(rates(Steps(lr=0.1, epochs=16)), expected)  # half and three quarters
    one = torchs(lambda o: lr_scheduler.MultiStepLR(o, [5 * STEPS], 0.2), 0.1, 16 * STEPS)
    close(rates(Steps(lr=0.1, epochs=16, at=(5,), factor=0.2)), one)


def test_warmup_is_torchs():
    def make(optimizer):
        rises = lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=3 * STEPS)
        falls = lr_scheduler.MultiStepLR(optimizer, [5 * STEPS, 9 * STEPS], 0.1)  # counted from the end of the warm-up
        return lr_scheduler.SequentialLR(optimizer, [rises, falls], [3 * STEPS])

    close(rates(Steps(lr=0.1, epochs=16, at=(8, 12), warmup=3, warmup_lr=0.001)), torchs(make, 0.1, 16 * STEPS))
    constant = torchs(lambda o: lr_scheduler.LinearLR(o, start_factor=0.01, total_iters=3 * STEPS), 0.1, 16 * STEPS)
    close(rates(Constant(lr=0.1, epochs=16, warmup=3, warmup_lr=0.001)), constant)


def timm_cosine(t, lr, t_initial, lr_min, warmup_t, warmup_lr_init):
    """CosineLRScheduler._get_lr of timm with one cycle, warmup_prefix=False and k_decay=1, written out."""
    if t < warmup_t:
        return warmup_lr_init + t * (lr - warmup_lr_init) / warmup_t
    if t // t_initial >= 1:
        return lr_min
    return lr_min + 0.5 * (lr - lr_min) * (1 + math.cos(math.pi * t / t_initial))


def test_deits_schedule_is_timms():
    """300 epochs, 5 of warm-up, 10 of cool-down, set once an epoch."""
    rate = Cosine(lr=5e-4, epochs=310, warmup=5, warmup_lr=1e-6, minimum=1e-5, cooldown=10, per_epoch=True)
    for epoch in range(310):
        expected = timm_cosine(epoch, 5e-4, 300, 1e-5, 5, 1e-6)
        for step in (0, 1, STEPS - 1):
            assert rate(epoch + step / STEPS) == pytest.approx(expected, rel=1e-12)


def test_timms_schedule_on_updates():
    rate = Cosine(lr=5e-4, epochs=40, warmup=5, warmup_lr=1e-6, minimum=1e-5, cooldown=10)
    for step in range(40 * STEPS):
        expected = timm_cosine(step, 5e-4, 30 * STEPS, 1e-5, 5 * STEPS, 1e-6)
        assert rate(step / STEPS) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "spec", ["cosine:warmup=2,minimum=0.001,cooldown=3", "steps:at=(8,12),warmup=2", "steps", "constant:warmup=4"]
)
@pytest.mark.parametrize("length", [2, 5, 0.5])
def test_a_longer_training_goes_through_the_same_curve(spec, length):
    choice = SCHEDULE.read(spec)
    kind, longer = SCHEDULE.thing(choice.name), stretched(SCHEDULE, choice, length)
    short = kind(lr=0.1, epochs=16, **choice.settings)
    long = kind(lr=0.1, epochs=16 * length, **longer.settings)
    for step in range(16 * STEPS):
        assert long(step / STEPS * length) == pytest.approx(short(step / STEPS), rel=1e-12)


def test_per_epoch_it_changes_between_epochs():
    rate = Cosine(lr=0.1, epochs=8, per_epoch=True)
    assert len({rate(step / STEPS) for step in range(8 * STEPS)}) == 8
    assert rate(3 + 3 / STEPS) == rate(3) == pytest.approx(0.05 * (1 + math.cos(math.pi * 3 / 8)))


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (Cosine, {"warmup": 20}, "longer than the training"),
        (Cosine, {"warmup": 16}, "nothing is left for the curve: say constant"),
        (Steps, {"warmup": 16}, "nothing is left for the curve: say constant"),
        (Cosine, {"warmup": 8, "cooldown": 9}, "cooldown must fit"),
        (Cosine, {"minimum": 0.05, "cooldown": 16}, "cooldown must fit"),
        (Cosine, {"minimum": 0.2}, "minimum must be"),
        (Cosine, {"minimum": 0.1}, "minimum must be below the learning rate"),
        (Constant, {"warmup": 5, "warmup_lr": 0.1}, "the warm-up begins at the learning rate"),
        (Cosine, {"minimum": -0.1}, "minimum must be"),
        (Steps, {"at": (8, 16)}, "between 0 and 16"),
        (Steps, {"factor": 0}, "factor must be above 0"),
        (Constant, {"warmup": -1}, "warmup must be 0 or more"),
        (Constant, {"warmup_lr": float("nan")}, "warmup_lr must be 0 or more"),
    ],
)
def test_what_makes_no_schedule_is_refused(kind, settings, says):
    with pytest.raises(ValueError, match=says):
        kind(lr=0.1, epochs=16, **settings)
