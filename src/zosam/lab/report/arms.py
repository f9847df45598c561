"""From result lines to arms: trainings that differ in their seed alone, and the settings within which arms compare."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import fmean, median
from typing import Any

from zosam.lab.measure.convergence import Unit, spent
from zosam.lab.measure.estimate import Estimate, difference, estimate
from zosam.lab.report.palette import ORDER
from zosam.lab.run import Run
from zosam.lab.settings import Choice

BUSY = 1.3  # equal trainings that differ by more than this in time were not timed on an idle machine
Line = Mapping[str, Any]  # of a file of results: run, epochs, made_with, and what was measured of the network
SAME = (
    "model", "data", "method", "sparsity", "base", "epochs", "batch_size", "lr", "momentum", "nesterov", "schedule",
    "label_smoothing", "precision",
)  # fmt: skip
"""What arms must share to be compared; in all else, such as optimizer, rho and weight decay, they may differ."""
NAMES = {
    "sgd": "SGD", "zosam": "ZO-SAM", "paperzosam": "ZO-SAM as printed", "randomsam": "random direction",
    "s2sam": "S²-SAM", "noisysam": "SAM and RWP in one", "looksam": "LookSAM",
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet", "imagenette": "Imagenette",
    "rigl": "RigL", "grasp": "GraSP", "svite": "SViTE", "granet": "GraNet", "digits": "digits", "dense": "dense",
    "gmp": "GMP", "lth": "LT", "digits_net": "a small residual network",
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One training under several seeds."""

    run: Run  # at seed 0
    lines: Mapping[int, Line]  # by seed
    optimizer_name: str = ""
    name: str = ""
    """That of the optimizer, and what tells the arm from others under the same."""
    differs: tuple[str, ...] = ()
    """The fields that tell it from others under the same optimizer."""

    @property
    def optimizer(self) -> str:
        return family(self.run.optimizer)

    @property
    def is_dense(self) -> bool:
        return self.run.method.name == "dense"

    @property
    def setting(self) -> tuple[Any, ...]:
        return tuple(self.run.description.get(key) for key in SAME)

    @property
    def task(self) -> str:
        return f"{words(self.run.data)}, {words(self.run.model)}"

    @property
    def sparsity(self) -> str:
        return sparsity(self.run)

    @property
    def where(self) -> str:
        """Method, sparsity and length, such as "SNIP 90 %, 4 epochs"."""
        method = "dense" if self.is_dense else f"{plain(self.run.method.name)} {self.sparsity}"
        return f"{method}, {self.run.epochs} epoch{'s' * (self.run.epochs != 1)}"

    @cached_property
    def accuracy(self) -> dict[int, float]:
        """Test accuracy of the last epoch in per cent, by seed; of the averaged weights where there are some."""
        last = {seed: line["epochs"][-1] for seed, line in self.lines.items()}
        return {seed: 100 * float(e.get("ema_test_accuracy", e["test_accuracy"])) for seed, e in last.items()}

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.accuracy.values())

    def cost(self, seed: int) -> dict[str, float]:
        """What the training of a seed has cost, by unit."""
        epochs = self.lines[seed]["epochs"]
        units: tuple[Unit, ...] = ("seconds", "cpu_seconds", "passes")
        return {unit: spent(epochs, unit)[-1] for unit in units if unit in epochs[-1] or unit == "passes"}

    def mean_cost(self, unit: str) -> float:
        return fmean(self.cost(seed)[unit] for seed in self.lines)


