"""The command line: it lists what there is, shows what was made, and explains what went wrong."""

from __future__ import annotations

import json
import sys

import pytest

from zosam.lab import cli
from zosam.lab.data import DATA
from zosam.lab.models import MODELS
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["zosam", *map(str, arguments)])
    monkeypatch.setattr(cli, "console", cli.Console(width=150))
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr()
    return code, out.out, out.err


def test_list_names_everything_with_a_line_each(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "list")
    assert not code
    lines = {line.split()[0]: line.split(maxsplit=1)[-1] for line in out.splitlines() if line.startswith("  ")}
    for table in (OPTIMIZERS, METHODS, MODELS, DATA):
        for name in table:
            assert len(lines[name].split()) > 2, f"{name} has no description"


def test_results_for_programs(monkeypatch, capsys, tmp_path):
    code, out, _ = call(monkeypatch, capsys, "list", "--json")
    assert not code
    assert any({"kind": "optimizers", "name": "sam"}.items() <= row.items() for row in json.loads(out))
    code, out, _ = call(monkeypatch, capsys, "figure", "list", "--csv")
    assert not code
    assert out.splitlines()[0] == "name,title"
    arguments = ("table", "1", "--no-train", "--out", tmp_path, "--only", "^SNIP . ZO-SAM / CIFAR-10 90")
    code, out, _ = call(monkeypatch, capsys, *arguments, "--json")
    assert not code
    ours = {r["row"]: r for r in json.loads(out) if r["column"] == "CIFAR-10 90 %"}
    assert ours["SNIP + ZO-SAM"]["paper"] == "93.38 ± 0.12 (+0.79)"
    assert (ours["SNIP"]["mean"], ours["SNIP"]["verdict"]) == (None, "not run")
    code, _, err = call(monkeypatch, capsys, *arguments, "--json", "--csv")
    assert code == 2
    assert "--json or --csv" in err


def test_train_then_show(monkeypatch, capsys, tmp_path):
    code, out, _ = call(
        monkeypatch, capsys, "train", "--out", tmp_path, "--epochs", 1, "--batch-size", 512, "--optimizer", "sam"
    )
    assert not code
    assert "test accuracy" in out
    folder = next(tmp_path.glob("digits-*"))
    code, out, _ = call(monkeypatch, capsys, "show", folder)
    assert not code
    assert "finished" in out
    assert "sam  (not the default)" in out
    assert "90.00%" in out
    code, out, _ = call(monkeypatch, capsys, "show", folder, "--json")
    assert json.loads(out)[0]["status"] == "finished"
    code, out, _ = call(monkeypatch, capsys, "show", folder, "--csv")
    assert len(out.splitlines()) == 2
    assert "test_accuracy" in out
    sizes = {}
    for form in ("dense", "compressed"):
        code, out, _ = call(monkeypatch, capsys, "export", folder, "--form", form, "--out", tmp_path / form)
        assert not code
        sizes[form] = next((tmp_path / form).iterdir()).stat().st_size
    assert sizes["compressed"] < sizes["dense"] / 4


def test_doctor_says_what_runs(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "doctor")
    assert not code
    assert "kernels:" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--optimizer", "zosm"], "did you mean 'zosam'"),
        (["train", "--sparsity", "1.5"], "below 1"),
        (["train", "--data", "cifar10", "--data-dir", "/nowhere"], "zosam data get cifar10"),
        (["show", "/nowhere"], "is not a run folder"),
        (["data", "get", "cifar11"], "did you mean"),
    ],
)
def test_errors_are_one_sentence(monkeypatch, capsys, tmp_path, arguments, message):
    extra = ["--out", tmp_path] if arguments[0] == "train" else []
    code, _, err = call(monkeypatch, capsys, *arguments, *extra)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_help_teaches(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "train", "--help")
    assert not code
    assert "--sparsity" in out
    assert "Share of weights that are zero" in out
