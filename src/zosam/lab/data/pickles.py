"""Reading the CIFAR pickles without the pickle module: arrays and plain containers come out, nothing is run.

A pickle is a program. The few instructions that the CIFAR files are made of are carried out here, each of them for
the one purpose that it has in those files; all others are refused. Memory is taken for what is in the file only.
"""

from __future__ import annotations

import math
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from zosam.lab.data.errors import DataError

LARGEST = 1 << 30  # bytes; the largest of the published files has 155 million
VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINFLOAT",
}  # fmt: skip
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # byte strings of Python 2, which pickletools gives as text
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
NAMES = {
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
    "numpy ndarray",
    "numpy dtype",
    "_codecs encode",
}


class Name(str):
    """A name that the pickle asks for: one of the five above, and never the thing itself."""


class Kind:
    """Stands for a numpy.dtype: plain numbers of one to eight bytes."""

    def __init__(self, code: bytes | str) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not re.fullmatch(r"[<>|=]?[biuf][1248]", text) or text[-2:] in {"b8", "b4", "b2", "f1"}:
            raise ValueError(f"an array of {text!r}")
        self.dtype = np.dtype(text)

    def build(self, state: Any) -> None:
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if state[2:5] != (None, None, None) or order not in ("<", ">", "|", "="):
            raise ValueError("an array of structures")
        self.dtype = self.dtype.newbyteorder(order)


class Array:
    """Stands for a numpy.ndarray, which comes when its state does."""

    value: np.ndarray[Any, Any] | None = None

    def build(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(content, bytes) or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array without a shape or without bytes")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} in {len(content)} bytes")
        self.value = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")


def call(name: Any, arguments: Any) -> Any:
    """What the pickle calls in three places: to make an array, its type, or bytes out of text."""
    if not isinstance(name, Name):
        raise ValueError("a call of something that is not a name")
    if name.endswith("_reconstruct") and arguments[0] == "numpy ndarray":
        return Array()
    if name == "numpy dtype":
        return Kind(arguments[0])
    if name == "_codecs encode":
        text, codec = arguments
        if isinstance(text, str) and codec == "latin1":
            return text.encode("latin1")
        raise ValueError(f"bytes in the encoding {codec if isinstance(codec, str) else type(codec).__name__}")
    raise ValueError(f"a call of {name} with other arguments than in the published files")


def named(module: str, name: str) -> Name:
    if f"{module} {name}" not in NAMES:
        raise ValueError(f"it asks for {module}.{name}, which is not data")
    return Name(f"{module} {name}")


def execute(content: bytes) -> Any:
    """The value that a pickle describes."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop_to_mark() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        match opcode.name:
            case name if name in VALUES:
                stack.append(argument)
            case name if name in STRINGS:
                stack.append(argument.encode("latin1"))
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case name if name in TUPLES:
                count = TUPLES[name]
                stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = [stack.pop(-2), stack.pop()] if opcode.name == "SETITEM" else pop_to_mark()
                if not all(isinstance(key, (bytes, str)) for key in items[::2]):
                    raise ValueError("a dictionary whose keys are no text")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                stack.append(named(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name = stack.pop()
                stack.append(named(stack.pop(), name))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(call(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].build(state)
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case other:
                raise ValueError(f"it holds the instruction {other}, which is not data")
    raise ValueError("it does not end")


def read_pickle(path: Path, advice: str) -> dict[str, Any]:
    """The dictionary in a pickle file; `advice` says what to do if it cannot be read."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path.stat().st_size:,} bytes are too many")
        content = execute(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is not there: {advice}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} is damaged or not a CIFAR file ({reason}): {advice}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not the dictionary of a CIFAR file: {advice}")
    plain = {k: v.value if isinstance(v, Array) else v for k, v in content.items()}
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in plain.items()}
