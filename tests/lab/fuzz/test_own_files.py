"""Checkpoints, masks, networks, records and tables of strangers: only ValueError and OSError come out."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil

import pytest
import torch
from hypothesis import strategies as st

from zosam import files
from zosam.lab import checkpoints, terminal
from zosam.lab import serialize as tree
from zosam.lab.checkpoints import Progress
from zosam.lab.cli.runs import show
from zosam.lab.paper.results_store import Book
from zosam.lab.record import read_record
from zosam.lab.run import Run, finished, run
from zosam.optim import ZOSAM
from zosam.sparse import RigL, TopKAST
from zosam.sparse.save import (
    compressed_masks,
    load_compressed,
    load_state,
    read_tensors,
    save,
    save_state,
    saved_masks,
)

from .hostile import changed, damaged, feed, reheaded, values

SMALL = Run(model="digits_net:width=4", epochs=1, method="set", batch_size=512, optimizer="sgd")


def training(method=RigL):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    sparse = method(model, optimizer, sparsity=0.5, steps=100)
    optimizer.step(lambda: model(torch.randn(8, 6)).square().mean())
    return Progress(model, optimizer, sparse, steps=10, done=1)


def checkpoint(payload):
    return b"zosam checkpoint 2\n" + hashlib.sha256(payload).digest() + payload


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / made.name)


def test_damaged_checkpoints(tmp_path):
    path = checkpoints.save(tmp_path, 1, training().state())
    whole = path.read_bytes()

    def check(content):
        path.write_bytes(content)
        checkpoints.load(path)
        assert content == whole, "damage was not noticed"

    feed(damaged(whole), check)


def test_hostile_checkpoints_with_a_right_checksum(tmp_path):
    payload = tree.dumps(training().state())
    path = tmp_path / "checkpoint-000000001.pt"
    victim = training()

    def check(content):
        path.write_bytes(checkpoint(content))
        victim.load(checkpoints.load(path))

    feed(damaged(payload) | reheaded(payload), check)


def test_hostile_states():
    state, victim = training().state(), training()

    def at_random(draw, value):
        if isinstance(value, dict) and value and draw(st.integers(0, 6)):
            key = draw(st.sampled_from(list(value)))
            return {**value, key: at_random(draw, value[key])}
        return draw(values | st.just(torch.zeros(3)) | st.just(torch.zeros(2, 2, dtype=torch.int64)))

    feed(st.composite(lambda draw: at_random(draw, state))(), lambda s: victim.load(tree.loads(tree.dumps(s))))


@pytest.mark.parametrize("kind", [RigL, TopKAST])
def test_sparse_states(tmp_path, kind):
    path, sparse = tmp_path / "sparse.safetensors", training(kind).sparse
    save_state(sparse, path)
    content = path.read_bytes()

    def check(content):
        path.write_bytes(content)
        before = {n: m.clone() for n, m in sparse.masks.items()}
        try:
            load_state(sparse, path)
        except ValueError:
            assert all(torch.equal(before[n], m) for n, m in sparse.masks.items())
        saved_masks(path)

    feed(damaged(content) | reheaded(content), check, examples=80)


def test_compressed_models(tmp_path):
    path, now = tmp_path / "model", training()
    save(now.model, path, now.sparse.masks)
    content = path.read_bytes()

    def check(content):
        path.write_bytes(content)
        state = load_compressed(path)
        claimed = sum(t.numel() * t.element_size() for t in {id(t): t for t in state.values()}.values())
        assert claimed <= 64 * len(content)  # a bit is at most a number of eight bytes
        compressed_masks(path)

    feed(damaged(content) | reheaded(content), check, examples=80)


def test_trained_networks(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    files.write_json(folder / "record.json", read_record(folder) | {"checksums": {}})

    def check(content):
        path.write_bytes(content)
        read_tensors(path)
        finished(folder).load()

    feed(damaged(content) | reheaded(content), check, examples=25)


def test_records(folder, monkeypatch):
    monkeypatch.setattr(terminal.console, "_file", io.StringIO())  # `file` would be put back as it was then
    path = folder / "record.json"
    whole = read_record(folder)  # without the checksum, which a stranger can make too
    files.write_json(path, whole)

    def check(content):
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            show(folder)
        finished(folder).load()

    feed(changed(whole).map(lambda v: json.dumps(v).encode()) | damaged(path.read_bytes()), check, examples=40)


def test_notes_of_whose_folder_it_is(folder, monkeypatch):
    path = folder / "run.json"
    whole = files.read_json(path)
    (folder / "record.json").unlink()
    monkeypatch.setattr("zosam.lab.run.attempt", lambda *_: None)

    def check(content):
        path.write_bytes(content)
        run(SMALL, folder.parent)

    feed(changed(whole).map(lambda v: json.dumps(v).encode()) | damaged(path.read_bytes()), check, examples=40)


def test_runs_out_of_tables():
    fields = st.sampled_from(sorted(SMALL.__dataclass_fields__))
    names = st.sampled_from(["rigl", "sam:rho=1", "wrn:depth=16", "a:b", "set:every=", "digits:x=1/0", "sgd", "timm:x"])
    feed(st.dictionaries(fields, names | values, max_size=4), lambda given: Run(**given).folder, examples=200)


def test_lines_of_results(made, tmp_path):
    content = files.read_json(made / "record.json")
    line = {"key": SMALL.key, "run": SMALL.description, **{k: content[k] for k in ("made_with", "classes", "epochs")}}
    path = tmp_path / "results.jsonl"

    def check(content):
        path.write_bytes(content)
        Book.open(tmp_path / "runs", [path])

    feed(changed(line).map(lambda v: json.dumps(v).encode()) | damaged(json.dumps(line).encode()), check)