@dataclass(frozen=True)
class Setting:
    """Arms that are alike in all that `SAME` names, and the one among them that the others are compared with."""

    name: str
    arms: list[Arm]
    reference: Arm | None = None
    gaps: dict[str, Estimate] = field(default_factory=dict)
    """The paired difference to the reference, by the name of the arm."""

    @cached_property
    def best(self) -> list[Arm]:
        """The arm that speaks for each optimizer: of several, the one with the highest mean."""
        found: dict[str, Arm] = {}
        for arm in self.arms:
            other = found.setdefault(arm.optimizer_name, arm)
            found[arm.optimizer_name] = max(other, arm, key=lambda a: a.estimate.mean)
        return list(found.values())

    @property
    def ways(self) -> tuple[str, ...]:
        """The fields in which SGD was trained in several ways, such as its weight decay."""
        return self.reference.differs if self.reference else ()

    def gaps_at_equal(self) -> Iterator[tuple[str, Estimate]]:
        """What each optimizer, at its best, differs by from SGD trained in the same way; none if there was one way."""
        found: dict[tuple[Any, ...], Arm] = {}
        for arm in self.arms if self.ways else ():
            way = (arm.optimizer_name, *(arm.run.description.get(key) for key in self.ways))
            found[way] = max(found.setdefault(way, arm), arm, key=lambda a: a.estimate.mean)
        for (name, *same), arm in found.items():
            sgd = found.get((self.reference.optimizer_name, *same)) if self.reference else None
            gap = difference(arm.accuracy, sgd.accuracy) if sgd is not None and sgd is not arm else None
            if gap is not None:
                yield name, gap


def family(optimizer: Choice) -> str:
    """The optimizer whose hue it has: a preset is drawn as a variant of what it is a preset of."""
    name = optimizer.name.partition(".")[0]
    return "zosam" if name == "paperzosam" else name


def sparsity(run: Run) -> str:
    return "dense" if run.method.name == "dense" else f"{100 * run.sparsity:g} %"


def style(run: Run, names: Mapping[str, str]) -> dict[str, str]:
    """What decides how a series of that run is drawn: whose hue and shade, and whose dash."""
    arm = names.get(run.optimizer.whole) or words(run.optimizer)
    return {"arm": arm, "optimizer": family(run.optimizer), "sparsity": sparsity(run)}


def is_trial(line: Line) -> bool:
    """Whether a part of the training set was held out: then it was a look for settings, not a result."""
    return "validation_accuracy" in line["epochs"][-1]


