"""Files that claim absurd sizes: refused before memory is taken, as the system counts it."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch

from zosam.lab.record import NUMBERS
from zosam.sparse import SET
from zosam.sparse.save import save, save_state

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
HUGE = 1 << 40
CHILD = """
import json, sys
from pathlib import Path
import torch, numpy, safetensors.torch, torch._dynamo
from zosam import files
from zosam.lab import checkpoints
from zosam.lab.data.cifar import read_file
from zosam.lab.data.cifar_c import _array
from zosam.lab.run import finished
from zosam.sparse import SET
from zosam.sparse.save import load_compressed, load_state, read_tensors, saved_masks
layer = torch.nn.Linear(8, 8)
sparse = SET(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, steps=1000)
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("VmPeak", "VmHWM")))
for name, (path, call) in {files!r}.items():
    path, before, said = Path(path), peak(), "nothing"
    try:
        eval(call)
    except ValueError as error:
        said = str(error)
    except Exception as error:
        said = repr(error)
        before = -10**9
    print(json.dumps([name, peak() - before, said]))
"""


def header(**tensors):
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


def claims(shape, end=64):
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}


def with_note(write, folder, **note):
    """One of our own files, with another note in it."""
    layer = torch.nn.Linear(8, 8)
    sparse = SET(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, steps=1000)
    write(layer, sparse, folder / "whole")
    content = (folder / "whole").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    head = json.loads(content[8 : 8 + size])
    head["__metadata__"]["note"] = json.dumps(json.loads(head["__metadata__"]["note"]) | note)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def compressed(folder, shape):
    return with_note(lambda m, s, p: save(m, p, s.masks), folder, packed={"weight": shape})


def state(folder, shape):
    return with_note(lambda m, s, p: save_state(s, p), folder, packed={"masks/weight": shape})


def array(shape):
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)


def pickled(rows):
    """A CIFAR file whose array claims more rows than there are bytes."""
    return (
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        + (b"(K\x01(\x8a\x06" + rows.to_bytes(6, "little") + b"M\x00\x0ct")
        + b"cnumpy\ndtype\nX\x02\x00\x00\x00u1K\x00K\x01\x87R(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89C\x04abcdtbs."
    )


def sealed(payload):
    return b"zosam checkpoint 2\n" + hashlib.sha256(payload).digest() + payload


def record(network):
    content = {"status": "finished", "run": {"model": network}, "made_with": {}, "classes": 10}
    return json.dumps(content | {"epochs": [dict.fromkeys(NUMBERS, 1)]}).encode()


CIFAR = "read_file(path, 3, 'labels', 10, '')"
SHAPES = ([HUGE], [1 << 20, 1 << 20], [1 << 32, 1 << 32], [-1, -HUGE], [0, HUGE, 1 << 62])
BOMBS = {
    "checkpoint": ("checkpoints.load(path)", sealed(header(tree=claims([HUGE])))),
    "checkpoint, offsets": ("checkpoints.load(path)", sealed(header(tree=claims([HUGE], 4 * HUGE)))),
    "checkpoint, header": ("checkpoints.load(path)", sealed(struct.pack("<Q", HUGE) + b"{}")),
    "checkpoint, a terabyte": ("checkpoints.load(path)", HUGE),
    "tensors": ("read_tensors(path)", header(a=claims([HUGE], 4 * HUGE))),
    "array": ("_array(path, (3,))", array((HUGE,))),
    "pickle, bytes": (CIFAR, b"\x80\x04\x8e" + struct.pack("<Q", HUGE) + b"abc."),
    "pickle, memory": (CIFAR, b"\x80\x02Nr\xff\xff\xff\x7f."),
    "pickle, shape": (CIFAR, pickled(HUGE)),
    "pickle, a terabyte": (CIFAR, HUGE),
    "json, a terabyte": ("files.read_json(path)", HUGE),
    "record": ("finished(path.parent).load()", record("wrn:depth=28,width=9000")),
} | {
    f"{call} {shape}": (f"{call}", make, shape)
    for shape in SHAPES
    for call, make in (
        ("load_compressed(path)", compressed),
        ("load_state(sparse, path)", state),
        ("saved_masks(path)", state),
    )
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, forked):
    """What became of each of them, in one process that does nothing else."""
    files = {}
    for name, (call, content, *shape) in BOMBS.items():
        folder = tmp_path_factory.mktemp("bomb")
        path = folder / "record.json"
        if isinstance(content, int):
            with path.open("wb") as file:
                file.truncate(content)  # takes no room on the disk
        else:
            path.write_bytes(content(folder, *shape) if shape else content)
        (folder / "model.safetensors").write_bytes(header(a=claims([16])))
        files[name] = (str(path), call)
    files["nothing wrong"] = ("", "numpy.ones(10**9, numpy.uint8)")
    child = forked(CHILD.format(files=files))
    assert child.ends() == 0, child.says()[-2000:]
    return {name: (kilobytes, said) for name, kilobytes, said in map(json.loads, child.says().splitlines())}


@pytest.mark.parametrize("name", BOMBS)
def test_refused_before_memory_is_taken(outcome, name):
    kilobytes, said = outcome[name]
    assert kilobytes < 100_000, said
    assert said != "nothing"


def test_the_measure_measures(outcome):
    kilobytes, said = outcome["nothing wrong"]
    assert kilobytes > 900_000
    assert said == "nothing"
