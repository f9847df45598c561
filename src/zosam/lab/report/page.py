"""The page: tables and figures in one HTML file that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
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
    "dom", "scale", "pen", "plot", "lines", "bars", "heat", "tiles", "turn", "surface", "film", "table", "export",
    "main",
)  # fmt: skip
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def build(tables: list[dict[str, Any]], figures: list[dict[str, Any]], facts: dict[str, str], title: str) -> str:
    """The report as HTML, with style, script and data inside; a contract that is broken raises ValueError.

    Names may be anything: the data is JSON without a `<`, the script puts it into the page as text, and a content
    security policy lets no other script run and no request go out.
    """
    check(tables, figures)
    assets = resources("zosam.lab.report") / "assets"
    style = _series() + (assets / "report.css").read_text("utf-8")
    scripts = "\n".join((assets / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();'
    data = {
        "title": title,
        "facts": facts,
        "tables": tables,
        "figures": figures,
        "maps": {"sequential": palette.SEQUENTIAL, "diverging": palette.DIVERGING},
        "verdicts": palette.VERDICTS,
    }
    return Template((assets / "page.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        style=style,
        script=script,
        data=json.dumps(_plain(data), allow_nan=False, separators=(",", ":")).translate(ESCAPES),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def write(
    path: Path, tables: list[dict[str, Any]], figures: list[dict[str, Any]], facts: dict[str, str], title: str
) -> None:
    """Build the report and write it; the file is whole or not there."""
    files.write(path, build(tables, figures, facts, title).encode("utf-8", "replace"))


def _plain(thing: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null, which is drawn as a gap."""
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_plain(value) for value in thing]
    return None if isinstance(thing, float) and not isfinite(thing) else thing


def _series() -> str:
    light, dark = (
        "".join(f"--series-{i}:{colour};" for i, colour in enumerate(colours))
        for colours in (palette.SERIES, palette.SERIES_ON_DARK)
    )
    return f':root{{{light}}}:root[data-theme="dark"]{{{dark}}}\n'


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
