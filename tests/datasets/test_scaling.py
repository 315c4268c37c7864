"""Standardisation from the agents' sums equals that of the pooled rows."""

import numpy as np
import pytest

from isfed import FederatedData
from isfed.datasets.encoder import agent_squares, agent_sums, federated_mean, standardise

OFFSETS = np.array([0, 3, 4, 60])


@pytest.fixture
def features():
    return np.random.default_rng(0).lognormal(size=(60, 4)) * [1.0, 1e-6, 1e9, 1.0]


def test_it_is_the_standardisation_of_all_rows(features):
    data, scaling = standardise(FederatedData(features, np.zeros(60), OFFSETS))
    np.testing.assert_allclose(scaling.mean, features.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scaling.scale, features.std(axis=0), rtol=1e-13)
    np.testing.assert_allclose(data.features.mean(axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(data.features.std(axis=0), 1.0, rtol=1e-13)


def test_agents_report_sums_only(features):
    features[5, 0] = np.nan
    counts, sums = agent_sums(features, OFFSETS)
    squares = agent_squares(features, OFFSETS, np.ones(4))
    for agent, rows in enumerate(np.split(features, OFFSETS[1:-1])):
        np.testing.assert_array_equal(counts[agent], (~np.isnan(rows)).sum(axis=0))
        np.testing.assert_allclose(sums[agent], np.nansum(rows, axis=0), rtol=1e-13)
        np.testing.assert_allclose(squares[agent], np.nansum((rows - 1) ** 2, axis=0), rtol=1e-13)


def test_missing_values_do_not_count_in_the_mean(features):
    features[[0, 3, 10], 1] = np.nan
    mean = federated_mean(features, OFFSETS)
    np.testing.assert_allclose(mean, np.nanmean(features, axis=0), rtol=1e-13)


def test_a_large_offset_loses_no_digits(features):
    moved = features[:, :1] + 1e9  # e.g. seconds since 1970; the squares are 1e18
    _, scaling = standardise(FederatedData(moved, np.zeros(60), OFFSETS))
    assert scaling.scale[0] == pytest.approx(moved.std(), rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e17])
def test_a_constant_becomes_zero(value):
    data = FederatedData(np.full((60, 1), value), np.zeros(60), OFFSETS)
    scaled, scaling = standardise(data)
    assert scaling.scale[0] == 1.0
    assert np.abs(scaled.features).max() <= 1e-15 * abs(value)
