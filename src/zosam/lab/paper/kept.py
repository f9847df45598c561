"""What is kept of each layer, and how its masks moved: of the runs whose folders are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from zosam.lab.measure.masks_film import film
from zosam.lab.paper.results_store import Book
from zosam.lab.record import Record
from zosam.lab.report.arms import Arm, Setting
from zosam.lab.run import finished

Figure = dict[str, Any]
SETTINGS, FILMS, FRAMES = 6, 3, 24  # the most that are shown


def kept(settings: Sequence[Setting], book: Book) -> list[Figure]:
    """For each setting the share of each layer's weights that its arms ended with."""
    found = []
    for setting in settings:
        masks = {arm.name: own for arm in setting.arms if (own := _masks(arm, book))}
        if masks:
            found.append(_kept(setting, masks))
    several = f" The first {SETTINGS} of {len(found)} settings are shown." if len(found) > SETTINGS else ""
    return [
        {**figure, "name": f"kept-{i}", "note": figure["note"] + several}
        for i, figure in enumerate(found[:SETTINGS], 1)
    ]


def films(settings: Sequence[Setting], book: Book) -> list[Figure]:
    """The masks over training, of the first trainings that kept them: those with diagnostics."""
    known = [(arm, record) for setting in settings for arm in setting.best for record in _records(arm, book, True)]
    found = []
    for i, (arm, record) in enumerate(known[:FILMS], 1):
        frames = record.masks_over_training()
        shown = [frames[at] for at in _evenly(len(frames), FRAMES)]
        figure = film(shown)
        note = figure["note"]
        if len(shown) < len(frames):
            note += f" {len(shown)} of {len(frames)} frames."
        if len(known) > FILMS:
            note += f" The first {FILMS} of {len(known)} trainings with --diagnostics are shown."
        title = f"Masks over training: {arm.name}, {arm.where}, seed {record.run.seed}"
        found.append({**figure, "name": f"film-{i}", "title": title, "note": note})
    return found


def _kept(setting: Setting, masks: dict[str, dict[str, Tensor]]) -> Figure:
    several = any(len(arm.lines) > 1 for arm in setting.arms)
    names = list(dict.fromkeys(name for own in masks.values() for name in own))
    shapes = {name: mask.shape for own in masks.values() for name, mask in own.items()}
    counts = {arm: {n: (int(m.count_nonzero()), m.numel()) for n, m in own.items()} for arm, own in masks.items()}
    for own in counts.values():
        own[""] = sum(left for left, _ in own.values()), sum(of for _, of in own.values())
    share = [[_percent(*own[n]) if n in own else None for own in counts.values()] for n in ("", *names)]
    size = sum(shapes[name].numel() for name in names)
    rows = ["all of them", *(f"{n.removesuffix('.weight')} ({'×'.join(map(str, shapes[n]))})" for n in names)]
    about = {
        "title": f"What is kept of each layer: {setting.name}",
        "note": f"Of {size:,} weights with a mask, at the end of the training{' of the first seed' * several}. Biases,"
        " norms and layers that stay dense have none.",
    }
    if len(masks) == 1:
        values = {"name": next(iter(masks)), "values": [line[0] for line in share]}
        return {**about, "kind": "bars", "y": "weights kept, %", "groups": rows, "series": [values]}
    panel = {"name": "kept, %", "values": share}
    return {
        **about,
        "kind": "heat",
        "value": "weights kept, %",
        "rows": rows,
        "columns": list(masks),
        "panels": [panel],
    }


def _percent(left: int, of: int) -> float:
    return round(100 * left / of, 2)


def _masks(arm: Arm, book: Book) -> dict[str, Tensor]:
    record = next(_records(arm, book), None)
    return {} if record is None else record.masks()


def _records(arm: Arm, book: Book, watched_only: bool = False) -> Iterator[Record]:
    """Of the arm's seeds whose folders are there, with diagnostics or without."""
    for seed in arm.lines:
        for watched in (True,) if watched_only else (False, True):
            run = replace(arm.run, seed=seed, diagnostics=watched)
            if book.holds(run):
                yield finished(book.root / run.folder, run)


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` places of `count`, the first and the last among them."""
    return sorted({round(i * (count - 1) / (min(count, most) - 1 or 1)) for i in range(min(count, most))})
