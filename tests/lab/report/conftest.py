"""A made-up report: one figure of every kind and two tables, with plain names or with hostile ones."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>",
    "\"'`${window.broken=1}<!--",
    "=HYPERLINK(\"http://example.org\",\"x\")",
    "\u202eמודל דליל",
    "🧠🔥 $_{x}^{y$ \u2028\u2029\x00",
    "a very long name " * 12,
)  # fmt: skip


def figures() -> list[dict[str, Any]]:
    steps = list(range(0, 161, 8))
    draw = np.random.default_rng(0)

    def curve(end: float, rate: float) -> list[float]:
        return [round(float(end + 2.2 * math.exp(-rate * s) + draw.normal() * 0.02), 4) for s in steps]

    loss = {"SGD": curve(0.42, 0.03), "SAM": curve(0.3, 0.035), "ZO-SAM": curve(0.31, 0.036)}
    grid = [round(v, 3) for v in np.linspace(-1, 1, 31)]

    def bowl(sharp: float) -> list[list[float]]:
        return [
            [
                round(0.3 + sharp * (x * x + 0.6 * y * y) * (1 + 0.25 * math.sin(7 * x) * math.cos(6 * y)), 5)
                for x in grid
            ]
            for y in grid
        ]

    corruptions = ["gaussian noise", "shot noise", "motion blur", "fog", "brightness", "contrast", "jpeg"]
    yy, xx = np.mgrid[0:16, 0:16]
    tiles = [
        [np.round(np.sin(xx / (2 + r)) * np.cos(yy / (1.5 + c)) + r, 3).tolist() for c in range(6)] for r in range(3)
    ]
    return [
        {"name": "loss", "kind": "lines", "title": "Training loss at 95 % sparsity", "tier": "small",
         "note": "Cross-entropy of the training set; mean of three seeds, the band is one standard deviation.",
         "x": "epoch", "y": "training loss", "log_y": False,
         "series": [{"name": name, "x": steps, "y": y, "low": [v - 0.06 for v in y], "high": [v + 0.06 for v in y],
                     "dashed": name == "SGD"} for name, y in loss.items()]},
        {"name": "variance", "kind": "lines", "title": "Variance of the gradient", "note": "",
         "x": "step", "y": "variance", "log_y": True,
         "series": [{"name": f"method {i}", "x": steps, "y": [10 ** (-i / 2 - s / 60) for s in steps[:-1]] + [0.0]}
                    for i in range(5)]},
        {"name": "landscape", "kind": "surface", "title": "Loss around the trained weights",
         "note": "Two random directions, filter-normalised; one scale for all models.",
         "x": grid, "y": grid, "z": "training loss", "log_z": False,
         "models": [{"name": "SGD", "loss": bowl(6.0)}, {"name": "SAM", "loss": bowl(2.6)},
                    {"name": "ZO-SAM", "loss": bowl(2.1)}]},
        {"name": "corruption", "kind": "heat", "title": "Accuracy under corruption",
         "note": "Test accuracy in per cent.",
         "rows": ["RigL", "SET", "SNIP", "MEST"], "columns": corruptions, "value": "accuracy (%)",
         "panels": [{"name": name, "values": (70 + 8 * draw.random((4, 7)) + 4 * k).round(1).tolist()}
                    for k, name in enumerate(["SGD", "ZO-SAM"])]},
        {"name": "alignment", "kind": "heat", "title": "Change against SGD", "note": "", "rows": ["a", "b"],
         "columns": ["1", "2", "3"], "value": "difference (points)",
         "panels": [{"name": "all", "values": [[-1.5, 0.2, None], [3.0, 0.0, float("nan")]]}]},
        {"name": "accuracy", "kind": "bars", "title": "Accuracy by method", "note": "Mean and 95 % interval.",
         "groups": ["RigL", "SET", "SNIP", "MEST", "GraSP"], "y": "test accuracy (%)",
         "series": [{"name": name, "values": [round(91 + k + 0.3 * g, 2) for g in range(5)],
                     "errors": [0.25] * 5} for k, name in enumerate(["SGD", "SAM", "ZO-SAM"])]},
        {"name": "features", "kind": "tiles", "title": "Feature maps", "note": "First layer, six channels.",
         "rows": ["SGD", "SAM", "ZO-SAM"], "columns": [f"channel {c}" for c in range(6)], "tiles": tiles},
        {"name": "masks", "kind": "film", "title": "Masks of RigL", "note": "A crop of each layer.",
         "layers": [{"name": "layer1.conv", "shape": [24, 60]}, {"name": "fc", "shape": [10, 13]}],
         "frames": [{"step": 100 * k, "label": f"epoch {k}", "masks": [mask(24, 60, k), mask(10, 13, k)]}
                    for k in range(8)]},
    ]  # fmt: skip


def mask(rows: int, columns: int, k: int) -> str:
    bits = (
        np.random.default_rng(7).random((rows, columns)) + 0.04 * k * np.random.default_rng(k).random((rows, columns))
    ) % 1
    return base64.b64encode(np.packbits(bits < 0.15)).decode()


def cell(paper: str, ours: str, difference: str, verdict: str, cost: str = "", note: str = "") -> dict[str, str]:
    return {"paper": paper, "ours": ours, "difference": difference, "verdict": verdict, "cost": cost, "note": note}


def tables() -> list[dict[str, Any]]:
    ran = [
        cell("93.41", "93.52 ± 0.18", "+0.11", "reproduced", "1.9 h"),
        cell("92.80", "93.60 ± 0.21", "+0.80", "above", "1.9 h"),
        cell("91.02", "89.95 ± 0.30", "-1.07", "below", "1.9 h", "one seed of five diverged"),
    ]
    small = [
        cell("+0.45", "+0.31 ± 0.12", "-0.14", "same direction", "12 min", "digits, 64 units"),
        cell("+0.30", "-0.11 ± 0.10", "-0.41", "other direction", "12 min", "digits, 64 units"),
        cell("+0.22", "+0.02 ± 0.15", "-0.20", "no difference seen", "12 min"),
    ]
    never = [cell("94.10", "", "", "not run", "about 40 h"), cell("93.35", "–", "", "not run", "about 40 h"), None]
    return [
        {"name": "table1", "title": "Table 1: accuracy of sparse ResNet-32 on CIFAR-10", "tier": "small",
         "note": "Test accuracy in per cent, three seeds, 95 % interval.", "columns": ["90 %", "95 %", "98 %"],
         "rows": [{"name": "RigL", "control": False, "cells": ran},
                  {"name": "RigL + ZO-SAM", "control": False, "cells": small},
                  {"name": "LTH", "control": False, "cells": never},
                  {"name": "random direction", "control": True, "cells": [cell("", "93.1 ± 0.2", "", ""), None, None]}],
         "notes": ["The paper does not say how many seeds it has used."]},
        {"name": "table5", "title": "Table 5: throughput", "tier": "full", "note": "", "columns": ["images / s"],
         "rows": [{"name": "SGD", "control": False, "cells": [cell("10 400", "1 020 ± 8", "", "", "3 min")]},
                  {"name": "ZO-SAM", "control": False, "cells": [cell("8 900", "905 ± 6", "", "reproduced", "3 min")]}],
         "notes": []},
    ]  # fmt: skip


FACTS = {"zosam": "0.1.0", "torch": "2.13.0", "hardware": "8 cores, no GPU", "made": "2026-01-31"}


def renamed(thing: Any, names: list[str]) -> Any:
    """The same thing, with the next hostile text for every name, title, label and note."""
    if isinstance(thing, list):
        return [renamed(v, names) for v in thing]
    if not isinstance(thing, dict):
        return thing
    out = {key: renamed(value, names) for key, value in thing.items()}
    for key in ("title", "note", "name", "label", "z", "value", "ours", "tier"):
        if isinstance(out.get(key), str) and not (key == "name" and "kind" in out):
            out[key] = _next(names)
    for key in ("rows", "columns", "groups", "notes"):
        if isinstance(out.get(key), list) and all(isinstance(v, str) for v in out[key]):
            out[key] = [_next(names) for _ in out[key]]
    for key in ("x", "y"):
        if isinstance(out.get(key), str):
            out[key] = _next(names)
    return out


def _next(names: list[str]) -> str:
    names.append(names.pop(0))
    return names[-1]


def hostile() -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    names = list(HOSTILE)
    bad_tables, bad_figures = renamed(tables(), names), renamed(figures(), names)
    for i, table in enumerate(bad_tables):
        table["name"] = f"{HOSTILE[0]} {i}"
    return bad_tables, bad_figures, dict.fromkeys(HOSTILE, HOSTILE[0])


def blank(thing: Any) -> Any:
    """The same thing without one number: as if every run had diverged."""
    if isinstance(thing, list):
        return [float("nan") if isinstance(v, float) else blank(v) for v in thing]
    if isinstance(thing, dict):
        keep = {"x", "shape"} | ({"y"} if "models" in thing else set())
        return {key: value if key in keep else blank(value) for key, value in thing.items()}
    return thing


@pytest.fixture(name="blank")
def _blank() -> list[dict[str, Any]]:
    return blank(figures())


@pytest.fixture(name="figures")
def _figures() -> list[dict[str, Any]]:
    return figures()


@pytest.fixture(name="tables")
def _tables() -> list[dict[str, Any]]:
    return tables()


@pytest.fixture(name="facts")
def _facts() -> dict[str, str]:
    return dict(FACTS)


@pytest.fixture(name="hostile")
def _hostile() -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    return hostile()
