"""One drawing per kind of the contract, on a matplotlib figure that it is given."""

from __future__ import annotations

import base64
from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zosam.lab.report import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

MARKERS = "oDs^v"
Style = dict[str, Any]


def _colour(series: dict[str, Any], i: int) -> str:
    return palette.SERIES[i % len(palette.SERIES)][0]


def _styles(figure: dict[str, Any]) -> dict[str, Style]:
    """Colour, dash and marker of everything drawn, by name: those of the page."""
    panels = figure.get("panels", [figure])
    drawn = [thing for panel in panels for thing in (*panel.get("series", ()), *panel.get("arms", ()))]
    known = palette.shades((t["optimizer"], t.get("arm", t["name"])) for t in drawn if t.get("optimizer"))
    rising, found = palette.sparsities(drawn), {}
    for i, thing in enumerate(drawn):
        place = rising.index(thing["sparsity"]) if thing.get("sparsity") else 0
        dash = (6, 4) if thing.get("dashed") else tuple(map(float, palette.DASHES[place % len(palette.DASHES)].split()))
        colour = known.get(thing.get("arm", thing["name"]), palette.SERIES[i % len(palette.SERIES)])[0]
        found[_key(thing)] = {"color": colour, "linestyle": (0, dash) if dash else "-", "marker": MARKERS[place % 5]}
    return found


def _key(thing: dict[str, Any]) -> str:
    return f"{thing['name']} {thing.get('sparsity', '')}"


def _scatter(paper: Figure, figure: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    panel, (unit, label), styles = figure["panels"][0], next(iter(figure["x"].items())), _styles(figure)
    paper.set_size_inches(5.8, 4.6)
    costs = [seed[unit] for arm in panel["arms"] for seed in arm["seeds"]]
    per, label = _time_unit(label, max(costs)) if unit.endswith("seconds") else (1, label)
    axes = _axes(paper, label, figure["y"])
    chains: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for arm in panel["arms"]:
        look, best = styles[_key(arm)], unit in arm["front"]
        x, y = _array([s[unit] / per for s in arm["seeds"]]), _array([s["y"] for s in arm["seeds"]])
        face = look["color"] if best else "none"
        axes.plot(x, y, look["marker"], color=look["color"], markerfacecolor=face, markersize=6 if best else 4)
        chains.setdefault((_key(arm), arm["method"]), []).append((arm["epochs"], float(x.mean()), float(y.mean())))
    for (key, _), places in chains.items():
        axes.plot(*zip(*[p[1:] for p in sorted(places)], strict=True), color=styles[key]["color"],
                  linestyle=styles[key]["linestyle"], linewidth=1)  # fmt: skip
    front = sorted((fmean(s[unit] for s in a["seeds"]) / per, fmean(s["y"] for s in a["seeds"]))
                   for a in panel["arms"] if unit in a["front"])  # fmt: skip
    if front:
        axes.step(*zip(*front, strict=True), where="post", color="#cfd5db", linewidth=4, zorder=0)
    if min(costs) > 0 and max(costs) > 8 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    names = {arm.get("arm", arm["name"]): styles[_key(arm)]["color"] for arm in panel["arms"]}
    marks = {arm["sparsity"]: styles[_key(arm)]["marker"] for arm in panel["arms"]}
    shown = [Line2D([], [], color=c, linewidth=4, label=n) for n, c in names.items()]
    shown += [Line2D([], [], color="#5c6570", linestyle="", marker=m, label=s) for s, m in marks.items()]
    columns = 3 if max(len(str(one.get_label())) for one in shown) <= 20 else 2
    paper.legend(handles=shown, loc="outside lower center", ncols=columns)  # below: so words are large on a phone, too


def _time_unit(label: str, longest: float) -> tuple[int, str]:
    """How many seconds the unit has that suits the longest, and the label with its name."""
    per, word = (3600, "hours") if longest > 5400 else (60, "minutes") if longest > 150 else (1, "seconds")
    return per, f"{label}, {word}"


def _lines(paper: Figure, figure: dict[str, Any]) -> None:
    panels, units = figure.get("panels", [figure]), figure["x"]
    keys = list(units)[:2] if isinstance(units, dict) else [None]
    paper.set_size_inches(1.6 + 4.8 * len(keys), 0.6 + 3.2 * len(panels))
    grid, styles, named = paper.subplots(len(panels), len(keys), squeeze=False), _styles(figure), {}
    for row, panel in zip(grid, panels, strict=True):
        for axes, key in zip(row, keys, strict=True):
            _dress(axes, units if key is None else units[key], figure["y"])
            for series in (s for s in panel["series"] if s.get("best", True)):
                named[series["name"]] = _line(axes, series, key, styles[_key(series)], bool(figure.get("log_y")))
            _scales(axes, panel["series"], key, bool(figure.get("log_y")))
            if panel is not figure:
                axes.set_title(panel["name"], fontsize=8)
    paper.legend(list(named.values()), list(named), loc="outside right center")


def _line(axes: Axes, series: dict[str, Any], key: str | None, look: Style, log: bool) -> Any:
    x = _array(series["x"] if key is None else series["x"][key])
    values = {k: _array(series[k]) for k in ("y", "low", "high") if k in series}
    if log:
        values = {k: np.where(v > 0, v, np.nan) for k, v in values.items()}
    style = look | {"marker": look["marker"] if len(x) <= 30 else None}
    (drawn,) = axes.plot(x, values["y"], **style)
    if "low" in values and "high" in values:
        axes.fill_between(x, values["low"], values["high"], color=look["color"], alpha=0.14, linewidth=0)
    return drawn


def _scales(axes: Axes, drawn: list[dict[str, Any]], key: str | None, log: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    places = [x for series in drawn for x in (series["x"] if key is None else series["x"][key])]
    if all(float(x).is_integer() for x in places if x is not None):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


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
                color=_colour(series, i), error_kw={"elinewidth": 0.8, "capsize": 2},
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
            values = np.concatenate([_array(line[j]).ravel() for line in figure["tiles"]])
            known = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
            axes.imshow(_array(figure["tiles"][i][j]), cmap=_map(palette.SEQUENTIAL), interpolation="nearest",
                        vmin=known.min(), vmax=known.max())  # fmt: skip
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
    "scatter": _scatter, "lines": _lines, "surface": _surface, "heat": _heat, "bars": _bars, "tiles": _tiles,
    "film": _film,
}  # fmt: skip


def _axes(paper: Figure, x: str, y: str) -> Axes:
    axes = paper.add_subplot()
    _dress(axes, x, y)
    return axes


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color="#e9ecef", linewidth=0.6)
    axes.set_axisbelow(True)


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
