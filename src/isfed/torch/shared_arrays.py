"""Arrays that several processes see: one file that all of them map, in memory where possible.

Models and changes are large and cross between processes in every round. Through a pipe they would
be copied four times; here the sender writes them where the receiver reads them.
"""

from __future__ import annotations

import mmap
import os
import shutil
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from isfed.base.temporary_folders import HeldFolder, remove_abandoned

PREFIX = "isfed-mail-"
MEMORY = Path("/dev/shm")  # a folder of files that are never written to a disk, on Linux
_ALIGN = 64
_OPEN: dict[str, np.ndarray] = {}  # of a worker process: the mailbox that it has mapped


class Place(NamedTuple):
    """Where an array is in a mailbox."""

    path: str
    begin: int
    shape: tuple[int, ...]
    dtype: str


class Mailbox:
    """Places for the arrays of one round; `clear` makes room for the next round's."""

    def __init__(self) -> None:
        self.folder: HeldFolder | None = None
        self.bytes = np.empty(0, np.uint8)
        self.path, self.used = "", 0

    def clear(self, size: int) -> None:
        """Forget what is there, and have room for `size` bytes."""
        self.used = 0
        if size <= self.bytes.size:
            return
        self.close()
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * size
        parent = MEMORY if in_memory else None
        remove_abandoned(PREFIX, parent)
        self.folder = HeldFolder(PREFIX, parent)
        # Another name for every size: a process that has the old file finds that it is another.
        self.path = str(self.folder.path / str(size))
        with open(self.path, "wb") as file:
            if hasattr(os, "posix_fallocate"):  # or writing would be fatal where there is no room
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        self.bytes = _mapped(self.path)

    def reserve(self, shape: tuple[int, ...], dtype: np.dtype) -> Place:
        """Room for an array; `clear` was told of enough."""
        place = Place(self.path, self.used, shape, np.dtype(dtype).str)
        self.used += space(shape, dtype)
        return place

    def array(self, place: Place) -> np.ndarray:
        """The array at a place; it changes when somebody writes there."""
        return _array(self.bytes, place)

    def send(self, array: np.ndarray) -> Place:
        """Copy an array to the next place."""
        place = self.reserve(array.shape, array.dtype)
        self.array(place)[...] = array
        return place

    def close(self) -> None:
        """Remove the file; arrays that are still in use keep their memory until they are not."""
        self.bytes = np.empty(0, np.uint8)
        if self.folder is not None:
            self.folder.close()
            self.folder = None


def space(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The bytes that an array takes in a mailbox."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGN) * _ALIGN


def received(place: Place) -> np.ndarray:
    """The array at a place, in a process that did not make the mailbox."""
    if place.path not in _OPEN:
        _OPEN.clear()
        _OPEN[place.path] = _mapped(place.path)
    return _array(_OPEN[place.path], place)


def _mapped(path: str) -> np.ndarray:
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def _array(data: np.ndarray, place: Place) -> np.ndarray:
    size = prod(place.shape) * np.dtype(place.dtype).itemsize
    return data[place.begin : place.begin + size].view(place.dtype).reshape(place.shape)
