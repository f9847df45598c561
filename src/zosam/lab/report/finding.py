"""What was found and what was run, in sentences that are made from the numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from zosam.lab.measure.estimate import Estimate
from zosam.lab.report.arms import Arm, Line, Setting, front, has_cpu_time, plain, units_of

SUBJECT = "zosam"  # the method that this is about; without it the one with the highest mean gain
FACTS = {
    "cpu": "processor",
    "device_name": "device",
    "threads": "threads",
    "torch": "torch",
    "zosam": "zosam",
    "python": "python",
}


@dataclass
class Score:
    """How an arm did against SGD over the settings in which both were run."""

    name: str
    optimizer: str
    gaps: list[Estimate] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def count(self, sign: int) -> int:
        return sum(gap.sign == sign for gap in self.gaps)

    @property
    def mean(self) -> float:
        return fmean(gap.mean for gap in self.gaps)


def scores(settings: Iterable[Setting]) -> list[Score]:
    """Of every arm that was compared with SGD, by name."""
    found: dict[str, Score] = {}
    for setting in settings:
        for arm in setting.arms:
            if arm.name in setting.gaps and setting.reference is not None:
                score = found.setdefault(arm.name, Score(arm.name, arm.optimizer))
                score.gaps.append(setting.gaps[arm.name])
                score.costs.append(arm.mean_cost("passes") / setting.reference.mean_cost("passes"))
    return list(found.values())


def finding(settings: Sequence[Setting]) -> str:
    """One sentence on the subject against SGD, and on who else is beyond the spread of seeds."""
    known = scores(settings)
    if not known:
        return "No two optimizers were trained in the same setting, so there is nothing to compare yet."
    about = [s for s in known if s.optimizer == SUBJECT]
    subject = max(about or known, key=lambda s: (len(s.gaps), s.name == "ZO-SAM", s.mean))
    others = [s for s in known if s is not subject]
    said = [f"{subject.name} against SGD: {_verdict(subject)}"]
    for sign, word in ((1, "ahead beyond the spread of seeds"), (-1, "behind")):
        found = sorted((s for s in others if s.count(sign)), key=lambda s: -sign * s.mean)
        if found:
            told = [f"{s.name} ({s.count(sign)} of {len(s.gaps)})" for s in found[:4]]
            said.append(f"{word}: {_listed(told)}{f' and {len(found) - 4} more' * (len(found) > 4)}")
        elif sign == 1 and others:
            said.append("no other is ahead beyond the spread of seeds")
    return "; ".join(said) + "."


def _verdict(score: Score) -> str:
    ahead, behind, n = score.count(1), score.count(-1), len(score.gaps)
    where = f"{n} setting{'s' * (n != 1)}"
    if all(gap.half_width is None for gap in score.gaps):
        word = f"one seed in {where}, which cannot tell"
    elif ahead == behind == 0:
        word = f"no difference seen in {where}"
    else:
        parts = [f"ahead in {ahead}"] * bool(ahead) + [f"behind in {behind}"] * bool(behind)
        word = f"{' and '.join(parts)} of {where}"
    return f"{word} ({score.mean:+.2f} points on average at {fmean(score.costs):.2g} × the passes)"


def best_use(arms: Sequence[Arm]) -> str:
    """One sentence on the front of accuracy against cost; where a dense training is there, against that.

    Cost is what `units_of` trusts most.
    """
    tasks: dict[str, list[Arm]] = defaultdict(list)
    for arm in arms:
        tasks[arm.task].append(arm)
    own = max(tasks.values(), key=lambda a: sum(len(arm.lines) for arm in a), default=[])
    if len(own) < 2:
        return ""
    unit = units_of(own)[0]
    tell = "{:,.0f} passes".format if unit == "passes" else duration
    best = front(own, unit)
    dense = max((a for a in own if a.is_dense), key=lambda a: a.estimate.mean, default=None)
    if dense is not None:
        limit = dense.mean_cost(unit)
        rival = max((a for a in own if a is not dense and a.mean_cost(unit) <= limit), key=_mean, default=None)
        said = f"the best dense training ({dense.name}, {dense.run.epochs} epochs) has {dense.estimate.text()} %"
        if rival is None:
            return f"On {dense.task}, {said}; nothing else was trained at its cost or less."
        gap = rival.estimate.mean - dense.estimate.mean
        other = f"{_described(rival)} has {rival.estimate.text()} ({gap:+.2f})"
        return f"On {dense.task}, {said}; at its cost or less {other}."
    ends = [best[0], best[-1]]
    if len(best) == 1:
        only = f"{_described(best[0])} or has a higher mean than its {best[0].estimate.text()} %"
        return f"On {own[0].task}, no arm costs less than {only}."
    told = [f"{_described(arm)} ({arm.estimate.mean:.2f} %, {tell(arm.mean_cost(unit))})" for arm in ends]
    return f"On {own[0].task}, the front of accuracy against cost goes from {' to '.join(told)}."


def _mean(arm: Arm) -> float:
    return arm.estimate.mean


def _described(arm: Arm) -> str:
    return f"{arm.name}, {arm.where}"


def what_was_run(arms: Sequence[Arm], trials: int = 0) -> str:
    """How many trainings of what, in a sentence."""
    count = sum(len(arm.lines) for arm in arms)
    least, most = (pick((len(arm.lines) for arm in arms), default=0) for pick in (min, max))
    tasks = Counter(arm.task for arm in arms)
    methods = dict.fromkeys(plain(a.run.method.name) for a in arms if not a.is_dense)
    sparsities = sorted({a.run.sparsity for a in arms if not a.is_dense})
    parts = [f"{count:,} trainings of {_listed([t for t, _ in tasks.most_common(3)])}"]
    if len(tasks) > 3:
        parts[0] += f" and {len(tasks) - 3} more"
    if methods:
        parts.append(f"{_listed(list(methods))} at {_listed([f'{100 * s:g}' for s in sparsities])} %")
    if any(a.is_dense for a in arms):
        parts.append("dense")
    names, seeds = len({a.optimizer_name for a in arms}), f"{least}" if least == most else f"{least} to {most}"
    parts.append(f"{names} optimizer{'s' * (names != 1)}, {seeds} seed{'s' * (most != 1)} each")
    if trials:
        parts.append(f"after {trials:,} trials for tuning")
    return "; ".join(parts) + "."


def facts(lines: Sequence[Line]) -> dict[str, str]:
    """Hardware and versions of the runs, not of the machine that makes the page; counted where they differ."""
    found: dict[str, str] = {}
    for key, name in FACTS.items():
        if key == "device_name" and all(line.get("made_with", {}).get("device") == "cpu" for line in lines):
            continue  # the processor is the device
        values = Counter(str(line["made_with"][key]) for line in lines if key in line.get("made_with", {}))
        if values:
            found[name] = _counted(values)
    name, unit = ("CPU time in all", "cpu_seconds") if has_cpu_time(lines) else ("training in all", "seconds")
    seconds = sum(float(e[unit]) for line in lines for e in line["epochs"])
    return {"runs": f"{len(lines):,}", name: duration(seconds), **found}


def hardware(lines: Iterable[Line]) -> str:
    """What trainings were computed on, such as "AMD EPYC, 1 thread"; counted where it differs."""
    return _counted(Counter(told for line in lines if (told := _machine(line.get("made_with", {})))))


def _machine(made_with: Mapping[str, Any]) -> str:
    if made_with.get("device", "cpu") != "cpu":
        return str(made_with.get("device_name", made_with["device"]))
    threads = made_with.get("threads")
    told = [] if threads is None else [f"{threads} thread{'s' * (threads != 1)}"]
    return ", ".join([str(made_with["cpu"]), *told]) if "cpu" in made_with else ""


def _counted(values: Mapping[Any, int]) -> str:
    if len(values) <= 1:
        return "".join(map(str, values))
    return ", ".join(f"{value} ({n:,} runs)" for value, n in sorted(values.items(), key=lambda item: -item[1]))


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def duration(seconds: float) -> str:
    """A length of time for people."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
