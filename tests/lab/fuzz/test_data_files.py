"""Data sets of strangers: only DataError comes out, nothing is run, and no archive leaves its folder."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import pickle
import pickletools
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from zosam.lab.data import DataError
from zosam.lab.data.cifar import read_file
from zosam.lab.data.cifar_c import _array
from zosam.lab.data.corrupt.archive import _ready
from zosam.lab.data.download import Source, fetch

from .hostile import damaged, feed, numbers

KINDS = ["|u1", "<f8", "|O", "|V9", "<U99999999", "|S0", "no", "<m8[s]", "(2,3)f4", "[('a','<f4')]"]
NAMES = ["set/a", "set", "../out", "/out", "set/../../out", "set/link/out", ".", "", "set/link", "é\udc80"]
MEMBERS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S"]


def test_cifar(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    valid = [
        pickle.dumps({b"data": rows, b"labels": [0, 1, 2], b"filenames": [b"a", b"b", b"c"]}, protocol=n)
        for n in (2, 3, 4)
    ]
    path = tmp_path / "batch"

    def check(content):
        path.write_bytes(content)
        try:
            x, y = read_file(path, 3, "labels", 10, "get it again")
        except DataError:
            return
        assert x.shape == (3, 3, 32, 32)
        assert len(y) == 3

    instructions = st.sampled_from([op.code.encode("latin1") for op in pickletools.opcodes])
    program = st.lists(instructions | st.binary(max_size=8) | st.sampled_from([b"cnumpy\nndarray\n"]), max_size=30)
    feed(st.one_of(*map(damaged, valid)) | program.map(b"".join), check, examples=150)


def test_arrays(tmp_path):
    out = io.BytesIO()
    np.save(out, np.arange(30, dtype=np.uint8))
    path = tmp_path / "fog.npy"
    zipped = io.BytesIO()
    np.savez(zipped, a=np.arange(30))
    shapes = st.lists(numbers, max_size=3).map(tuple) | st.just("x")

    def headed(parts):
        kind, shape, order = parts
        header = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)

    made_up = st.tuples(st.sampled_from(KINDS), shapes, st.sampled_from(["False", "True", "None", "[1]"])).map(headed)

    def check(content):
        path.write_bytes(content)
        _ready(path, (30,))
        with contextlib.suppress(DataError):
            _array(path, (30,))

    feed(damaged(out.getvalue()) | made_up | st.just(zipped.getvalue()), check, examples=120)


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, size, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, size, link
            tar.addfile(member, io.BytesIO(bytes(size)) if kind == tarfile.REGTYPE else None)
    return out.getvalue()


def test_archives(tmp_path):
    links = st.sampled_from(["", "..", "/etc/passwd", "../../out", "set/a"])
    sizes, names, kinds = map(st.sampled_from, ([0, 5, 600], NAMES, MEMBERS))
    members = st.lists(st.tuples(names, kinds, sizes, links), max_size=5)
    valid = archive([("set/a", tarfile.REGTYPE, 600, ""), ("set/b/c", tarfile.REGTYPE, 3, "")])

    def check(content):
        with tempfile.TemporaryDirectory(dir=tmp_path) as place:
            inside = Path(place, "data")
            inside.mkdir()
            (inside / "set.tar.gz").write_bytes(content)
            with contextlib.suppress(DataError):
                fetch(Source("http://nowhere", "set.tar.gz", hashlib.md5(content).hexdigest(), "set"), inside)
            assert {p.name for p in Path(place).iterdir()} == {"data"}, "something came out"
            assert {p.name for p in inside.iterdir()} <= {"set", "set.tar.gz"}
            assert not [p for p in inside.rglob("*") if p.is_symlink()]
        assert [p.name for p in tmp_path.iterdir()] == []

    feed(members.map(archive) | damaged(valid) | damaged(gzip.decompress(valid)), check)


def test_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from zosam.lab.data.pictures import decode

    contents = []
    for kind in ("png", "jpeg", "bmp", "webp"):
        out = io.BytesIO()
        image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)).save(out, kind)
        contents.append(out.getvalue())
    path = tmp_path / "picture"

    def check(content):
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            decode(str(path))

    feed(st.one_of(*map(damaged, contents)), check)
