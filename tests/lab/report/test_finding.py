"""The sentences follow the numbers: other numbers, other sentences."""

from __future__ import annotations

import pytest

from zosam.lab.report.arms import arms_of, settings_of
from zosam.lab.report.finding import best_use, duration, facts, finding, hardware, what_was_run


@pytest.fixture
def lines_of(line):
    """Three seeds of each optimizer, by how far it is from SGD's 50, 51, 52 %."""

    def make(gains, **run):
        noise = {"sgd": (0, 0, 0)}
        return [
            line((50 + s + gain + 0.1 * noise.get(o, (0, 1, -1))[s]) / 100, optimizer=o, seed=s, **run)
            for o, gain in gains.items()
            for s in range(3)
        ]

    return make


def said(lines):
    return finding(settings_of(arms_of(lines)))


def test_a_gain_beyond_the_spread_is_said(lines_of):
    text = said(lines_of({"sgd": 0, "zosam": 2}))  # 2.0, 2.1, 1.9: ± 0.25
    assert text == "ZO-SAM against SGD: ahead in 1 of 1 setting (+2.00 points on average at 1.7 × the passes)."
    text = said(lines_of({"sgd": 0, "zosam": -2}))
    assert text.startswith("ZO-SAM against SGD: behind in 1 of 1 setting (-2.00 points")


def test_no_difference_is_said_too_and_who_is_ahead_or_behind(lines_of):
    text = said(lines_of({"sgd": 0, "zosam": 0.05, "sam": 3, "msam": 1, "s2sam": -2}))
    assert text == (
        "ZO-SAM against SGD: no difference seen in 1 setting (+0.05 points on average at 1.7 × the passes);"
        " ahead beyond the spread of seeds: SAM (1 of 1) and MSAM (1 of 1); behind: S²-SAM (1 of 1)."
    )
    assert "no other is ahead" in said(lines_of({"sgd": 0, "zosam": 0.05, "sam": 0.1}))


def test_without_the_subject_the_best_is_spoken_of(lines_of):
    assert said(lines_of({"sgd": 0, "msam": 1, "sam": 3})).startswith("SAM against SGD: ahead in 1 of 1 setting")
    assert "nothing to compare" in said(lines_of({"sgd": 0}))
    assert "nothing to compare" in said([])


def test_one_seed_cannot_tell(lines_of):
    text = said([entry for entry in lines_of({"sgd": 0, "zosam": 5}) if entry["run"]["seed"] == 0])
    assert "one seed in 1 setting, which cannot tell" in text


def test_the_best_use_is_against_dense_where_there_is_one(lines_of):
    sparse = lines_of({"sgd": 0}, epochs=8, seconds=50)
    dense = lines_of({"sgd": -1}, method="dense", seconds=60)
    text = best_use(arms_of(sparse + dense))
    assert "the best dense training (SGD, 4 epochs) has 50.00 ± 2.48 %" in text
    assert text.endswith("at its cost or less SGD, RigL 90 %, 8 epochs has 51.00 ± 2.48 (+1.00).")
    dear = lines_of({"sgd": 0}, epochs=8, seconds=90)
    assert best_use(arms_of(dear + dense)).endswith("nothing else was trained at its cost or less.")
    assert best_use(arms_of(dense)) == ""


def test_what_was_run_counts(lines):
    arms = arms_of(entry for entry in lines if entry["run"]["seed"] < 100)
    text = what_was_run(arms, trials=12)
    assert text.startswith("78 trainings of CIFAR-10, ResNet-20 and CIFAR-10, ResNet-32; RigL at 90 and 95 %; dense;")
    assert text.endswith("4 optimizers, 3 seeds each; after 12 trials for tuning.")
    assert what_was_run(arms[:1]).endswith("1 optimizer, 3 seeds each.")
    fewer = arms_of([entry for entry in lines if entry["run"]["seed"] < 100][1:])
    assert what_was_run(fewer).endswith("4 optimizers, 2 to 3 seeds each.")


def test_the_facts_are_those_of_the_runs(lines):
    lines[0]["made_with"]["cpu"] = "Intel Xeon"
    found = facts(lines)
    assert found["processor"] == f"AMD EPYC ({len(lines) - 1} runs), Intel Xeon (1 runs)"
    assert found["torch"] == "2.13.0"
    assert found["runs"] == str(len(lines))


def test_a_cpu_is_named_once_and_an_accelerator_beside_it(lines):
    for line in lines:
        line["made_with"] |= {"device": "cpu", "device_name": "AMD EPYC"}
    assert "device" not in facts(lines)
    lines[0]["made_with"] |= {"device": "cuda:0", "device_name": "A card"}
    assert facts(lines)["device"] == f"AMD EPYC ({len(lines) - 1} runs), A card (1 runs)"


def test_tables_say_what_their_trainings_were_computed_on(lines):
    assert hardware(lines) == "AMD EPYC, 1 thread"
    lines[0]["made_with"] = {"device": "cuda:0", "device_name": "A card", "cpu": "AMD EPYC", "threads": 4}
    lines[1]["made_with"] = {}
    assert hardware(lines) == f"AMD EPYC, 1 thread ({len(lines) - 2} runs), A card (1 runs)"
    assert hardware([]) == ""


def test_durations():
    assert [duration(s) for s in (12.4, 90, 5400, 2 * 86400)] == ["12 s", "1.5 min", "1.5 h", "2.0 d"]
