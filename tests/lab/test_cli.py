"""The command line: it lists what there is, shows what was made, and explains what went wrong."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys

import pytest

from zosam.kernels import choose
from zosam.lab import cli, serve, terminal
from zosam.lab.data import DATA
from zosam.lab.models import MODELS
from zosam.lab.record import read_record
from zosam.lab.run import finished
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["zosam", *map(str, arguments)])
    monkeypatch.setattr(terminal.console, "width", 150)
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


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_prints_for_programs(monkeypatch, capsys, name):
    code, out, _ = call(monkeypatch, capsys, *name.split(), "--help")
    assert not code
    assert "--json" in out
    assert "--csv" in out


def test_train_then_show(monkeypatch, capsys, tmp_path):
    code, out, _ = call(
        monkeypatch, capsys, "train", "--out", tmp_path, "--epochs", 1, "--batch-size", 512, "--optimizer", "sam",
        "--model", "digits_net:width=16",
    )  # fmt: skip
    assert not code
    assert "test accuracy" in out
    assert "finished before" not in out
    folder = next(tmp_path.glob("digits-*"))
    code, out, _ = call(monkeypatch, capsys, "show", folder)
    assert not code
    assert "finished" in out
    assert "sam  (not the default)" in out
    assert "90.00%" in out
    masks = finished(folder).masks()
    for name, mask in masks.items():
        assert re.search(rf"^{re.escape(name)} .* {int(mask.sum()):,} +{mask.numel():,} +\d+\.\d%$", out, re.MULTILINE)
    last = read_record(folder)["epochs"][-1]
    passes = f"{last['forward'] + 2 * last['backward']:,.0f}"
    assert f"{passes}, a backward counting two: {last['forward']:,.0f} forward" in out
    code, out, _ = call(monkeypatch, capsys, "runs", tmp_path)
    assert f" {passes} " in next(line for line in out.splitlines() if folder.name in line)
    assert "of the passes a backward counts two" in out
    code, out, _ = call(monkeypatch, capsys, "show", folder, "--json")
    assert json.loads(out)[0]["status"] == "finished"
    code, out, _ = call(monkeypatch, capsys, "show", folder, "--csv")
    assert len(out.splitlines()) == 2
    assert "test_accuracy" in out
    again = ("train", "--out", tmp_path, "--epochs", 1, "--batch-size", 512, "--optimizer", "sam", "--json")
    again += ("--model", "digits_net:width=16")
    code, out, err = call(monkeypatch, capsys, *again)
    assert json.loads(out)[0]["status"] == "finished"
    assert "finished before" in err
    code, out, _ = call(monkeypatch, capsys, "eval", folder, "--json", "--batch-size", 100)
    assert not code
    last = read_record(folder)["epochs"][-1]
    assert json.loads(out)[0]["accuracy"] == last["test_accuracy"]
    assert json.loads(out)[0]["loss"] == pytest.approx(last["test_loss"], rel=1e-5)
    code, out, _ = call(monkeypatch, capsys, "eval", folder, "--split", "train")
    assert not code
    assert out.startswith("digits, train: accuracy ")
    for words, message in ((["--averaged"], "trained without ema"), (["--split", "validation"], "no validation split")):
        code, _, err = call(monkeypatch, capsys, "eval", folder, *words)
        assert code == 2
        assert message in " ".join(err.split())
    sizes = {}
    for form in ("dense", "compressed"):
        code, out, _ = call(monkeypatch, capsys, "export", folder, "--form", form, "--out", tmp_path / form)
        assert not code
        sizes[form] = next((tmp_path / form).iterdir()).stat().st_size
    assert sizes["compressed"] < sizes["dense"] / 4
    code, out, _ = call(monkeypatch, capsys, "export", folder, "--out", tmp_path / "compressed", "--json")
    assert json.loads(out)[0]["bytes"] == sizes["compressed"]
    assert json.loads(out)[0]["replaced"]
    page, nowhere = tmp_path / "report.html", tmp_path / "nowhere"
    code, out, _ = call(monkeypatch, capsys, "report", "--runs", tmp_path, "--figures", nowhere, "--out", page, "--csv")
    assert out.splitlines()[0] == "file,bytes,figures,tables"
    assert out.splitlines()[1].startswith(f"{page},{page.stat().st_size},")
    monkeypatch.setattr(serve, "serve_bench", functools.partial(serve.serve_bench, seconds=0.01))
    code, out, _ = call(monkeypatch, capsys, "serve-bench", folder, "--batches", "1", "8", "--json")
    assert [line["batch"] for line in json.loads(out)] == [1, 8]
    code, out, _ = call(monkeypatch, capsys, "serve-bench", folder, "--batches", "1")
    assert re.search(r"batch +kernels, ms +torch, ms .*pictures/s +gain\n +1 ", out)
    assert "gain: the fastest dense time / that of the kernels" in out
    assert "torch: the dense network in the faster of its memory layouts" in out
    assert "onnxruntime, ms" in out or "pip install 'zosam[onnx]' onnxruntime" in out


def test_a_training_on_sparse_kernels_says_what_they_gain(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    words = ("train", "--out", tmp_path, "--batch-size", 512, "--optimizer", "sgd", "--model", "digits_net:width=16")
    code, out, _ = call(monkeypatch, capsys, *words, "--epochs", 1, "--accelerate", "--device", "cpu")
    assert not code
    said = "9 of 9 sparse layers on the kernels; 2.0 times as fast in training at batch 512"
    assert re.search(rf"^sparse kernels: {said}.*\nstep 3 ", out, re.MULTILINE)
    assert f"by --accelerate: {said}" in " ".join(out.split())


OWN_DATA = """
from zosam.lab import data as ours
def few(batch_size, seed):
    source = ours.digits(batch_size, seed)
    return ours.Data(ours.Tensors(source.test.x, source.test.y, batch_size, True), source.test, 10, (1, 8, 8))
