"""The report's content: what the runs say by themselves, the figures that were measured, the paper's tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zosam import files
from zosam.lab.measure.estimate import difference
from zosam.lab.paper import recipes
from zosam.lab.paper.evidence import TUNING, Question, question
from zosam.lab.paper.evidence import names as asked_names
from zosam.lab.paper.figure import FIGURES, load_figure
from zosam.lab.paper.kept import films, kept
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.show import filled
from zosam.lab.paper.table import NAMES, load
from zosam.lab.report import overview
from zosam.lab.report.arms import Arm, Line, Setting, arms_of, is_trial, settings_of
from zosam.lab.report.finding import best_use, facts, finding, hardware, what_was_run
from zosam.lab.report.page import Report
from zosam.lab.run import Run

FROM_LINES = {"convergence", "variance", "corruptions", "budget"}
"""Figures of the paper that the report draws from the runs anew, if it has all of them."""

SECTIONS = {
    "surface": "Loss surfaces", "features": "Feature maps", "corruptions": "Corrupted pictures", "masks": "Masks",
    "throughput": "Side by side", "budget": "Side by side",
}  # fmt: skip
ORDER = ("Over training", "Loss surfaces", "Masks", "Feature maps", "Corrupted pictures", "Side by side", "Tuning")


def contents(
    book: Book,
    figures: Path,
    tier: str | None = None,
    seeds: int = 3,
    only: str | None = None,
    tell: Callable[[str], object] = str,
) -> Report:
    """All that is there, as a report; a ValueError if nothing is. `tell` hears what is being made."""
    names, tiers = recipes.labels(), [tier] if tier else list(recipes.TIERS)
    tell("reading the runs")
    every = book.entries()
    lines = _chosen(every, names, only)
    trials = [line for line in lines if is_trial(line)]
    results = [line for line in lines if not is_trial(line)] or trials
    drawings = _drawings(figures, tiers, book)
    arms = arms_of(results, names)
    if not arms and not drawings:
        raise ValueError(
            "there is no run and no figure to show: begin with `zosam demo` or `zosam train`, or name a folder of runs"
            " with --runs, or files of --results"
        )
    settings = settings_of(arms)
    watched = settings_of(arms_of((line for line in lines if _is_watched(line)), names))
    tell("drawing curves and masks")
    several = len(arms) > 1  # else there is nothing to hold it against
    own = [
        ("Over training", overview.convergence(settings)),
        ("Over training", overview.losses(settings)),
        ("Over training", overview.variance(watched)),
        *(("Masks", figure) for figure in (*kept(settings, book), *films(settings, book))),
        *(("Corrupted pictures", figure) for figure in overview.corruptions(arms)),
        *(("Tuning", figure) for figure in overview.tuning(trials, names)),
    ]
    lead = [finding(settings), what_was_run(arms, len(trials) if results is not trials else 0), best_use(arms)]
    tell("asking the questions")
    questions = _questions(book, {line["key"]: line for line in lines})
    tell("filling the paper's tables")
    return Report(
        title="Sparse training, sharpness-aware: what was measured",
        lead=lead if arms else [],
        facts=facts(lines),
        cover=overview.tradeoff(arms) if several else None,
        questions=questions,
        comparisons=overview.comparisons(settings) if several else [],
        figures=_sorted([*({**figure, "section": section} for section, figure in own if figure), *drawings]),
        tables=_tables(book, every, tiers, seeds),
    )


def _chosen(lines: Iterable[Line], names: dict[str, str], only: str | None) -> list[Line]:
    found = list(lines)
    if only is None:
        return found
    try:
        pattern = re.compile(only, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"--only takes a regular expression, and {only!r} is none ({error})") from None

    def words(arm: Arm) -> str:
        return f"{arm.task}, {arm.where}, {arm.name}"

    return [line for line in found if pattern.search(words(arms_of([line], names)[0]))]


def _questions(book: Book, known: Mapping[str, Line]) -> list[dict[str, Any]]:
    """The questions of which a pair of trainings is known: what they compare, group by group."""
    found = []
    for name in asked_names():
        if name == TUNING:
            continue
        asked = question(name, book)
        runs = {replace(run, seed=seed).key for run in asked.runs() for seed in range(asked.seeds)}
        blocks = overview.comparisons(_groups(asked, known))
        if any(row["gap"] for block in blocks for row in block["rows"]):
            told = f"{len(runs & known.keys())} of {len(runs)} trainings are finished"
            note = f"{told} (zosam evidence {name}). Differences to {asked.versus} are taken seed by seed."
            about = {"name": name, "title": asked.title, "note": note, "versus": asked.versus}
            found.append({**about, "blocks": blocks})
    return found


def _groups(asked: Question, known: Mapping[str, Line]) -> list[Setting]:
    """The arms of a question of which a training is known, by group."""

    def arm(run: Run | None, label: str) -> Arm | None:
        keys = {} if run is None else {seed: replace(run, seed=seed).key for seed in range(asked.seeds)}
        lines = {seed: known[key] for seed, key in keys.items() if key in known}
        return Arm(run, lines, label, label) if run is not None and lines else None

    found: dict[str, Setting] = {}
    for entry in asked.shown:
        own, other = arm(entry.run, entry.label), arm(entry.versus, asked.versus)
        if own is None:
            continue
        group = found.setdefault(entry.group, Setting(entry.group, [], None))
        gap = None if other is None else difference(own.accuracy, other.accuracy)
        gaps = group.gaps if gap is None else {**group.gaps, entry.label: gap}
        reference = other or group.reference or (own if entry.versus is None else None)
        found[entry.group] = replace(group, arms=[*group.arms, own], reference=reference, gaps=gaps)
    return list(found.values())


def _is_watched(line: Line) -> bool:
    return "gradient_variance" in line["epochs"][-1]


def _tables(book: Book, known: Iterable[Line], tiers: list[str], seeds: int) -> list[dict[str, Any]]:
    """The paper's tables that have a number of ours, with names of their own where several tiers have them."""
    arms = arms_of(known)
    lines, models = {arm.run.key: arm.lines.values() for arm in arms}, {arm.run.model.name for arm in arms}
    found = []
    for content in (load(name, tier) for tier in tiers if models & recipes.tier(tier).models for name in NAMES):
        if not any(cell.run is not None and cell.run.key in lines for cell in content.cells):
            continue
        shown = filled(content, book, seeds)
        if any(cell and cell["ours"] for row in shown["rows"] for cell in row["cells"]):
            own = {cell.run.key for cell in content.cells if cell.run is not None}
            on = hardware(line for key in own & lines.keys() for line in lines[key])
            found.append({**shown, "on": on})
    several = len({t["tier"] for t in found}) > 1
    return [{**t, "name": f"{t['tier']}-{t['name']}"} if several else t for t in found]


