"""Choosing the k best: exact, whatever the ties, the layout and the type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zosam.sparse.top_k import top, top_of_all


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_exactly_k_and_none_better_is_left_out(values, k):
    k = min(k, len(values))
    mask = top(torch.tensor(values, dtype=torch.float32), k).numpy()
    values = np.array(values)
    assert mask.sum() == k
    if 0 < k < len(values):
        assert values[mask].min() >= values[~mask].max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types_agree_with_a_full_sort(dtype):
    score = torch.randn(7, 5, 3, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    order = score.float().reshape(-1).sort(descending=True, stable=True).indices[:40]
    expected = torch.zeros(score.numel(), dtype=torch.bool)
    expected[order] = True
    assert torch.equal(top(score, 40).reshape(-1), expected)


def test_the_mask_lies_in_memory_like_the_score_and_layout_does_not_change_the_choice():
    score = torch.rand(4, 6, 3, 3).round(decimals=1)
    turned = score.to(memory_format=torch.channels_last)
    assert top(turned, 50).stride() == turned.stride()
    assert torch.equal(top(turned, 50), top(score, 50))


def test_infinite_scores_are_fine_and_nan_is_refused():
    score = torch.tensor([1.0, -torch.inf, torch.inf, 2.0])
    assert top(score, 2).tolist() == [False, False, True, True]
    with pytest.raises(FloatingPointError, match="not numbers"):
        top(torch.tensor([torch.nan, torch.nan, 1.0]), 2)


def test_layers_compete():
    scores = {"a": torch.tensor([1.0, 9.0]), "b": torch.tensor([[5.0, 2.0, 8.0]])}
    masks = top_of_all(scores, 3)
    assert masks["a"].tolist() == [False, True]
    assert masks["b"].tolist() == [[True, False, True]]
