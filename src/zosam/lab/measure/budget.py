"""Methods of different cost compared at an equal budget of seconds, passes or operations.

A record is read at its last epoch within the budget. That is not the accuracy of a training planned for that budget:
its learning rate had not yet come down, which costs a dearer method most, since it is cut earlier. For an answer
without this handicap, train for `equal_epochs(...)` epochs and compare the ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from zosam.lab.measure.convergence import LABELS, Epochs, Unit, curves, spent

PLAIN = {"forward": 1.0, "backward": 1.0}


def equal_epochs(
    passes_per_step: Mapping[str, float], reference_epochs: int, reference: Mapping[str, float] = PLAIN
) -> int:
    """How many whole epochs a method gets for the passes of `reference_epochs` epochs of the reference, at most.

    `passes_per_step` is what `optimizer.passes_per_step()` says; a backward counts as two forwards.
    """
    share = _cost(reference) / _cost(passes_per_step)
    epochs = math.floor(reference_epochs * share + 1e-9)
    if epochs < 1:
        raise ValueError(f"{reference_epochs} epochs of the reference pay for {reference_epochs * share:.2f}: not one")
    return epochs


def at_budget(
    trainings: Mapping[str, Sequence[Epochs]],
    by: Unit = "passes",
    budget: float | None = None,
    step_flops: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """For each name the accuracy within the budget: mean, lowest and highest over its seeds, and the epochs it got.

    Without `budget` it is all that the cheapest training has spent. Where a first epoch costs more than the budget,
    accuracy is None.
    """
    flops = step_flops or {}
    costs = {name: [spent(e, by, flops.get(name)) for e in seeds] for name, seeds in trainings.items()}
    limit = min(c[-1] for seeds in costs.values() for c in seeds) if budget is None else budget
    rows = []
    for name, seeds in trainings.items():
        done = [sum(c <= limit for c in cost) for cost in costs[name]]
        found = [float(e[n - 1]["test_accuracy"]) for e, n in zip(seeds, done, strict=True) if n]
        whole = len(found) == len(seeds)
        rows.append(
            {
                "name": name,
                "budget": limit,
                "accuracy": fmean(found) if whole else None,
                "low": min(found) if whole else None,
                "high": max(found) if whole else None,
                "epochs": fmean(e[n - 1]["epoch"] if n else 0 for e, n in zip(seeds, done, strict=True)),
                "seeds": len(seeds),
            }
        )
    return rows


def equal_budget(
    trainings: Mapping[str, Sequence[Epochs]],
    by: Unit = "passes",
    budget: float | None = None,
    step_flops: Mapping[str, float] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same as a table, and the accuracy over cost as a figure."""
    rows = at_budget(trainings, by, budget, step_flops)
    note = (
        f"Accuracy at the last epoch within {rows[0]['budget']:.4g} {by} ({LABELS[by]})."
        " The learning rate was not planned for this budget."
    )
    title = f"Accuracy at equal {by}"
    lines = [{"name": row["name"], "control": False, "cells": [_cell(row)]} for row in rows]
    table = {"name": f"equal-{by}", "title": title, "tier": "", "note": note, "columns": ["accuracy, %"]}
    return {**table, "rows": lines, "notes": []}, curves(trainings, by, step_flops)


def _cell(row: Mapping[str, Any]) -> dict[str, str] | None:
    if row["accuracy"] is None:
        return None
    band = f" ({100 * row['low']:.2f} to {100 * row['high']:.2f}, {row['seeds']} seeds)" if row["seeds"] > 1 else ""
    ours, cost = f"{100 * row['accuracy']:.2f}{band}", f"{row['epochs']:g} epochs"
    return {"paper": "", "ours": ours, "difference": "", "verdict": "", "cost": cost, "note": ""}


def _cost(passes: Mapping[str, float]) -> float:
    return passes["forward"] + 2 * passes["backward"]
