"""Epochs to a target and accuracy at equal cost, on records worked by hand."""

from __future__ import annotations

import json

import pytest

from zosam.lab.measure.budget import at_budget, equal_budget, equal_epochs
from zosam.lab.measure.convergence import curves, mean_curve, spent, to_target


def record(*accuracies, seconds=2.0, forward=1, backward=1, steps=10):
    """Epochs as a training writes them: seconds of the epoch alone, steps and passes of all so far."""
    return [
        {
            "epoch": i,
            "step": i * steps,
            "test_accuracy": a,
            "seconds": seconds,
            "forward": float(i * steps * forward),
            "backward": float(i * steps * backward),
        }
        for i, a in enumerate(accuracies, 1)
    ]


SGD = record(0.5, 0.7, 0.8, 0.9, 0.85, 0.86)
SAM = record(0.6, 0.8, 0.91, 0.92, 0.93, 0.94, seconds=4.0, forward=2, backward=2)


def test_the_first_epoch_at_the_target():
    assert to_target(SGD, 0.9) == {"epochs": 4, "seconds": 8.0, "passes": 4 * 10 * 3}
    assert to_target(SAM, 0.9, step_flops=7.0) == {"epochs": 3, "seconds": 12.0, "passes": 3 * 10 * 6, "flops": 210.0}
    assert to_target(SGD, 0.91) is None
    with pytest.raises(ValueError, match="share"):
        to_target(SGD, 90)


def test_curves_over_seeds():
    other = record(0.7, 0.7, 0.7, 0.7, 0.7, 0.7, seconds=3.0)
    made = curves({"SGD": [SGD, other], "SAM": [SAM]}, by="seconds")
    first, second = made["series"]
    assert first["x"] == pytest.approx([2.5, 5.0, 7.5, 10.0, 12.5, 15.0])
    assert first["y"] == pytest.approx([60, 70, 75, 80, 77.5, 78])
    assert first["low"] == pytest.approx([50, 70, 70, 70, 70, 70])
    assert first["high"] == pytest.approx([70, 70, 80, 90, 85, 86])
    assert second["x"] == pytest.approx([4, 8, 12, 16, 20, 24])
    assert "low" not in second
    assert json.loads(json.dumps(made)) == made
    with pytest.raises(ValueError, match="SGD: the seeds have"):
        curves({"SGD": [SGD, SGD[:3]]})


def test_a_seed_that_was_tested_less_often_is_compared_where_both_were():
    rarely = [{**SGD[2], "seconds": 6.0}, {**SGD[5], "test_accuracy": 0.96, "seconds": 6.0}]  # after epochs 3 and 6
    made = curves({"SGD": [SGD, rarely]}, by="seconds")["series"][0]
    assert made["x"] == pytest.approx([6, 12])
    assert made["y"] == pytest.approx([80, 91])
    assert mean_curve([SGD, rarely], ["epochs", "seconds"])["x"] == {"epochs": [3, 6], "seconds": [6, 12]}
    rows = at_budget({"SGD": [rarely]}, by="seconds", budget=7.0)
    assert (rows[0]["accuracy"], rows[0]["epochs"]) == (0.8, 3)


def test_costs_need_to_be_known():
    assert spent(SAM, "flops", 5.0)[-1] == 300
    with pytest.raises(ValueError, match="step_flops"):
        curves({"SGD": [SGD]}, by="flops", step_flops={"SAM": 1.0})
    with pytest.raises(ValueError, match="'hours'"):
        spent(SGD, "hours")


def test_accuracy_at_equal_cost():
    rows = at_budget({"SGD": [SGD], "SAM": [SAM, record(*[0.5] * 6, forward=2, backward=2)]}, by="passes")
    assert rows[0] == dict(name="SGD", budget=180.0, accuracy=0.86, low=0.86, high=0.86, epochs=6, seeds=1)  # noqa: C408
    assert rows[1]["epochs"] == 3  # 180 passes are three epochs of SAM
    assert (rows[1]["accuracy"], rows[1]["low"], rows[1]["high"]) == pytest.approx((0.705, 0.5, 0.91))
    early = at_budget({"SGD": [SGD], "SAM": [SAM]}, by="seconds", budget=3.0)
    assert [row["accuracy"] for row in early] == [0.5, None]
    assert [row["accuracy"] for row in at_budget({"SAM": [SAM]}, "flops", 100.0, {"SAM": 5.0})] == [0.8]


def test_the_table_and_the_figure():
    table, figure = equal_budget({"SGD": [SGD, SGD], "SAM": [SAM, SAM]})
    cells = [row["cells"][0] for row in table["rows"]]
    assert [cell["ours"] for cell in cells] == ["86.00 (86.00 to 86.00, 2 seeds)", "91.00 (91.00 to 91.00, 2 seeds)"]
    assert [cell["cost"] for cell in cells] == ["6 epochs", "3 epochs"]
    assert "180" in table["note"]
    assert figure["series"][1]["x"][0] == 60
    assert json.loads(json.dumps([table, figure])) == [table, figure]
    unpaid, _ = equal_budget({"SGD": [SGD], "SAM": [SAM]}, by="seconds", budget=3.0)
    assert unpaid["rows"][1]["cells"] == [None]


def test_equal_epochs():
    from torch import nn, optim

    from zosam import optim as ours

    base = lambda: optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)  # noqa: E731
    assert equal_epochs(ours.Unperturbed(base()).passes_per_step(), 160) == 160
    assert equal_epochs(ours.SAM(base()).passes_per_step(), 160) == 80
    assert equal_epochs(ours.ZOSAM(base()).passes_per_step(), 160) == 96  # 3 forwards + 1 backward = 5 against 3
    assert equal_epochs({"forward": 1.0, "backward": 1.0}, 100, {"forward": 2.0, "backward": 2.0}) == 200
    assert equal_epochs({"forward": 2.0, "backward": 2.0}, 5) == 2  # never more than was paid for
    with pytest.raises(ValueError, match="not one"):
        equal_epochs({"forward": 100.0, "backward": 1.0}, 10)