"""


def test_a_network_trained_on_ones_own_data_is_timed_on_it(monkeypatch, capsys, tmp_path):
    (tmp_path / "own_data_for_cli.py").write_text(OWN_DATA)
    monkeypatch.chdir(tmp_path)
    own = ("--data", "own_data_for_cli:few")
    words = ("--out", tmp_path, "--epochs", 1, "--batch-size", 180, "--model", "digits_net:width=4")
    assert not call(monkeypatch, capsys, "train", *own, *words)[0]
    folder = next(tmp_path.glob("own_data*-*"))
    monkeypatch.setattr("zosam.lab.settings._OWN", {})  # as in a new process, which has not asked for it
    for command, words in (("serve-bench", ["--batches", "1"]), ("eval", []), ("export", ["--form", "onnx"])):
        code, _, err = call(monkeypatch, capsys, command, folder, *words)
        assert code == 2
        assert "this run's data is your own code" in err
        assert f"what it is called now: zosam {command} {folder} --data own_data_for_cli:few\n" in err
    monkeypatch.setattr(serve, "serve_bench", functools.partial(serve.serve_bench, seconds=0.01))
    code, out, _ = call(monkeypatch, capsys, "serve-bench", folder, *own, "--batches", "1", "--json")
    assert [line["batch"] for line in json.loads(out)] == [1]
    code, _, err = call(monkeypatch, capsys, "export", folder, *own)
    assert code == 2
    assert "needs none" in err


def test_doctor_says_what_runs(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "doctor")
    assert not code
    assert "kernels:" in out
    code, told, _ = call(monkeypatch, capsys, "doctor", "--json")
    assert not code
    assert [f"{line['what']}: {line['found']}" for line in json.loads(told)] == out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--optimizer", "zosm"], "did you mean 'zosam'"),
        (["train", "--sparsity", "1.5"], "below 1"),
        (["train", "--data", "cifar10", "--data-dir", "/nowhere"], "zosam data get cifar10"),
        (["show", "/nowhere"], "there is no folder '/nowhere'"),
        (["data", "get", "cifar11"], "did you mean"),
    ],
)
def test_errors_are_one_sentence(monkeypatch, capsys, tmp_path, arguments, message):
    extra = ["--out", tmp_path] if arguments[0] == "train" else []
    code, _, err = call(monkeypatch, capsys, *arguments, *extra)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


OWN = """
import torch
def broken(num_classes):
    return torch.nn.Flatten().nothing
