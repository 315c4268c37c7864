"""Between NumPy and PyTorch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(array: Any) -> Tensor:
    """A tensor over the memory of an array, which is only read; a reversed one is copied."""
    if isinstance(array, np.ndarray) and any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Federated data is read-only; PyTorch warns that it cannot keep it so. We only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(array)


def numpy_type(dtype: torch.dtype) -> np.dtype:
    """The NumPy type with the same name; float32 for one that NumPy does not have."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(name) if hasattr(np, name) else np.dtype(np.float32)


def all_finite(vector: Tensor) -> bool:
    """Whether every number is finite; their squares usually say so, in one fast pass."""
    square = float(torch.dot(vector, vector))
    return math.isfinite(square) or bool(torch.isfinite(vector).all())


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch uses one thread inside: other processes use the other cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's generators start from `seed` inside, and are outside what they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def reseed(seed: int, device: torch.device) -> None:
    """Start the generator of one device from `seed`.

    `torch.manual_seed` starts those of all devices, and takes a fifth of a millisecond for it.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
