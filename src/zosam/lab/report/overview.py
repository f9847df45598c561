"""What result lines say by themselves: accuracy against cost, differences to SGD, curves, corruptions, tuning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from zosam.lab.measure.convergence import LABELS, Unit, mean_curve
from zosam.lab.measure.estimate import Estimate
from zosam.lab.report.arms import SAME, Arm, Line, Setting, arms_of, clock_of, front, short, units_of, unsteady
from zosam.lab.report.finding import hardware

Figure = dict[str, Any]
UNITS: dict[str, str] = {
    "seconds": "wall time of training",
    "cpu_seconds": "CPU time of training",
    "passes": "passes of a batch, a backward counting two",
}
ROBUSTBENCH = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip


def style(arm: Arm) -> dict[str, Any]:
    """What decides how the arm is drawn, on the page and in print."""
    return {"name": arm.name, "arm": arm.optimizer_name, "optimizer": arm.optimizer, "sparsity": arm.sparsity}


def tradeoff(arms: Sequence[Arm]) -> Figure:
    """Accuracy against cost: a dot for each seed, and which arms are on the front, for each task and unit of cost."""
    tasks: dict[str, list[Arm]] = defaultdict(list)
    for arm in arms:
        tasks[arm.task].append(arm)
    units = {unit: UNITS[unit] for unit in units_of(arms)}
    busy = {
        "seconds": "",
        "cpu_seconds": " Trainings ran beside other work, so time is that in which their processes computed.",
        "passes": f" Equal trainings took up to {unsteady(arms):.1f} times as long as one another (median arm), so the"
        " machine was busy: read time with care.",
    }
    panels = []
    for task, own in sorted(tasks.items(), key=lambda item: -sum(len(arm.lines) for arm in item[1])):
        fronts = {unit: {arm.run for arm in front(own, unit)} for unit in units}
        panels.append({"name": task, "arms": [_dots(arm, fronts) for arm in own]})
    return {
        "name": "tradeoff",
        "kind": "scatter",
        "title": "Accuracy against cost",
        "note": "A dot for each seed. An arm is one training under several seeds; its dots are larger where it is on"
        " the front, the grey line: no other reaches its mean accuracy at its mean cost. Lines join the same arm at"
        " several lengths of training; arms of equal cost stand side by side." + busy[next(iter(units))],
        "y": "test accuracy, last epoch, %",
        "most": 100,
        "x": units,
        "panels": panels,
    }


def _dots(arm: Arm, fronts: Mapping[Unit, set[Any]]) -> dict[str, Any]:
    return {
        **style(arm),
        "where": arm.where,
        "epochs": arm.run.epochs,
        "method": arm.run.method.name,
        "front": [unit for unit, runs in fronts.items() if arm.run in runs],
        "seeds": [
            {"seed": seed, "y": arm.accuracy[seed], **{unit: arm.cost(seed)[unit] for unit in fronts}}
            for seed in arm.lines
        ],
    }


def comparisons(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """For each setting a row for each arm: by seed, on average, against SGD, and what it cost."""
    clock = _clock(settings)
    return [
        {
            "name": setting.name,
            "reference": setting.reference.name if setting.reference else "",
            "time": "CPU time" if clock == "cpu_seconds" else "wall time",
            "on": hardware(line for arm in setting.arms for line in arm.lines.values()),
            "rows": [_row(arm, setting, clock) for arm in setting.arms],
        }
        for setting in settings
    ]


def _clock(settings: Iterable[Setting]) -> Unit:
    return clock_of([arm for setting in settings for arm in setting.arms])


def _row(arm: Arm, setting: Setting, clock: Unit) -> dict[str, Any]:
    reference = setting.reference
    return {
        **style(arm),
        "best": any(arm is other for other in setting.best),
        "ours": arm.estimate.text(),
        "seeds": arm.accuracy,
        "gap": interval(setting.gaps.get(arm.name)),
        "seconds": arm.mean_cost(clock),
        "passes": arm.mean_cost("passes") / reference.mean_cost("passes") if reference else None,
        "note": f"weight decay {short(arm.run.weight_decay)}, {_rho(arm)}",
    }


def interval(gap: Estimate | None) -> dict[str, Any] | None:
    """A difference as the page draws it."""
    return None if gap is None else {"mean": gap.mean, "half": gap.half_width, "text": gap.text(sign=True)}


def convergence(settings: Sequence[Setting]) -> Figure | None:
    """Test accuracy over epochs, time and passes, a panel for each setting."""
    units: tuple[Unit, ...] = ("epochs", _clock(settings), "passes")
    arms = [arm for setting in settings for arm in setting.arms]
    schedules = [arm.run.schedule for arm in arms]
    note = (
        "Mean over seeds; the band goes from the lowest to the highest." if any(len(a.lines) > 1 for a in arms) else ""
    )
    if all(s.name == "cosine" and not s.settings.get("minimum") for s in schedules):
        note += " The learning rate falls to zero at the end."
    note = f"{note}{_best_of(settings)}".strip()
    panels = _curves(settings, "test_accuracy", 100, units)
    about = {"name": "convergence", "kind": "lines", "title": "Accuracy over training", "note": note}
    axes = {unit: LABELS[unit] for unit in units}
    y = {"y": "test accuracy, %", "most": 100, "log_y": False}
    return {**about, "x": axes, **y, "panels": panels} if panels else None


def losses(settings: Sequence[Setting]) -> Figure | None:
    """Training loss over epochs and time: whether a training has come to fit its data."""
    units: tuple[Unit, ...] = ("epochs", _clock(settings))
    panels = _curves(settings, "train_loss", 1, units)
    note = "Mean over the steps since the point before and over seeds, on pictures as training sees them."
    note += _best_of(settings)
    about = {"name": "losses", "kind": "lines", "title": "Training loss", "note": note}
    axes = {unit: LABELS[unit] for unit in units}
    return {**about, "x": axes, "y": "training loss", "log_y": True, "panels": panels} if panels else None


def _best_of(settings: Iterable[Setting]) -> str:
    several = any(len(setting.best) < len(setting.arms) for setting in settings)
    return " Of several settings of an optimizer, that with the highest mean accuracy is drawn first." * several


def variance(settings: Iterable[Setting]) -> Figure | None:
    """Gradient variance over epochs, of the trainings that were watched."""
    panels = _curves(settings, "gradient_variance", 1, ("epochs",))
    note = "Trace of the covariance of the gradients that the optimizer stepped with, over the steps of each epoch."
    about = {"name": "gradient-variance", "kind": "lines", "title": "Gradient variance", "note": note}
    return {**about, "x": "epochs", "y": "gradient variance", "log_y": True, "panels": panels} if panels else None


def _curves(settings: Iterable[Setting], key: str, factor: float, units: Sequence[Unit]) -> list[dict[str, Any]]:
    panels = []
    for setting in settings:
        series, best = [], {arm.name for arm in setting.best}
        for arm in setting.arms:
            seeds = [line["epochs"] for line in arm.lines.values()]
            if len({epochs[-1]["epoch"] for epochs in seeds}) == 1 and all(key in e for es in seeds for e in es):
                found = mean_curve(seeds, units, key, factor)
                x = found["x"] if len(units) > 1 else found["x"][units[0]]
                series.append({**style(arm), **found, "x": x, "best": arm.name in best})
        if series:
            panels.append({"name": setting.name, "series": series})
    return panels


def corruptions(arms: Iterable[Arm]) -> list[Figure]:
    """Accuracy on each corruption, a column for each arm and a panel for each severity; one figure for each setting."""
    groups: dict[tuple[Any, ...], list[tuple[Arm, dict[str, list[float]]]]] = defaultdict(list)
    counts: dict[tuple[Any, ...], set[int]] = defaultdict(set)  # of seeds whose networks were tested so
    for arm in arms:
        notes = [line["corrupted"] for line in arm.lines.values() if line.get("corrupted")]
        if notes:
            group = (arm.setting, notes[0].get("pictures"))
            groups[group].append((arm, _mean_by_corruption(notes)))
            counts[group].add(len(notes))
    found = []
    for at, (group, own) in enumerate(groups.items()):
        pictures = group[1]
        arm, rows = own[0][0], list(dict.fromkeys(name for _, values in own for name in values))
        severities = max(len(v) for _, values in own for v in values.values())
        views: dict[str, Callable[[list[float]], float | None]] = {"mean of severities": fmean}
        views |= {f"severity {s + 1}": lambda v, s=s: v[s] if s < len(v) else None for s in range(severities)}  # type: ignore[misc]
        panels = []
        for name, view in views.items():
            grid = [[view(v[row]) if row in v else None for _, v in own] for row in rows]
            means = [_mean_of(grid, rows, rows), _mean_of(grid, rows, ROBUSTBENCH)]
            panels.append({"name": name, "values": [*means, *grid]})
        many = "all pictures" if pictures is None else f"the first {pictures:,} pictures"
        seeds = _counted(sorted(counts[group]))
        alike = {told for a, _ in own if (told := a.name.removeprefix(a.optimizer_name).removeprefix(", "))}
        shared = (
            f" All at {alike.pop()}." if len(alike) == 1 and len({a.optimizer_name for a, _ in own}) == len(own) else ""
        )
        note = f"CIFAR-10-C, {many} of each corruption and severity; mean over {seeds}. {arm.task}.{shared}"
        about = {"name": "corruptions" if at == 0 else f"corruptions-{at + 1}", "kind": "heat", "note": note}
        columns = [a.optimizer_name if shared else a.name for a, _ in own]
        plain = [name.replace("_", " ") for name in rows]
        reference = next((i for i, (a, _) in enumerate(own) if a.optimizer == "sgd"), None)
        found.append({
            **about, "title": f"Accuracy on corrupted pictures: {arm.where}", "value": "accuracy, %",
            "rows": [f"mean of {len(rows)}", "mean of RobustBench's 15", *plain], "columns": columns,
            "panels": panels, "reference": reference,
        })  # fmt: skip
    return found


def _mean_by_corruption(notes: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """In per cent, over seeds."""
    return {
        name: [100 * fmean(each) for each in zip(*(n["accuracy"][name] for n in notes), strict=True)]
        for name in notes[0]["accuracy"]
        if all(name in n["accuracy"] for n in notes)
    }


def _mean_of(grid: list[list[float | None]], rows: list[str], wanted: Iterable[str]) -> list[float | None]:
    """Of each column; None where one of those wanted is missing."""
    chosen = [grid[rows.index(name)] if name in rows else [None] * len(grid[0]) for name in wanted]
    return [None if None in column else fmean(column) for column in zip(*chosen, strict=True)]


def tuning(trials: Iterable[Line], names: Mapping[str, str] | None = None) -> list[Figure]:
    """Validation accuracy over weight decay and rho or the learning rate: a map for each optimizer of a setting."""
    groups: dict[tuple[Any, ...], list[Arm]] = defaultdict(list)
    for arm in arms_of(trials, names):
        groups[arm.optimizer_name, *(arm.run.description.get(key) for key in SAME if key != "lr")].append(arm)
    found: list[Figure] = []
    for (name, *_), arms in groups.items():
        if len(arms) < 2:
            continue
        several = len({a.run.lr for a in arms}) > 1, len({_rho(a) for a in arms}) > 1
        row = {a.run: _tuned(a, *several) for a in arms}
        rows = list(dict.fromkeys(row[a.run] for a in sorted(arms, key=lambda a: (_number(a), _rho(a), a.run.lr))))
        decays = sorted({a.run.weight_decay for a in arms})
        values = {(row[a.run], a.run.weight_decay): _held_out(a) for a in arms}
        found.append({
            "name": f"tuning-{len(found) + 1}", "kind": "heat", "title": f"Tuning of {name}: {arms[0].where}",
            "note": f"Accuracy on held-out training pictures after the last epoch; {arms[0].task};"
            f" {_counted(sorted({len(a.lines) for a in arms}))} of each, other seeds than those reported.",
            "rows": rows, "columns": [f"decay {short(decay)}" for decay in decays], "value": "validation accuracy, %",
            "panels": [{"name": name, "values": [[values.get((r, d)) for d in decays] for r in rows]}],
        })  # fmt: skip
    return found


def _tuned(arm: Arm, by_lr: bool, by_rho: bool) -> str:
    """What was tried beside weight decay, in words."""
    return ", ".join([_rho(arm)] * (by_rho or not by_lr) + [f"lr {short(arm.run.lr)}"] * by_lr)


def _rho(arm: Arm) -> str:
    """How far the arm climbs, in words: a number, a schedule, or not at all."""
    rho = arm.run.description.get("rho")
    return "no rho" if rho is None else f"rho {rho:g}" if isinstance(rho, float) else f"rho {rho}"


def _number(arm: Arm) -> float:
    """For sorting: no rho first, schedules last."""
    rho = arm.run.description.get("rho", -1.0)
    return float(rho) if isinstance(rho, (int, float)) else float("inf")


def _held_out(arm: Arm) -> float:
    return 100 * fmean(float(line["epochs"][-1]["validation_accuracy"]) for line in arm.lines.values())


def _counted(counts: Sequence[int]) -> str:
    return "one seed" if list(counts) == [1] else f"{' to '.join(map(str, counts))} seeds"
