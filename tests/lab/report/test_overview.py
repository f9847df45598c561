"""What lines say by themselves: figures that keep the contract, with the numbers of the lines."""

from __future__ import annotations

import pytest

from zosam.lab.report import overview
from zosam.lab.report.arms import arms_of, is_trial, settings_of
from zosam.lab.report.contract import check_figure


@pytest.fixture
def arms(lines):
    return arms_of(entry for entry in lines if not is_trial(entry))


def test_every_figure_keeps_the_contract(lines, arms):
    settings = settings_of(arms)
    for entry in lines:
        entry["epochs"] = [e | {"gradient_variance": 1.0} for e in entry["epochs"]]
    found = [overview.tradeoff(arms), overview.convergence(settings), overview.losses(settings),
             overview.variance(settings), *overview.corruptions(arms)]  # fmt: skip
    found += overview.tuning([entry for entry in lines if is_trial(entry)])
    for figure in found:
        check_figure(figure)
    assert {figure["kind"] for figure in found} == {"scatter", "lines", "heat"}


def test_nothing_measured_is_no_figure(arms):
    assert overview.variance(settings_of(arms)) is None
    assert overview.convergence([]) is None
    assert overview.corruptions([arm for arm in arms if arm.run.model.name == "resnet20"]) == []
    assert overview.tuning([]) == []


def test_the_tradeoff_has_a_dot_for_each_seed_and_a_panel_for_each_network(lines, arms):
    figure = overview.tradeoff(arms)
    assert [panel["name"] for panel in figure["panels"]] == ["CIFAR-10, ResNet-20", "CIFAR-10, ResNet-32"]
    dots = [seed for panel in figure["panels"] for arm in panel["arms"] for seed in arm["seeds"]]
    assert len(dots) == sum(not is_trial(entry) for entry in lines)
    cheapest = min(figure["panels"][1]["arms"], key=lambda arm: (arm["seeds"][0]["seconds"], -arm["seeds"][0]["y"]))
    assert "seconds" in cheapest["front"]
    assert list(figure["x"]) == ["seconds", "passes"]


def test_on_a_busy_machine_cost_is_passes_first(lines):
    for entry in lines:
        entry["epochs"][0]["seconds"] *= 1 + 5 * entry["run"]["seed"]
    figure = overview.tradeoff(arms_of(entry for entry in lines if not is_trial(entry)))
    assert list(figure["x"]) == ["passes", "seconds"]
    assert "the machine was busy" in figure["note"]


def test_beside_other_work_cost_is_cpu_time(lines):
    for entry in lines:
        entry["idle"] = False
        entry["epochs"] = [e | {"cpu_seconds": e["seconds"], "seconds": 10 * e["seconds"]} for e in entry["epochs"]]
    arms = arms_of(entry for entry in lines if not is_trial(entry))
    figure = overview.tradeoff(arms)
    assert list(figure["x"]) == ["cpu_seconds", "passes"]
    assert "beside other work" in figure["note"]
    block = overview.comparisons(settings := settings_of(arms))[0]
    assert (block["time"], block["on"]) == ("CPU time", "AMD EPYC, 1 thread")
    assert block["rows"][0]["seconds"] == pytest.approx(arms[0].cost(0)["seconds"] / 10)
    assert list(overview.losses(settings)["x"]) == ["epochs", "cpu_seconds"]
    for drawn in (figure, overview.losses(settings), overview.convergence(settings)):
        check_figure(drawn)
    for entry in lines:  # what a processor did says little of an accelerator
        entry["made_with"] |= {"device": "cuda:0", "device_name": "A card"}
    assert list(overview.tradeoff(arms_of(lines))["x"]) == ["seconds", "passes"]


def test_curves_are_means_over_seeds_by_epochs_and_by_seconds(arms):
    (panel,) = overview.convergence([s for s in settings_of(arms) if "ResNet-32, dense" in s.name])["panels"]
    sam = next(series for series in panel["series"] if series["name"] == "SAM")
    arm = next(a for a in arms if a.name == "SAM" and a.is_dense and a.run.model.name == "resnet32")
    assert sam["y"][-1] == pytest.approx(arm.estimate.mean)
    assert (sam["low"][-1], sam["high"][-1]) == (min(arm.accuracy.values()), max(arm.accuracy.values()))
    assert sam["x"]["epochs"] == [1, 2, 3, 4]
    assert sam["x"]["seconds"][-1] == pytest.approx(arm.cost(0)["seconds"])
    assert sam["x"]["passes"] == [100 * e * (2 + 2 * 2) for e in (1, 2, 3, 4)]