def number(num_classes):
    return 3
def wide(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(7, num_classes))
def late(batch_size, seed):
    raise KeyError("label")
def nameless():
    return torch.nn.Flatten()
def ones(batch_size, seed):
    from zosam.lab import data
    source = data.digits(batch_size, seed)
    return data.Data(*[data.Tensors(s.x, s.y + 1, batch_size) for s in (source.train, source.test)], 10, (1, 8, 8))
class Streamed(list):
    def epoch(self, epoch):
        return iter(self)
def streamed(batch_size, seed):
    from zosam.lab import data
    batches = Streamed([(torch.zeros(4, 1, 8, 8), torch.full((4,), 10))])
    return data.Data(batches, batches, 10, (1, 8, 8))
def huge(num_classes):
    return torch.nn.Linear(1 << 40, num_classes)
"""
WIDE = (
    "network own_net_for_cli:wide, data digits, on 64 pictures of (1, 8, 8): RuntimeError:"
    " mat1 and mat2 shapes cannot be multiplied"
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "{tmp}/file"], "/file' is not the folder of a run"),
        (["export", "{tmp}"], "' is not the folder of a run"),
        (["show", "{tmp}/shelf"], "/shelf' is not the folder of a run: `zosam runs {tmp}/shelf` lists those there"),
        (["eval", "{tmp}/shelf/a"], "no folder '{tmp}/shelf/a': `zosam runs {tmp}/shelf` lists those there"),
        (["show", "{tmp}/shelf/begun"], "the run in '{tmp}/shelf/begun' has no finished epoch yet"),
        (["serve-bench", "{tmp}"], "is not the folder of a run"),
        (["table", "9"], "no table is called 'table9'"),
        (["table", "1", "--budget", "soon", "--only", "^SNIP / CIFAR-10 90"], "a budget is a time"),
        (["table", "1", "--shard", "5", "--only", "^SNIP / CIFAR-10 90"], "a shard is i/n"),
        (["table", "1", "--only", "("], "("),
        (["table", "1", "--seeds", "0", "--no-train"], "seeds must be 1 or more"),
        (["evidence", "main", "--seeds", "0", "--no-train"], "seeds must be 1 or more"),
        (["table", "1", "--no-train", "--results", "{tmp}/nowhere.jsonl"], "No such file"),
        (["table", "1", "--no-train", "--results", "{tmp}"], "Is a directory"),
        (["table", "1", "--no-train", "--results", "{tmp}/file"], "is no record of a run"),
        (["figure", "nothing"], "no figure is called"),
        (["report", "--out", "{tmp}/r.html", "--runs", "{tmp}", "--figures", "{tmp}/figures"], "figure 'tiny-bad'"),
        (["report", "--out", "{tmp}/file/r.html", "--runs", "{tmp}", "--figures", "{tmp}/empty"], "`zosam train`"),
        (["data", "corrupt", "--data-dir", "{tmp}", "--only", "snw"], ""),
        (["train", "--out", "{tmp}/file"], "could not be written"),
        (["train", "--model", "own_net_for_cli:broken"], "own_net_for_cli.py, line 4: AttributeError"),
        (["train", "--model", "own_net_for_cli:huge"], "there is not enough memory"),
        (["train", "--model", "own_net_for_cli:number"], "returned int, not an nn.Module"),
        (["train", "--model", "own_net_for_cli:wide"], WIDE),
        (["train", "--data", "own_net_for_cli:ones"], "data own_net_for_cli:ones has a label 10, but says 10 classes"),
        (
            ["train", "--data", "own_net_for_cli:streamed"],
            "pictures of (1, 8, 8): IndexError: Target 10 is out of bound",
        ),
        (["train", "--data", "own_net_for_cli:late"], "own_net_for_cli.py, line 10: KeyError: 'label'"),
        (["train", "--model", "own_net_for_cli:missing"], "has no 'missing'"),
        (["train", "--model", "own_net_for_cli:nameless"], "is called as own_net_for_cli:nameless(num_classes="),
        (["train", "--model", "transformers:/nowhere"], "transformers"),
        (["train", "--lr", "1e30", "--epochs", "1", "--optimizer", "sgd"], "the loss is nan"),
        (["train", "--model", "own_net_for_cli:wid"], "has no 'wid': did you mean 'wide'?"),
        (["runs", "{tmp}/nowhere"], "there is no folder '{tmp}/nowhere'"),
        (["runs", "{tmp}", "--only", "("], "regular expression"),
        (["runs", "{tmp}", "--where", "optimzer=sam"], "did you mean 'optimizer'"),
        (["runs", "{tmp}", "--where", "sam"], "takes field=value"),
        (["compare", "{tmp}"], "holds no finished run"),
        (["eval", "{tmp}"], "is not the folder of a run"),
        (["nothing"], "there is no command 'nothing'"),
        (["data"], "there is no command 'data'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_traceback_reaches_who_can_mend_it(monkeypatch, capsys, tmp_path, words, message):
    (tmp_path / "file").write_text("{}\n")
    (tmp_path / "shelf" / "begun").mkdir(parents=True)
    (tmp_path / "shelf" / "begun" / "run.json").write_text("{}")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "tiny-bad.json").write_text('{"name": 3}')
    (tmp_path / "own_net_for_cli.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = [word.format(tmp=tmp_path) for word in words]
    code, out, err = call(monkeypatch, capsys, *words)
    assert code == 2
    assert message.replace("{tmp}", str(tmp_path)) in " ".join((out + err).split())
    assert "Traceback" not in out + err


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch, capsys):
    monkeypatch.setattr("zosam.kernels.doctor", lambda: {}["ours"])
    monkeypatch.setattr("zosam.lab.cli.arguments._is_installed", lambda file: True)
    with pytest.raises(KeyError, match="ours"):
        call(monkeypatch, capsys, "doctor")


@pytest.mark.parametrize("word", ["list", "--help"])
def test_who_reads_what_is_printed_may_go(word):
    command = [sys.executable, "-m", "zosam", word]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait()


@pytest.mark.parametrize("word", ["list", "--help"])
def test_a_system_whose_text_is_not_utf8(word):
    """Such as Windows, where what is piped is in the letters of one country."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "zosam", word]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"sam" in done.stdout


