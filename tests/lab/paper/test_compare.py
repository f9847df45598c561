"""`zosam compare`: seed by seed, by numbers worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from zosam.lab.cli.many import compare
from zosam.lab.paper.compare import compared
from zosam.lab.run import Run
from zosam.lab.terminal import Output

SGD, SAM = Run(optimizer="sgd"), Run(optimizer="sam")


@pytest.fixture
def shelf(tmp_path, shelve):
    for seed, base, own in ((0, 90.0, 91.0), (1, 91.0, 91.5), (2, 92.0, 94.0)):
        shelve(tmp_path, replace(SGD, seed=seed), test_accuracy=base / 100)
        shelve(tmp_path, replace(SAM, seed=seed), test_accuracy=own / 100)
    shelve(tmp_path, replace(SAM, seed=99), test_accuracy=0.5)  # without a partner
    shelve(tmp_path, replace(SAM, seed=4), "training", test_accuracy=0.1)
    return tmp_path


def test_one_folder_stands_for_all_its_seeds(shelf):
    sgd, sam = compared([shelf / replace(SGD, seed=1).folder, shelf / SAM.folder])
    assert (sgd.label, sam.label) == ("sgd", "sam, rho 0.05")
    assert (sgd.accuracy.n, sgd.gap) == (3, None)
    assert (sgd.accuracy.mean, sam.accuracy.n) == (pytest.approx(91.0), 4)
    # differences 1, 0.5 and 2: their mean, and t(2) = 4.302653 times their deviation 0.763763 over the root of 3
    assert (sam.gap.mean, sam.gap.half_width, sam.gap.n) == (pytest.approx(7 / 6), pytest.approx(1.897292), 3)


def test_several_folders_of_runs(shelf, shelve, tmp_path_factory, capsys):
    other = tmp_path_factory.mktemp("other")
    rwp = Run(optimizer="sgd", weight_decay=1e-3)
    for seed, accuracy in ((0, 0.80), (1, 0.82)):
        shelve(other, replace(rwp, seed=seed), test_accuracy=accuracy)
    compare((shelf / SGD.folder, other), Output(json=True))
    first, second = json.loads(capsys.readouterr().out)
    assert (first["arm"], second["arm"]) == ("weight decay 5e-4", "weight decay 1e-3")
    assert second["difference"] == {"mean": pytest.approx(-9.5), "half_width": pytest.approx(6.353, abs=1e-3), "n": 2}
    compare((shelf / SGD.folder, other))
    out = " ".join(capsys.readouterr().out.split())
    assert "weight decay 1e-3 81.00 ± 12.71 −9.50 ± 6.35" in out
    assert "Differences are to weight decay 5e-4, seed by seed (shared: 2)" in out


def test_a_folder_of_runs_is_compared_with_sgd(tmp_path, shelve):
    shelve(tmp_path, Run(optimizer="rwp"))
    shelve(tmp_path, SGD)  # whose folder comes later
    assert [row.label for row in compared([tmp_path])] == ["sgd", "rwp, rho 0.2"]


def test_what_cannot_be_compared_is_said(tmp_path, shelve, capsys):
    shelve(tmp_path, SGD)
    shelve(tmp_path, replace(SGD, seed=1))
    with pytest.raises(ValueError, match="differ in more than their seed"):
        compared([tmp_path])
    shelve(tmp_path, replace(SAM, seed=5))
    compare((tmp_path / SGD.folder, tmp_path / replace(SAM, seed=5).folder))
    assert "sam, rho 0.05 shares no seed with sgd" in capsys.readouterr().out
