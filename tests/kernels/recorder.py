"""Records every call of the kernels with the memory that it touches, before and after.

A call becomes an image: the blocks of memory that its arguments lead to, one after another, with every pointer
turned into an offset. `replay.c` can then make the same call on another machine.
"""

from __future__ import annotations

import ctypes
import gc
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zosam.kernels.build import CONV_BACKWARD, Integer, Pointer
from zosam.kernels.memory import Sink, Source
from zosam.kernels.operations.index import Index, PixelShape, Shape
from zosam.kernels.operations.norms import BatchNormCall, LayerNormCall
from zosam.kernels.operations.pooling import WindowCall

P, N = Pointer, Integer
CALLS: list[list[Any]] = [  # what each call is given, by its number
    [Shape, Source, Index, P, Sink, N, N],
    [Shape, Source, Source, Index, Index, P, P, Sink, P, P, N, N],
    [N, N, N, N, Source, Sink, P, N, N, N, N],
    [P, P, *[N] * 11],
    [BatchNormCall, P],
    [BatchNormCall, P, P, P],
    [LayerNormCall, N],
    [PixelShape, Source, Index, P, Sink, N],
    [P, P, *[N] * 11],
    [*[N] * 6, Source, P],
    [WindowCall, N],
    [WindowCall, N, N],
]
INSIDE = {"gradient": Source, "source": Source, "sink": Sink}  # structures in others


@dataclass
class Block:
    """One piece of memory: where it lay, and where it lies in the image."""

    address: int
    size: int
    floats: bool
    offset: int = 0


@dataclass
class Call:
    """One call: its arguments, the slots of its image that hold pointers, and the image before and after."""

    number: int
    arguments: list[tuple[int, int]]  # (whether it is an offset, value)
    blocks: list[Block]
    slots: list[int]
    before: bytes = field(repr=False)
    after: bytes = field(default=b"", repr=False)

    def packed(self) -> bytes:
        """As replay.c reads it."""
        numbers = [self.number, len(self.arguments), *(n for pair in self.arguments for n in pair)]
        numbers += [len(self.slots), *self.slots, len(self.before)]
        return struct.pack(f"<{len(numbers)}q", *numbers) + self.before

    def difference(self, image: bytes) -> float:
        """The largest difference in any block of floats, against the size of what the block holds."""
        worst = 0.0
        for block in self.blocks:
            mine, theirs = (part[block.offset : block.offset + block.size] for part in (self.after, image))
            if not block.floats:
                assert mine == theirs
            else:
                a, b = (np.frombuffer(part, np.float32) for part in (mine, theirs))
                changed = a.view(np.int32) != b.view(np.int32)
                scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
                worst = max(worst, _gap(a[changed], b[changed]) / max(float(scale), 1e-30))
        return worst


def _gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.abs(a.astype(np.float64) - b).max(initial=0.0))


class Recorder:
    """Stands in for the loaded library, calls it and keeps what was called."""

    def __init__(self, c: Any) -> None:
        self.c, self.calls = c, list[Call]()
        self.old = _tensors()  # held, so that their memory is not given to others
        gc.freeze()  # from now on only what is new is looked through

    def close(self) -> list[Call]:
        gc.unfreeze()
        return self.calls

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.c, name)
        if name != "zk_calls":
            return function

        def recorded(address: int, length: int) -> int:
            waiting = list((ctypes.c_int64 * length).from_address(address))
            while waiting:  # one at a time
                count = 1 + len(CALLS[waiting[0]])
                one, waiting = (ctypes.c_int64 * count)(*waiting[:count]), waiting[count:]
                call = _record(one[0], one[1:], [*_tensors(), *self.old])
                assert function(ctypes.addressof(one), count) == 0
                call.after = _image(call.blocks, call.slots, len(call.before))
                self.calls.append(call)
            return 0

        return recorded


def _tensors() -> list[torch.Tensor]:
    return [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]


def _record(number: int, arguments: list[int], tensors: list[torch.Tensor]) -> Call:
    storages = [t.untyped_storage() for t in tensors]
    known = [Block(s.data_ptr(), s.nbytes(), True) for s in storages if s.nbytes()]
    found: dict[int, Block] = {}
    pointers: list[int] = []  # addresses of the slots that hold one

    def structures(kind: Any, address: int, count: int) -> None:
        found[address] = Block(address, count * ctypes.sizeof(kind), False)
        for member in (kind * count).from_address(address):
            for field_name, kind in getattr(member, "_fields_", []):
                if kind is Pointer and getattr(member, field_name):
                    pointers.append(ctypes.addressof(member) + getattr(type(member), field_name).offset)
                    lead(getattr(member, field_name), field_name)

    def lead(address: int, what: str = "") -> None:
        if what in INSIDE:
            return structures(INSIDE[what], address, 1)
        block = next(b for b in known if b.address <= address < b.address + b.size)
        found[block.address] = block
        return None

    given: list[tuple[int, int]] = []
    for place, (value, kind) in enumerate(zip(arguments, CALLS[number], strict=True)):
        if value and (number, place) in {(CONV_BACKWARD, 4), (CONV_BACKWARD, 5)}:  # one for each parity
            structures(kind if place == 4 else N, value, Shape.from_address(arguments[0]).stride ** 2)
        elif value and kind is P:
            lead(value)
        elif value and kind is not N:
            structures(kind, value, 1)
        given.append((int(kind is not N and value != 0), value))
    blocks, size = list(found.values()), 0
    for block in blocks:  # as aligned as they were
        block.offset = size + (block.address - size) % 64
        size = block.offset + block.size
    slots = list({address: _offset(blocks, address) for address in pointers}.values())
    arguments_out = [(kind, _offset(blocks, value) if kind else value) for kind, value in given]
    call = Call(number, arguments_out, blocks, slots, b"")
    call.before = _image(blocks, slots, size)
    return call


def _offset(blocks: list[Block], address: int) -> int:
    block = next(b for b in blocks if b.address <= address < b.address + b.size)
    return block.offset + address - block.address


def _image(blocks: list[Block], slots: list[int], size: int) -> bytes:
    image = bytearray(size)
    for block in blocks:
        image[block.offset : block.offset + block.size] = ctypes.string_at(block.address, block.size)
    for slot in slots:
        (address,) = struct.unpack_from("<q", image, slot)
        struct.pack_into("<q", image, slot, _offset(blocks, address))
    return bytes(image)
