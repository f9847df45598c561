"""The page: tables and figures in one HTML file that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

from zosam import files
from zosam.lab.report import palette
from zosam.lab.report.contract import check

# Joined in this order into one script: what is used first comes first.
SCRIPTS = (
    "dom", "scale", "pen", "axes", "scatter", "lines", "bars", "heat", "tiles", "turn", "contour", "surface", "film",
    "table", "export", "main",
)  # fmt: skip
SECTIONS = {
    "lines": "Over training", "surface": "Loss surfaces", "heat": "Maps", "bars": "Side by side",
    "tiles": "Feature maps", "film": "Masks", "scatter": "Accuracy against cost",
}  # fmt: skip
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
Dict = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """All that a page shows, as plain dicts that `contract` describes."""

    title: str
    lead: Sequence[str] = ()
    """What was found, in one sentence; what was run; what else is worth a sentence."""
    facts: Mapping[str, str] = field(default_factory=dict)
    cover: Dict | None = None
    """The figure of the first screen."""
    questions: Sequence[Dict] = ()
    """What the trainings were made to answer, each with its comparisons."""
    comparisons: Sequence[Dict] = ()
    figures: Sequence[Dict] = ()
    """Under the section that each names, or that of its kind."""
    tables: Sequence[Dict] = ()
    """Of the paper."""

    @property
    def all_figures(self) -> list[Dict]:
        return [*([self.cover] if self.cover else []), *self.figures]


def build(report: Report) -> str:
    """The report as HTML, with style, script and data inside; a contract that is broken raises ValueError.

    Names may be anything: the data is JSON without a `<`, the script puts it into the page as text, and a content
    security policy lets no other script run and no request go out.
    """
    check(report.tables, report.all_figures)
    assets = resources("zosam.lab.report") / "assets"
    style = (assets / "report.css").read_text("utf-8")
    scripts = "\n".join((assets / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();'
    drawn = [*_drawn(report.all_figures), *(row for block in report.comparisons for row in block["rows"])]
    data = {
        "title": report.title,
        "lead": [text for text in report.lead if text],
        "facts": report.facts,
        "cover": report.cover,
        "questions": report.questions,
        "comparisons": report.comparisons,
        "figures": [{"section": SECTIONS[figure["kind"]], **figure} for figure in report.figures],
        "tables": report.tables,
        "styles": palette.shades(
            (thing["optimizer"], thing.get("arm", thing["name"])) for thing in drawn if thing.get("optimizer")
        ),
        "sparsities": palette.sparsities(drawn),
        "hues": palette.HUES,
        "series": palette.SERIES,
        "dashes": palette.DASHES,
        "maps": {"sequential": palette.SEQUENTIAL, "diverging": palette.DIVERGING},
        "verdicts": palette.VERDICTS,
    }
    return Template((assets / "page.html").read_text("utf-8")).substitute(
        title=html.escape(report.title),
        style=style,
        script=script,
        data=json.dumps(_plain(data), allow_nan=False, separators=(",", ":")).translate(ESCAPES),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def write(path: Path, report: Report) -> None:
    """Build the report and write it; the file is whole or not there."""
    files.write(path, build(report).encode("utf-8", "replace"))


def _drawn(figures: Iterable[Dict]) -> Iterator[Dict]:
    """Everything in the figures that has a name and may have a style."""
    for figure in figures:
        for panel in (figure, *figure.get("panels", ())):
            yield from (*panel.get("series", ()), *panel.get("arms", ()))


def _plain(thing: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null, drawn as a gap. Six digits are enough."""
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_plain(value) for value in thing]
    if isinstance(thing, float):
        return float(f"{thing:.6g}") if isfinite(thing) else None
    return thing


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