def test_help_and_version_do_not_wait_for_torch(monkeypatch, capsys):
    code = """
import sys
sys.argv = ["zosam", sys.argv[1]]
import zosam.__main__ as command
try:
    command.main()
finally:
    print(sorted({"torch", "numpy", "rich", "tyro"} & set(sys.modules)), file=sys.stderr)
"""
    for word, said in (("--help", "train"), ("--version", "zosam 0.")):
        done = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True, check=True)
        assert said in done.stdout
        assert done.stderr.strip() == "[]"
    code, out, _ = call(monkeypatch, capsys, "--help")
    assert code == 0
    for name in cli.COMMANDS:
        line = next(line for line in out.splitlines() if line.startswith(f"  {name} "))
        assert len(line.split()) > 4


def test_to_look_at_runs_needs_no_library_that_only_makes_data():
    code = "import sys, zosam.lab.cli.many, zosam.lab.cli.runs; print({'scipy.ndimage', 'sklearn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_command_explains_itself(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for name in cli.COMMANDS:
        code, out, _ = call(monkeypatch, capsys, *name.split(), "--help")
        assert not code
        assert f"zosam {name}" in out
        assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("usage:"))
        assert "None" not in out
        assert "(default: )" not in out


def test_help_is_broken_only_where_a_line_is_full(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    for name in cli.COMMANDS:
        _, out, _ = call(monkeypatch, capsys, *name.split(), "--help")
        lines = [line.strip() for line in out.splitlines() if line.startswith("  ") and line.strip()]
        assert lines
        named = [line.startswith(("-", "[", "PATH", "STR")) for line in lines]
        assert all(is_named or before for before, is_named in itertools.pairwise(named)), out


def test_help_teaches(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "train", "--help")
    assert not code
    assert "--sparsity" in out
    assert "Share of weights that are zero" in out
