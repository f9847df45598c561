"""Trees of tensors: what comes back is what went in, to the bit, and nothing is believed."""

from __future__ import annotations

import json
import math
import struct

import pytest
import torch
from safetensors.torch import save

from zosam.lab import serialize as tree


def test_everything_comes_back():
    state = {
        "nested": {0: [1, 2.5, None], "text": "π", "pair": (True, -0.0)},
        "odd": [float("inf"), 0.1 + 0.2, 10**30],
        "empty": [{}, [], ()],
    }
    back = tree.loads(tree.dumps(state))
    assert back == state
    assert isinstance(back["nested"]["pair"], tuple)
    assert math.copysign(1, back["nested"]["pair"][1]) == -1
    assert math.isnan(tree.loads(tree.dumps(float("nan"))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_come_back_to_the_bit(dtype):
    given = (torch.randn(3, 4) * 9).to(dtype)
    back = tree.loads(tree.dumps({"a": given, "b": [given[0]], "none": given[:0], "one": given[0, 0]}))
    assert torch.equal(back["a"].view(torch.uint8), given.view(torch.uint8))
    assert torch.equal(back["b"][0], given[0])
    assert back["none"].shape == (0, 4)
    assert back["one"].shape == ()
    assert back["a"].dtype == dtype


def test_the_layout_in_memory_comes_back():
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    turned = torch.randn(6, 7).t()
    back = tree.loads(tree.dumps([channels_last, turned, torch.randn(1, 5).expand(3, 5)]))
    assert back[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back[0], channels_last)
    assert back[1].stride() == turned.stride()
    assert torch.equal(back[1], turned)


def test_a_tensor_that_is_there_twice():
    shared = torch.randn(4)
    back = tree.loads(tree.dumps({"a": shared, "b": shared[:2]}))
    assert torch.equal(back["b"], shared[:2])


@pytest.mark.parametrize("wrong", [{1, 2}, object(), {(1, 2): 3}, {"a": [b"bytes"]}])
def test_what_is_no_data_is_not_written(wrong):
    with pytest.raises(TypeError, match=r"in a checkpoint|a checkpoint holds"):
        tree.dumps(wrong)


def lying(shape, offsets=(0, 8)):
    """A safetensors file of eight bytes that claims to hold more."""
    header = json.dumps({"tree": {"dtype": "F32", "shape": shape, "data_offsets": list(offsets)}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def packed(skeleton):
    return save({"tree": torch.frombuffer(bytearray(skeleton), dtype=torch.uint8), "0": torch.zeros(2, 3)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 40,
        struct.pack("<Q", 1 << 60) + b"{}",
        lying([1 << 40]),
        lying([1 << 40], (0, 1 << 42)),
        lying([1 << 62, 1 << 62]),
        packed(b" "),
        packed(b"[1]"),
        packed(b"{"),
        packed(b'{"tensor": ["1", [0, 1]]}'),
        packed(b'{"tensor": ["0", [0, 0]]}'),
        packed(b'{"tensor": ["0", [0, 1, 2]]}'),
        packed(b'{"set": [1]}'),
        packed(b'{"dict": [[[], 1]]}'),
        packed(b'{"list": 3}'),
        packed(b'{"list": ' * 100_000),
        packed(b'{"a": 1, "b": 2}'),
    ],
    ids=range(17),
)
def test_what_was_not_written_by_us_is_refused(content):
    with pytest.raises(ValueError, match="no tree of tensors"):
        tree.loads(content)
