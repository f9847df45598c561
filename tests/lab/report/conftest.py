"""Made-up result lines, and a made-up report: a figure of every kind and two tables, with plain or hostile names."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zosam.lab.report import overview
from zosam.lab.report.arms import arms_of, settings_of
from zosam.lab.report.page import Report
from zosam.lab.run import Run

HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>",
    "\"'`${window.broken=1}<!--",
    "=HYPERLINK(\"http://example.org\",\"x\")",
    "\u202eמודל דליל",
    "🧠🔥 $_{x}^{y$ \u2028\u2029\x00",
    "a very long name " * 12,
)  # fmt: skip


GAINS = {"sgd": 0.0, "sam": 0.04, "zosam": 0.0, "msam": 0.015}  # true accuracy above SGD's
PASSES = {"sgd": (1, 1), "sam": (2, 2), "zosam": (3, 1), "msam": (1, 1)}
CORRUPTIONS = [*overview.ROBUSTBENCH, "gaussian_blur", "saturate", "spatter", "speckle_noise"]


def line(accuracy: float, seconds: float = 60.0, about: dict[str, Any] | None = None, **run: Any) -> dict[str, Any]:
    """A line of results as `zosam table --save` writes it; `about` goes into its last epoch."""
    forward, backward = PASSES.get(run.get("optimizer", "zosam").partition(":")[0], (1, 1))
    epochs, steps = run.setdefault("epochs", 4), 100
    return {
        "run": Run(**run).description, "classes": 10, "made_with": {"torch": "2.13.0", "cpu": "AMD EPYC", "threads": 1},
        "epochs": [{"epoch": e, "step": e * steps, "train_loss": 2.0 / e, "test_loss": 1.0, "sparsity": 0.9,
                    "test_accuracy": accuracy * e / epochs, "seconds": seconds / epochs,
                    "forward": float(e * steps * forward), "backward": float(e * steps * backward),
                    **(about or {} if e == epochs else {})} for e in range(1, epochs + 1)],
    }  # fmt: skip


def lines() -> list[dict[str, Any]]:
    """Two networks, dense and at two sparsities, four optimizers, three seeds; two lengths, corruptions, trials."""
    found = []
    for model in ("resnet20", "resnet32"):
        for method, sparsity, price in (("dense", 0.0, 4), ("rigl", 0.9, 1), ("rigl", 0.95, 0.7)):
            for k, optimizer in enumerate(GAINS):
                for seed in range(3):
                    noise = 0.002 * ((seed * 7 + k * 3) % 5 - 2)  # not the same for any two optimizers
                    accuracy = 0.8 - sparsity / 50 + GAINS[optimizer] + noise
                    run = {"model": model, "data": "cifar10", "method": method, "optimizer": optimizer, "seed": seed}
                    run |= {"sparsity": sparsity} if sparsity else {}
                    cost = 20 * price * (PASSES[optimizer][0] + 2 * PASSES[optimizer][1])
                    found.append(line(accuracy, cost, **run))
                    if optimizer == "sam" and method == "rigl" and model == "resnet20":
                        found.append(line(accuracy + 0.01, 2 * cost, **run, epochs=8))
    for entry in found[-24:]:
        clean = entry["epochs"][-1]["test_accuracy"]
        by_severity = [clean - 0.05 * severity for severity in range(1, 6)]
        entry["corrupted"] = {"pictures": 100, "accuracy": dict.fromkeys(CORRUPTIONS, by_severity)}
    for optimizer in ("sgd", "sam"):
        for rho in (0.05, 0.1, 0.2):
            for decay in (5e-4, 1e-3):
                run = {"data": "cifar10:validation=5000", "optimizer": optimizer, "rho": rho, "weight_decay": decay}
                found.append(line(0.7 + rho, about={"validation_accuracy": 0.6 + rho + decay}, **run, seed=100))
    return found


def report(**changed: Any) -> Report:
    """A report with everything."""
    settings = settings_of(arms := arms_of(entry for entry in lines() if entry["run"]["seed"] < 100))
    parts: dict[str, Any] = {
        "title": "A report", "lead": ["What was found.", "What was run."], "facts": dict(FACTS), "figures": figures(),
        "cover": overview.tradeoff(arms), "comparisons": overview.comparisons(settings), "tables": tables(),
        "questions": [questions(settings)],
    }  # fmt: skip
    return Report(**{**parts, **changed})


def questions(settings: list[Any]) -> dict[str, Any]:
    blocks = overview.comparisons(settings[:2])
    return {"name": "q", "title": "Which is better?", "note": "Half is done.", "versus": "SGD", "blocks": blocks}


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
         "models": [{"name": "SGD", "loss": bowl(6.0), "sharpness": 0.4321, "eigenvalues": [31.5, 12.25]},
                    {"name": "SAM", "loss": bowl(2.6)},
                    {"name": "ZO-SAM", "loss": bowl(2.1)}]},
        {"name": "corruption", "kind": "heat", "title": "Accuracy under corruption",
         "note": "Test accuracy in per cent.",
         "rows": ["RigL", "SET", "SNIP", "MEST"], "columns": corruptions, "value": "accuracy (%)",
         "reference": 0,
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
         "rows": ["SGD", "SAM", "ZO-SAM"], "columns": [f"channel {c}" for c in range(6)], "tiles": tiles,
         "inputs": [[[[8 * i, 8 * j, 40 * k] for j in range(16)] for i in range(16)] for k in range(3)]},
        {"name": "masks", "kind": "film", "title": "Masks of RigL", "note": "A crop of each layer.",
         "layers": [{"name": "layer1.conv", "shape": [24, 60]}, {"name": "fc", "shape": [10, 13]}],
         "frames": [{"step": 100 * k, "label": f"epoch {k}", "masks": [mask(24, 60, k), mask(10, 13, k)],
                     "moved": [0.04 * k, 0.02], "survived": [1 - 0.1 * k, 0.9]} for k in range(8)]},
    ]  # fmt: skip


def mask(rows: int, columns: int, k: int) -> str:
    bits = (
        np.random.default_rng(7).random((rows, columns)) + 0.04 * k * np.random.default_rng(k).random((rows, columns))
    ) % 1
    return base64.b64encode(np.packbits(bits < 0.15)).decode()


def cell(paper: str, ours: str, difference: str, verdict: str, cost: str = "", note: str = "") -> dict[str, Any]:
    mean, _, half = difference.partition(" ± ")
    gap = {"mean": float(mean), "half": float(half) if half else None, "text": difference} if difference else None
    value = ours.partition(" ")[0].replace("–", "")
    seeds = {seed: float(value) + 0.1 * seed for seed in range(3)} if value else {}
    texts = {"paper": paper, "ours": ours, "difference": difference, "verdict": verdict, "cost": cost, "note": note}
    return {**texts, "seeds": seeds, "gap": gap}


def tables() -> list[dict[str, Any]]:
    ran = [
        cell("93.41", "93.52 ± 0.18", "+0.11 ± 0.05", "reproduced", "1.9 h"),
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
         "rows": [{"name": "SGD", "control": False, "cells": [cell("10400", "1020 ± 8", "", "", "3 min")]},
                  {"name": "ZO-SAM", "control": False, "cells": [cell("8900", "905 ± 6", "", "reproduced", "3 min")]}],
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


PARTS = ("cover", "questions", "comparisons", "figures", "tables")


def hostile() -> Report:
    names = list(HOSTILE)
    parts = {key: renamed(getattr(report(), key), names) for key in PARTS}
    for i, table in enumerate(parts["tables"]):
        table["name"] = f"{HOSTILE[0]} {i}"
    return Report(**parts, title=HOSTILE[0], lead=HOSTILE, facts=dict.fromkeys(HOSTILE, HOSTILE[0]))


def blank(thing: Any) -> Any:
    """The same thing without one number: as if every run had diverged."""
    if isinstance(thing, list):
        return [float("nan") if isinstance(v, float) else blank(v) for v in thing]
    if isinstance(thing, dict):
        keep = {"x", "shape", "moved", "survived"} | ({"y"} if "models" in thing else set())
        return {key: value if key in keep else blank(value) for key, value in thing.items()}
    return thing


@pytest.fixture(name="blank")
def _blank() -> list[dict[str, Any]]:
    return blank(figures())


@pytest.fixture(name="figures")
def _figures() -> list[dict[str, Any]]:
    return figures()


@pytest.fixture(name="line")
def _line() -> Callable[..., dict[str, Any]]:
    return line


@pytest.fixture(name="lines")
def _lines() -> list[dict[str, Any]]:
    return lines()


@pytest.fixture(name="report")
def _report() -> Report:
    return report()


@pytest.fixture(name="hostile")
def _hostile() -> Report:
    return hostile()
