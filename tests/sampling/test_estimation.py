"""Totals and means with their variances: enumerated for few units, literal formulas, refusals."""

import itertools
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from design_sets import sets_of

from isfed.base.random_streams import Stream
from isfed.sampling import (
    Brewer,
    Clustered,
    ConditionalPoisson,
    Cube,
    Deville,
    HartleyRao,
    JointWarning,
    LocalPivotal,
    Poisson,
    Sampford,
    Stratified,
    Systematic,
    Tille,
    VarianceError,
    WithReplacement,
    estimate_mean,
    estimate_total,
    inclusion_probabilities,
)

CHANCES = np.array([0.2, 0.7, 0.8, 0.5, 0.4, 0.4])
VALUES = np.array([3.0, 8.0, 7.0, 6.5, 2.0, 5.0])
EIGHT = np.array([3.0, 8.0, 7.0, 6.5, 2.0, 5.0, 4.0, 1.0])
FIXED = [ConditionalPoisson(), Sampford(), Brewer(), Tille(), HartleyRao()]


def expectations(design, chances, values, **given):
    """The mean and the variance of the estimate, and the mean of the estimated variance."""
    found = []
    for units, chance in sets_of(design, chances).items():
        if units:
            result = estimate_total(values[list(units)], units, chances, design=design, **given)
            found.append((float(chance), result.value, result.stderr**2))
        else:
            found.append((float(chance), 0.0, 0.0))
    chance, value, squared = np.array(found).T
    assert chance.sum() == pytest.approx(1.0, abs=1e-12)
    mean = (chance * value).sum()
    return mean, (chance * (value - mean) ** 2).sum(), (chance * squared).sum()


@pytest.mark.parametrize("design", FIXED)
@pytest.mark.parametrize("chances", [CHANCES, np.array([0.3, 0.9, 0.7, 0.6, 0.5])])
def test_sen_yates_grundy_is_unbiased(design, chances):
    values = VALUES[: chances.size]
    mean, variance, estimated = expectations(
        design, chances, values, variance="sen-yates-grundy", joint=design.joint(chances)
    )
    assert mean == pytest.approx(values.sum(), rel=1e-12)
    assert estimated == pytest.approx(variance, rel=1e-12)


def test_eight_units():
    chances = inclusion_probabilities(np.arange(2.0, 10.0), 4)
    nearly_proportional = np.arange(2.0, 10.0) ** 1.2
    for design, values in itertools.product(FIXED, (nearly_proportional, EIGHT)):
        _, variance, estimated = expectations(
            design, chances, values, variance="sen-yates-grundy", joint=design.joint(chances)
        )
        assert estimated == pytest.approx(variance, rel=1e-12)


def literal_variance(kind, values, chances, joint):
    """The double sums as they are printed."""
    total = 0.0
    for i in range(values.size):
        for j in range(values.size):
            pair = chances[i] if i == j else joint[i, j]
            share = (pair - chances[i] * chances[j]) / pair
            if kind == "horvitz-thompson":
                total += share * values[i] / chances[i] * values[j] / chances[j]
            else:
                total -= share / 2 * (values[i] / chances[i] - values[j] / chances[j]) ** 2
    return total


@pytest.mark.parametrize("design", FIXED)
@pytest.mark.parametrize("count", [6, 8])
def test_horvitz_thompson_is_unbiased(design, count):
    """Its estimates can be negative, so that the mean is taken of the formula, not of stderr."""
    from isfed.sampling.estimation import by_pairs

    chances, values = CHANCES, VALUES
    if count == 8:
        chances, values = inclusion_probabilities(np.arange(2.0, 10.0), 4), EIGHT
    joint, found = design.joint(chances), []
    for drawn, chance in sets_of(design, chances).items():
        units = list(drawn)
        added = values[units] / chances[units]
        pairs = joint[np.ix_(units, units)]
        squared = by_pairs("horvitz-thompson", added, chances[units], pairs)
        literal = literal_variance("horvitz-thompson", values[units], chances[units], pairs)
        assert squared == pytest.approx(literal, rel=1e-12, abs=1e-12 * added.sum() ** 2)
        found.append((float(chance), added.sum(), squared))
    chance, total, squared = np.array(found).T
    assert math.fsum(chance * total) == pytest.approx(values.sum(), rel=1e-12)
    variance = math.fsum(chance * (total - values.sum()) ** 2)
    assert math.fsum(chance * squared) == pytest.approx(variance, rel=1e-12)


