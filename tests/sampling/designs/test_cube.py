"""The cube method: inclusion probabilities, size and balance."""

import numpy as np
import pytest

from isfed.base.random_streams import Stream
from isfed.sampling.designs import Cube, inclusion_probabilities
from isfed.sampling.designs.cube import move, null_vector
from isfed.sampling.designs.exact_variance import NoJointError, total_variance


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (5, 6), (3, 7)])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_null_vector_is_orthogonal_to_the_rows(shape, repeated):
    rows = np.random.default_rng(shape[1]).normal(size=shape)
    if repeated:
        rows[-1] = rows[0]
    vector = np.empty(shape[1])
    null_vector(rows.copy(), vector)
    assert np.abs(vector).max() >= 1.0
    np.testing.assert_allclose(rows @ vector, 0.0, atol=1e-12)


def moved(chances, direction, coin):
    chances = chances.copy()
    move(chances, np.arange(chances.size), direction, coin)
    return chances


def test_a_move_ends_on_the_border_and_keeps_the_mean():
    chances, direction = np.array([0.3, 0.8, 0.4]), np.array([1.0, -2.0, 0.5])
    # forth until 0.8 / 2 is used up; back until (1 - 0.8) / 2 is.
    ends = moved(chances, direction, 0.0), moved(chances, direction, 1.0 - 1e-9)
    np.testing.assert_allclose(ends[0], [0.7, 0.0, 0.6])
    np.testing.assert_allclose(ends[1], [0.2, 1.0, 0.35])
    share = 0.1 / (0.4 + 0.1)  # of the way forth: back / (forth + back)
    np.testing.assert_allclose(share * ends[0] + (1 - share) * ends[1], chances)
    assert moved(chances, direction, share - 1e-9)[1] == 0.0
    assert moved(chances, direction, share + 1e-9)[1] == 1.0


CASES = [
    np.array([0.2, 0.7, 0.8, 0.5, 0.4, 0.4]),
    np.array([0.3, 1.0, 0.7, 0.6, 0.0, 0.4, 1.0, 1.0]),
    inclusion_probabilities(np.arange(1.0, 13.0), 5),
]


@pytest.mark.parametrize("inclusion", CASES)
def test_inclusion_and_size(inclusion, largest_deviation):
    draws, stream = 10_000, Stream(2)
    rng = np.random.default_rng(0)
    design = Cube(rng.normal(size=(inclusion.size, 2)))
    counts = np.zeros(inclusion.size)
    for _ in range(draws):
        units = design.draw(inclusion, stream)
        assert units.size == round(inclusion.sum())
        counts[units] += 1
    assert largest_deviation(counts, inclusion, draws) < 4


def test_totals_of_the_variables_are_nearly_exact():
    rng = np.random.default_rng(1)
    variables = rng.lognormal(0.0, 0.5, size=(200, 3))
    inclusion = inclusion_probabilities(variables[:, 0], 40)
    design = Cube(variables)
    totals = variables.sum(axis=0)
    errors = []
    for seed in range(100):
        units = design.draw(inclusion, seed)
        errors.append((variables[units] / inclusion[units, None]).sum(axis=0) / totals - 1)
    errors = np.sqrt(np.mean(np.square(errors), axis=0))
    assert errors[0] < 1e-9  # proportional to inclusion: the number of units
    independent = np.sqrt((1 / inclusion - 1) @ variables**2) / totals
    assert np.all(errors[1:] < independent[1:] / 4)


def test_approximate_joint_predicts_the_variance():
    rng = np.random.default_rng(3)
    variables = rng.lognormal(0.0, 0.5, size=(60, 2))
    inclusion = inclusion_probabilities(variables[:, 0], 15)
    values = variables.sum(axis=1) + 0.3 * rng.normal(size=60)
    weighted = values / inclusion
    design, stream, draws = Cube(variables), Stream(0), 3000
    joint = design.joint(inclusion)
    # Exact but for pairs whose approximation was negative and is set to 0.
    np.testing.assert_allclose(joint.sum(axis=1), 15 * inclusion, rtol=0.05)
    predicted = weighted @ (joint - np.outer(inclusion, inclusion)) @ weighted
    sums = [weighted[design.draw(inclusion, stream)].sum() for _ in range(draws)]
    # Of 3000 draws the variance is known to about 2.6%; the approximation ignores the last units.
    assert np.var(sums) == pytest.approx(predicted, rel=0.3)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="balanced must be finite numbers"):
        Cube([1.0, np.nan])
    with pytest.raises(ValueError, match="Cube knows 3 units, but is to draw from 2"):
        Cube([1.0, 2.0, 3.0]).draw([0.5, 0.5], 0)
    with pytest.raises(ValueError, match=r"inclusion sums to 1.2, not to a whole number"):
        Cube([1.0, 2.0]).draw([0.5, 0.7], 0)
    with pytest.raises(NoJointError, match="Cube has no exact joint"):
        total_variance(Cube([1.0, 2.0, 3.0, 5.0]), [0.5] * 4, np.ones((4, 1)))
