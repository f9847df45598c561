"""How fast a training gets somewhere: from the records of its epochs, in epochs, seconds, passes or operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal, get_args

Epochs = Sequence[Mapping[str, Any]]  # what a `Record` keeps in `epochs`
Unit = Literal["epochs", "seconds", "cpu_seconds", "passes", "flops"]

LABELS: dict[str, str] = {
    "epochs": "epochs",
    "seconds": "wall time of training",
    "cpu_seconds": "CPU time of training",
    "passes": "cost in forward passes of a batch, a backward counting two",
    "flops": "operations",
}


def spent(epochs: Epochs, by: Unit = "passes", step_flops: float | None = None) -> list[float]:
    """What the training had cost by the end of each epoch.

    "passes" counts forward passes of a batch, a backward as two. "flops" needs `step_flops`, the operations of a step,
    such as `sparse.flops(x[:1]).training * batch_size`; it takes them to be the same in every step.
    """
    if by == "epochs":
        return [float(e["epoch"]) for e in epochs]
    if by in ("seconds", "cpu_seconds"):
        return list(accumulate(float(e[by]) for e in epochs))
    if by == "passes":
        return [e["forward"] + 2.0 * e["backward"] for e in epochs]
    if by != "flops":
        raise ValueError(f"cost is counted by {', '.join(get_args(Unit))}, not {by!r}")
    if step_flops is None:
        raise ValueError("to count operations, say how many a step takes: step_flops")
    return [e["step"] * step_flops for e in epochs]


def to_target(epochs: Epochs, accuracy: float, step_flops: float | None = None) -> dict[str, float] | None:
    """What it took until the end of the first epoch with that test accuracy, a share; None: it was never reached."""
    if not 0 < accuracy <= 1:
        raise ValueError(f"accuracy is a share, such as 0.9, not {accuracy}")
    first = next((i for i, e in enumerate(epochs) if e["test_accuracy"] >= accuracy), None)
    if first is None:
        return None
    unknown = ({"flops"} if step_flops is None else set()) | ({"cpu_seconds"} - epochs[first].keys())
    units: tuple[Unit, ...] = get_args(Unit)
    return {by: spent(epochs, by, step_flops)[first] for by in units if by not in unknown}


def curves(
    trainings: Mapping[str, Sequence[Epochs]],
    by: Unit = "epochs",
    step_flops: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Test accuracy over cost as a figure: for each name the mean over its seeds, from the lowest to the highest.

    `trainings` holds, by name, the epochs of a record for each seed: `{"SAM": [record.epochs for record in records]}`.
    """
    series = [_mean(name, seeds, by, (step_flops or {}).get(name)) for name, seeds in trainings.items()]
    counts = sorted({len(seeds) for seeds in trainings.values()})
    note = f"Mean over {' to '.join(map(str, counts))} seeds; the band goes from the lowest to the highest."
    return {
        "name": f"accuracy-by-{by}",
        "kind": "lines",
        "title": f"Test accuracy by {by}",
        "note": "One seed." if counts == [1] else note,
        "x": LABELS[by],
        "y": "test accuracy, %",
        "log_y": False,
        "series": series,
    }


def mean_curve(
    seeds: Sequence[Epochs], units: Sequence[Unit], key: str = "test_accuracy", factor: float = 100, points: int = 200
) -> dict[str, Any]:
    """What the epochs of several seeds say of `key`, times `factor`: mean, lowest and highest, over costs by unit.

    A long training is thinned evenly to `points` epochs, the last among them. Epochs that not all seeds were tested
    after are left out.
    """
    common = tested_together(seeds)
    last = len(common) - 1
    shown = range(last + 1) if last < points else sorted({round(last * i / (points - 1)) for i in range(points)})
    found = _over(seeds, key, factor, [common[i] for i in shown])
    costs = {by: [spent(epochs, by) for epochs in seeds] for by in units}
    x = {by: [float(f"{_mean_at(cost, common[i]):.6g}") for i in shown] for by, cost in costs.items()}
    return {"x": x, **found}


def tested_together(seeds: Sequence[Epochs]) -> list[tuple[int, ...]]:
    """The epochs after which every seed was tested: for each where its figures stand, seed by seed."""
    places = [{e["epoch"]: i for i, e in enumerate(epochs)} for epochs in seeds]
    return [tuple(at[epoch] for at in places) for epoch in places[0] if all(epoch in at for at in places)]


def _over(seeds: Sequence[Epochs], key: str, factor: float, shown: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Mean, lowest and highest over the seeds."""
    each = [[factor * epochs[i][key] for epochs, i in zip(seeds, at, strict=True)] for at in shown]
    found: dict[str, Any] = {"y": [fmean(a) for a in each]}
    return found if len(seeds) == 1 else {**found, "low": [min(a) for a in each], "high": [max(a) for a in each]}


def _mean_at(cost: Sequence[Sequence[float]], at: Sequence[int]) -> float:
    return fmean(c[i] for c, i in zip(cost, at, strict=True))


def _mean(name: str, seeds: Sequence[Epochs], by: Unit, step_flops: float | None) -> dict[str, Any]:
    lengths = {epochs[-1]["epoch"] if epochs else 0 for epochs in seeds}
    if len(lengths) != 1 or not all(lengths):
        raise ValueError(f"{name}: the seeds have {sorted(lengths)} epochs; compare finished runs of one length")
    common, costs = tested_together(seeds), [spent(epochs, by, step_flops) for epochs in seeds]
    return {"name": name, "x": [_mean_at(costs, at) for at in common], **_over(seeds, "test_accuracy", 100, common)}
