"""Fixed orders of sums, against the same order written out with exact fractions."""

import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from isfed.base import portable_arithmetic

RNG = np.random.default_rng(0)
SHAPES = [
    (1, 1, 1),
    (4, 2, 1),
    (7, 5, 2),
    (3, 4, 8),
    (6, 9, 11),
    (2, 3, 2 * portable_arithmetic.BLOCK + 5),
]


def fused(a: float, b: float, c: float) -> float:
    """a b + c rounded once: a fraction is exact, and becomes the nearest float."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def backwards(one: np.ndarray, two: np.ndarray) -> float:
    total = 0.0
    for a, b in zip(one[::-1].tolist(), two[::-1].tolist(), strict=True):
        total = fused(a, b, total)
    return total


@pytest.mark.parametrize(("rows", "terms", "columns"), SHAPES)
def test_a_product_adds_from_the_last_term_to_the_first(rows, terms, columns):
    left, right = RNG.standard_normal((rows, terms)), RNG.standard_normal((terms, columns))
    literal = [[backwards(row, column) for column in right.T] for row in left]
    np.testing.assert_array_equal(portable_arithmetic.product(left, right), literal)
    np.testing.assert_array_equal(
        portable_arithmetic.matvec(left, right[:, 0]), [backwards(row, right[:, 0]) for row in left]
    )


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_weighted_sum_of_short_rows_adds_in_four_lanes(count):
    weights, rows = RNG.standard_normal(count), RNG.standard_normal((count, 3))
    whole = count - count % 4
    literal = []
    for column in rows.T:
        lanes = [0.0] * 4
        for i in range(whole):
            lanes[i % 4] = fused(weights[i], column[i], lanes[i % 4])
        total = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
        for i in range(whole, count):
            total = fused(weights[i], column[i], total)
        literal.append(total)
    np.testing.assert_array_equal(portable_arithmetic.weighted_sum(weights, rows), literal)


def test_a_weighted_sum_of_long_rows_adds_backwards():
    weights, rows = RNG.standard_normal(7), RNG.standard_normal((7, 20))
    literal = [backwards(weights, column) for column in rows.T]
    np.testing.assert_array_equal(portable_arithmetic.weighted_sum(weights, rows), literal)


def test_lengths_and_inner_products_add_in_eight_lanes():
    one, two = RNG.standard_normal((2, 19))
    products = (one * two).tolist()
    s = [products[i] + products[i + 8] for i in range(8)]
    total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
    for last in products[16:]:
        total += last
    assert portable_arithmetic.inner(one, two) == total
    assert portable_arithmetic.norm(one) == math.sqrt(portable_arithmetic.inner(one, one))
    np.testing.assert_array_equal(
        portable_arithmetic.row_norms(one[None]), [portable_arithmetic.norm(one)]
    )


def test_any_layout_and_kind_of_number_will_do():
    rows = RNG.standard_normal((6, 10))
    rows.flags.writeable = False
    whole, plain = np.array([1, 0, 2]), np.array([1.0, 0.0, 2.0])
    found = portable_arithmetic.weighted_sum(whole, rows[::2, ::3])
    np.testing.assert_array_equal(
        found, portable_arithmetic.weighted_sum(plain, rows[::2, ::3].copy())
    )
    assert portable_arithmetic.weighted_sum(np.empty(0), np.empty((0, 3))).tolist() == [0.0] * 3
    assert (
        portable_arithmetic.product(np.empty((2, 0)), np.empty((0, 9))).tolist() == [[0.0] * 9] * 2
    )
    with pytest.raises(ValueError, match="do not fit"):
        portable_arithmetic.weighted_sum(plain, rows)
    with pytest.raises(ValueError, match="do not fit"):
        portable_arithmetic.product(rows, rows)


@pytest.mark.parametrize(
    ("ours", "systems"),
    [
        (portable_arithmetic.exp, math.exp), (portable_arithmetic.log, math.log),
        (portable_arithmetic.log1p, math.log1p),
        (portable_arithmetic.arccos, math.acos),
    ],
)  # fmt: skip
def test_functions_are_those_of_the_systems_library(ours, systems):
    values = RNG.random((5, 40))
    literal = [[systems(value) for value in row] for row in values.tolist()]
    np.testing.assert_array_equal(ours(values), literal)


def test_powers_are_those_of_the_systems_library():
    values = RNG.random(200)
    literal = [value**1.7 for value in values.tolist()]
    np.testing.assert_array_equal(portable_arithmetic.power(values, 1.7), literal)
    literal = [1.7**value for value in values.tolist()]
    np.testing.assert_array_equal(portable_arithmetic.power(1.7, values), literal)


@pytest.mark.parametrize("shape", [(1, 1), (20, 2), (5, 30), (12, 12)])
@pytest.mark.parametrize("dependent", [False, True])
def test_singular_vectors_are_those_of_lapack(shape, dependent):
    matrix = RNG.standard_normal(shape)
    if dependent:
        matrix[:, -1] = 2.0 * matrix[:, 0]
        matrix[-1] = 0.0
    vectors, values = portable_arithmetic.left_singular(matrix)
    left, expected, _ = np.linalg.svd(matrix, full_matrices=False)
    largest = max(expected[0], 1e-300)
    np.testing.assert_allclose(np.sort(values)[::-1], expected, atol=1e-13 * largest)
    root, literal = (vectors.T * values) @ vectors, (left * expected) @ left.T
    np.testing.assert_allclose(root, literal, atol=1e-13 * largest)


def test_the_same_bits_without_compiling():
    code = (
        "import numpy as np; from isfed.base.portable_arithmetic import product, weighted_sum;"
        "x = np.random.default_rng(3).standard_normal((9, 9));"
        "print(product(x, x[:, :3]).tobytes().hex(), weighted_sum(x[0], x).tobytes().hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "NUMBA_DISABLE_JIT": flag},
            capture_output=True, text=True, check=True,
        )
        for flag in "01"
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout


def test_numba_is_told_to_leave_other_libraries_alone():
    told = "import isfed.base, os; print(os.environ['NUMBA_DISABLE_INTEL_SVML'])"
    clean = {k: v for k, v in os.environ.items() if k != "NUMBA_DISABLE_INTEL_SVML"}
    run = subprocess.run([sys.executable, "-c", told], env=clean, capture_output=True, text=True)
    assert run.stdout.strip() == "1"
