"""Between NumPy and PyTorch: arrays and seeds."""

from __future__ import annotations

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


def as_float64(values: Tensor) -> np.ndarray:
    """The numbers of a tensor."""
    return values.detach().to("cpu", torch.float64).numpy()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's generators start from `seed` inside, and are outside what they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
