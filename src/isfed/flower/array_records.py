"""Flower's arrays, read as coming from someone who may be wrong or hostile.

Flower reads an array with `np.load`, which believes the header of the bytes: it may allocate what
the header names, open an archive, or raise any of a dozen errors. Here the header is compared with
the one that the expected array has, and nothing is allocated before the two agree.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

TYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}  # a model's, and how NumPy says it
KEPT = ("bool", "int8", "int16", "int32", "int64", "uint8")  # counters: sent along, not trained
MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 4096  # NumPy writes 118 bytes for most arrays; a shape of 64 numbers needs 1600
LONGEST_TEXT = 200


class WireError(ValueError):
    """A message that is not what the other side should have sent."""


def printable(text: object, length: int = LONGEST_TEXT) -> str:
    """What another party wrote, for a log: one line of printable characters, cut.

    >>> printable("one\\ntwo" + 300 * "!", 12)
    'one two!!!!!...'
    """
    given = str(text)[: 4 * length]  # cut first: it may be long
    line = " ".join("".join(c if c.isprintable() else " " for c in given).split())
    return f"{line[:length]}..." if len(line) > length or len(str(text)) > 4 * length else line


def read_bytes(data: bytes, *, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The vector in the bytes of `np.save`, if they hold exactly an array of that type and shape.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.array([[1.0, 2.0]]))
    >>> read_bytes(file.getvalue(), dtype="float64", shape=(1, 2))
    array([1., 2.])
    """
    if data[:6] != MAGIC:
        raise WireError(f"expected the bytes of np.save, got {printable(data[:8])}")
    size = {1: 2, 2: 4}.get(data[6] if len(data) > 6 else 0)  # bytes that hold the length
    if size is None:
        raise WireError(f"expected version 1 or 2 of NumPy's format, got {data[6:8].hex()}")
    begin = 8 + size
    length = int.from_bytes(data[8:begin], "little")
    if length > LONGEST_HEADER or len(data) < begin + length:
        raise WireError(f"a header of {length} bytes in a message of {len(data)}")
    header = data[begin : begin + length].rstrip(b" \n")
    for fortran in (False, True):
        expected = f"{{'descr': '{TYPES[dtype]}', 'fortran_order': {fortran}, 'shape': {shape}, }}"
        if header == expected.encode():
            break
    else:
        raise WireError(
            f"expected an array {shape} of {dtype}, got {printable(header.decode('latin'))}"
        )
    body = memoryview(data)[begin + length :]
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    if len(body) != wanted:
        raise WireError(f"expected {wanted} bytes of numbers, got {len(body)}")
    values = np.frombuffer(body, TYPES[dtype])
    return values.reshape(shape, order="F").ravel() if fortran else values


BATCH_NORM = ("running_mean", "running_var")  # the last part of the names of its buffers


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's arrays of real numbers, which make one vector.

    Attributes:
        kept: the arrays of whole numbers, such as the counters of batch norm: they are sent down
            with the model, never come up, and keep their values.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    kept: dict[str, Array] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a model; only real floating-point arrays can be trained."""
        trained = {name: array for name, array in arrays.items() if array.dtype not in KEPT}
        for name, array in trained.items():
            about = f"array {printable(name, 40)!r} has the"
            if array.dtype not in TYPES:
                wrong = f"{about} type {printable(array.dtype, 40)}"
                raise WireError(f"{wrong}; a model's must be one of {', '.join(TYPES)}")
            if any(size < 0 for size in array.shape):
                raise WireError(f"{about} shape {printable(array.shape, 40)}")
        layout = cls(
            tuple(trained),
            tuple(tuple(array.shape) for array in trained.values()),
            tuple(array.dtype for array in trained.values()),
            {name: array for name, array in arrays.items() if name not in trained},
        )
        if sum(layout.sizes) == 0:
            raise WireError("the model has no numbers; a model needs at least one array with some")
        return layout

    @property
    def sizes(self) -> list[int]:
        """How many numbers every array has."""
        return [math.prod(shape) for shape in self.shapes]

    def buffers(self, given: Iterable[str] | None) -> tuple[str, ...]:
        """The arrays that are not trained: those named, else those of PyTorch's batch norm."""
        if given is None:
            return tuple(name for name in self.names if name.rpartition(".")[2] in BATCH_NORM)
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise ValueError(f"buffers: the model has no float array {printable(unknown[0], 40)!r}")
        return tuple(name for name in self.names if name in set(given))

    def mask(self, names: Iterable[str]) -> np.ndarray:
        """(M,) which numbers of the vector belong to the arrays named."""
        chosen = set(names)
        return np.repeat([name in chosen for name in self.names], self.sizes)

    def flatten(self, arrays: ArrayRecord) -> np.ndarray:
        """One vector of float64 from arrays of this layout."""
        given = sum(name not in self.kept for name in arrays)
        if given != len(self.names):
            raise WireError(f"expected {len(self.names)} arrays, got {given}")
        parts = []
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            array: Any = arrays.get(name)
            if array is None:
                given = printable(", ".join(printable(other, 20) for other in list(arrays)[:4]))
                raise WireError(f"expected an array {printable(name, 40)!r}, got {given}")
            if tuple(array.shape) != shape or array.dtype != dtype:
                raise WireError(
                    f"expected {printable(name, 40)} of shape {shape} and type {dtype}, got "
                    f"{printable(tuple(array.shape)[:8], 60)} and {printable(array.dtype, 40)}"
                )
            parts.append(read_bytes(array.data, dtype=dtype, shape=shape))
        return np.concatenate(parts, dtype=np.float64)

    def holds(self, vector: np.ndarray) -> bool:
        """Whether the arrays' types can hold these numbers: float16 ends at 65504."""
        largest = np.repeat([float(np.finfo(dtype).max) for dtype in self.dtypes], self.sizes)
        return bool((np.abs(vector) <= largest).all())  # NaN is held by none

    def arrange(self, vector: np.ndarray) -> ArrayRecord:
        """The arrays of this layout from one vector."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1])
        # asarray: arithmetic on an array without dimensions gives a scalar
        return ArrayRecord({
            name: Array(np.asarray(part.reshape(shape), dtype=dtype))
            for name, shape, dtype, part in zip(
                self.names, self.shapes, self.dtypes, parts, strict=True
            )
        })  # fmt: skip

    def model(self, vector: np.ndarray) -> ArrayRecord:
        """The same with the arrays that are sent along: all that a module is loaded from."""
        return ArrayRecord({**self.arrange(vector), **self.kept})
