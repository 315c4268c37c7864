"""Arithmetic with the same bits on every processor: every sum has one order.

NumPy's `exp` has other last bits with AVX-512, and BLAS adds in an order of its kernel and threads.
Products are fused multiply-adds (IEEE 754), functions those of the system's library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numba import config, types
from numba.extending import intrinsic

from isfed.base.jit import compiled, jit_inline

WIDE = 8  # from as many columns on, the columns are the lanes
BLOCK = 2048  # columns at a time, whose sums stay in the fastest memory
SWEEPS = 60  # of Jacobi's method, which needs about eight
ROUNDING = 1e-15


def _fma(typingctx, a, b, c):
    """a b + c, rounded once."""
    double = types.float64
    return double(double, double, double), lambda context, builder, kind, args: builder.fma(*args)


def _fma_in_python(a, b, c):
    """The same by exact fractions."""
    plain = a * b + c
    return float(Fraction(a) * Fraction(b) + Fraction(c)) if math.isfinite(plain) else plain


_COMPILES = not config.DISABLE_JIT  # pyright: ignore[reportAttributeAccessIssue]
_fused: Any = intrinsic(_fma) if _COMPILES else _fma_in_python


@jit_inline
def dot(values, row, params, size):
    """The inner product of one row with `params`, in eight lanes of a fixed order."""
    whole = size & ~7
    if whole == 0:
        total = 0.0
        for j in range(size):
            total += values[row, j] * params[j]
        return total
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, whole, 8):
        s0 += values[row, j] * params[j]
        s1 += values[row, j + 1] * params[j + 1]
        s2 += values[row, j + 2] * params[j + 2]
        s3 += values[row, j + 3] * params[j + 3]
        s4 += values[row, j + 4] * params[j + 4]
        s5 += values[row, j + 5] * params[j + 5]
        s6 += values[row, j + 6] * params[j + 6]
        s7 += values[row, j + 7] * params[j + 7]
    total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
    for j in range(whole, size):
        total += values[row, j] * params[j]
    return total


@jit_inline
def square(values, row, size):
    """The squared length of one row, in the same lanes."""
    if size < 8:  # the row as an argument takes longer than so short a sum
        total = 0.0
        for j in range(size):
            total += values[row, j] * values[row, j]
        return total
    return dot(values, row, values[row], size)


@compiled
def row_squares(features):
    """The squared length of every row, bit for bit as `batch_gradient` would compute it."""
    squares = np.empty(features.shape[0])
    for row in range(squares.size):
        squares[row] = square(features, np.uint64(row), features.shape[1])
    return squares


def row_norms(rows: np.ndarray) -> np.ndarray:
    """(n,) the length of every row."""
    return np.sqrt(row_squares(_plain(rows)))


def norm(vector: Any) -> float:
    """The length of a vector."""
    return math.sqrt(row_squares(_plain(vector).reshape(1, -1))[0])


def distance_between(one: np.ndarray, two: np.ndarray, size: int) -> float:
    """The length of the difference of the first entries of two vectors."""
    return math.sqrt(_distance_square(_plain(one), _plain(two), size))


@compiled
def _distance_square(one, two, size):
    lanes, whole = np.zeros(8), size & ~7
    for j in range(0, whole, 8):
        for lane in range(8):
            lanes[lane] += (one[j + lane] - two[j + lane]) ** 2
    total = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + (
        (lanes[1] + lanes[5]) + (lanes[3] + lanes[7])
    )
    for j in range(whole, size):
        total += (one[j] - two[j]) ** 2
    return total


def inner(one: np.ndarray, two: np.ndarray) -> float:
    """The inner product of two vectors."""
    return _inner(_plain(one).reshape(1, -1), _plain(two))


@compiled
def _inner(one, two):
    return dot(one, 0, two, one.shape[1])


def weighted_sum(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(M,) weights @ rows.

    >>> weighted_sum(np.array([1.0, 2.0]), np.array([[1.0, 10.0], [3.0, 30.0]]))
    array([ 7., 70.])
    """
    count, size = rows.shape
    if weights.shape != (count,):
        raise ValueError(f"{weights.shape} weights do not fit {rows.shape} rows")
    out = np.zeros(size)
    _weigh(_plain(weights), _plain(rows), out)
    return out


@compiled
def _weigh(weights, rows, out):
    count, size = rows.shape
    if size >= WIDE:
        _add_rows(weights, rows, out)
        return
    whole = count & ~3
    for j in range(size):  # in four lanes: their sums do not wait for each other
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for i in range(0, whole, 4):
            s0 = _fused(weights[i], rows[i, j], s0)
            s1 = _fused(weights[i + 1], rows[i + 1, j], s1)
            s2 = _fused(weights[i + 2], rows[i + 2, j], s2)
            s3 = _fused(weights[i + 3], rows[i + 3, j], s3)
        total = (s0 + s2) + (s1 + s3)
        for i in range(whole, count):
            total = _fused(weights[i], rows[i, j], total)
        out[j] = total


