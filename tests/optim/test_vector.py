"""Masks belong to the weights: whoever asks finds them, and they die with the weight."""

from __future__ import annotations

import copy
import gc
import timeit

import pytest
import torch
from torch import nn

from zosam.optim import vector
from zosam.optim.masked import forget, mask_of, masks_of, set_mask
from zosam.optim.vector import ActiveWeights


def test_a_mask_is_found_by_the_weight_and_by_no_equal_one():
    weight, twin = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    mask = torch.eye(2, 3, dtype=torch.bool)
    set_mask(weight, mask)
    assert mask_of(weight) is mask
    assert mask_of(twin) is None
    assert mask_of(copy.deepcopy(weight)) is None
    assert list(masks_of([twin, weight])) == [weight]
    forget(weight)
    forget(weight)
    assert mask_of(weight) is None


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        set_mask(nn.Parameter(torch.ones(2, 3)), torch.ones(3, 2, dtype=torch.bool))


def test_nothing_is_left_of_weights_that_are_gone():
    gc.collect()
    before = len(vector.entries)
    for _ in range(50):
        weight = nn.Parameter(torch.ones(4))
        set_mask(weight, torch.ones(4, dtype=torch.bool))
        set_mask(weight, torch.zeros(4, dtype=torch.bool))
        assert not mask_of(weight).any()
    del weight
    gc.collect()
    assert len(vector.entries) == before


def test_it_follows_a_model_that_is_moved():
    model = nn.Linear(3, 3)
    mask = torch.eye(3, dtype=torch.bool)
    set_mask(model.weight, mask)
    model.double().to(memory_format=torch.channels_last)
    assert mask_of(model.weight) is mask


def test_looking_is_cheap():
    weights = [nn.Parameter(torch.ones(1)) for _ in range(300)]
    for w in weights:
        set_mask(w, torch.ones(1, dtype=torch.bool))
    assert min(timeit.repeat(lambda: masks_of(weights), number=10, repeat=5)) / 10 < 2e-3  # about 0.1 ms


def test_zeros_are_known_until_somebody_writes():
    weight = torch.nn.Parameter(torch.tensor([1.0, 0.0, 2.0]))
    mask = torch.tensor([True, False, True])
    vector.know_zeros([weight])
    assert vector.zeros_known([weight]) == [False]  # it has no mask
    set_mask(weight, mask)
    assert vector.zeros_known([weight]) == [False]
    vector.know_zeros([weight])
    assert vector.zeros_known([weight]) == [True]
    space = ActiveWeights([weight])
    space.write(torch.tensor([5.0, 6.0]))  # active entries alone
    assert vector.zeros_known([weight]) == [True]
    for write in (
        lambda: weight.detach().add_(1),
        lambda: mask.logical_not_(),
        lambda: setattr(weight, "data", mask * 1.0),
    ):
        vector.know_zeros([weight])
        write()
        assert vector.zeros_known([weight]) == [False]


def test_a_gradient_came_masked_only_in_the_backward_that_sent_it():
    weight = torch.nn.Parameter(torch.ones(4))
    set_mask(weight, torch.tensor([True, False, True, False]))
    came = []
    weight.register_post_accumulate_grad_hook(lambda w: came.append(vector.came_masked(w, w.grad)))

    class Sends(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w * 2

        @staticmethod
        def backward(ctx, gradient):
            vector.send_masked([(weight, gradient)])
            return gradient

    def backward(loss):
        loss.backward()
        return came.pop()

    ones = torch.ones(4)
    assert backward((Sends.apply(weight) * ones).sum())
    assert not backward((Sends.apply(weight) * ones).sum())  # it was added to another
    weight.grad = None
    assert not backward((Sends.apply(weight) * ones).sum() + weight.square().sum())  # another was added to it
    for _ in range(9):  # memory is used again
        weight.grad = None
        torch.autograd.grad((Sends.apply(weight) * ones).sum(), weight)
        assert not backward((weight * ones).sum())
