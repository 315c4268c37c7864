"""Local pivotal and spread draws: exact inclusion probabilities, and draws that are spread."""

from itertools import permutations

import numpy as np
import pytest

from isfed.base.random_streams import Stream
from isfed.sampling.designs import (
    Deville,
    LocalPivotal,
    Spread,
    Systematic,
    inclusion_probabilities,
)
from isfed.sampling.designs.exact_variance import total_variance
from isfed.sampling.designs.outcomes import outcomes
from isfed.sampling.designs.spread import Along, best_share, order_alike, projection

CLUSTERS = np.repeat(np.eye(4) * 10.0, 5, axis=0) + np.random.default_rng(0).normal(size=(20, 4))


def literal(chances, points, chance=1.0):
    """Every outcome of the second method of Grafstroem et al., with its probability."""
    open_units = [k for k, p in enumerate(chances) if 1e-12 < p < 1 - 1e-12]
    if len(open_units) < 2:
        yield tuple(k for k, p in enumerate(chances) if p > 0.5), chance
        return
    for one in open_units:
        others = [k for k in open_units if k != one]
        two = min(others, key=lambda k: float(np.sum((points[one] - points[k]) ** 2)))
        a, b = chances[one], chances[two]
        both = a + b
        if both < 1.0:
            ends = [((both, 0.0), a / both), ((0.0, both), b / both)]
        else:
            ends = [
                ((1.0, both - 1.0), (1 - b) / (2 - both)),
                ((both - 1.0, 1.0), (1 - a) / (2 - both)),
            ]
        for (first, second), share in ends:
            after = list(chances)
            after[one], after[two] = first, second
            if share > 0.0:
                yield from literal(after, points, chance * share / len(open_units))


def table_of(found):
    total = {}
    for units, chance in found:
        total[units] = total.get(units, 0.0) + chance
    return total


@pytest.mark.parametrize("num", [1, 2, 3])
def test_the_local_pivotal_method_is_exact(num):
    rng = np.random.default_rng(num)
    points = rng.normal(size=(5, 2))
    inclusion = inclusion_probabilities(rng.lognormal(size=5), num)
    expected = table_of(literal(list(inclusion), points))
    exact = np.zeros(5)
    for units, chance in expected.items():
        exact[list(units)] += chance
    np.testing.assert_allclose(exact, inclusion, atol=1e-12)
    listed = table_of(outcomes(LocalPivotal(points), inclusion))
    assert {units: pytest.approx(chance, abs=1e-12) for units, chance in listed.items()} == expected
    design, stream, draws = LocalPivotal(points), Stream(5), 40_000
    counts = {}
    for _ in range(draws):
        units = tuple(design.draw(inclusion, stream).tolist())
        counts[units] = counts.get(units, 0) + 1
    assert set(counts) <= set(expected)
    for units, chance in expected.items():
        stderr = np.sqrt(draws * chance * (1.0 - chance)) + 1e-9
        assert abs(counts.get(units, 0) - draws * chance) < 4.5 * stderr


@pytest.mark.parametrize(
    "design", [LocalPivotal(CLUSTERS), Spread(), Along(Deville(), np.arange(20)[::-1])]
)
def test_inclusion_probabilities_are_honoured(design, largest_deviation):
    rng = np.random.default_rng(3)
    inclusion = inclusion_probabilities(np.r_[rng.lognormal(size=18), 50.0, 0.0], 6)
    counts, stream = np.zeros(20), Stream(1)
    for _ in range(20_000):
        units = design.draw(inclusion, stream)
        assert np.unique(units).size == 6
        counts[units] += 1
    assert largest_deviation(counts, inclusion, 20_000) < 4.5


