"""Conditional Poisson, Brewer and Tillé: sets, pairs and draws by their definitions."""

from itertools import combinations
from math import prod

import numpy as np
import pytest
from design_sets import sets_of
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.random_streams import Stream
from isfed.sampling.designs import (
    Brewer,
    ConditionalPoisson,
    Deville,
    HartleyRao,
    LocalPivotal,
    Sampford,
    Systematic,
    Tille,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.sampling.designs.rejective import _prepared

ORACLE = np.array([0.2, 0.7, 0.8, 0.5, 0.4, 0.4])  # ALGORITHMS.md, section 9
CASES = [
    ORACLE,
    np.array([2, 1, 2, 1]) / 3,
    np.array([0.25, 0.75]),
    np.array([0.3, 1.0, 0.7, 0.6, 0.0, 0.4, 1.0]),
    np.array([0.99, 0.5, 0.01, 0.5, 0.9, 0.1]),
    np.array([0.3, 0.3, 0.4]),
    np.array([1.0, 0.0, 1.0]),
    inclusion_probabilities(np.arange(1.0, 9.0) ** 2, 4),
]
DESIGNS = [ConditionalPoisson(), Brewer(), Tille()]


def _joint_of(sets, count):
    """Joint probabilities from the probability of every set, and the sum of all."""
    joint = np.zeros((count, count))
    for drawn, chance in sets.items():
        joint[np.ix_(drawn, drawn)] += float(chance)
    return joint, float(sum(sets.values()))


def _enumerated(design, inclusion):
    certain = np.flatnonzero(inclusion == 1.0)
    rest = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    if rest.size == 0:
        return _joint_of({tuple(certain): 1.0}, inclusion.size)[0]
    found = sets_of(design, inclusion[rest])
    sets = {(*certain, *rest[list(drawn)]): chance for drawn, chance in found.items()}
    joint, total = _joint_of(sets, inclusion.size)
    assert total == pytest.approx(1.0, abs=1e-12)
    return joint


@pytest.mark.parametrize("inclusion", CASES)
@pytest.mark.parametrize("design", DESIGNS)
def test_joint_equals_the_enumeration_of_all_sets(design, inclusion):
    expected = _enumerated(design, inclusion)
    np.testing.assert_allclose(np.diag(expected), inclusion, atol=1e-12)
    joint = design.joint(inclusion)
    np.testing.assert_allclose(joint, expected, atol=1e-12)
    np.testing.assert_array_equal(joint, joint.T)
    np.testing.assert_array_equal(np.diag(joint), inclusion)


@pytest.mark.parametrize("inclusion", [ORACLE, CASES[3], CASES[4], CASES[7]])
@pytest.mark.parametrize("design", DESIGNS)
def test_units_and_pairs_within_four_standard_errors(design, inclusion, largest_deviation):
    draws, num, stream = 20_000, round(inclusion.sum()), Stream(1)
    counts = np.zeros((inclusion.size, inclusion.size))
    for _ in range(draws):
        units = design.draw(inclusion, stream)
        assert units.size == num
        assert np.all(np.diff(units) > 0)
        counts[np.ix_(units, units)] += 1
    assert largest_deviation(counts, design.joint(inclusion), draws) < 4


def test_the_oracle_of_maximum_entropy():
    # ALGORITHMS.md, section 9
    assert ConditionalPoisson().joint(ORACLE)[0, 1] == pytest.approx(0.1069843924, abs=1e-10)


def test_the_example_of_the_book_and_of_the_package():
    # UPmaxentropypi2 of R's `sampling` is documented with these probabilities. Its result stands in
    # Tillé, Sampling Algorithms (Springer 2006), example 10, page 86, to four digits.
    inclusion = np.array([0.07, 0.17, 0.41, 0.61, 0.83, 0.91])
    expected = [
        [0.07, 0.0049, 0.0130, 0.0215, 0.0447, 0.0559],
        [0.0049, 0.17, 0.0324, 0.0537, 0.1113, 0.1377],
        [0.0130, 0.0324, 0.41, 0.1407, 0.2888, 0.3452],
        [0.0215, 0.0537, 0.1407, 0.61, 0.4691, 0.5351],
        [0.0447, 0.1113, 0.2888, 0.4691, 0.83, 0.7461],
        [0.0559, 0.1377, 0.3452, 0.5351, 0.7461, 0.91],
    ]
    np.testing.assert_allclose(ConditionalPoisson().joint(inclusion), expected, atol=5.1e-5)


def test_two_units_have_a_closed_form():
    # Brewer (1963) and Durbin (1967), n = 2: pi_ij is proportional to pi_i pi_j times
    # 1 / (1 - pi_i) + 1 / (1 - pi_j); Sampford's design for n = 2 is the same.
    for inclusion in (np.array([0.2, 0.7, 0.5, 0.6]), np.array([0.9, 0.3, 0.3, 0.5])):
        apart = 1.0 / (1.0 - inclusion)
        expected = np.outer(inclusion, inclusion) * (apart[:, None] + apart)
        np.fill_diagonal(expected, 0.0)
        expected *= 2.0 / expected.sum()  # of n (n - 1) pairs
        np.fill_diagonal(expected, inclusion)
        for design in (Brewer(), Sampford()):
            np.testing.assert_allclose(design.joint(inclusion), expected, atol=1e-14)


@given(seed=st.integers(0, 2**32), num=st.integers(1, 40), sigma=st.sampled_from([0.1, 1.0, 3.0]))
@pytest.mark.parametrize("design", [*DESIGNS, Sampford()])
def test_many_units_keep_the_sums_of_pairs(design, seed, num, sigma):
    """Fixed size: the joint probabilities of a unit sum to (n - 1) times its own."""
    inclusion = inclusion_probabilities(np.random.default_rng(seed).lognormal(0, sigma, 60), num)
    joint = design.joint(inclusion)
    np.testing.assert_allclose(joint.sum(axis=1), num * inclusion, atol=1e-10)
    assert np.all(joint <= np.minimum.outer(inclusion, inclusion) + 1e-12)
    if not isinstance(design, Sampford):
        drawn = design.draw(inclusion, seed)
        assert drawn.size == num
        assert np.all(inclusion[drawn] > 0.0)
        assert np.all(np.isin(np.flatnonzero(inclusion == 1.0), drawn))


def test_a_draw_is_a_function_of_its_seed_alone():
    inclusion = inclusion_probabilities(np.arange(1.0, 31.0), 6)
    for design in DESIGNS:
        first = design.draw(inclusion, 4)
        _prepared.cache_clear()
        np.testing.assert_array_equal(design.draw(inclusion, 4), first)
        drawn = {tuple(design.draw(inclusion, seed)) for seed in range(20)}
        assert len(drawn) > 10


def test_conditional_poisson_draws_each_unit_by_what_is_left():
    """P(unit | r still to draw) = p e_{r-1}(later) / e_r(from here), e by all sets."""
    chance, _ = _prepared(ORACLE.tobytes(), 3)
    odds = chance / (1 - chance)

    def sums(units, size):
        return sum(prod(odds[list(s)]) for s in combinations(units, size))

    for seed in range(50):
        uniforms, left, drawn = Stream(seed).uniforms(6), 3, []
        for unit in range(6):
            if left and uniforms[unit] < odds[unit] * sums(range(unit + 1, 6), left - 1) / sums(
                range(unit, 6), left
            ):
                drawn.append(unit)
                left -= 1
        assert ConditionalPoisson().draw(ORACLE, seed).tolist() == drawn


def test_a_table_that_is_too_large_is_refused():
    inclusion = np.full(100_000, 0.5)
    with pytest.raises(ValueError, match=r"50000 of 100000 units need a table .* use Deville\(\)"):
        ConditionalPoisson().draw(inclusion, 0)


def test_brewer_of_many_units_is_near_the_enumeration():
    """Beyond 12 units joint() is that of maximum entropy: at 12 units it is off by at most 2%."""
    inclusion = inclusion_probabilities(np.random.default_rng(5).lognormal(0, 0.7, 12), 5)
    exact, near = Brewer().joint(inclusion), ConditionalPoisson().joint(inclusion)
    assert np.max(np.abs(near / exact - 1.0)) < 0.02
    more = np.concatenate([inclusion, inclusion])
    np.testing.assert_array_equal(Brewer().joint(more), ConditionalPoisson().joint(more))


def test_counts_with_replacement():
    expected = np.array([0.2, 1.7, 0.0, 0.8, 0.3])
    joint = WithReplacement().joint(expected)
    variance = joint - np.outer(expected, expected)  # multinomial
    chance = expected / 3
    np.testing.assert_allclose(variance, 3 * (np.diag(chance) - np.outer(chance, chance)))


def test_local_pivotal_counts_pairs():
    inclusion = np.full(6, 0.5)
    design = LocalPivotal([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]])
    joint = design.joint(inclusion)
    assert joint[0, 1] == joint[2, 3] == joint[4, 5] == 0.0  # neighbours exclude each other
    np.testing.assert_allclose(joint[0, 2:], 0.25, atol=0.025)
    np.testing.assert_allclose(joint.sum(axis=1), 3 * inclusion, atol=0.03)


@pytest.mark.parametrize(
    ("inclusion", "message"),
    [
        ([0.5, 1.5], r"^inclusion\[1\]=1.5 exceeds 1; use .*$"),
        ([0.5, 0.7], r"^inclusion sums to 1.2, not to a whole number >= 1; incl"),
        ([-0.5, 0.5], r"^inclusion\[0\]=-0.5 is not a finite number >= 0 \(1 such\)$"),
    ],
)
@pytest.mark.parametrize("design", [*DESIGNS, HartleyRao(), Deville(), Systematic()])
def test_bad_input_is_named(design, inclusion, message):
    for call in (lambda pi: design.draw(pi, 0), design.joint):
        with pytest.raises(ValueError, match=message):
            call(inclusion)
