"""Robustness: the accuracy of a network on corrupted pictures, by corruption and severity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import nn

from zosam.lab.data.cifar_c import Corrupted
from zosam.lab.measure.untouched import untouched
from zosam.lab.train import evaluate

Accuracies = Mapping[tuple[str, int], float]  # by corruption and severity


def corrupted(
    model: nn.Module,
    parts: Sequence[Corrupted],
    limit: int | None = None,
    tick: Callable[[int, int], None] = lambda done, of: None,
) -> dict[tuple[str, int], float]:
    """The accuracy on each part of CIFAR-10-C, such as all of `zosam.lab.data.cifar_c.corrupted()`, in eval mode.

    `limit` takes the first so many pictures of each part alone. `tick` is told after each how many of how many are
    done. Batches are as large as the parts say (500).
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, not {limit}")
    found = {}
    with untouched(model):
        for done, part in enumerate(parts, 1):
            taken = replace(part, x=part.x[:limit], y=part.y[:limit])
            found[part.corruption, part.severity] = evaluate(model, taken)["test_accuracy"]
            tick(done, len(parts))
    return found


def summary(found: Accuracies, clean: float) -> dict[str, float]:
    """The mean over all corruptions and severities, and how far it is below the accuracy on clean pictures."""
    mean = fmean(found.values())
    return {"clean": clean, "mean": mean, "gap": clean - mean}


def figure_corrupted(models: Mapping[str, Accuracies], limit: int | None = None) -> dict[str, Any]:
    """Accuracy in %, a row for each corruption, a column for each severity, a panel for each network."""
    rows = list(dict.fromkeys(corruption for found in models.values() for corruption, _ in found))
    columns = sorted({severity for found in models.values() for _, severity in found})
    pictures = "all pictures" if limit is None else f"the first {limit:,} pictures"
    return {
        "name": "corrupted",
        "kind": "heat",
        "title": "Accuracy on corrupted pictures",
        "note": f"CIFAR-10-C, {pictures} of each corruption and severity.",
        "rows": rows,
        "columns": columns,
        "value": "accuracy, %",
        "panels": [
            {"name": name, "values": [[_percent(found.get((row, column))) for column in columns] for row in rows]}
            for name, found in models.items()
        ],
    }


def _percent(accuracy: float | None) -> float | None:
    return None if accuracy is None else 100 * accuracy
