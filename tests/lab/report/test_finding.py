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
    assert text == "Against SGD, ZO-SAM (+2.00 points for 1.7 × the passes) is ahead."
    text = said(lines_of({"sgd": 0, "zosam": -2}))
    assert text == "Against SGD, ZO-SAM (−2.00 points for 1.7 × the passes) is behind."


def test_no_difference_is_said_too_and_who_is_ahead_or_behind(lines_of):
    text = said(lines_of({"sgd": 0, "zosam": 0.05, "sam": 3, "msam": 1, "s2sam": -2}))
    assert text == (
        "Against SGD, SAM (+3.00 points for 2 × the passes) and MSAM (+1.00 for 1 ×) are ahead;"
        " no difference is seen for ZO-SAM (+0.05 for 1.7 ×); S²-SAM (−2.00 for 1 ×) is behind."
    )
    assert "ahead" not in said(lines_of({"sgd": 0, "zosam": 0.05, "sam": 0.1}))


def test_settings_are_counted(lines_of):
    lines = lines_of({"sgd": 0, "sam": 2, "msam": 2, "zosam": 0.05})
    lines += lines_of({"sgd": 0, "sam": 0.05, "msam": -1, "zosam": 0.05}, epochs=8)
    assert said(lines) == (
        "Against SGD in 2 settings, SAM (in 1 of 2, +1.02 points on average for 2 × the passes) is ahead;"
        " MSAM (in 1 of 2, +0.50 for 1 ×) is ahead in some and behind in others;"
        " no difference is seen for ZO-SAM (+0.05 for 1.7 ×)."
    )


def test_an_optimizer_is_spoken_for_by_its_best_setting(lines_of):
    lines = lines_of({"sgd": 0, "sam": 2}, weight_decay=5e-3) + lines_of({"sgd": -3, "sam": -4}, weight_decay=5e-4)
    text = said(lines)
    assert text == (
        "Against SGD, each at its best weight decay, SAM (+2.00 points for 2 × the passes) is ahead."
        " At equal weight decay, the one ahead is SAM (at 1 of 2)."
    )


def test_the_other_comparison_is_told_beside_it(lines_of):
    lines = lines_of({"sgd": 0, "sam": 2, "zosam": -1, "rwp": 2}, weight_decay=5e-3)
    lines += lines_of({"sgd": -3, "sam": -1, "zosam": -2}, weight_decay=5e-4)
    assert said(lines).endswith(
        " At equal weight decay, those ahead are SAM (at 2 of 2), RWP (1 of 1) and ZO-SAM (1 of 2)."
    )
    lines = lines_of({"sgd": 0, "sam": -1}, weight_decay=5e-3) + lines_of({"sgd": -3, "sam": -4}, weight_decay=5e-4)
    assert said(lines).endswith(" is behind. At equal weight decay, none is ahead.")
    alone = lines_of({"sgd": 0}, weight_decay=5e-3) + lines_of({"sam": 2}, weight_decay=5e-4)
    assert "equal" not in said(alone)  # no two were trained alike


def test_nothing_to_compare(lines_of):
    assert "nothing to compare" in said([])
    text = said(lines_of({"sam": 0, "zosam": 1}))  # there is no SGD
    assert text.startswith("Nothing was trained beside SGD in the same setting")


def test_one_training_is_told_with_what_would_make_a_comparison(lines_of):
    lines = lines_of({"zosam": 0})
    assert said(lines) == (
        "3 seeds of one training: ZO-SAM, RigL 90 %, 4 epochs, has 51.00 ± 2.37 % of the test set right."
        " To compare, give the same command with --optimizer sgd and no --rho."
    )
    assert said(lines[:1]).startswith("One training: ZO-SAM, RigL 90 %, 4 epochs, has 50.00 % of")
    assert said(lines_of({"sgd": 0})).endswith("with --optimizer sam.")


def test_of_many_the_last_are_counted(lines_of):
    many = ("sam", "zosam", "msam", "s2sam", "rwp", "asam", "gsam")
    text = said(lines_of({"sgd": 0} | {name: 7 - i for i, name in enumerate(many)}))
    assert text.endswith("RWP (+3.00 for 1 ×) and 2 more are ahead.")


def test_one_seed_cannot_tell(lines_of):
    text = said([entry for entry in lines_of({"sgd": 0, "zosam": 5}) if entry["run"]["seed"] == 0])
    assert text == "Against SGD, one seed cannot tell for ZO-SAM (+5.00 points for 1.7 × the passes)."


def test_seeds_that_agree_to_the_picture_cannot_tell_either(line):
    lines = [
        line((50 + seed + 2 * (o == "zosam")) / 100, optimizer=o, seed=seed)
        for o in ("sgd", "zosam")
        for seed in (0, 1)
    ]
    assert said(lines) == "Against SGD, no difference is seen for ZO-SAM (+2.00 points for 1.7 × the passes)."


def test_the_best_use_is_against_dense_where_there_is_one(lines_of):
    sparse = lines_of({"sgd": 0}, epochs=8, seconds=50)
    dense = lines_of({"sgd": -1}, method="dense", seconds=60)
    text = best_use(arms_of(sparse + dense))
    assert "the best dense training (SGD, 4 epochs) has 50.00 ± 2.48 %" in text
    assert text.endswith("at its cost or less SGD, RigL 90 %, 8 epochs has 51.00 ± 2.48 (+1.00).")
    dear = lines_of({"sgd": 0}, epochs=8, seconds=90)
    assert best_use(arms_of(dear + dense)).endswith("nothing else was trained at its cost or less.")
    assert best_use(arms_of(dense)) == ""


def test_what_all_share_is_not_said_of_each(lines_of):
    arms = arms_of(lines_of({"sgd": 0}, seconds=50) + lines_of({"sam": 1}, seconds=100))
    assert best_use(arms).endswith("goes from SGD (51.00 %, 50 s) to SAM (52.00 %, 1.7 min).")


def test_what_was_run_counts(lines):
    arms = arms_of(entry for entry in lines if entry["run"]["seed"] < 100)
    text = what_was_run(arms, trials=12)
    assert text.startswith("78 trainings of CIFAR-10, ResNet-20 and CIFAR-10, ResNet-32; RigL at 90 and 95 %; dense;")
    assert text.endswith("4 optimizers, 3 seeds each; after 12 trials for tuning.")
    assert what_was_run(arms[:1]).endswith("1 optimizer, 3 seeds.")
    assert what_was_run(arms_of(lines[:1])).startswith("1 training of ")
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
    del lines[1]["made_with"]["device"]  # lines of earlier versions do not say it
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
    lengths = (1.24, 9.96, 12.4, 90, 5400, 2 * 86400)
    assert [duration(s) for s in lengths] == ["1.2 s", "10 s", "12 s", "1.5 min", "1.5 h", "2.0 d"]