def test_independent_draws_are_unbiased():
    mean, variance, estimated = expectations(Poisson(), CHANCES, VALUES)
    assert mean == pytest.approx(VALUES.sum(), rel=1e-12)
    assert estimated == pytest.approx(variance, rel=1e-12)
    counts = np.array([0.4, 1.2, 0.9, 0.5])
    mean, variance, estimated = expectations(WithReplacement(), counts, VALUES[:4])
    assert mean == pytest.approx(VALUES[:4].sum(), rel=1e-12)
    assert estimated == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("kind", ["sen-yates-grundy", "hajek", "deville", "brewer"])
def test_equal_probabilities_are_simple_random_sampling(kind):
    """N^2 (1 - n / N) s^2 / n, every textbook; Student's t with n - 1 degrees of freedom."""
    chances, units = np.full(8, 0.375), [0, 3, 6]
    values = np.array([4.0, 9.0, 5.0])
    found = estimate_total(
        values, units, chances, design=ConditionalPoisson(), variance=kind, confidence=0.9
    )
    assert found.value == pytest.approx(8 * values.mean())
    expected = 64 * (1 - 3 / 8) * values.var(ddof=1) / 3
    assert found.stderr**2 == pytest.approx(expected)
    assert found.degrees == 2
    # The quantile of t with 2 degrees: (2 p - 1) sqrt(2 / (4 p (1 - p))), here p = 0.95.
    reach = 0.9 * math.sqrt(2 / (4 * 0.95 * 0.05)) * found.stderr
    assert (found.low, found.high) == pytest.approx((found.value - reach, found.value + reach))
    mean = estimate_mean(values, units, chances, design=ConditionalPoisson(), variance=kind)
    assert mean.value == pytest.approx(values.mean())
    assert mean.stderr == pytest.approx(found.stderr / 8)


def test_approximations_as_they_are_printed():
    design, units = Deville(), [1, 2, 4]
    y, p, n = VALUES[units], CHANCES[units], 3
    hajek = [(1 - q) * n / (n - 1) for q in p]
    centre = sum(c * v / q for c, v, q in zip(hajek, y, p, strict=True)) / sum(hajek)
    spread = sum(c * (v / q - centre) ** 2 for c, v, q in zip(hajek, y, p, strict=True))
    expected: dict[str, float] = {"hajek": spread}
    share = [(1 - q) / sum(1 - r for r in p) for q in p]
    spread = sum((1 - q) * (v / q - centre) ** 2 for v, q in zip(y, p, strict=True))
    expected["deville"] = spread / (1 - sum(a * a for a in share))
    total = sum(v / q for v, q in zip(y, p, strict=True))
    expected["brewer"] = sum(
        (1 / ((n - 1) / (n - q)) - q) * (v / q - total / n) ** 2 for v, q in zip(y, p, strict=True)
    )
    for kind, squared in expected.items():
        found = estimate_total(y, units, CHANCES, design=design, variance=kind)
        assert found.stderr**2 == pytest.approx(squared, rel=1e-12)


@pytest.mark.parametrize("kind", ["hajek", "deville", "brewer"])
def test_approximations_are_near_the_variance_of_high_entropy(kind):
    """Drawn 4 of 8 units: within 15% of the true variance in the mean."""
    chances = inclusion_probabilities(np.arange(2.0, 10.0), 4)
    values = np.arange(2.0, 10.0) ** 1.5
    for design in (ConditionalPoisson(), Sampford(), Brewer()):
        _, variance, estimated = expectations(design, chances, values, variance=kind)
        assert estimated == pytest.approx(variance, rel=0.15)


def test_hajek_is_a_weighted_mean_and_its_error_that_of_residuals():
    design, units = ConditionalPoisson(), [1, 2, 4]
    weights = 1 / CHANCES[units]
    mean = (weights * VALUES[units]).sum() / weights.sum()
    joint = design.joint(CHANCES)[np.ix_(units, units)]
    squared = literal_variance("syg", VALUES[units] - mean, CHANCES[units], joint)
    found = estimate_mean(VALUES[units], units, CHANCES, design=design)
    assert (found.method, found.variance) == ("hajek", "sen-yates-grundy")
    assert found.value == pytest.approx(mean)
    assert found.stderr == pytest.approx(math.sqrt(squared) / weights.sum())
    total = estimate_total(VALUES[units], units, CHANCES, design=design, method="hajek")
    assert total.value == pytest.approx(6 * mean)
    assert total.stderr == pytest.approx(6 * found.stderr)


