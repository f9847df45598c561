"""What a figure and a table must look like; every complaint names the one that is wrong."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from zosam.lab.report.palette import VERDICTS


def check(tables: Sequence[dict[str, Any]], figures: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError at the first table or figure that cannot be shown, or at a name that is given twice."""
    for what, things, checker in (("table", tables, _table), ("figure", figures, check_figure)):
        seen: set[str] = set()
        for thing in things:
            checker(thing)
            if thing["name"] in seen:
                raise ValueError(f"two {what}s are called {thing['name']!r}; each needs a name of its own")
            seen.add(thing["name"])


def check_figure(figure: dict[str, Any]) -> None:
    """Raise ValueError, with the figure's name, unless the figure keeps the contract of its kind."""
    try:
        _texts(figure, "name", "title", "note")
        kind = figure.get("kind")
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
        for key in ("series", "models", "panels", "groups", "rows", "columns", "layers", "frames"):
            if key in figure and not figure[key]:
                raise ValueError(f"{key} is empty, so there is nothing to draw; leave the figure out")
        KINDS[kind](figure)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"figure {_name(figure)!r}: {_reason(error)}") from error


def _scatter(figure: dict[str, Any]) -> None:
    _texts(figure, "y")
    units = list(figure["x"])
    for panel in figure["panels"]:
        for arm in panel["arms"]:
            _texts(arm, "name", "sparsity", "where")
            if not arm["seeds"] or not set(arm["front"]) <= set(units):
                raise ValueError(f"{arm['name']!r} has no seed, or is on a front by what is not among {units}")
            for seed in arm["seeds"]:
                _numbers([seed[key] for key in ("y", *units)], f"a seed of {arm['name']!r}", gaps=False)


def _lines(figure: dict[str, Any]) -> None:
    _texts(figure, "y")
    units = figure["x"] if isinstance(figure["x"], dict) else None
    if units is None:
        _texts(figure, "x")
    for series in (s for panel in figure.get("panels", [figure]) for s in panel["series"]):
        places = [series["x"][unit] for unit in units] if units else [series["x"]]
        for x in places:
            _numbers(x, f"x of {series['name']!r}", len(places[0]), gaps=False)
        for key in ("y", "low", "high"):
            if key == "y" or key in series:
                _numbers(series[key], f"{key} of {series['name']!r}", len(places[0]))


def _surface(figure: dict[str, Any]) -> None:
    for axis in ("x", "y"):
        _numbers(figure[axis], axis, gaps=False)
        if len(figure[axis]) < 2 or any(b <= a for a, b in zip(figure[axis], figure[axis][1:], strict=False)):
            raise ValueError(f"{axis} must hold at least two offsets that rise")
    _texts(figure, "z")
    for model in figure["models"]:
        _grid(model["loss"], f"loss of {model['name']!r}", len(figure["y"]), len(figure["x"]))


def _heat(figure: dict[str, Any]) -> None:
    _texts(figure, "value")
    for panel in figure["panels"]:
        _grid(panel["values"], f"values of {panel['name']!r}", len(figure["rows"]), len(figure["columns"]))


def _bars(figure: dict[str, Any]) -> None:
    _texts(figure, "y")
    for series in figure["series"]:
        for key in ("values", "errors"):
            if key == "values" or key in series:
                _numbers(series[key], f"{key} of {series['name']!r}", len(figure["groups"]))


def _tiles(figure: dict[str, Any]) -> None:
    _length(figure["tiles"], "tiles", len(figure["rows"]))
    for row, tiles in zip(figure["rows"], figure["tiles"], strict=True):
        _length(tiles, f"tiles of row {row!r}", len(figure["columns"]))
        for column, tile in zip(figure["columns"], tiles, strict=True):
            if not tile or not tile[0]:
                raise ValueError(f"the tile ({row!r}, {column!r}) is empty")
            _grid(tile, f"tile ({row!r}, {column!r})", len(tile), len(tile[0]))
    if "inputs" in figure:
        _length(figure["inputs"], "inputs", len(figure["rows"]))


def _film(figure: dict[str, Any]) -> None:
    for frame in figure["frames"]:
        for key in ("moved", "survived"):
            if key in frame:
                _numbers(frame[key], f"{key} of step {frame['step']}", len(figure["layers"]), gaps=False)
        _length(frame["masks"], f"masks of step {frame['step']}", len(figure["layers"]))
        for layer, mask in zip(figure["layers"], frame["masks"], strict=True):
            rows, columns = layer["shape"]
            try:
                size = len(base64.b64decode(mask, validate=True))
            except binascii.Error as error:
                raise ValueError(f"mask of {layer['name']!r} at step {frame['step']} is not base64") from error
            if size != (rows * columns + 7) // 8:
                raise ValueError(
                    f"mask of {layer['name']!r} at step {frame['step']} has {size} bytes, not {rows} x {columns} bits"
                )


def _table(table: dict[str, Any]) -> None:
    try:
        _texts(table, "name", "title", "tier", "note")
        for row in table["rows"]:
            _texts(row, "name")
            _length(row["cells"], f"cells of row {row['name']!r}", len(table["columns"]))
            for cell in filter(None, row["cells"]):
                _texts(cell, "paper", "ours", "difference", "verdict", "cost", "note")
                if cell["verdict"] not in VERDICTS:
                    raise ValueError(f"verdict {cell['verdict']!r} is not one of {', '.join(filter(None, VERDICTS))}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"table {_name(table)!r}: {_reason(error)}") from error


KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "scatter": _scatter, "lines": _lines, "surface": _surface, "heat": _heat, "bars": _bars, "tiles": _tiles,
    "film": _film,
}  # fmt: skip


def _numbers(values: Any, what: str, length: int | None = None, gaps: bool = True) -> None:
    """Numbers, where None and what is not finite are gaps, if gaps may be."""
    _length(values, what, length)
    for value in values:
        if value is None and gaps:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{what} holds {value!r}, which is no number")
        if not gaps and not isfinite(value):
            raise ValueError(f"{what} holds {value!r}, which is not finite")


def _grid(values: Any, what: str, rows: int, columns: int) -> None:
    _length(values, what, rows)
    for row in values:
        _numbers(row, what, columns)


def _length(values: Any, what: str, length: int | None) -> None:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{what} must be a list, not {type(values).__name__}")
    if length is not None and len(values) != length:
        raise ValueError(f"{what} has {len(values)} entries where {length} are needed")


def _texts(thing: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if not isinstance(thing[key], str):
            raise ValueError(f"{key} must be text, not {thing[key]!r}")


def _name(thing: Any) -> Any:
    return thing.get("name") if isinstance(thing, dict) else thing


def _reason(error: Exception) -> str:
    return f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
