"""The exact variance of an estimated total against its definition and against draws."""

import numpy as np
import pytest

from isfed import (
    Deville,
    HartleyRao,
    Poisson,
    Sampford,
    Stream,
    Systematic,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.sampling.designs import ALL_DESIGNS
from isfed.sampling.designs.exact_variance import NoJointError, total_variance


def made(count, num, *, seed=0, floor=0.0, sigma=1.0):
    rng = np.random.default_rng(seed)
    scores = np.exp(sigma * rng.standard_normal(count))
    return inclusion_probabilities(scores, num, floor=floor), rng.standard_normal((count, 2))


def by_definition(joint, inclusion, values):
    """sum_ij (pi_ij - pi_i pi_j) x_i x_j / (pi_i pi_j), literally."""
    total = np.zeros(values.shape[1])
    for i in range(inclusion.size):
        for j in range(inclusion.size):
            share = joint[i, j] / (inclusion[i] * inclusion[j]) - 1.0
            total += share * values[i] * values[j]
    return total


@pytest.mark.parametrize("design", [Systematic(), Deville(), Sampford(), Poisson(), HartleyRao()])
@pytest.mark.parametrize(("count", "num"), [(7, 2), (8, 3), (6, 5), (5, 1)])
def test_variance_is_the_sum_over_pairs(design, count, num):
    inclusion, values = made(count, num, seed=count)
    expected = by_definition(design.joint(inclusion), inclusion, values)
    # The series behind Hartley-Rao is cut; the others are exact.
    tolerance = 2e-4 if isinstance(design, HartleyRao) else 1e-9
    scale = total_variance(Poisson(), inclusion, values)
    error = np.abs(total_variance(design, inclusion, values) - expected) / scale
    assert error.max() < tolerance


@pytest.mark.parametrize(
    "chances",
    [
        [1e-3, 0.999, 0.5, 0.3, 0.2],
        [1e-6, 1 - 1e-6, 0.5, 0.3, 0.2],
        [0.5, 0.5, 0.4, 0.1, 0.25, 0.25],
    ],
)
def test_hartley_rao_with_chances_of_one_half(chances):
    """A unit of probability 1/2 makes a factor of the Fourier series 0 at t = 1/2."""
    inclusion, values = np.array(chances), np.arange(1.0, len(chances) + 1)[:, None] / 5
    values *= inclusion[:, None] + 0.1
    expected = by_definition(HartleyRao().joint(inclusion), inclusion, values)
    scale = total_variance(Poisson(), inclusion, values)
    error = np.abs(total_variance(HartleyRao(), inclusion, values) - expected) / scale
    assert error.max() < 2e-4


@pytest.mark.parametrize("design", [make() for make in ALL_DESIGNS])
@pytest.mark.parametrize(("count", "num", "floor"), [(40, 6, 0.1), (25, 10, 0.0), (30, 1, 0.3)])
def test_variance_agrees_with_draws(design, count, num, floor):
    inclusion, values = made(count, num, seed=num, floor=floor, sigma=0.7)
    stream = Stream(5)
    draws = 20_000
    sums = np.empty((draws, 2))
    for i in range(draws):
        units = design.draw(inclusion, stream)
        sums[i] = (values[units] / inclusion[units, None]).sum(axis=0)
    squares = (sums - values.sum(axis=0)) ** 2
    stderr = squares.std(axis=0) / np.sqrt(draws)
    exact = total_variance(design, inclusion, values)
    assert np.all(np.abs(squares.mean(axis=0) - exact) < 4 * stderr + 1e-9)


def test_equal_chances_whose_borders_coincide():
    """0.5 four times: the start 0 is a break point itself."""
    values = np.array([[1.0], [2.0], [4.0], [8.0]])
    # {0, 2} or {1, 3}: twice 5 or twice 10
    np.testing.assert_allclose(total_variance(Systematic(), [0.5] * 4, values), [25.0])


def test_certain_and_impossible_units_add_nothing():
    inclusion = np.array([1.0, 0.5, 0.0, 0.5, 1.0])
    values = np.array([[3.0], [1.0], [0.0], [2.0], [5.0]])
    for design in (Systematic(), Deville(), Sampford(), HartleyRao()):
        # one of 1 and 2, each doubled: 2 or 4 around 3
        np.testing.assert_allclose(total_variance(design, inclusion, values), [1.0])


def test_deville_pairs_of_many_units_agree_with_draws():
    inclusion, _ = made(12, 5, seed=3)
    joint = Deville().joint(inclusion)
    stream = Stream(1)
    counts = np.zeros((12, 12))
    draws = 40_000
    for _ in range(draws):
        units = Deville().draw(inclusion, stream)
        counts[np.ix_(units, units)] += 1
    stderr = np.sqrt(joint * (1 - joint) / draws)
    assert np.all(np.abs(counts / draws - joint) < 4.5 * stderr + 1e-9)
    np.testing.assert_allclose(joint.sum(axis=1), 5 * inclusion, rtol=1e-12)


def test_a_value_that_is_never_seen_has_no_variance():
    with pytest.raises(ValueError, match="unit 1 has inclusion probability 0"):
        total_variance(Systematic(), [1.0, 0.0], np.ones((2, 1)))


def test_a_design_without_joint_probabilities_says_so():
    class Own:
        fixed_size = True

    with pytest.raises(NoJointError, match="Own has no exact joint"):
        total_variance(Own(), [0.5, 0.5, 0.5, 0.5], np.ones((4, 1)))


def test_populations_too_large_for_joint_probabilities_say_so():
    inclusion = inclusion_probabilities(np.arange(1.0, 4001.0), 5)
    for design in (HartleyRao(), Sampford()):
        with pytest.raises(NoJointError, match="too long"):
            total_variance(design, inclusion, np.ones((4000, 1)))
    assert total_variance(Deville(), inclusion, np.ones((4000, 1))) > 0.0


def test_replacement_counts_may_exceed_one():
    values = np.array([[1.0], [3.0]])
    # two draws of unit 1 with chance 3/4: values over chance are 4 and 4, no variance at all
    variance = total_variance(WithReplacement(), [0.5, 1.5], values)
    np.testing.assert_allclose(variance, [0.0], atol=1e-12)


def test_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="values has shape"):
        total_variance(Poisson(), [0.5, 0.5], np.ones(2))