def test_strata_add_up():
    strata = np.array(["a", "b", "a", "b", "a", "b", "a", "b"])
    chances = np.array([0.6, 0.5, 0.7, 0.5, 0.3, 0.4, 0.4, 0.6])
    values = np.arange(1.0, 9.0)
    design = Stratified(ConditionalPoisson(), strata)
    units = design.draw(chances, 0)
    whole = estimate_total(values[units], units, chances, design=design)
    with_joint = estimate_total(
        values[units], units, chances, design=design, joint=design.joint(chances)
    )
    assert with_joint.stderr == pytest.approx(whole.stderr)
    squared = 0.0
    for label in "ab":
        members = np.flatnonzero(strata == label)
        inside = np.flatnonzero(np.isin(members, units))
        part = estimate_total(
            values[members[inside]], inside, chances[members], design=ConditionalPoisson()
        )
        squared += part.stderr**2
    assert whole.stderr == pytest.approx(math.sqrt(squared))
    assert whole.degrees == 2
    one = np.array([0.2, 0.5, 0.3, 0.5, 0.3, 0.4, 0.2, 0.6])
    units = design.draw(one, 0)
    with pytest.raises(VarianceError, match="stratum 'a': one unit"):
        estimate_total(values[units], units, one, design=design)


def test_clusters_are_units():
    clusters = np.array([0, 0, 1, 1, 1, 2, 3, 3])
    chances = np.array([0.6, 0.7, 0.4, 0.3])
    values = np.arange(1.0, 9.0)
    design = Clustered(ConditionalPoisson(), clusters)
    units = np.flatnonzero(np.isin(clusters, [1, 3]))
    totals = np.array([3.0 + 4 + 5, 7.0 + 8])
    expected = estimate_total(totals, [1, 3], chances, design=ConditionalPoisson())
    for joint in (None, design.joint(chances[clusters])):
        found = estimate_total(values[units], units, chances[clusters], design=design, joint=joint)
        assert found.value == pytest.approx(expected.value)
        assert found.stderr == pytest.approx(expected.stderr)
    with pytest.raises(ValueError, match="cluster 1 has 3 units, but values of 2"):
        estimate_total(values[units[1:]], units[1:], chances[clusters], design=design)


def test_balanced_residuals():
    rng = np.random.default_rng(0)
    variables = rng.lognormal(size=(30, 2))
    chances = inclusion_probabilities(variables[:, 0], 10)
    design, stream = Cube(variables), Stream(5)
    units = design.draw(chances, 3)
    number = estimate_total(3 * chances[units], units, chances, design=design)
    assert number.variance == "balanced"
    assert number.stderr == pytest.approx(0.0, abs=1e-9)  # the number of units is always kept
    # Variables that explain everything leave only the imbalance of the last units.
    values = 2 * variables[:, 0] - variables[:, 1] + 3 * chances
    found = estimate_total(values[units], units, chances, design=design)
    errors = np.zeros(2000)
    for i in range(errors.size):
        drawn = design.draw(chances, stream)
        errors[i] = (values[drawn] / chances[drawn]).sum() - values.sum()
    squares = errors**2
    spread = squares.std() * math.sqrt(1 / squares.size + 1 / 400)  # 400 draws tell the imbalance
    assert abs(found.stderr**2 - squares.mean()) < 4 * spread
    few = inclusion_probabilities(variables[:, 0], 3)
    units = design.draw(few, 3)
    with pytest.raises(VarianceError, match="draw more units or balance on fewer variables"):
        estimate_total(values[units], units, few, design=design)


def test_certain_units_add_no_variance():
    chances = np.array([1.0, 0.5, 0.5, 0.5, 0.5, 1.0])
    for kind in ("sen-yates-grundy", "hajek"):
        found = estimate_total(
            [100.0, 3.0, 5.0, 70.0], [0, 1, 3, 5], chances, design=Brewer(), variance=kind
        )
        rest = estimate_total([3.0, 5.0], [0, 2], [0.5] * 4, design=Brewer(), variance=kind)
        assert found.value == 186.0
        assert found.stderr == pytest.approx(rest.stderr)
    census = estimate_total([1.0, 2.0], [0, 1], [1.0, 1.0], design=Brewer())
    assert (census.value, census.stderr) == (3.0, 0.0)


