"""From scores to inclusion probabilities: what is promised of them, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.sampling.designs.inclusion import check_inclusion, inclusion_probabilities


def _literal(scores: list[int], num: int, floor: Fraction) -> list[Fraction]:
    """The rule as it is written, in exact arithmetic: mix the floor, cap at 1, rescale, repeat."""
    total, count = sum(scores), len(scores)
    weights = [(1 - floor) * Fraction(s, total) + floor / count for s in scores]
    certain: set[int] = set()
    while True:
        rest = [u for u in range(count) if u not in certain]
        mass = sum(weights[u] for u in rest)
        scaled = {
            u: weights[u] * (num - len(certain)) / mass if mass else Fraction(0) for u in rest
        }
        fresh = {u for u in rest if scaled[u] >= 1}
        if not fresh:
            return [Fraction(1) if u in certain else scaled[u] for u in range(count)]
        certain |= fresh


@pytest.mark.parametrize("floor", [Fraction(0), Fraction(1, 20), Fraction(1, 2), Fraction(1)])
@pytest.mark.parametrize("num", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("scores", [[1, 1, 2, 8, 3, 1], [5, 5, 5, 5, 5, 5], [1, 2, 4, 8, 16, 1000]])
def test_equals_the_rule_in_exact_arithmetic(scores, num, floor):
    expected = [float(x) for x in _literal(scores, num, floor)]
    np.testing.assert_allclose(
        inclusion_probabilities(scores, num, floor=float(floor)), expected, rtol=1e-14
    )


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_subnormal_scores_keep_their_ratios(floor):
    tiny = [1 * 5e-324, 2 * 5e-324, 0.0, 5 * 5e-324]
    usual = inclusion_probabilities([1, 2, 0, 5], 2, floor=floor)
    np.testing.assert_allclose(inclusion_probabilities(tiny, 2, floor=floor), usual, rtol=1e-14)
    np.testing.assert_array_equal(inclusion_probabilities([5e-324] * 4, 3), [0.75] * 4)


def test_one_subnormal_score_among_zeros_is_not_zero():
    np.testing.assert_array_equal(inclusion_probabilities([0.0, 5e-324, 0.0], 1), [0, 1, 0])


def test_the_four_balls_of_the_paper():
    inclusion = inclusion_probabilities([1 / 3, 1 / 6, 1 / 3, 1 / 6], 2)
    np.testing.assert_allclose(inclusion, [2 / 3, 1 / 3, 2 / 3, 1 / 3], rtol=1e-15)


@given(data=st.data(), floor=st.sampled_from([0.0, 0.0, 0.1, 1.0]))
def test_sums_to_num_and_keeps_ratios(data, weights_and_num, floor):
    weights, num = data.draw(weights_and_num)
    inclusion = inclusion_probabilities(weights, num, floor=floor)
    assert inclusion.min() >= 0.0
    assert inclusion.max() <= 1.0
    assert inclusion.sum() == pytest.approx(num, rel=1e-9)
    mixed = (1.0 - floor) * weights + floor * weights.mean()
    uncapped = (inclusion < 1.0) & (inclusion > 1e-290)  # below, too few bits are left
    if uncapped.any():
        top = np.flatnonzero(uncapped)[mixed[uncapped].argmax()]
        np.testing.assert_allclose(
            inclusion[uncapped] / inclusion[top], mixed[uncapped] / mixed[top], rtol=1e-9
        )


@given(data=st.data())
def test_a_larger_score_never_has_a_smaller_probability(data, weights_and_num):
    weights, num = data.draw(weights_and_num)
    inclusion = inclusion_probabilities(weights, num)
    assert np.all(np.diff(inclusion[np.argsort(weights, kind="stable")]) >= 0.0)
    assert not inclusion[weights == 0.0].any()


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_scores_that_are_all_zero_give_equal_probabilities(floor):
    np.testing.assert_array_equal(inclusion_probabilities(np.zeros(8), 2, floor=floor), 0.25)


def test_as_many_as_are_positive_takes_them_all():
    np.testing.assert_array_equal(
        inclusion_probabilities([0, 1e-300, 5, 0, 1e300], 3), [0, 1, 1, 0, 1]
    )


def test_a_floor_gives_units_of_score_zero_their_share():
    # (1 - 0.4) * 0 + 0.4 / 4 of 1 drawn
    np.testing.assert_allclose(
        inclusion_probabilities([0, 1, 0, 0], 1, floor=0.4), [0.1, 0.7, 0.1, 0.1], rtol=1e-15
    )


def test_the_scores_given_are_not_changed():
    scores = np.array([1.0, 2.0, 30.0])
    inclusion_probabilities(scores, 2, floor=0.5)
    np.testing.assert_array_equal(scores, [1.0, 2.0, 30.0])


# `^...$` without re.MULTILINE, where `.` stops at a line end: the message is one line.
@pytest.mark.parametrize(
    ("scores", "num", "floor", "message"),
    [
        ([], 1, 0.0, r"^scores must be a non-empty vector, got shape \(0,\)$"),
        ([[1.0, 2.0]], 1, 0.0, r"^scores must be a non-empty vector, got shape \(1, 2\)$"),
        ([1.0, np.nan], 1, 0.0, r"^scores\[1\]=nan is not a finite number >= 0 \(1 such\)$"),
        ([np.inf, 1.0], 1, 0.0, r"^scores\[0\]=inf is not a finite number >= 0 \(1 such\)$"),
        ([1.0, -2.0, -3.0], 1, 0.0, r"^scores\[1\]=-2.0 is not a finite number >= 0 \(2 such\)$"),
        ([1e308, 1e308], 1, 0.0, r"^the sum of scores overflows; divide them by their maximum$"),
        ([1.0, 2.0], 0, 0.0, r"^num=0 must be between 1 and the number of units, 2$"),
        ([1.0, 2.0], 3, 0.0, r"^num=3 must be between 1 and the number of units, 2$"),
        ([1.0, 2.0], 1.5, 0.0, r"^num=1.5 must be a whole number$"),
        ([1.0, 0.0, 0.0], 2, 0.0, r"^num=2 exceeds the 1 units of positive score; draw fewer .*$"),
        ([1.0, 2.0], 1, -0.1, r"^floor=-0.1 must be between 0 and 1$"),
        ([1.0, 2.0], 1, 1.1, r"^floor=1.1 must be between 0 and 1$"),
        ([1.0, 2.0], 1, np.nan, r"^floor=nan must be between 0 and 1$"),
    ],
)
def test_bad_input_is_named(scores, num, floor, message):
    with pytest.raises(ValueError, match=message):
        inclusion_probabilities(scores, num, floor=floor)


@pytest.mark.parametrize(
    ("inclusion", "message"),
    [
        ([], r"^inclusion must be a non-empty vector, got shape \(0,\)$"),
        ([0.5, np.nan], r"^inclusion\[1\]=nan is not a finite number >= 0 \(1 such\)$"),
        ([-0.5, 0.5], r"^inclusion\[0\]=-0.5 is not a finite number >= 0 \(1 such\)$"),
        ([0.5, 1.5], r"^inclusion\[1\]=1.5 exceeds 1; use inclusion_probabilities\(scores, n\)$"),
        ([0.5, 0.75], r"^inclusion sums to 1.25, not to a whole number >= 1; incl"),
        ([0.0, 0.0], r"^inclusion sums to 0.0, not to a whole number >= 1; incl"),
    ],
)
def test_what_is_no_inclusion_probability_is_named(inclusion, message):
    with pytest.raises(ValueError, match=message):
        check_inclusion(inclusion)


def test_the_size_of_a_draw_is_the_sum():
    values, num = check_inclusion([0.1] * 10 + [1])  # 0.1 ten times sums to less than 1
    assert num == 2
    assert values.dtype == np.float64
