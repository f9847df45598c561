"""A figure of the paper, or one of ours: what is measured, and on which trainings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zosam.lab.paper import recipes
from zosam.lab.paper.source import read
from zosam.lab.run import Run
from zosam.names import find

FIGURES = tuple(read("figures"))  # those of the paper first, then ours


@dataclass(frozen=True)
class Figure:
    """A figure at a tier; without runs if the tier cannot do it."""

    name: str
    title: str
    tier: str
    measure: str
    """variance, surface, convergence, features, corruptions, masks, throughput or budget."""
    settings: dict[str, Any]
    """Of the measurement."""
    runs: dict[str, Run]
    """The training of each series, at seed 0."""


def load_figure(name: str, tier: str) -> Figure:
    """The figure called `name` with the trainings of a tier."""
    content, how = find(read("figures"), name, "figure"), recipes.tier(tier)
    runs: dict[str, Run] = {}
    for series in content["series"]:
        words = {k: v for k, v in series.items() if k != "name"}
        run = None if content["measure"] in how.without else how.run(**content["run"] | words)
        if run is not None:
            runs[series["name"]] = run
    settings = content.get("settings", {}) | content.get(tier, {})
    return Figure(name, content["title"], tier, content["measure"], settings, runs)
