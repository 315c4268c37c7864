"""Poisson and with replacement: exact probabilities, independent draws.

Draws are independent from unit to unit, so many of them are one draw: of the units repeated
(Poisson), or of as many times the expected counts (with replacement).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.random_streams import Stream
from isfed.sampling.designs import Poisson, WithReplacement

INCLUSION = np.array([0.2, 0.7, 0.0, 0.8, 0.5, 1.0, 0.4, 0.4])
DRAWS = 200_000


class TestPoisson:
    def test_units_and_pairs_within_four_standard_errors(self, largest_deviation):
        drawn = np.zeros(DRAWS * INCLUSION.size)
        drawn[Poisson().draw(np.tile(INCLUSION, DRAWS), 1)] = 1.0
        drawn = drawn.reshape(DRAWS, INCLUSION.size)
        counts = drawn.T @ drawn
        assert largest_deviation(np.diag(counts), INCLUSION, DRAWS) < 4
        assert largest_deviation(counts, Poisson().joint(INCLUSION), DRAWS) < 4

    def test_a_unit_is_drawn_while_its_uniform_is_below_its_probability(self):
        for seed in range(50):
            below = Stream(seed).uniforms(INCLUSION.size) < INCLUSION
            np.testing.assert_array_equal(Poisson().draw(INCLUSION, seed), np.flatnonzero(below))

    def test_joint_is_a_product(self):
        joint = Poisson().joint(INCLUSION)
        off = ~np.eye(INCLUSION.size, dtype=bool)
        np.testing.assert_array_equal(joint[off], np.outer(INCLUSION, INCLUSION)[off])
        np.testing.assert_array_equal(np.diag(joint), INCLUSION)

    @pytest.mark.parametrize("call", [lambda pi: Poisson().draw(pi, 0), Poisson().joint])
    @pytest.mark.parametrize(
        ("inclusion", "message"),
        [
            ([0.5, 1.5], r"^inclusion\[1\]=1.5 exceeds 1; use .*$"),
            ([0.5, 0.7], r"^inclusion sums to 1.2, not to a whole number >= 1; incl"),
            ([0.5, np.inf], r"^inclusion\[1\]=inf is not a finite number >= 0 \(1 such\)$"),
        ],
    )
    def test_bad_input_is_named(self, call, inclusion, message):
        with pytest.raises(ValueError, match=message):
            call(inclusion)


class TestWithReplacement:
    EXPECTED = np.array([0.2, 1.7, 0.0, 0.8, 0.5, 0.4, 0.4, 0.0])  # a unit may be expected twice

    def test_counts_within_four_standard_errors(self, largest_deviation):
        num = 4 * DRAWS
        drawn = WithReplacement().draw(self.EXPECTED * DRAWS, 2)
        assert drawn.size == num
        counts = np.bincount(drawn, minlength=self.EXPECTED.size)
        assert largest_deviation(counts, self.EXPECTED / 4, num) < 4
        pairs = np.zeros((8, 8))  # neighbours in the order of drawing are independent
        np.add.at(pairs, (drawn[::2], drawn[1::2]), 1)
        chance = np.outer(self.EXPECTED, self.EXPECTED) / 16
        assert largest_deviation(pairs, chance, num // 2) < 4

    def test_a_uniform_falls_in_the_share_of_its_unit(self, stream_giving):
        parts = np.array([0, 3, 0, 4, 1, 0])  # eighths of one draw
        for eighth, unit in enumerate(np.repeat(np.arange(6), parts)):
            for within in (0.0, 0.5, 1.0 - 2.0**-40):
                stream = stream_giving((eighth + within) / 8, 0)
                assert WithReplacement().draw(parts / 8, stream).tolist() == [unit]

    @given(
        weights=st.lists(st.sampled_from([0.0, 1.0]) | st.floats(1e-300, 1e3), min_size=1),
        num=st.integers(1, 50),
        seed=st.integers(0, 2**32),
    )
    def test_always_num_draws_of_positive_probability(self, weights, num, seed):
        weights[0] = 1.0
        expected = num * np.array(weights) / np.sum(weights)
        drawn = WithReplacement().draw(expected, seed)
        assert drawn.size == num
        assert np.all(expected[drawn] > 0.0)

    @pytest.mark.parametrize(
        ("inclusion", "message"),
        [
            ([0.0, 0.0], r"^inclusion sums to 0.0, not to a whole number >= 1; incl"),
            ([0.5, 1.7], r"^inclusion sums to 2.2, not to a whole number >= 1; incl"),
            ([], r"^inclusion must be a non-empty vector, got shape \(0,\)$"),
            ([2.0, -1.0], r"^inclusion\[1\]=-1.0 is not a finite number >= 0 \(1 such\)$"),
        ],
    )
    def test_bad_input_is_named(self, inclusion, message):
        with pytest.raises(ValueError, match=message):
            WithReplacement().draw(inclusion, 0)
