"""Figures for print: each kind of the contract drawn by matplotlib, as PNG, SVG or PDF."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

from zosam import files
from zosam.lab.report.contract import check_figure
from zosam.lab.report.drawings import KINDS

# Without a date and with a fixed salt the same figure gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
LONGEST = 44  # letters of a name
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "legend.frameon": False, "lines.linewidth": 1.5, "lines.markersize": 3.5, "svg.hashsalt": "zosam",
    "text.parse_math": False, "savefig.dpi": 200,
}  # fmt: skip


def draw(figure: dict[str, Any], path: Path) -> None:
    """Draw a figure of the contract into `path`; its suffix says which format. The file is whole or not there."""
    check_figure(figure)
    if path.suffix not in METADATA:
        raise ValueError(f"figure {figure['name']!r}: {path.name} must end in {', '.join(METADATA)}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing for print needs matplotlib: pip install 'zosam[report]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever style the user keeps, a figure looks the same
        matplotlib.rcParams.update(STYLE)
        paper = Figure(layout="constrained")
        KINDS[figure["kind"]](paper, _printable(figure))
        title = textwrap.shorten(_visible(figure["title"]), 160, placeholder="…")
        width = int(paper.get_size_inches()[0] * 13)
        paper.suptitle(textwrap.fill(title, width), fontsize=10, x=0.01, ha="left")
        content = io.BytesIO()
        paper.savefig(content, format=path.suffix[1:], metadata=METADATA[path.suffix])
    files.write(path, content.getvalue())


def _printable(thing: Any) -> Any:
    """The same figure with names that fit on paper: short, and without signs that nobody sees."""
    if isinstance(thing, dict):
        return {key: value if key in ("masks", "kind") else _printable(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_printable(value) for value in thing]
    if isinstance(thing, str):
        name = _visible(thing)  # what is cut goes from the middle: names differ at their ends
        return name if len(name) <= LONGEST else f"{name[: LONGEST - 16]}…{name[-15:]}"
    return thing


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()
