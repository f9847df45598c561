"""Verdicts on numbers worked out by hand."""

from __future__ import annotations

import pytest

from zosam.lab.paper.table import Cell
from zosam.lab.paper.verdict import verdict


def cell(printed="", direction=0, measure="test_accuracy", versus="MEST"):
    return Cell(
        row="MEST + ZO-SAM", column="90 %", printed=printed, run=None, measure=measure, versus=versus,
        control=not printed, direction=direction, misprint="",
    )  # fmt: skip


def seeds(*values):
    return dict(enumerate(values))


@pytest.mark.parametrize(
    ("ours", "word"),
    [
        (seeds(93.25), "reproduced"),  # 0.25 from 93.50
        (seeds(93.85), "above"),
        (seeds(93.15), "below"),
        (seeds(93.2, 93.8, 94.1), "reproduced"),  # mean 93.7
        (seeds(93.0, 94.0, 94.9), "no difference seen"),  # mean 93.97, 0.47 off, half width 2.4
        (seeds(94.0, 94.1, 94.2), "above"),  # mean 94.1, half width 0.25
        (seeds(92.0, 92.1, 92.2), "below"),
        ({}, "not run"),
    ],
)
def test_by_value(ours, word):
    assert verdict(cell("93.50 ± 0.11 (+0.94)", 1), ours, seeds(90.0, 90.0, 90.0), "value") == word


def test_a_large_printed_spread_widens_what_counts_as_reproduced():
    assert verdict(cell("57.37 ± 1.43"), seeds(56.0), {}, "value") == "reproduced"
    assert verdict(cell("57.37"), seeds(56.0), {}, "value") == "below"


def test_above_is_about_the_number_also_where_less_is_better():
    epochs = cell("70", -1, "epochs_to_90")
    assert verdict(epochs, seeds(74), {}, "value") == "reproduced"
    assert verdict(epochs, seeds(80), {}, "value") == "above"
    assert verdict(cell("30.68", -1, "robustness_gap"), seeds(30.0), {}, "value") == "below"


def test_images_per_second_are_compared_by_their_share():
    speed = cell("4349.53 (76.67 %)", -1, "images_per_second")
    assert verdict(speed, seeds(62.0), seeds(100.0), "value") == "below"  # 62 %
    assert verdict(speed, seeds(750.0), seeds(1000.0), "value") == "reproduced"  # 75 %
    assert verdict(speed, seeds(750.0), {}, "value") == ""  # nothing to take a share of
    assert verdict(cell("5673.95", 0, "images_per_second"), seeds(100.0), {}, "value") == ""
    assert verdict(speed, seeds(62.0, 63.0), seeds(100.0, 102.0), "direction") == "same direction"


@pytest.mark.parametrize(
    ("direction", "ours", "versus", "word"),
    [
        (1, (90.6, 90.4, 90.5), (90.0, 90.0, 90.0), "same direction"),  # 0.5 ± 0.25
        (-1, (90.6, 90.4, 90.5), (90.0, 90.0, 90.0), "other direction"),
        (1, (89.4, 89.6, 89.5), (90.0, 90.0, 90.0), "other direction"),
        (-1, (70, 72, 71), (90, 91, 92), "same direction"),  # epochs: fewer, as printed
        (1, (90.6, 89.9, 90.5), (90.0, 90.0, 90.0), "no difference seen"),  # 0.33 ± 0.94
        (1, (90.0, 90.0), (90.0, 90.0), "no difference seen"),
        (1, (99.0,), (90.0,), "no difference seen"),  # one seed
        (0, (90.6, 90.4, 90.5), (90.0, 90.0, 90.0), ""),  # a control: nothing was printed
        (1, (90.6, 90.4), (), ""),  # the other row was not run
        (1, (), (90.0,), "not run"),
    ],
)
def test_by_direction(direction, ours, versus, word):
    assert verdict(cell("93.50 (+0.94)", direction), seeds(*ours), seeds(*versus), "direction") == word


def test_a_tier_that_says_directions_says_nothing_of_values():
    assert verdict(cell("92.56", 0, versus=None), seeds(92.56, 92.56), {}, "direction") == ""


def test_a_control_has_no_value_to_reproduce():
    assert verdict(cell(""), seeds(93.5), seeds(93.0), "value") == ""
