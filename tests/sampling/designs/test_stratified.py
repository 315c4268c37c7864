"""Strata and clusters: the design within, and what surrounds it."""

import numpy as np
import pytest

from isfed.base.random_streams import Stream
from isfed.sampling.designs import Brewer, Clustered, ConditionalPoisson, Poisson, Stratified
from isfed.sampling.designs.exact_variance import total_variance

STRATA = ["b", "a", "a", "b", "a", "b", "a"]
CHANCES = np.array([0.5, 0.2, 1.0, 0.9, 0.4, 0.6, 0.4])
CLUSTERS = np.array([7, 3, 3, 5, 7, 9, 3])
WHOLE = np.array([0.3, 0.8, 0.8, 0.5, 0.3, 0.4, 0.8])


def test_every_stratum_is_drawn_on_its_own():
    design = Stratified(ConditionalPoisson(), STRATA)
    one, two = [1, 2, 4, 6], [0, 3, 5]
    for seed in range(20):
        stream = Stream(seed)  # one after the other, by the order of the labels
        drawn = [np.array(one)[ConditionalPoisson().draw(CHANCES[one], stream)]]
        drawn += [np.array(two)[ConditionalPoisson().draw(CHANCES[two], stream)]]
        expected = sorted(np.concatenate(drawn).tolist())
        assert design.draw(CHANCES, seed).tolist() == expected
    joint = design.joint(CHANCES)
    inner = ConditionalPoisson()
    np.testing.assert_array_equal(joint[np.ix_(one, one)], inner.joint(CHANCES[one]))
    np.testing.assert_array_equal(joint[np.ix_(two, two)], inner.joint(CHANCES[two]))
    np.testing.assert_array_equal(joint[np.ix_(one, two)], np.outer(CHANCES[one], CHANCES[two]))


def test_the_variance_is_that_of_the_strata_together():
    design = Stratified(ConditionalPoisson(), STRATA)
    values = np.arange(1.0, 8.0)[:, None]
    apart = [
        total_variance(ConditionalPoisson(), CHANCES[units], values[units])
        for units in ([1, 2, 4, 6], [0, 3, 5])
    ]
    np.testing.assert_allclose(total_variance(design, CHANCES, values), sum(apart))


def test_clusters_come_as_a_whole(largest_deviation):
    design = Clustered(Brewer(), CLUSTERS)
    stream, draws = Stream(1), 10_000
    counts = np.zeros((7, 7))
    for _ in range(draws):
        units = design.draw(WHOLE, stream)
        assert np.array_equal(np.isin(CLUSTERS, CLUSTERS[units]), np.isin(np.arange(7), units))
        assert np.unique(CLUSTERS[units]).size == 2
        counts[np.ix_(units, units)] += 1
    assert largest_deviation(counts, design.joint(WHOLE), draws) < 4
    np.testing.assert_array_equal(np.diag(design.joint(WHOLE)), WHOLE)
    assert design.joint(WHOLE)[1, 6] == 0.8  # of one cluster


def test_clusters_can_be_stratified():
    # clusters 3, 5, 7, 9; the second and the fourth in one stratum
    strata = Stratified(ConditionalPoisson(), ["x", "y", "x", "y"])
    design = Clustered(strata, CLUSTERS)
    chances = np.array([0.2, 0.8, 0.8, 0.5, 0.2, 0.5, 0.8])
    for seed in range(20):
        clusters = set(CLUSTERS[design.draw(chances, seed)].tolist())
        assert len(clusters & {3, 7}) == 1
        assert len(clusters & {5, 9}) == 1


def test_size_is_fixed_where_the_design_fixes_it():
    assert Stratified(Brewer(), STRATA).fixed_size
    assert not Stratified(Poisson(), STRATA).fixed_size
    assert not Stratified(Brewer(), STRATA).exact_joint
    assert not Clustered(Brewer(), CLUSTERS).fixed_size


def test_bad_input_is_named():
    design = Stratified(Brewer(), STRATA)
    message = r"^inclusion sums to 2.5 in the stratum 'b', not to a whole number >= 1; make it"
    with pytest.raises(ValueError, match=message):
        design.draw([1.0, 0.2, 1.0, 0.9, 0.4, 0.6, 0.4], 0)
    with pytest.raises(ValueError, match="strata has 7 labels, but there are 2 units"):
        design.draw([0.5, 0.5], 0)
    with pytest.raises(ValueError, match="strata must be a label for each unit"):
        Stratified(Brewer(), 3)
    with pytest.raises(ValueError, match="the units of cluster 3 have different inclusion"):
        Clustered(Brewer(), CLUSTERS).draw([0.3, 0.8, 0.8, 0.5, 0.3, 0.4, 0.7], 0)
    with pytest.raises(ValueError, match="not to a whole number"):
        Clustered(Brewer(), CLUSTERS).draw([0.3, 0.8, 0.8, 0.6, 0.3, 0.4, 0.8], 0)
