"""What was found and what was run, in sentences that are made from the numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from zosam.lab.measure.estimate import Estimate
from zosam.lab.report.arms import Arm, Line, Setting, front, has_cpu_time, plain, units_of

VERDICTS = {(True, False): "ahead", (False, True): "behind", (True, True): "both", (False, False): "even"}
SAID = {
    "ahead": "{0} {1} ahead",
    "both": "{0} {1} ahead in some and behind in others",
    "even": "no difference is seen for {0}",
    "behind": "{0} {1} behind",
    "one seed": "one seed cannot tell for {0}",
}
MOST = 5  # optimizers that are named of each group
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
    """How an optimizer did against SGD over the settings in which both were run."""

    name: str
    gaps: list[Estimate] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def count(self, sign: int) -> int:
        return sum(gap.sign == sign for gap in self.gaps)

    @property
    def mean(self) -> float:
        return fmean(gap.mean for gap in self.gaps)

    @property
    def verdict(self) -> str:
        """The key of what is said of it."""
        if all(gap.n == 1 for gap in self.gaps):
            return "one seed"
        return VERDICTS[bool(self.count(1)), bool(self.count(-1))]


def scores(settings: Iterable[Setting]) -> list[Score]:
    """Of every optimizer that was compared with SGD; of several arms in a setting, the best speaks for it."""
    found: dict[str, Score] = {}
    for setting in settings:
        for arm in setting.best:
            if arm.name in setting.gaps and setting.reference is not None:
                score = found.setdefault(arm.optimizer_name, Score(arm.optimizer_name))
                score.gaps.append(setting.gaps[arm.name])
                score.costs.append(arm.mean_cost("passes") / setting.reference.mean_cost("passes"))
    return list(found.values())


def finding(settings: Sequence[Setting]) -> str:
    """One sentence: who is ahead of SGD beyond the spread of seeds, who is not, and at which cost."""
    arms = [arm for setting in settings for arm in setting.arms]
    if len(arms) == 1:
        return _alone(arms[0])
    known = sorted(scores(settings), key=lambda score: -score.mean)
    if not known:
        return "Nothing was trained beside SGD in the same setting and seed, so there is nothing to compare."
    most = max(len(score.gaps) for score in known)
    fields = list(dict.fromkeys(key.replace("_", " ") for s in settings for arm in s.arms for key in arm.differs))
    opening = f"Against SGD{f' in {most} settings' * (most > 1)}"
    opening += f", each at its best {_listed(fields)}," if fields else ","
    said: list[str] = []
    for verdict, words in SAID.items():
        group = [score for score in known if score.verdict == verdict]
        told = [_told(score, in_full=not said and i == 0) for i, score in enumerate(group[:MOST])]
        told += [f"{len(group) - MOST} more"] * (len(group) > MOST)
        if told:
            said.append(words.format(_listed(told), "is" if len(told) == 1 else "are"))
    return f"{opening} {'; '.join(said)}.{_at_equal(settings)}"


def _alone(arm: Arm) -> str:
    """Of one arm: how far it came, and what would make a comparison of it."""
    n, other = len(arm.lines), "sam" if arm.optimizer == "sgd" else "sgd and no --rho"
    return (
        f"{'One training' if n == 1 else f'{n} seeds of one training'}: {arm.name}, {arm.where}, has"
        f" {arm.estimate.text()} % of the test set right. To compare, give the same command with --optimizer {other}."
    )


def _at_equal(settings: Iterable[Setting]) -> str:
    """Where SGD was trained in several ways, a second sentence: who is ahead of SGD trained in the same way."""
    ahead: dict[str, list[bool]] = defaultdict(list)
    fields: dict[str, None] = {}
    for setting in settings:
        for name, gap in setting.gaps_at_equal():
            ahead[name].append(gap.sign > 0)
            fields |= dict.fromkeys(key.replace("_", " ") for key in setting.ways)
    if not ahead:
        return ""
    often = sorted((name for name, each in ahead.items() if any(each)), key=lambda n: (-sum(ahead[n]), len(ahead[n])))
    told = [f"{name} ({'at ' * (i == 0)}{sum(ahead[name])} of {len(ahead[name])})" for i, name in enumerate(often)]
    who = f"{'those ahead are' if len(told) > 1 else 'the one ahead is'} {_listed(told)}" if told else "none is ahead"
    return f" At equal {_listed(list(fields))}, {who}."


def _told(score: Score, in_full: bool) -> str:
    """The name with the mean difference and the cost; in full where it is the first to be named."""
    n, decided = len(score.gaps), max(score.count(1), score.count(-1))
    where = f"in {decided} of {n}, " if n > 1 and decided else ""
    unit, passes = (" points" + " on average" * (n > 1), " the passes") if in_full else ("", "")
    return f"{score.name} ({where}{_signed(score.mean)}{unit} for {fmean(score.costs):.2g} ×{passes})"


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
    alike = len({arm.where for arm in own}) == 1  # then it need not be said of each

    def described(arm: Arm) -> str:
        return arm.name if alike else f"{arm.name}, {arm.where}"

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
        other = f"{described(rival)} has {rival.estimate.text()} ({_signed(gap)})"
        return f"On {dense.task}, {said}; at its cost or less {other}."
    ends = [best[0], best[-1]]
    if len(best) == 1:
        only = f"{described(best[0])} or has a higher mean than its {best[0].estimate.text()} %"
        return f"On {own[0].task}, no training costs less than {only}."
    told = [f"{described(arm)} ({arm.estimate.mean:.2f} %, {tell(arm.mean_cost(unit))})" for arm in ends]
    return f"On {own[0].task}, the best at its cost goes from {' to '.join(told)}."


def _mean(arm: Arm) -> float:
    return arm.estimate.mean


def what_was_run(arms: Sequence[Arm], trials: int = 0) -> str:
    """How many trainings of what, in a sentence."""
    count = sum(len(arm.lines) for arm in arms)
    least, most = (pick((len(arm.lines) for arm in arms), default=0) for pick in (min, max))
    tasks = Counter(arm.task for arm in arms)
    methods = dict.fromkeys(plain(a.run.method.name) for a in arms if not a.is_dense)
    sparsities = sorted({a.run.sparsity for a in arms if not a.is_dense})
    parts = [f"{count:,} training{'s' * (count != 1)} of {_listed([t for t, _ in tasks.most_common(3)])}"]
    if len(tasks) > 3:
        parts[0] += f" and {len(tasks) - 3} more"
    if methods:
        parts.append(f"{_listed(list(methods))} at {_listed([f'{100 * s:g}' for s in sparsities])} %")
    if any(a.is_dense for a in arms):
        parts.append("dense")
    names, seeds = len({a.optimizer_name for a in arms}), f"{least}" if least == most else f"{least} to {most}"
    each = " each" * (len(arms) > 1)
    parts.append(f"{names} optimizer{'s' * (names != 1)}, {seeds} seed{'s' * (most != 1)}{each}")
    if trials:
        parts.append(f"after {trials:,} trials for tuning")
    return "; ".join(parts) + "."


def facts(lines: Sequence[Line]) -> dict[str, str]:
    """Hardware and versions of the runs, not of the machine that makes the page; counted where they differ."""
    found: dict[str, str] = {}
    for key, name in FACTS.items():
        if key == "device_name" and all(line.get("made_with", {}).get("device", "cpu") == "cpu" for line in lines):
            continue  # the processor is the device
        values = Counter(str(line["made_with"][key]) for line in lines if key in line.get("made_with", {}))
        if values:
            found[name] = _counted(values)
    name, unit = ("CPU time in all", "cpu_seconds") if has_cpu_time(lines) else ("wall time in all", "seconds")
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


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def duration(seconds: float) -> str:
    """A length of time for people."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.{seconds < 9.95:d}f} s"
