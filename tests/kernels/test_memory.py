"""Buffers share room only when they never live at the same time."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import pytest

from zosam.kernels.memory import WORTH_LARGE_PAGES, Traffic, place, room
from zosam.kernels.plan import Buffer


def size(buffer: Buffer) -> int:
    return buffer.channels * buffer.height * buffer.width


def test_what_dies_makes_room() -> None:
    a, b, c = (Buffer(2, 4, 4) for _ in range(3))
    steps = [Traffic(writes=[a]), Traffic([a], [b]), Traffic([b], [c]), Traffic([c])]
    offsets, total = place(steps, size, keep=False)
    assert offsets[a] != offsets[b] != offsets[c]
    assert total == 2 * size(a)


def test_in_place_where_allowed() -> None:
    a, b = Buffer(2, 4, 4), Buffer(2, 4, 4)
    offsets, total = place([Traffic(writes=[a]), Traffic([a], [b], [(b, a)]), Traffic([b])], size, keep=False)
    assert offsets[a] == offsets[b]
    assert total == size(a)


def test_one_place_is_given_away_once() -> None:
    a, b, c = (Buffer(2, 4, 4) for _ in range(3))
    steps = [Traffic(writes=[a]), Traffic([a], [b, c], [(b, a), (c, a)]), Traffic([b, c])]
    offsets, _ = place(steps, size, keep=False)
    assert offsets[b] != offsets[c]


def test_a_buffer_still_needed_is_left_alone() -> None:
    a, b, c = (Buffer(2, 4, 4) for _ in range(3))
    steps = [Traffic(writes=[a]), Traffic([a], [b], [(b, a)]), Traffic([a, b], [c], [(c, a)])]
    offsets, _ = place(steps, size, keep=False)
    assert offsets[b] != offsets[a]


def test_training_keeps_activations_but_not_sums() -> None:
    a, b, sums = Buffer(2, 4, 4), Buffer(2, 4, 4), Buffer(2, 3, 1, sums=True)
    more = Buffer(2, 3, 1, sums=True)
    steps = [Traffic(writes=[a, sums]), Traffic([sums]), Traffic([a], [b, more], [(b, a)]), Traffic([more, b])]
    offsets, _ = place(steps, size, keep=True)
    assert offsets[a] != offsets[b]
    assert offsets[sums] == offsets[more]


@pytest.mark.parametrize("floats", [1000, WORTH_LARGE_PAGES // 4 + 1000])
def test_room_is_all_there(floats: int) -> None:
    arena = room(floats).fill_(1.0)
    assert len(arena) == floats
    assert arena.double().sum() == floats


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without large pages")
def test_large_pages_are_asked_for_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    advice: list[int] = []

    class Pages(mmap.mmap):
        def madvise(self, *arguments: Any) -> None:
            made.append(weakref.ref(self))
            advice.append(arguments[0])
            super().madvise(*arguments)

    monkeypatch.setattr(mmap, "mmap", Pages)
    arena = room(WORTH_LARGE_PAGES // 4)
    assert advice == [mmap.MADV_HUGEPAGE]
    del arena
    assert made[0]() is None


def test_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages(mmap.mmap):
        def madvise(self, *arguments: Any) -> None:
            raise OSError("not here")

    monkeypatch.setattr(mmap, "mmap", Pages)
    assert len(room(WORTH_LARGE_PAGES // 4)) == WORTH_LARGE_PAGES // 4


def test_too_much() -> None:
    with pytest.raises(RuntimeError, match="allocate"):
        room(1 << 60)
