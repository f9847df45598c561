"""Two files of the history are compared by hand-made figures; the committed ones are what the program writes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("history")
    for name in ("history", "chart", "masks", "train_step"):
        sys.modules.pop(name, None)


def made(commit, cpu="A", **figures):
    told = {n.replace("_", " "): {"ratio": (a + b) / 2, "interval": [a, b]} for n, (a, b) in figures.items()}
    return {"commit": commit, "cpu": cpu, "kernels": "k", "network": "n", "batch": 32, "figures": told}


def test_two_commits_are_compared_by_their_intervals(history, tmp_path, capsys):
    old = made("aaa", falls=(3.0, 4.0), rises=(1.0, 2.0), stays=(1.0, 3.0), gone=(1.0, 1.0))
    new = made("bbb", falls=(2.0, 2.9), rises=(2.1, 2.5), stays=(2.9, 4.0), added=(5.0, 5.0))
    for name, content in {"old": old, "new": new}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert history.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1  # something is slower
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["aaa", "bbb", "change"]
    assert lines == [
        ["falls", "3.50", "2.45", "-30.0%", "slower"],
        ["rises", "1.50", "2.30", "+53.3%", "faster"],
        ["stays", "2.00", "3.45", "+72.5%"],
        ["gone", "1.00", "gone"],
        ["added", "5.00", "new"],
    ]
    assert history.main(["compare", str(tmp_path / "old"), str(tmp_path / "old")]) == 0


def test_two_machines_are_not_compared(history):
    with pytest.raises(ValueError, match=r"cpu: A and B.*on one machine"):
        history.compare(made("aaa"), made("bbb", cpu="B"))


def test_what_is_committed_can_be_compared(history):
    found = sorted((ROOT / "results" / "history").glob("*.json"))
    assert found
    for path in found:
        record = json.loads(path.read_text())
        assert record["commit"] in path.name
        lines, slower = history.compare(record, record)
        assert len(lines) == 1 + len(record["figures"])
        assert not slower


def test_every_result_says_what_it_is():
    told = (ROOT / "results" / "README.md").read_text()
    for path in (ROOT / "results").iterdir():
        name = path.name + "/" * path.is_dir()
        hidden = name.startswith(".")  # a lock that --save leaves
        assert hidden or name == "README.md" or f"`{name}`" in told, f"results/README.md does not say what {name} is"