@pytest.mark.parametrize("design", [Deville(), Systematic()])
@pytest.mark.parametrize("kind", ["sen-yates-grundy", "horvitz-thompson"])
def test_pairs_that_never_come_are_refused(design, kind):
    units = design.draw(CHANCES, 0)
    message = (
        rf"pairs of units are never drawn together by {type(design).__name__} .*"
        r"use variance='deville'.*ConditionalPoisson\(\)"
    )
    with pytest.raises(VarianceError, match=message):
        estimate_total(VALUES[units], units, CHANCES, design=design, variance=kind)


def test_elimination_can_exclude_the_two_smallest():
    chances = np.array([0.07, 0.17, 0.41, 0.61, 0.83, 0.91])
    units = Tille().draw(chances, 0)
    with pytest.raises(VarianceError, match=r"^1 pairs .* \(for instance 0 and 1:"):
        estimate_total(VALUES[units], units, chances, design=Tille(), variance="sen-yates-grundy")


@pytest.mark.parametrize("design", [Deville(), Systematic(), LocalPivotal(np.arange(6.0))])
def test_the_default_warns_where_pairs_never_come(design):
    units = design.draw(CHANCES, 0)
    with pytest.warns(JointWarning, match="may never draw some pairs of units together"):
        found = estimate_total(VALUES[units], units, CHANCES, design=design)
    assert found.variance == "deville"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = estimate_total(VALUES[units], units, CHANCES, design=design, variance="deville")
    assert again == found


def test_the_default_suits_the_design():
    large = np.full(2000, 0.01)
    drawn = Brewer().draw(large, 0)
    assert estimate_total(drawn * 1.0, drawn, large, design=Brewer()).variance == "deville"
    for design, kind in (
        (Sampford(), "sen-yates-grundy"),
        (Brewer(), "deville"),
        (Poisson(), "horvitz-thompson"),
        (WithReplacement(), "hansen-hurwitz"),
    ):
        units = design.draw(CHANCES, 1)
        found = estimate_total(VALUES[units], units, CHANCES, design=design)
        assert found.variance == kind


