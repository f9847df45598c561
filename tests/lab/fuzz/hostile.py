"""Damaged and hostile content, and a way to feed it for a given time.

ZOSAM_FUZZ_SECONDS=300 feeds for so long, shared by all that are fed; without it a few examples each.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st

SECONDS = float(os.environ.get("ZOSAM_FUZZ_SECONDS", 0))
TARGETS = 15  # that share the time
DOCUMENTED = (ValueError, OSError)  # all that may come out of reading a file
numbers = st.sampled_from([0, 1, -1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
scalars = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=20) | st.just(10**400)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4))


def feed(strategy: st.SearchStrategy[Any], check: Callable[[Any], object], examples: int = 60) -> None:
    """Call `check` with many values; only the documented errors may come out."""

    def one(value: Any) -> None:
        with contextlib.suppress(*DOCUMENTED):
            check(value)

    end, number = time.monotonic() + SECONDS / TARGETS, 0
    while number == 0 or time.monotonic() < end:
        options = hypothesis.settings(
            max_examples=500 if SECONDS else examples,
            deadline=20_000,  # whatever takes longer hangs
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            print_blob=False,
        )
        hypothesis.seed(number)(options(hypothesis.given(strategy)(one)))()
        number += 1


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes changed, cut off, put in, copied over, or replaced by a large number."""
    out = bytearray(content)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(out))) if draw(st.booleans()) else draw(st.integers(0, min(len(out), 200)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "copy", "number"]))
        if kind == "flip" and at < len(out):
            out[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "remove":
            del out[at : at + draw(st.integers(1, 64))]
        elif kind == "copy":
            start = draw(st.integers(0, len(out)))
            out[at:at] = out[start : start + draw(st.integers(1, 64))]
        else:
            size, form = draw(st.sampled_from([(1, "B"), (2, "H"), (4, "I"), (8, "Q")]))
            number = draw(numbers) % (1 << 8 * size)
            out[at : at + size] = struct.pack(draw(st.sampled_from("<>")) + form, number)
    return bytes(out)


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """A JSON value with some of what is in it replaced, removed or added, at any depth."""
    for _ in range(draw(st.integers(1, 3))):
        content = _change(draw, content)
    return content


def _change(draw: st.DrawFn, content: Any) -> Any:
    if not isinstance(content, (dict, list)) or not content or draw(st.integers(0, 5)) == 0:
        return draw(values)
    if isinstance(content, dict):
        key = draw(st.sampled_from(sorted(content)))
        kind = draw(st.sampled_from(["deeper", "deeper", "remove", "rename", "add"]))
        if kind == "remove":
            return {k: v for k, v in content.items() if k != key}
        if kind == "rename":
            return {draw(st.text(max_size=10)) if k == key else k: v for k, v in content.items()}
        if kind == "add":
            return content | {draw(st.text(max_size=10)): draw(values)}
        return content | {key: _change(draw, content[key])}
    at = draw(st.integers(0, len(content) - 1))
    return [*content[:at], _change(draw, content[at]), *content[at + draw(st.integers(0, 1)) :]]


@st.composite
def reheaded(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header, the note in it included, says something else."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    about = header.get("__metadata__", {})
    if "note" in about and draw(st.booleans()):
        about["note"] = json.dumps(draw(changed(json.loads(about["note"]))))
    else:
        header = draw(changed(header))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]
