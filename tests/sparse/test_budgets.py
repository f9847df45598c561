"""Budgets: exact totals, and the densities that the literature reports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zosam.lab.models import resnet32
from zosam.sparse.budgets import BUDGETS, allowance, check, counts, er, erk, fill, uniform
from zosam.sparse.prunable import prunable

RESNET32 = {n: tuple(w.shape) for n, w in prunable(resnet32()).items()}
SIZE = {n: math.prod(s) for n, s in RESNET32.items()}

# density -> (stem, stage 1, stage 2, its first, stage 3, its first, shortcuts, classifier), worked out by hand
ERK = {
    0.10: (1.0, 0.29, 0.139, 0.211, 0.068, 0.102, 1.0, 0.90, 1.0),
    0.05: (0.887, 0.142, 0.068, None, 0.033, None, 0.894, 0.442, 1.0),
    0.02: (0.35, 0.056, 0.027, None, 0.013, None, 0.353, 0.175, 0.795),
}


def test_resnet32_is_the_network_of_the_paper():
    assert len(RESNET32) == 34
    assert sum(SIZE.values()) == 1_855_584


@pytest.mark.parametrize("density", ERK)
def test_erk_densities_of_resnet32(density):
    found = erk(RESNET32, round(density * sum(SIZE.values())))
    at = {n: found[n] / SIZE[n] for n in found}
    stem, one, two, two_first, three, three_first, short2, short3, head = ERK[density]
    expected = {"conv1.weight": stem, "fc.weight": head}
    expected |= {f"layer1.{b}.conv{c}.weight": one for b in range(5) for c in (1, 2)}
    expected |= {f"layer2.{b}.conv2.weight": two for b in range(5)}
    expected |= {f"layer3.{b}.conv2.weight": three for b in range(5)}
    expected |= {"layer2.0.conv1.weight": two_first, "layer3.0.conv1.weight": three_first}
    shortcuts = [n for n in RESNET32 if "downsample" in n]
    expected |= dict(zip(shortcuts, (short2, short3), strict=True))
    for name, value in expected.items():
        if value is not None:
            assert at[name] == pytest.approx(value, abs=0.0055 if value > 0.3 else 0.0015), name


shapes = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
    min_size=1,
    max_size=8,
)


@given(shapes, st.floats(0, 1), st.sampled_from(sorted(BUDGETS)))
@settings(max_examples=200, deadline=None)
def test_every_rule_splits_exactly_and_fits(shapes, density, rule):
    size = {n: math.prod(s) for n, s in shapes.items()}
    active = round(density * sum(size.values()))
    found = BUDGETS[rule](shapes, active)
    assert sum(found.values()) == active
    assert all(0 <= found[n] <= size[n] for n in shapes)


def test_er_looks_at_two_dimensions_and_erk_at_all():
    shapes = {"a": (10, 20, 3, 3), "b": (40, 20)}
    a, b = er(shapes, 300).values()
    assert a / 1800 / (b / 800) == pytest.approx((30 / 200) / (60 / 800), rel=0.02)
    a, b = erk(shapes, 300).values()
    assert a / 1800 / (b / 800) == pytest.approx((36 / 1800) / (60 / 800), rel=0.02)
    assert uniform(shapes, 260) == {"a": 180, "b": 80}


def test_what_spills_over_goes_to_the_others():
    assert fill(10, {"a": 8.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9}) == {"a": 4, "b": 3, "c": 3}
    with pytest.raises(ValueError, match="do not fit"):
        fill(10, {"a": 1.0}, {"a": 9})


def test_the_denominator():
    assert allowance(0.8, masked=900, dense=100, over="all") == 100
    assert allowance(0.8, masked=900, dense=100, over="masked") == 180
    with pytest.raises(ValueError, match="cannot be reached"):
        allowance(0.9, masked=900, dense=100, over="all")
    with pytest.raises(ValueError, match="masked"):
        check("erk", over="every")


def test_a_rule_of_ones_own_is_checked():
    shapes = {"a": (4, 4), "b": (4, 4)}
    assert counts(lambda s, n: {"a": 1, "b": n - 1}, shapes, 8) == {"a": 1, "b": 7}
    with pytest.raises(ValueError, match="must split 8"):
        counts(lambda s, n: {"a": 1, "b": 1}, shapes, 8)
    with pytest.raises(ValueError, match="no weight in b"):
        counts(lambda s, n: {"a": 8, "b": 0}, shapes, 8)
    with pytest.raises(ValueError, match="did you mean 'erk'"):
        counts("erkk", shapes, 8)


def test_units_stay_whole():
    found = counts("erk", {"a": (8, 8), "b": (64, 8)}, 96, unit=4)
    assert sum(found.values()) == 96
    assert all(c % 4 == 0 for c in found.values())
