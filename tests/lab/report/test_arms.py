"""Arms, settings and the front from result lines, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from zosam.lab.report.arms import arms_of, family, front, is_trial, plain, settings_of, unsteady, words
from zosam.lab.run import Run
from zosam.lab.settings import Choice


def test_seeds_of_one_training_are_an_arm(line):
    (arm,) = arms_of([line(0.5, optimizer="sgd", seed=s) for s in (2, 0, 1)])
    assert list(arm.accuracy.items()) == [(0, 50), (1, 50), (2, 50)]
    assert (arm.name, arm.where, arm.sparsity) == ("SGD", "RigL 90 %, 4 epochs", "90 %")


def test_an_arm_that_was_watched_is_the_same_arm(line):
    (arm,) = arms_of([line(0.5, 90, optimizer="sgd", diagnostics=True), line(0.5, 60, optimizer="sgd")])
    assert arm.cost(0)["seconds"] == pytest.approx(60)


def test_arms_of_one_name_are_told_apart_throughout(line):
    lines = [line(0.5, optimizer="sgd", weight_decay=d) for d in (1e-4, 5e-4)]
    lines += [line(0.5, optimizer="sgd", epochs=8), line(0.5, optimizer="sam", rho=0.1)]
    lines += [line(0.5, optimizer="sam", rho=0.2, epochs=8)]  # the only one of its setting: rho tells nothing apart
    names = sorted(arm.name for arm in arms_of(lines, {Run(optimizer="sam").optimizer.whole: "Sharp"}))
    assert names == [
        "SGD, weight decay 1e-4",
        "SGD, weight decay 5e-4",
        "SGD, weight decay 5e-4",
        "Sharp",
        "Sharp",
    ]


def test_the_reference_is_the_best_sgd_of_the_setting(line):
    lines = [
        line(a + s / 100, optimizer="sgd", weight_decay=d, seed=s)
        for a, d in ((0.5, 1e-4), (0.6, 1e-3))
        for s in (0, 1)
    ]
    lines += [line(0.62 + s / 100, optimizer="sam", seed=s) for s in (0, 1, 2)]
    (setting,) = settings_of(arms_of(lines))
    assert setting.reference.run.weight_decay == 1e-3
    gap = setting.gaps["SAM"]  # 62 - 60 and 63 - 61; seed 2 has no pair
    assert (gap.mean, gap.n) == (pytest.approx(2), 2)
    assert setting.gaps["SGD, weight decay 1e-4"].mean == pytest.approx(-10)


def test_the_best_arm_speaks_for_its_optimizer(line):
    lines = [line(a, optimizer=o, weight_decay=d) for a, o, d in
             ((0.5, "sgd", 1e-4), (0.6, "sgd", 1e-3), (0.7, "sam", 1e-4), (0.65, "sam", 1e-3))]  # fmt: skip
    (setting,) = settings_of(arms_of(lines))
    assert sorted(arm.name for arm in setting.best) == ["SAM, weight decay 1e-4", "SGD, weight decay 1e-3"]
    assert {arm.differs for arm in setting.arms} == {("weight_decay",)}


def test_other_lengths_and_sparsities_are_other_settings(line):
    lines = [line(0.5, optimizer=o, **run) for o in ("sgd", "sam") for run in ({}, {"epochs": 8}, {"sparsity": 0.95})]
    settings = settings_of(arms_of(lines))
    assert sorted(s.name for s in settings) == ["RigL 90 %, 4 epochs", "RigL 90 %, 8 epochs", "RigL 95 %, 4 epochs"]
    assert all(len(s.gaps) == 1 for s in settings)
    lines = [line(0.5, optimizer="sgd", batch_size=b) for b in (64, 128)]
    names = sorted(s.name for s in settings_of(arms_of(lines)))
    assert names == ["RigL 90 %, 4 epochs, batch size 128", "RigL 90 %, 4 epochs, batch size 64"]


def test_without_sgd_there_is_nothing_to_compare_with(line):
    (setting,) = settings_of(arms_of([line(0.5, optimizer="sam"), line(0.6, optimizer="msam")]))
    assert (setting.reference, setting.gaps) == (None, {})


def test_the_front_holds_what_no_other_beats(line):
    costs = {"sgd": (0.50, 10), "msam": (0.55, 10), "sam": (0.54, 20), "asam": (0.60, 30), "gsam": (0.60, 40)}
    arms = arms_of(line(a, s, optimizer=o) for o, (a, s) in costs.items())
    assert [arm.optimizer for arm in front(arms, "seconds")] == ["msam", "asam"]
    assert [arm.optimizer for arm in front(arms, "passes")] == ["asam"]  # all of one pass but SAM


def test_times_of_equal_trainings_tell_a_busy_machine(line):
    steady = arms_of(line(0.5, 60 + s, optimizer="sgd", seed=s) for s in range(3))
    busy = arms_of(line(0.5, 60 * (1 + s), optimizer="sgd", seed=s) for s in range(3))
    assert unsteady(steady) == pytest.approx(62 / 60)
    assert unsteady(busy) == pytest.approx(3)
    assert unsteady([]) == 1


def test_averaged_weights_are_what_counts(line):
    (arm,) = arms_of([line(0.5, about={"ema_test_accuracy": 0.6})])
    assert arm.accuracy == {0: 60}


def test_a_held_out_part_makes_it_a_trial(line):
    assert is_trial(line(0.5, about={"validation_accuracy": 0.4}))
    assert not is_trial(line(0.5))


def test_words():
    run = Run(model="resnet20:stem_stride=2", data="cifar10:train=20000", method="mest:every=40", optimizer="s2sam")
    presets = [family(Run(optimizer=name).optimizer) for name in ("zosam.fast", "paperzosam", "rwp")]
    assert presets == ["zosam", "zosam", "rwp"]
    wide = Run(optimizer="zosam:probe=rademacher(2),every=4").optimizer
    assert words(wide) == "ZO-SAM (every 4, probe rademacher(m 2))"
    assert words(run.model) == "ResNet-20 (stem_stride 2)"
    assert words(run.data) == "CIFAR-10 (train 20,000)"
    assert words(Run(data="cifar10:augment=false,train=20000").data) == "CIFAR-10 (no augment, train 20,000)"
    assert words(Run(data="cifar10:validation=5000").data) == "CIFAR-10 (validation 5,000)"
    assert words(Run(method="mest:every=40,drop_fraction=0.12345").method).endswith("0.12345, every 40)")
    assert words(run.method) == "MEST (every 40)"
    assert words(Choice("mine:net", "mine:net", {})) == "mine:net"
    assert words(Choice("mine:net", "mine:net:width=4", {"width": 4})) == "mine:net (width 4)"
    assert [plain(name) for name in ("wrn28_10", "rwp", "zosam", "sam")] == ["wrn28_10", "RWP", "ZO-SAM", "SAM"]