@jit_inline
def _add_rows(weights, rows, out):
    """Add to `out` every row times its weight, from the last row to the first."""
    rest = rows.shape[0] & 3
    for begin in range(0, out.size, BLOCK):
        end = begin + BLOCK
        sums = out[begin:end]
        # Four rows at a time, which changes no bit: the sums are read and written less often.
        for i in range(rows.shape[0] - 4, rest - 1, -4):
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            r0, r1 = rows[i, begin:end], rows[i + 1, begin:end]
            r2, r3 = rows[i + 2, begin:end], rows[i + 3, begin:end]
            for j in range(sums.size):
                late = _fused(w2, r2[j], _fused(w3, r3[j], sums[j]))
                sums[j] = _fused(w0, r0[j], _fused(w1, r1[j], late))
        for i in range(rest - 1, -1, -1):
            row, weight = rows[i, begin:end], weights[i]
            for j in range(sums.size):
                sums[j] = _fused(weight, row[j], sums[j])


def matvec(rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """(n,) rows @ vector."""
    return product(rows, vector[:, None])[:, 0]


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right of two matrices; every sum runs from the last term to the first.

    That is the order of BLAS for two terms, with which the data of `PAPER` were first made.
    """
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not fit")
    out = np.zeros((left.shape[0], right.shape[1]))
    _multiply(_plain(left), _plain(right), out)
    return out


def _plain(values: Any) -> np.ndarray:
    """As one kind of array, so that little is compiled."""
    return np.ascontiguousarray(values, np.float64)


@compiled
def _multiply(left, right, out):
    count, size = right.shape
    if size >= WIDE:
        for i in range(left.shape[0]):
            _add_rows(left[i], right, out[i])
        return
    whole = left.shape[0] & ~3  # four rows at a time, for the same reason
    for i in range(0, whole, 4):
        for j in range(size):
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for m in range(count - 1, -1, -1):
                value = right[m, j]
                s0 = _fused(left[i, m], value, s0)
                s1 = _fused(left[i + 1, m], value, s1)
                s2 = _fused(left[i + 2, m], value, s2)
                s3 = _fused(left[i + 3, m], value, s3)
            out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = s0, s1, s2, s3
    for i in range(whole, left.shape[0]):
        _add_rows(left[i], right, out[i])


def _each(function: Callable[[float], float]) -> Callable[[Any], np.ndarray]:
    """A function of the system's library, of every number of an array."""

    @compiled
    def apply(values, out):
        for i in range(values.size):
            out[i] = function(values[i])

    def of_array(values: Any) -> np.ndarray:
        given = np.asarray(values, np.float64)
        out = np.empty(given.size)
        apply(np.ascontiguousarray(given).reshape(-1), out)
        return out.reshape(given.shape)

    return of_array


exp, log, log1p, arccos = _each(math.exp), _each(math.log), _each(math.log1p), _each(math.acos)


def power(base: Any, exponent: Any) -> np.ndarray:
    """base ** exponent of every pair of numbers."""
    bases, exponents = np.broadcast_arrays(base, exponent)
    out = np.empty(bases.size)
    _raise(np.array(bases, float).reshape(-1), np.array(exponents, float).reshape(-1), out)
    return out.reshape(bases.shape)


@compiled
def _raise(bases, exponents, out):
    for i in range(out.size):
        out[i] = bases[i] ** exponents[i]


def left_singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(r, n) the left singular vectors of an n x m matrix as rows, and (r,) its singular values.

    By Jacobi's rotations of one side, in no order of the values; r is the smaller of n and m. The
    vector of a value that is zero is zero, unless n <= m.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    rows = np.array(matrix if wide else matrix.T, np.float64, order="C")
    turned = np.eye(len(rows))
    _orthogonalise(rows, turned)
    values = row_norms(rows)
    if wide:
        return turned, values
    return rows / np.where(values > 0.0, values, 1.0)[:, None], values


@compiled
def _orthogonalise(rows, turned):
    """Turn pairs of rows until all are orthogonal; `turned` is turned with them."""
    size = rows.shape[1]
    for _ in range(SWEEPS):
        done = True
        for i in range(rows.shape[0] - 1):
            for k in range(i + 1, rows.shape[0]):
                one, two = square(rows, i, size), square(rows, k, size)
                both = dot(rows, i, rows[k], size)
                if not abs(both) > ROUNDING * math.sqrt(one) * math.sqrt(two):
                    continue
                done = False
                slope = (two - one) / (2.0 * both)
                tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1.0 + slope * slope))
                cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
                _turn(rows, i, k, cosine, cosine * tangent)
                _turn(turned, i, k, cosine, cosine * tangent)
        if done:
            return


@jit_inline
def _turn(rows, i, k, cosine, sine):
    for j in range(rows.shape[1]):
        one, two = rows[i, j], rows[k, j]
        rows[i, j] = cosine * one - sine * two
        rows[k, j] = sine * one + cosine * two