def arms_of(lines: Iterable[Line], names: Mapping[str, str] | None = None) -> list[Arm]:
    """The arms of result lines; `names` calls optimizers, written with all their settings, otherwise.

    Arms of one setting that would have the same name get what they differ in added to it; so does every other arm of
    that name, so that it means the same throughout.
    """
    found: dict[Run, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        run = _run(json.dumps(line["run"]))
        by_seed = found[replace(run, seed=0, diagnostics=False)]
        if run.seed not in by_seed or not run.diagnostics:  # of both, the one that was not slowed by being watched
            by_seed[run.seed] = line
    arms = [
        Arm(run, dict(sorted(seeds.items())), (names or {}).get(run.optimizer.whole) or words(run.optimizer))
        for run, seeds in found.items()
    ]
    alike: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for arm in arms:
        alike[(*arm.setting, arm.optimizer_name)].append(arm.run)
    differ: dict[str, list[str]] = defaultdict(list)
    for (*_, name), runs in alike.items():
        fields = [key for key in runs[0].description if len({r.description.get(key) for r in runs}) > 1]
        differ[name] += [f for f in fields if f not in differ[name]]
    told = {name: tuple(fields) for name, fields in differ.items()}
    named = [replace(arm, differs=told[arm.optimizer_name]) for arm in arms]
    return sorted((replace(arm, name=_name(arm)) for arm in named), key=_order)


def settings_of(arms: Iterable[Arm]) -> list[Setting]:
    """The settings, those with most arms first; the reference is SGD, of several the one with the highest mean."""
    groups: dict[tuple[Any, ...], list[Arm]] = defaultdict(list)
    for arm in arms:
        groups[arm.setting].append(arm)
    tasks = {arm.task for group in groups.values() for arm in group}
    found = []
    for group in groups.values():
        plain = [arm for arm in group if arm.optimizer == "sgd"]
        reference = max(plain, key=lambda arm: arm.estimate.mean, default=None)
        gaps = {}
        for arm in group:
            gap = difference(arm.accuracy, reference.accuracy) if reference and arm is not reference else None
            if gap is not None:
                gaps[arm.name] = gap
        name = group[0].where if len(tasks) == 1 else f"{group[0].task}, {group[0].where}"
        found.append(Setting(name, group, reference, gaps))
    counts = {s.name: sum(other.name == s.name for other in found) for s in found}
    named = [replace(s, name=f"{s.name}{_apart(s, found)}") if counts[s.name] > 1 else s for s in found]
    return sorted(named, key=lambda s: (-len(s.gaps), *_order(s.arms[0])))


def front(arms: Iterable[Arm], unit: str) -> list[Arm]:
    """The arms that no other beats: none has at least their mean accuracy at no more than their mean cost."""
    best, found = float("-inf"), []
    for arm in sorted(arms, key=lambda arm: (arm.mean_cost(unit), -arm.estimate.mean)):
        if arm.estimate.mean > best:
            best = arm.estimate.mean
            found.append(arm)
    return found


def unsteady(arms: Iterable[Arm]) -> float:
    """How many times as long as the shortest the longest seed of an arm took, for the median arm.

    All seeds of an arm do the same work, so on an idle machine this is close to 1; far from it, times say little.
    """
    times = [[arm.cost(seed)["seconds"] for seed in arm.lines] for arm in arms]
    ratios = [max(t) / min(t) for t in times if len(t) > 1 and min(t) > 0]
    return median(ratios) if ratios else 1.0


def units_of(arms: Sequence[Arm]) -> tuple[Unit, Unit]:
    """The units of cost to show, the one to trust first.

    Time, if every training had its cores to itself. If not, CPU time takes its place; where that is not known, or an
    accelerator did the work, passes go first.
    """
    lines = [line for arm in arms for line in arm.lines.values()]
    on_cpu = has_cpu_time(lines)
    if unsteady(arms) <= BUSY and (not on_cpu or all(line.get("idle", True) for line in lines)):
        return "seconds", "passes"
    return ("cpu_seconds", "passes") if on_cpu else ("passes", "seconds")


def has_cpu_time(lines: Iterable[Line]) -> bool:
    """Whether CPU time says what every training took: it is known, and no accelerator did the work."""
    return all(
        line.get("made_with", {}).get("device", "cpu") == "cpu" and all("cpu_seconds" in e for e in line["epochs"])
        for line in lines
    )


def clock_of(arms: Sequence[Arm]) -> Unit:
    """Which time to show beside epochs."""
    return next(unit for unit in units_of(arms) if unit != "passes")


def words(choice: Choice) -> str:
    """A choice as people read it: "resnet20:stem_stride=2" is "ResNet-20 (stem_stride 2)"."""
    settings = str(choice).removeprefix(choice.name).removeprefix(":")
    told = re.sub(r"(\w+)=false", r"no \1", settings).replace("=true", "").replace(",", ", ").replace("=", " ")
    told = re.sub(r"(?<![\d.])\d{4,}", lambda number: f"{int(number[0]):,}", told)
    return f"{plain(choice.name)} ({told})" if told else plain(choice.name)


def plain(name: str) -> str:
    """A name as its paper writes it."""
    if name.startswith("resnet") and name[6:].isdigit():
        return f"ResNet-{name[6:]}"
    return NAMES.get(name) or (name.upper() if name.isalpha() and len(name) <= 4 else name)


@cache
def _run(description: str) -> Run:
    return Run.read(json.loads(description))


def _name(arm: Arm) -> str:
    told = [f"{key.replace('_', ' ')} {short(arm.run.description.get(key))}" for key in arm.differs]
    return ", ".join((arm.optimizer_name, *told))


def short(value: Any) -> str:
    """A setting as the field writes it."""
    if not isinstance(value, float):
        return str(value)
    if value == 0 or abs(value) >= 0.01:
        return f"{value:g}"
    digits, _, exponent = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"  # 5e-4, as the field writes a weight decay


def _apart(setting: Setting, others: list[Setting]) -> str:
    """What tells a setting from others of the same name."""
    alike = [s.arms[0].run for s in others if s.name == setting.name]
    differ = [key for key in SAME if len({run.description.get(key) for run in alike}) > 1]
    own = setting.arms[0].run
    told = {key: getattr(own, key) for key in differ}
    return "".join(f", {key.replace('_', ' ')} {short(value)}" for key, value in told.items())


def _order(arm: Arm) -> tuple[Any, ...]:
    rank = ORDER.index(arm.optimizer) if arm.optimizer in ORDER else len(ORDER)
    run = arm.run
    method = (str(run.method), 0.0 if arm.is_dense else run.sparsity)
    return arm.task, *method, run.epochs, rank, str(run.optimizer), str(run.rho), run.weight_decay, run.key
