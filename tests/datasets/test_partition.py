"""Every partition gives every row to exactly one agent, and is what its name says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isfed.datasets.partition import (
    Partition,
    by_column,
    dirichlet,
    equal_sizes,
    few_classes,
    iid,
    one_class,
    power_law_sizes,
    shards,
    sizes_in_range,
)

LABELS = np.repeat([-1.0, 1.0, 2.0], [700, 90, 210])[np.random.default_rng(0).permutation(1000)]
MAKERS = {
    "iid": lambda seed: iid(1000, num_agents=17, seed=seed),
    "dirichlet": lambda seed: dirichlet(LABELS, num_agents=17, concentration=0.3, seed=seed),
    "one_class": lambda seed: one_class(LABELS, num_agents=17, seed=seed),
    "one_class, sizes": lambda seed: one_class(LABELS, num_agents=17, sizes=(20, 90), seed=seed),
    "shards": lambda seed: shards(LABELS, num_agents=17, seed=seed),
    "few_classes": lambda seed: few_classes(LABELS, num_agents=17, least=2, seed=seed),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_no_row_is_lost_or_duplicated_and_the_seed_decides(make):
    first, again, other = make(1), make(1), make(2)
    np.testing.assert_array_equal(np.sort(first.rows), np.arange(1000))
    assert first.sizes.min() >= 1
    assert len(first.sizes) == len(first.names) == 17
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.offsets, again.offsets)
    assert not np.array_equal(first.rows, other.rows)


def test_federate_moves_features_and_targets_together():
    x = np.arange(1000.0)[:, None]
    partition = MAKERS["dirichlet"](0)
    data = partition.federate(x, LABELS)
    np.testing.assert_array_equal(LABELS[data.features[:, 0].astype(int)], data.targets)
    np.testing.assert_array_equal(data.features[:, 0], partition.rows)
    np.testing.assert_array_equal(data.num_examples, partition.sizes)
    with pytest.raises(ValueError, match="partition is of 1000 rows, but there are 999"):
        partition.federate(x[1:], LABELS)


def test_a_partition_that_loses_or_duplicates_a_row_cannot_be_made():
    for rows in ([0, 0, 2], [0, 1, 3]):
        with pytest.raises(ValueError, match="each exactly once"):
            Partition(np.array(rows), np.array([0, 3]), np.array(["a"]))
    with pytest.raises(ValueError, match="rows must be 0 to 3, each at most once"):
        Partition(np.array([0, 0, 3]), np.array([0, 3]), np.array(["a"]), num_rows=4)
    with pytest.raises(ValueError, match="offsets must lead to 3"):
        Partition(np.arange(3), np.array([0, 2]), np.array(["a"]))


@given(st.integers(1, 60), st.integers(1, 50), st.integers(0, 50), st.floats(0, 1), st.integers(0))
@settings(max_examples=300, deadline=None)
def test_sizes_in_range_are_in_range_and_sum_exactly(agents, low, span, place, seed):
    high = low + span
    rows = agents * low + round(place * agents * span)
    sizes = sizes_in_range(rows, num_agents=agents, low=low, high=high, seed=seed)
    assert sizes.sum() == rows
    assert low <= sizes.min() <= sizes.max() <= high


def test_the_sizes_of_the_paper_spread_over_their_range():
    sizes = sizes_in_range(35_000, num_agents=100, low=79, high=688)
    assert sizes.sum() == 35_000
    assert sizes.min() < 100  # the ends of the range are nearly reached
    assert sizes.max() > 660


def test_sizes_that_cannot_be_say_how_many_agents_could():
    with pytest.raises(ValueError, match=r"hold 3950 to 34400 rows, not 3415; .* can be 5 to 43"):
        sizes_in_range(3415, num_agents=50, low=79, high=688)


def test_equal_sizes_differ_by_at_most_one():
    sizes = equal_sizes(103, num_agents=10)
    assert sizes.sum() == 103
    assert np.ptp(sizes) == 1
    with pytest.raises(ValueError, match="num_agents=11 must be between 1 and the 10 rows"):
        equal_sizes(10, num_agents=11)


def test_iid_takes_given_sizes():
    assert iid(10, num_agents=3, sizes=np.array([5, 1, 4])).sizes.tolist() == [5, 1, 4]
    with pytest.raises(ValueError, match="3 whole numbers >= 1 that sum to 10"):
        iid(10, num_agents=3, sizes=np.array([5, 1, 5]))


def test_by_column_keeps_the_order_of_an_agents_rows():
    partition = by_column(np.array([7, 3, 7, 3, 3]))
    assert partition.names.tolist() == [3, 7]
    assert partition.rows.tolist() == [1, 3, 4, 0, 2]
    assert partition.offsets.tolist() == [0, 3, 5]


def test_by_column_takes_a_million_agents_of_one_row():
    column = np.random.default_rng(0).permutation(1_000_000)
    partition = by_column(column)
    assert partition.sizes.max() == 1
    np.testing.assert_array_equal(column[partition.rows], np.arange(1_000_000))


def skew(partition):
    """The mean distance (total variation) of an agent's mix of classes from that of all rows."""
    mix = np.array([0.7, 0.09, 0.21])
    labels = [LABELS[rows] for rows in np.split(partition.rows, partition.offsets[1:-1])]
    shares = [[(y == label).mean() for label in (-1.0, 1.0, 2.0)] for y in labels]
    return np.abs(shares - mix).sum(axis=1).mean() / 2