def test_a_negative_variance_is_said():
    units, design = [0, 1, 4], ConditionalPoisson()
    kind = "horvitz-thompson"
    with pytest.warns(JointWarning, match="is negative"):
        found = estimate_total(CHANCES[units], units, CHANCES, design=design, variance=kind)
    assert math.isnan(found.stderr)
    assert math.isnan(found.low)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"units": [0, 1]}, "2 units but values of shape"),
        ({"units": [0, 1, 9]}, "units must be between 0 and 5"),
        ({"units": [0, 1, 1]}, "a unit came twice, which Brewer never draws"),
        ({"units": [0.0, 1.0, 2.0]}, "units must be the numbers of the units"),
        ({"values": [1.0, math.nan, 2.0]}, "values must be finite"),
        ({"inclusion": CHANCES * [1, 1, 1, 1, 1, 1.25]}, "inclusion sums to 3.1, not to a whole"),
        ({"inclusion": [0.0, 0.9, 0.8, 0.5, 0.4, 0.4]}, "unit 0 was drawn, but its inclusion"),
        ({"units": [0, 1], "values": [1.0, 2.0]}, "2 units were given, but Brewer draws 3"),
        ({"design": Poisson(), "variance": "sen-yates-grundy"}, "needs a fixed number of units"),
        ({"design": WithReplacement(), "variance": "hajek"}, "does not suit WithReplacement"),
        ({"variance": "hansen-hurwitz"}, "does not suit Brewer"),
        ({"variance": "balanced"}, "is for Cube"),
        ({"variance": "jackknife"}, "variance='jackknife' must be one of"),
        ({"method": "ratio"}, "method='ratio' must be one of"),
        ({"confidence": 95}, "confidence=95 must be between 0 and 1"),
        ({"joint": np.eye(2)}, "joint has shape"),
    ],
)
def test_bad_input_is_named(given, message):
    usual = {
        "values": [1.0, 2.0, 3.0], "units": [0, 1, 2], "inclusion": CHANCES, "design": Brewer(),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        estimate_total(**{**usual, **given})


def test_a_design_without_joint_probabilities_says_so():
    class Own:
        def draw(self, inclusion, rng):
            return np.arange(3)

    with pytest.raises(VarianceError, match="Own has no joint inclusion probabilities"):
        estimate_total(
            [1.0, 2.0, 3.0], [0, 1, 2], CHANCES, design=Own(), variance="sen-yates-grundy"
        )
    assert estimate_total([1.0, 2.0, 3.0], [0, 1, 2], CHANCES, design=Own()).variance == "deville"


def test_intervals_cover_as_often_as_they_say():
    """95% of 500 intervals, give or take 4 standard errors of 1%."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0.0, 0.5, 100)
    chances = inclusion_probabilities(sizes, 25)
    values = sizes * (5.0 + rng.normal(size=100))
    design, stream, held = ConditionalPoisson(), Stream(0), 0
    joint = design.joint(chances)
    for _ in range(500):
        units = design.draw(chances, stream)
        found = estimate_total(values[units], units, chances, design=design, joint=joint)
        held += found.low <= values.sum() <= found.high
    assert abs(held / 500 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 500)


def test_importing_the_library_loads_no_other_part():
    code = (
        "import sys, isfed.sampling; print({m.split('.')[1] for m in sys.modules if "
        "m.startswith('isfed.')} - {'base', 'old_names', 'sampling'}, 'scipy.stats' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "set() False"


@pytest.mark.parametrize(
    ("design", "chances"),
    [(Poisson(), CHANCES), (WithReplacement(), np.array([0.75, 1.05, 0.6, 0.6]))],
)
def test_the_third_moment_is_unbiased_for_independent_draws(design, chances):
    """Every outcome of a draw with its chance; a fixed size is an approximation of Hájek's kind."""
    from isfed.sampling.skewness import third_moment

    repeats, found = isinstance(design, WithReplacement), []
    for drawn, chance in sets_of(design, chances).items():
        units = list(drawn)
        added = VALUES[units] / chances[units]
        parts = np.zeros(added.size) if repeats else chances[units]
        found.append((chance, added.sum(), third_moment(added, parts, centred=repeats)))
    chance, total, cubed = np.array(found).T
    mean = math.fsum(chance * total)
    expected = math.fsum(chance * (total - mean) ** 3)
    assert math.fsum(chance * cubed) == pytest.approx(expected, rel=1e-12)


def test_hall_maps_the_ends_of_an_interval_to_those_of_students_t():
    """With n equal chances among many, the skewness is that of n independent values."""
    from scipy.stats import skew, t

    values, units, chances = np.array([1.0, 1.5, 2.0, 9.0, 1.2]), np.arange(5), np.full(10**5, 5e-5)
    given = {"design": Brewer(), "variance": "deville", "interval": "hall"}
    found = estimate_total(values, units, chances, **given)
    skewness = skew(values, bias=False) / math.sqrt(5)
    for end, quantile in ((found.low, t.ppf(0.975, 4)), (found.high, t.ppf(0.025, 4))):
        ratio = (found.value - end) / found.stderr
        mapped = ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + skewness / 6
        assert mapped == pytest.approx(quantile, rel=1e-3)
    assert found.high - found.value > found.value - found.low
    plain = estimate_total(values, units, chances, design=Brewer(), variance="deville")
    assert (found.value, found.stderr) == (plain.value, plain.stderr)
    even = estimate_total(np.arange(5.0), units, chances, **given)  # no skewness, no change
    assert even.high - even.value == pytest.approx(even.value - even.low, rel=1e-3)


def test_hall_needs_a_third_moment():
    few = {"units": [0, 3], "inclusion": np.full(8, 0.25), "design": Brewer(), "variance": "brewer"}
    balanced = {
        "units": [0, 3, 5, 6],
        "inclusion": np.full(8, 0.5),
        "design": Cube(np.arange(8.0)),
        "variance": "balanced",
    }
    for given in (few, balanced):
        values = VALUES[: len(given["units"])]
        with pytest.raises(VarianceError, match="takes three units"):
            estimate_total(values, **given, interval="hall")
    with pytest.raises(ValueError, match="must be one of student, hall"):
        estimate_total(VALUES[:2], **few, interval="normal")