def _drawings(folder: Path, tiers: list[str], book: Book) -> list[dict[str, Any]]:
    found = []
    for tier in tiers:
        for file in sorted(folder.glob(f"{tier}-*.json")):
            drawing = files.read_json(file)
            name = _declared(str(drawing.get("name", "")))
            if name is not None:
                figure = load_figure(name, tier)
                if figure.measure in FROM_LINES and all(book.get(run) is not None for run in figure.runs.values()):
                    continue
                drawing["section"] = SECTIONS.get(figure.measure, "Over training")
            found.append({**drawing, "name": file.stem})
    return found


def _declared(name: str) -> str | None:
    """The figure of `figures.toml` that a drawing belongs to: the longest name that its own begins with."""
    return max((known for known in FIGURES if name.startswith(known)), key=len, default=None)


def _sorted(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By section; within it as declared, and a surface before its line."""
    place = {name: i for i, name in enumerate(FIGURES)}

    def order(figure: dict[str, Any]) -> tuple[int, int, int]:
        section = figure.get("section")
        declared = next((i for n, i in place.items() if f"-{n}" in figure["name"]), -1)
        return ORDER.index(section) if section in ORDER else len(ORDER), declared, len(figure["name"]) * (declared >= 0)

    return sorted(figures, key=order)