def test_dirichlet_skews_more_the_smaller_its_concentration():
    few, some, none = (
        skew(dirichlet(LABELS, num_agents=17, concentration=c)) for c in (0.05, 1.0, 1000.0)
    )
    assert few > some > none
    assert none < 0.03
    assert few > 0.3


@pytest.mark.parametrize("concentration", [1e-300, 1e-3, 1.0])
def test_dirichlet_gives_every_agent_its_least(concentration):
    partition = dirichlet(LABELS, num_agents=40, concentration=concentration, least=5)
    assert partition.sizes.min() >= 5
    with pytest.raises(ValueError, match="least=26 rows for 40 agents, of 1000"):
        dirichlet(LABELS, num_agents=40, concentration=1.0, least=26)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_dirichlet_needs_a_positive_concentration(bad):
    with pytest.raises(ValueError, match="concentration"):
        dirichlet(LABELS, num_agents=4, concentration=bad)


def test_one_class_gives_each_class_its_share_of_the_agents():
    shares = {-1.0: 0.2, 1.0: 0.5, 2.0: 0.3}
    partition = one_class(LABELS, num_agents=20, shares=shares)
    owners = [set(LABELS[rows]) for rows in np.split(partition.rows, partition.offsets[1:-1])]
    assert all(len(owner) == 1 for owner in owners)
    counts = {label: sum(owner == {label} for owner in owners) for label in shares}
    assert counts == {-1.0: 4, 1.0: 10, 2.0: 6}


def test_one_class_in_proportion_still_gives_a_rare_class_an_agent():
    labels = np.array([0] * 997 + [1] * 3)
    partition = one_class(labels, num_agents=5)
    assert partition.sizes[-1] == 3
    assert partition.sizes[:-1].sum() == 997


def test_one_class_sizes_are_in_their_range():
    partition = one_class(
        LABELS, num_agents=20, shares={-1.0: 0.5, 1.0: 0.2, 2.0: 0.3}, sizes=(20, 90)
    )
    assert partition.sizes.min() >= 20
    assert partition.sizes.max() <= 90
    with pytest.raises(ValueError, match=r"class 1.0 \(90 rows\).*num_agents can be 1 to 4"):
        one_class(LABELS, num_agents=20, shares={-1.0: 0.4, 1.0: 0.3, 2.0: 0.3}, sizes=(20, 90))


