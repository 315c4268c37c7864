"""Weighted sums of x x^T over many rows, without a second block of their size."""

from __future__ import annotations

import contextlib
import functools
import itertools
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

TALL = 2**21  # numbers of a block of rows: beyond, it is taken piece by piece
PIECE = 8192  # rows


def one_thread(rows: np.ndarray) -> AbstractContextManager[Any]:
    """One thread of BLAS for a tall block; nothing changes for a small one.

    Products of a million rows with few columns wait for memory. A second thread makes them little
    faster, and on a busy machine threads that wait for each other spend ten times the CPU.
    """
    if rows.size <= TALL:
        return contextlib.nullcontext()
    return limited_blas()


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looking for them takes a millisecond


def limited_blas() -> AbstractContextManager[Any]:
    """One thread of BLAS, for many small products: a second one only waits, at full speed."""
    return _libraries().limit(limits=1, user_api="blas")


def weighted_gram(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """sum_n weight_n x_n x_n^T, (M, M)."""
    if x.size <= TALL:
        return (x * weight[:, None]).T @ x
    total = np.zeros((x.shape[1], x.shape[1]))
    with one_thread(x):
        for first in range(0, len(x), PIECE):
            part = x[first : first + PIECE]
            total += (part * weight[first : first + PIECE, None]).T @ part
    return total


def grams_of(x: np.ndarray, weight: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The same for each of the stretches of rows between two offsets, (K, M, M)."""
    grams = np.empty((offsets.size - 1, x.shape[1], x.shape[1]))
    with one_thread(x):
        for k, (begin, end) in enumerate(itertools.pairwise(offsets)):
            part = x[begin:end]
            grams[k] = (part * weight[begin:end, None]).T @ part
    return grams
