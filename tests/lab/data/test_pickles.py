"""The restricted unpickler: the canonical files open, anything else is refused before it runs."""

import os
import pickle
import struct

import numpy as np
import pytest

from zosam.lab.data import DataError
from zosam.lab.data.cifar import read_file
from zosam.lab.data.pickles import read_pickle


def canonical(rows, labels):
    """A CIFAR file byte for byte as Python 2 and its numpy wrote it (pickle protocol 2, byte strings)."""
    data = rows.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + (b"M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", 3072) + b"\x86")
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + struct.pack("<i", len(data)) + data + b"tb")
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 256, (5, 3072), np.uint8)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
    return path


def read(path, count=5):
    return read_file(path, count, "labels", 10, "get it again")


def test_a_file_of_python_2(tmp_path, rows):
    x, y = read(write(tmp_path / "batch", canonical(rows, [0, 1, 2, 9, 3])))
    assert np.array_equal(x.reshape(5, -1), rows)
    assert y.tolist() == [0, 1, 2, 9, 3]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_file_of_python_3(tmp_path, rows, protocol):
    content = pickle.dumps({b"data": rows, b"labels": [0, 1, 2, 3, 4]}, protocol=protocol)
    if protocol == 5:  # its arrays come as buffers, which need one more name than the CIFAR files use
        with pytest.raises(DataError, match="not data"):
            read(write(tmp_path / "batch", content))
    else:
        assert np.array_equal(read(write(tmp_path / "batch", content))[0].reshape(5, -1), rows)


class Evil:
    def __reduce__(self):
        return os.mkdir, (Evil.place,)


@pytest.mark.parametrize("inside", [False, True])
def test_code_is_not_run(tmp_path, rows, inside):
    Evil.place = str(tmp_path / "made by the pickle")
    content = {b"data": rows, b"labels": [Evil(), 0, 0, 0, 0]} if inside else Evil()
    path = write(tmp_path / "batch", content)
    with pytest.raises(DataError, match=r"batch is damaged.*mkdir, which is not data\): get it again"):
        read(path)
    assert not os.path.exists(Evil.place)
    pickle.loads(path.read_bytes())  # the trap works: a plain unpickler falls into it
    assert os.path.exists(Evil.place)


def test_other_codecs_are_refused(tmp_path):
    path = write(tmp_path / "batch", b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.")
    with pytest.raises(DataError, match="rot13"):
        read_pickle(path, "get it again")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (b"(S'true'\nios\nsystem\n.", "instruction"),  # INST
        (b"(cos\nsystem\nS'true'\no.", "asks for os.system"),
        (b"cnumpy\nndarray\n(t\x81.", "instruction NEWOBJ"),
        (b"cnumpy\nndarray\nK\x05\x85R.", "a call of numpy ndarray"),
        (b"c_codecs\nencode\n}b.", "build"),  # the function itself is not there to be changed
        (b"\x82\x01.", "instruction EXT1"),
        (b"Pfile\n.", "instruction PERSID"),
        (b"N2.", "instruction DUP"),
        (b"\x80\x02}(K\x01K\x02u.", "keys are no text"),
        (b"\x80\x02K\x05", "exhausted"),
    ],
)
def test_other_programs_are_refused(tmp_path, program, reason):
    with pytest.raises(DataError, match=reason):
        read_pickle(write(tmp_path / "batch", program), "get it again")


@pytest.mark.parametrize("keep", [0, 1, 50, 1000, -1])
def test_truncated(tmp_path, rows, keep):
    path = write(tmp_path / "batch", canonical(rows, [0, 1, 2, 3, 4])[:keep])
    with pytest.raises(DataError, match=r"batch is damaged or not a CIFAR file \(.+\): get it again"):
        read(path)


def test_wrong_content(tmp_path, rows):
    good = {b"data": rows, b"labels": [0, 1, 2, 3, 4]}
    for change, message in [
        ({b"labels": [0, 1, 2, 3, 10]}, "labels must be 0 to 9, found 0 to 10"),
        ({b"labels": [0, 1, 2, 3, -1]}, "labels must be 0 to 9, found -1 to 3"),
        ({b"labels": [0, 1, 2, 3]}, "list of 5 whole numbers"),
        ({b"labels": [0, 1, 2, 3, "4"]}, "list of 5 whole numbers"),
        ({b"data": rows[:4]}, r"shape \(5, 3072\), found uint8 \(4, 3072\)"),
        ({b"data": rows.astype(np.float32)}, "found float32"),
        ({b"data": None}, "found NoneType"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            read(write(tmp_path / "batch", {**good, **change}))
        assert str(tmp_path / "batch") in str(caught.value)
    with pytest.raises(DataError, match="holds a list"):
        read(write(tmp_path / "batch", [1]))
    with pytest.raises(DataError, match="is not there: get it again"):
        read(tmp_path / "nothing")