@pytest.mark.parametrize("design", [Deville(), Systematic()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_spread_is_exact_along_every_order(num, design):
    """All 120 orders of five units, and every outcome of a draw along each."""
    rng = np.random.default_rng(num)
    inclusion = inclusion_probabilities(rng.lognormal(size=5), num, floor=0.1)
    for order in permutations(range(5)):
        along = Spread(design).over(np.empty((5, 2)), np.array(order))
        exact = np.zeros(5)
        for places, chance in outcomes(design, inclusion[along.order]):
            units = along.order[list(places)]
            assert np.unique(units).size == num
            exact[units] += chance
        np.testing.assert_allclose(exact, inclusion, rtol=0, atol=1e-12)
        again = np.zeros(5)
        for units, chance in outcomes(along, inclusion):
            again[list(units)] += chance
        np.testing.assert_allclose(again, inclusion, rtol=0, atol=1e-12)
        for seed in range(3):  # and what is drawn is what was listed
            drawn = design.draw(inclusion[along.order], Stream(seed))
            np.testing.assert_array_equal(along.draw(inclusion, Stream(seed)), along.order[drawn])


def test_the_outcomes_of_a_spread_are_those_along_its_order():
    """Certain and impossible units too; without an order, as the units come."""
    inclusion = np.array([0.5, 1.0, 0.0, 0.5, 0.25, 0.75])
    order = np.array([3, 1, 0, 5, 2, 4])
    found = {frozenset(units): p for units, p in outcomes(Along(Deville(), order), inclusion)}
    stream, draws, counts = Stream(2), 20_000, {}
    for _ in range(draws):
        units = frozenset(Along(Deville(), order).draw(inclusion, stream).tolist())
        counts[units] = counts.get(units, 0) + 1
    assert set(counts) == set(found)
    for units, chance in found.items():
        stderr = np.sqrt(draws * chance * (1.0 - chance))
        assert abs(counts[units] - draws * chance) < 4.5 * stderr
    assert outcomes(Spread(), inclusion) == outcomes(Deville(), inclusion)


def test_one_of_every_cluster_is_drawn():
    equal, stream = np.full(20, 0.2), Stream(0)
    shuffle = np.random.default_rng(1).permutation(20)
    points = CLUSTERS[shuffle]
    for design in (LocalPivotal(points), Spread().over(points, order_alike(points))):
        for _ in range(200):
            clusters = {int(shuffle[k]) // 5 for k in design.draw(equal, stream)}
            assert clusters == {0, 1, 2, 3}


def test_many_points_are_gathered_and_all_are_in_the_order():
    points = np.random.default_rng(0).normal(size=(1300, 3))
    order = order_alike(points)
    assert np.array_equal(np.sort(order), np.arange(1300))
    near = np.linalg.norm(np.diff(points[order], axis=0), axis=1).mean()
    assert near < 0.5 * np.linalg.norm(np.diff(points, axis=0), axis=1).mean()


def test_the_share_of_uniform_probability_follows_the_variance():
    """Clusters of one length each: uniform is right; agents of one direction: scores are."""
    rng = np.random.default_rng(2)
    apart = np.repeat(np.eye(4), 10, axis=0) + 0.01 * rng.normal(size=(40, 4))
    lengths = rng.lognormal(sigma=1.0, size=40)
    alike = lengths[:, None] * np.array([1.0, 0.0, 0.0, 0.0])
    fresh, order = np.ones(40, bool), np.arange(40)
    options = {"num": 4, "floor": 0.1, "fresh": fresh}
    assert best_share(Spread(), order, lengths, apart, **options) == 1.0
    assert best_share(Spread(), order, lengths, alike, **options) == 0.1
    few = {**options, "fresh": np.arange(40) < 5}
    assert best_share(Spread(), order, lengths, apart, **few) == 0.1


def test_with_costs_the_share_follows_variance_times_cost():
    """The same two kinds of agents: costs decide unless equal probabilities leave no variance."""
    rng = np.random.default_rng(2)
    apart = np.repeat(np.eye(4), 10, axis=0) + rng.normal(size=(40, 4))
    costs = np.geomspace(1.0, 1e4, 40)[rng.permutation(40)]
    scores = np.linalg.norm(apart, axis=1) / np.sqrt(costs)
    order = np.arange(40)
    options = {"num": 4, "floor": 0.1, "fresh": np.ones(40, bool)}
    products = {}
    for share in (0.1, 0.5, 1.0):
        inclusion = inclusion_probabilities(scores, 4, floor=share)
        variance = total_variance(Deville(), inclusion, apart).sum()
        products[share] = variance * (inclusion @ costs)
    assert best_share(Spread(), order, scores, apart, **options) == 1.0
    chosen = best_share(Spread(), order, scores, apart, costs=costs, **options)
    assert products[chosen] == min(products.values())
    assert chosen < 1.0
    exact = np.repeat(np.eye(4), 10, axis=0)
    assert best_share(Spread(), order, scores, exact, costs=costs, **options) == 1.0


def test_a_projection_keeps_lengths_in_the_mean():
    vectors = np.random.default_rng(0).normal(size=(4000, 50))
    ratio = (vectors @ projection(50, 8) ** 1) ** 2
    found = ratio.sum(axis=1) / (vectors**2).sum(axis=1)
    assert abs(found.mean() - 1.0) < 0.35  # one projection for all: its own spread is 1 / sqrt(8)
    np.testing.assert_array_equal(
        vectors[:, :3] @ projection(3, 8), np.c_[vectors[:, :3], np.zeros((4000, 5))]
    )


def test_a_spread_draw_varies_less():
    order = order_alike(CLUSTERS)
    equal = np.full(20, 0.2)
    plain = total_variance(Systematic(), equal, CLUSTERS[np.random.default_rng(0).permutation(20)])
    spread = total_variance(Deville(), equal, CLUSTERS[order])
    assert spread.sum() < 0.1 * plain.sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalPivotal(np.array([[1.0, np.nan]])), "finite numbers"),
        (lambda: LocalPivotal(np.eye(3)).draw([0.5, 0.5], 0), "places of 3 units"),
        (lambda: LocalPivotal().draw([0.5, 0.5], 0), "give points"),
        (lambda: Spread(sketch=0), "sketch=0"),
        (lambda: Spread(every=0), "every=0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="of a spread must be"):
        Spread(design=3)
