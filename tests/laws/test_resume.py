"""Law of resuming: a training restored at any step goes on bit for bit as if nothing had happened."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from zosam.sparse import METHODS


def saved(t):
    """Model and optimizer, as every trainer saves them, through a file that holds data only."""
    file = io.BytesIO()
    torch.save({"model": t.model.state_dict(), "optimizer": t.optimizer.state_dict(), "rng": t.stream}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def load(t, state):
    t.model.load_state_dict(state["model"])
    t.optimizer.load_state_dict(state["optimizer"])
    t.stream = state["rng"]


@pytest.mark.parametrize(("base", "at"), [("sgd", 1), ("adamw", 4)])
def test_resume_is_bit_exact(trial, same, optimizer_name, method, base, at):
    straight = trial(optimizer_name, method, base=base)
    straight.step(at)
    state = saved(straight)
    straight.step(6 - at)

    resumed = trial(optimizer_name, method, base=base)
    resumed.step()  # a state of its own, to be overwritten
    load(resumed, state)
    resumed.step(6 - at)
    assert same(straight.snapshot(), resumed.snapshot())
    assert straight.optimizer.steps == resumed.optimizer.steps == 6


def test_a_method_made_for_loaded_weights_resumes_bit_for_bit(trial, same, sparse_method):
    """Lightning loads the weights, lets the user make optimizer and method, then loads the optimizer's state."""
    straight = trial("sam", sparse_method)
    straight.step(4)
    state = saved(straight)
    straight.step(2)

    other_masks = {"seed": 1} if METHODS[sparse_method].draws else {}
    resumed = trial("sam", sparse_method, starts_from=state["model"], method_settings=other_masks)
    resumed.optimizer.load_state_dict(resumed.optimizer.state_dict())  # as accelerate does
    resumed.sparse.seed = straight.sparse.seed
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.stream = state["rng"]
    resumed.step(2)
    assert same(straight.snapshot(), resumed.snapshot())


def test_a_deep_copy_goes_its_own_way(trial, same, optimizer_name, method):
    t = trial(optimizer_name, method)
    t.step(3)
    twin = copy.deepcopy(t)
    assert twin.optimizer.base.param_groups[0]["params"][0] is next(twin.model.parameters())
    t.step(3)
    twin.step(3)
    assert same(t.snapshot(), twin.snapshot())
