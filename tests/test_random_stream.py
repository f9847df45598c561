"""Random numbers by their place: the published hash, the same in parts as in one piece, and distributed as promised."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from zosam.random_stream import Draw

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """As published (Steele, Lea and Flood 2014), in whole numbers of Python."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_bits_are_those_of_splitmix64():
    draw = Draw("seed", 3)
    expected = [splitmix64(draw._key + i * 0x9E3779B97F4A7C15) for i in range(1, 6)]
    assert [bits & MASK for bits in draw.bits(5).tolist()] == expected
    assert Draw("seed", 4).bits(5).tolist() != draw.bits(5).tolist()


@pytest.mark.parametrize("kind", ["bits", "uniform", "normal", "signs"])
def test_parts_are_those_of_the_whole(kind):
    """Ranks that draw a part each have together what one process would draw."""
    draw = getattr(Draw("parts"), kind)
    whole = draw(20)
    for cuts in ((0, 20), (0, 7, 20), (0, 1, 2, 11, 12, 20)):
        parts = [draw(end - start, start) for start, end in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)
    assert len(draw(0, 3)) == 0


def test_normal_numbers_are_normal_and_do_not_know_each_other():
    x = Draw("normal").normal(100_001, dtype=torch.float64).numpy()
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert stats.kurtosis(x) == pytest.approx(0, abs=0.05)
    for lag in (1, 2, 3):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 0.015
        assert abs(np.corrcoef(x[:-lag] ** 2, x[lag:] ** 2)[0, 1]) < 0.015  # nor their sizes
    other = Draw("another").normal(100_001, dtype=torch.float64).numpy()
    assert abs(np.corrcoef(x, other)[0, 1]) < 0.015


def test_uniform_numbers_and_signs():
    x = Draw("uniform").uniform(100_000)
    assert 0 < x.min() < x.max() < 1
    assert stats.kstest(x.numpy(), "uniform").pvalue > 1e-3
    signs = Draw("signs").signs(100_000)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.015
