"""Figures from finished runs: each declared figure becomes one or several dicts that the report and matplotlib draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from zosam.lab.assemble import load_data
from zosam.lab.callbacks import Tick, nobody
from zosam.lab.data import Data, Tensors
from zosam.lab.device import placed
from zosam.lab.measure import budget, convergence, features, landscape, masks_film, robustness
from zosam.lab.paper import recipes, speed
from zosam.lab.paper.figure import Figure
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.value import corrupted_accuracies
from zosam.lab.record import Record
from zosam.lab.report.arms import style
from zosam.lab.train import classification
from zosam.lab.where import Where

Records = Mapping[str, Sequence[Record]]  # by series, one for each seed
Drawing = dict[str, Any]
PICTURES = 500  # of the training set, for losses and feature maps
EIGENVALUES = 3  # of the curvature, beside a surface


@dataclass(frozen=True)
class Networks:
    """What is measured, on the device: the trained networks, and pictures of the training set."""

    found: Records
    data_dir: str | None
    device: torch.device
    tick: Tick = nobody

    def trained(self) -> dict[str, nn.Module]:
        """The network of each series, of its first seed."""
        return {name: placed(record.load(), self.device) for name, (record, *_) in self.found.items()}

    def pictures(self, count: int) -> tuple[Tensor, Tensor]:
        """Pictures of the training set as evaluation sees them."""
        (record, *_), *_ = self.found.values()
        source: Data = load_data(record.run, self.data_dir, device=self.device)
        if not (isinstance(source.train, Tensors) and isinstance(source.test, Tensors)):
            return next(iter(source.test))
        x, y, plain = source.train.x[:count], source.train.y[:count], source.test.augment
        return (x if plain is None else plain(x, torch.Generator())), y


def measured(figure: Figure, book: Book, seeds: int = 1, where: Where = Where(), tick: Tick = nobody) -> list[Drawing]:
    """The figure's drawings, measured where it is said, from the runs that are finished; none if no run is.

    `tick` is told how many of how many points of a surface are done.
    """
    found: dict[str, list[Record]] = {}
    for name, run in figure.runs.items():
        records = [r for seed in range(seeds) if (r := book.get(replace(run, seed=seed))) is not None]
        if records:
            found[name] = records
    if not found:
        return []
    with where.here() as device:
        drawings = KINDS[figure.measure](figure, found, book, Networks(found, where.data_dir, device, tick))
    for at, drawing in enumerate(drawings):
        drawing["name"] = figure.name if at == 0 else f"{figure.name}-{drawing['name']}"
        drawing["title"] = figure.title if at == 0 else f"{figure.title}: {drawing['title']}"
        drawing["note"] = f"{drawing['note']} {recipes.tier(figure.tier).note}"
        drawing["tier"] = figure.tier
        for series in (*drawing.get("series", ()), *drawing.get("models", ())):
            if series["name"] in figure.runs:
                series |= style(figure.runs[series["name"]], recipes.labels())
    return drawings


def _variance(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    series = []
    for name, records in found.items():
        each = list(zip(*([e["gradient_variance"] for e in r.epochs] for r in records), strict=True))
        line: dict[str, Any] = {"name": name, "x": [e["epoch"] for e in records[0].epochs], "y": list(map(fmean, each))}
        band = {"low": list(map(min, each)), "high": list(map(max, each))} if len(records) > 1 else {}
        series.append({**line, **band})
    note = "Trace of the covariance of the gradients that the optimizer stepped with, over the steps of each epoch."
    about = {"name": "variance", "kind": "lines", "title": "Gradient variance", "note": f"{note} {_seeds(found)}"}
    return [{**about, "x": "epoch", "y": "gradient variance", "log_y": True, "series": series}]


def _surface(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    settings = dict(figure.settings)
    x, y = networks.pictures(settings.pop("pictures", PICTURES))
    shown: dict[str, landscape.Measured] = {}
    for name, model in networks.trained().items():
        masks = {model.get_parameter(n): m for n, m in found[name][0].masks().items()}
        shown[name] = (model, classification(model, x, y), masks or None)
    seen = f" Loss on {len(y)} pictures of the training set, not augmented; one seed."
    drawings = [landscape.figure_surface(shown, **{"eigenvalues": EIGENVALUES, **settings}, tick=networks.tick)]
    drawings.append(landscape.figure_line(shown, tick=networks.tick))
    return [{**d, "note": d["note"] + seen} for d in drawings]


def _convergence(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    epochs = {name: [r.epochs for r in records] for name, records in found.items()}
    return [convergence.curves(epochs, "epochs"), convergence.curves(epochs, "passes")]


def _features(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    models, (x, y) = networks.trained(), networks.pictures(PICTURES)
    classes: dict[str, int] = figure.settings["classes"]
    shown = {name: x[int((y == label).nonzero()[0])] for name, label in classes.items()}
    layers = figure.settings["layers"]
    return [features.figure_features(models, shown, layers), features.figure_concentration(models, x, layers)]


def _corruptions(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    accuracies = {name: corrupted_accuracies(records[0].run, book) for name, records in found.items()}
    known = {name: a for name, a in accuracies.items() if a is not None}
    return [robustness.figure_corrupted(known, recipes.tier(figure.tier).pictures)] if known else []


def _masks(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    (record, *_), *_ = found.values()
    frames = record.masks_over_training()
    return [masks_film.film(frames), *masks_film.figures(frames)] if frames else []


def _throughput(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    beside = figure.runs[figure.settings["reference"]]
    ratios = {name: speed.ratio(figure.runs[name], beside, book) for name in found}
    known = {name: value for name, value in ratios.items() if value is not None}
    label = f"images per second, {figure.settings['reference']} = 1"
    about = {"name": "throughput", "kind": "bars", "title": "Throughput", "note": speed.ABOUT, "y": label}
    bars = {"name": "images per second", "values": list(known.values())}
    return [{**about, "groups": list(known), "series": [bars]}] if known else []


def _budget(figure: Figure, found: Records, book: Book, networks: Networks) -> list[Drawing]:
    epochs = {name: [r.epochs for r in records] for name, records in found.items()}
    ends = {name: [100 * r.last["test_accuracy"] for r in records] for name, records in found.items()}
    spread = [(max(e) - min(e)) / 2 for e in ends.values()]
    note = f"Each trained for as many epochs as the passes of SAM's training pay for. {_seeds(found)}"
    about = {"name": "budget", "kind": "bars", "title": "Accuracy at equal cost", "note": note, "y": "test accuracy, %"}
    values = {"name": "test accuracy", "values": [fmean(e) for e in ends.values()], "errors": spread}
    return [{**about, "groups": list(found), "series": [values]}, budget.equal_budget(epochs)[1]]


KINDS: dict[str, Callable[[Figure, Records, Book, Networks], list[Drawing]]] = {
    "variance": _variance,
    "surface": _surface,
    "convergence": _convergence,
    "features": _features,
    "corruptions": _corruptions,
    "masks": _masks,
    "throughput": _throughput,
    "budget": _budget,
}


def _seeds(found: Records) -> str:
    counts = sorted({len(records) for records in found.values()})
    return "One seed." if counts == [1] else f"{' to '.join(map(str, counts))} seeds, the band from lowest to highest."
