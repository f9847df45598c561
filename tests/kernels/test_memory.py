"""Buffers share room only when they never live at the same time."""

from __future__ import annotations

from zosam.kernels.memory import Traffic, place
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
