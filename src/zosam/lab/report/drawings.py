"""One drawing per kind of the contract, on a matplotlib figure that it is given."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zosam.lab.report import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

MARKERS = "oDs^v"


def _colour(i: int) -> str:
    return palette.SERIES[i % len(palette.SERIES)]


def _lines(paper: Figure, figure: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    paper.set_size_inches(6.4, 3.8)
    axes = _axes(paper, figure["x"], figure["y"])
    for i, series in enumerate(figure["series"]):
        colour, values = _colour(i), {k: _array(series[k]) for k in ("x", "y", "low", "high") if k in series}
        if figure.get("log_y"):
            values |= {k: np.where(v > 0, v, np.nan) for k, v in values.items() if k != "x"}
        axes.plot(
            values["x"], values["y"], "--" if series.get("dashed") else "-", color=colour,
            marker=MARKERS[i % 5] if len(values["x"]) <= 30 else None,
        )  # fmt: skip
        if "low" in values and "high" in values:
            axes.fill_between(values["x"], values["low"], values["high"], color=colour, alpha=0.16, linewidth=0)
    if figure.get("log_y"):
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    if all(float(x).is_integer() for series in figure["series"] for x in series["x"] if x is not None):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    _legend(paper, axes.lines, figure)


def _bars(paper: Figure, figure: dict[str, Any]) -> None:
    groups, count = figure["groups"], max(1, len(figure["series"]))
    paper.set_size_inches(max(6.4, 0.16 * len(groups) * count), 3.8)
    axes = _axes(paper, "", figure["y"])
    places, drawn = np.arange(len(groups)), []
    for i, series in enumerate(figure["series"]):
        errors = _array(series["errors"]) if "errors" in series else None
        drawn.append(
            axes.bar(
                places + (i - (count - 1) / 2) * 0.8 / count, _array(series["values"]), 0.7 / count, yerr=errors,
                color=_colour(i), error_kw={"elinewidth": 0.8, "capsize": 2},
            )
        )  # fmt: skip
    long = max(map(len, groups), default=0) > 12
    axes.set_xticks(places, groups, rotation=30 if long else 0, ha="right" if long else "center")
    _legend(paper, drawn, figure)


def _heat(paper: Figure, figure: dict[str, Any]) -> None:
    panels, rows, columns = figure["panels"], figure["rows"], figure["columns"]
    paper.set_size_inches(max(4.0, 1.2 + len(panels) * (0.4 + 0.42 * len(columns))), 1.9 + 0.3 * len(rows))
    values = [_array(panel["values"]).reshape(len(rows), len(columns)) for panel in panels]
    norm, cmap = _scale(values)
    grid = paper.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    for axes, panel, one in zip(grid, panels, values, strict=False):
        axes.imshow(one, cmap=cmap, norm=norm, aspect="auto")
        axes.set_title(panel["name"])
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), rows)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        for (i, j), value in np.ndenumerate(one):
            if np.isfinite(value) and one.size <= 200:
                dark = np.dot(cmap(norm(value))[:3], (0.299, 0.587, 0.114)) < 0.55
                axes.text(j, i, f"{value:.4g}", ha="center", va="center", fontsize=6, color="w" if dark else "k")
    _colour_bar(paper, grid, norm, cmap, figure["value"])


def _tiles(paper: Figure, figure: dict[str, Any]) -> None:
    rows, columns = figure["rows"], figure["columns"]
    paper.set_size_inches(1.0 + 0.9 * len(columns), 0.7 + 0.9 * len(rows))
    grid = paper.subplots(len(rows), len(columns), squeeze=False)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            axes = grid[i, j]
            axes.imshow(_array(figure["tiles"][i][j]), cmap=_map(palette.SEQUENTIAL), interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if j == 0:
                axes.set_ylabel(row, rotation=0, ha="right", va="center")
            if i == 0:
                axes.set_title(column if len(column) <= 14 else column[:13] + "…", fontsize=7)


def _surface(paper: Figure, figure: dict[str, Any]) -> None:
    paper.set_size_inches(max(4.0, 2.9 * len(figure["models"])), 3.6)
    log = bool(figure.get("log_z"))
    losses = [_array(model["loss"]) for model in figure["models"]]
    if log:
        losses = [np.log10(np.where(loss > 0, loss, np.nan)) for loss in losses]
    norm, cmap = _scale(losses, around_zero=False)
    x, y = np.meshgrid(figure["x"], figure["y"])
    grid: list[Any] = []
    for i, (model, loss) in enumerate(zip(figure["models"], losses, strict=True)):
        axes: Any = paper.add_subplot(1, len(losses), i + 1, projection="3d")
        axes.plot_surface(x, y, loss, cmap=cmap, norm=norm, rstride=1, cstride=1, linewidth=0.1)
        axes.set_zlim(norm.vmin, norm.vmax)
        axes.set_title(model["name"])
        grid.append(axes)
    _colour_bar(paper, grid, norm, cmap, f"log10 of {figure['z']}" if log else figure["z"])


def _film(paper: Figure, figure: dict[str, Any]) -> None:
    layers, frames = figure["layers"], figure["frames"]
    chosen = [frames[i] for i in sorted({round(t * (len(frames) - 1)) for t in (0, 1 / 3, 2 / 3, 1)})]
    paper.set_size_inches(1.0 + 2.0 * len(chosen), 0.7 + 1.3 * len(layers))
    grid = paper.subplots(len(layers), len(chosen), squeeze=False)
    for i, layer in enumerate(layers):
        for j, frame in enumerate(chosen):
            axes, (rows, columns) = grid[i, j], layer["shape"]
            packed = np.frombuffer(base64.b64decode(frame["masks"][i]), np.uint8)
            mask = np.unpackbits(packed, count=rows * columns).reshape(rows, columns)
            axes.imshow(mask, cmap=_map(("#f3f5f7", "#1b1f24")), vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if j == 0:
                axes.set_ylabel(layer["name"], rotation=0, ha="right", va="center")
            if i == 0:
                axes.set_title(f"step {frame['step']}\n{frame['label']}")


KINDS: dict[str, Callable[[Figure, dict[str, Any]], None]] = {
    "lines": _lines, "surface": _surface, "heat": _heat, "bars": _bars, "tiles": _tiles, "film": _film,
}  # fmt: skip


def _axes(paper: Figure, x: str, y: str) -> Axes:
    axes = paper.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color="#e9ecef", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _legend(paper: Figure, drawn: Any, figure: dict[str, Any]) -> None:
    names = [series["name"] for series in figure["series"]]
    if names:
        paper.legend(list(drawn), names, loc="outside right center")


def _scale(values: list[NDArray[np.float64]], around_zero: bool = True) -> tuple[Normalize, Colormap]:
    """One scale for all; values on both sides of zero get a map with zero in its middle."""
    from matplotlib.colors import Normalize

    known = np.concatenate([v[np.isfinite(v)] for v in values] or [np.zeros(0)])
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    if around_zero and low < 0 < high:
        wide = max(-low, high)
        return Normalize(-wide, wide), _map(palette.DIVERGING)
    return Normalize(low, high if high > low else low + 1.0), _map(palette.SEQUENTIAL)


def _map(colours: tuple[str, ...]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("zosam", colours)


def _colour_bar(paper: Figure, axes: Any, norm: Normalize, cmap: Colormap, label: str) -> None:
    from matplotlib.cm import ScalarMappable

    paper.colorbar(ScalarMappable(norm, cmap), ax=list(axes), label=label, shrink=0.7, pad=0.03)


def _array(values: Any) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)