def test_corruptions_by_severity_with_both_means(arms):
    figure = overview.corruptions(arms)[0]
    own = [arm for arm in arms if arm.lines[0].get("corrupted")]
    assert [panel["name"] for panel in figure["panels"]] == [
        "mean of severities",
        *(f"severity {s}" for s in range(1, 6)),
    ]
    assert figure["rows"][:3] == ["mean of 19", "mean of RobustBench's 15", "gaussian noise"]
    third = figure["panels"][3]["values"]  # severity 3 takes 15 points from the accuracy, whatever the corruption
    first = own[0].estimate.mean - 15
    assert [row[0] for row in third] == pytest.approx([first] * len(third))
    assert figure["columns"][figure["reference"]] == "SGD"


def test_a_missing_corruption_leaves_a_gap_and_no_mean(lines):
    for entry in lines:
        entry.get("corrupted", {}).get("accuracy", {}).pop("fog", None)
    figure = overview.corruptions(arms_of(entry for entry in lines if not is_trial(entry)))[0]
    assert "fog" not in figure["rows"]
    assert figure["panels"][0]["values"][1][0] is None
    assert figure["panels"][0]["values"][0][0] is not None


def test_only_the_seeds_that_saw_corrupted_pictures_are_counted(lines):
    for entry in lines:
        if entry["run"]["seed"] != 0:
            entry.pop("corrupted", None)
    arms = arms_of(entry for entry in lines if not is_trial(entry))
    assert any(len(arm.lines) > 1 for arm in arms)
    assert "; mean over one seed." in overview.corruptions(arms)[0]["note"]


def test_tuning_is_a_map_of_rho_and_weight_decay(lines):
    sgd, sam = overview.tuning([entry for entry in lines if is_trial(entry)])
    assert [f["title"] for f in (sgd, sam)] == [
        "Tuning of SGD: RigL 90 %, 4 epochs",
        "Tuning of SAM: RigL 90 %, 4 epochs",
    ]
    assert sam["rows"] == ["rho 0.05", "rho 0.1", "rho 0.2"]
    assert sgd["rows"] == ["no rho"]  # SGD takes none
    assert sam["columns"] == ["decay 5e-4", "decay 1e-3"]
    assert sam["panels"][0]["values"][1] == pytest.approx([70.05, 70.1])


def test_a_learning_rate_that_was_tuned_is_a_row(line):
    found = [
        line(0.7, about={"validation_accuracy": 0.6}, optimizer="sgd", lr=lr, weight_decay=decay, seed=100)
        for lr in (0.1, 0.05)
        for decay in (5e-4, 1e-3)
    ]
    (figure,) = overview.tuning(found)
    assert figure["rows"] == ["lr 0.05", "lr 0.1"]


def test_what_all_columns_share_is_said_once(line):
    lines = [line(0.7, optimizer=o, weight_decay=d) for o in ("sgd", "sam") for d in (5e-4, 2e-3)]
    for entry in lines[1::2]:
        entry["corrupted"] = {"pictures": 100, "accuracy": {"fog": [0.5]}}
    (figure,) = overview.corruptions(arms_of(lines))
    assert figure["columns"] == ["SGD", "SAM"]
    assert "weight decay 2e-3" in figure["note"]
    lines[0]["corrupted"] = lines[1]["corrupted"]
    (figure,) = overview.corruptions(arms_of(lines))
    assert figure["columns"] == ["SGD, weight decay 5e-4", "SGD, weight decay 2e-3", "SAM, weight decay 2e-3"]


def test_comparisons_hold_what_the_estimates_say(arms):
    settings = settings_of(arms)
    for setting, block in zip(settings, overview.comparisons(settings), strict=True):
        for arm, row in zip(setting.arms, block["rows"], strict=True):
            assert row["seeds"] == arm.accuracy
            if arm.name in setting.gaps:
                assert row["gap"]["mean"] == setting.gaps[arm.name].mean
            elif setting.reference:
                assert row["name"] == block["reference"]