def test_one_class_checks_its_shares():
    with pytest.raises(ValueError, match=r"shares are of \[0\]"):
        one_class(LABELS, num_agents=5, shares={0: 1.0})
    with pytest.raises(ValueError, match="positive and sum to 1"):
        one_class(LABELS, num_agents=5, shares={-1.0: 0.5, 1.0: 0.5, 2.0: 0.5})
    with pytest.raises(ValueError, match="num_agents=2 is less than the 3 classes"):
        one_class(LABELS, num_agents=2)


def labels_of(partition, labels=LABELS):
    return [labels[rows] for rows in np.split(partition.rows, partition.offsets[1:-1])]


def test_shards_are_equal_and_few_per_agent():
    partition = shards(LABELS, num_agents=20, per_agent=2)
    assert partition.sizes.tolist() == [50] * 20
    # 40 shards of 25 rows: classes of 700, 90 and 210 rows meet in two shards only.
    seen = [np.unique(y).size for y in labels_of(partition)]
    assert max(seen) <= 4
    assert sum(seen) <= 40 + 2
    uneven = shards(LABELS, num_agents=17, per_agent=3).sizes
    assert np.ptp(uneven) <= 3  # shards differ by at most one row


def test_shards_are_dealt_at_random():
    """Agent 0's first shard is each of the 12 with equal probability; 4.9 standard errors."""
    labels, counts = np.repeat(np.arange(12), 3), np.zeros(12)
    for seed in range(1200):
        counts[labels_of(shards(labels, num_agents=6, seed=seed), labels)[0][0]] += 1
    first_of_two = 2 * np.arange(11, -1, -1) / (12 * 11)  # the smaller label comes first
    error = np.sqrt(1200 * first_of_two * (1 - first_of_two))
    assert np.all(np.abs(counts - 1200 * first_of_two) <= 4.9 * error)


def test_shards_need_enough_rows():
    with pytest.raises(ValueError, match="num_agents=600 with per_agent=2 shards need 1200 rows"):
        shards(LABELS, num_agents=600)
    with pytest.raises(ValueError, match="per_agent=0"):
        shards(LABELS, num_agents=6, per_agent=0)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 200), st.floats(0, 5), st.integers(0))
@settings(max_examples=200, deadline=None)
def test_power_law_sizes_sum_exactly_and_respect_the_least(agents, least, more, spread, seed):
    rows = agents * least + more
    sizes = power_law_sizes(rows, num_agents=agents, spread=spread, least=least, seed=seed)
    assert sizes.sum() == rows
    assert sizes.min() >= least


def test_power_law_sizes_without_spread_are_equal():
    assert np.ptp(power_law_sizes(103, num_agents=10, spread=0.0)) == 1
    with pytest.raises(ValueError, match="spread=-1"):
        power_law_sizes(100, num_agents=10, spread=-1.0)
    with pytest.raises(ValueError, match="least=11 rows"):
        power_law_sizes(100, num_agents=10, least=11)


def test_few_classes_gives_agent_k_the_classes_from_k_on():
    partition = few_classes(LABELS, num_agents=9, per_agent=2, least=4)
    classes = np.array([-1.0, 1.0, 2.0])
    for agent, y in enumerate(labels_of(partition)):
        found, counts = np.unique(y, return_counts=True)
        assert set(found) == {classes[agent % 3], classes[(agent + 1) % 3]}
        assert counts.min() >= 4
    assert partition.sizes.max() > 3 * np.median(partition.sizes)
    with pytest.raises(ValueError, match=r"class 1.0: least=40 rows for each of 6 parts, of 90"):
        few_classes(LABELS, num_agents=9, least=40)
    with pytest.raises(ValueError, match="per_agent=4 must be between 1 and the 3 classes"):
        few_classes(LABELS, num_agents=9, per_agent=4)
    with pytest.raises(ValueError, match="num_agents=2 is less than the 3 classes"):
        few_classes(LABELS, num_agents=2)
