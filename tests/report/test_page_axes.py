"""Ticks, limits and labels of the page's figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.report.axis_ticks import limits, linear_ticks, log_ticks, spread
from isfed.report.page_data import Series
from isfed.report.svg_chart import downsample

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
finite = st.floats(-1e15, 1e15).filter(lambda v: v == 0.0 or abs(v) > 1e-12)


def number(label: str) -> float:
    """What a tick says, read as a reader does."""
    label = label.replace("−", "-")
    if "10" in label and label.translate(SUPERSCRIPTS) != label:
        mantissa, _, power = label.rpartition("10")
        return float(mantissa.rstrip("×") or 1.0) * 10.0 ** int(power.translate(SUPERSCRIPTS))
    return float(label.rstrip("kMG")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(label[-1], 1.0)


@given(finite, finite)
def test_linear_ticks_say_where_they_are(one, other):
    low, high = sorted((one, other))
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return
    low, high = limits(low, high, logarithmic=False)
    ticks = linear_ticks(low, high)
    places, labels = zip(*ticks, strict=True)
    assert 3 <= len(ticks) <= 9
    assert len(set(labels)) == len(labels)
    step = places[1] - places[0]
    for place, label in ticks:
        assert low - 1e-6 * step <= place <= high + 1e-6 * step
        assert number(label) == pytest.approx(place, abs=1e-6 * step, rel=1e-9)


@given(st.floats(-300.0, 300.0), st.floats(1e-3, 200.0))
def test_logarithmic_ticks_say_where_they_are(low, width):
    low, high = limits(low, min(low + width, 305.0), logarithmic=True)
    ticks = log_ticks(low, high)
    places, labels = zip(*ticks, strict=True)
    assert 2 <= len(ticks) <= 9
    assert len(set(labels)) == len(labels)
    assert list(places) == sorted(places)
    for place, label in ticks:
        assert low - 1e-6 <= place <= high + 1e-6
        assert np.log10(number(label)) == pytest.approx(place, abs=1e-6)


@given(st.lists(st.floats(-20.0, 120.0), max_size=20))
def test_labels_keep_their_distance_and_their_order(wanted):
    places = spread(wanted, 4.8)
    order = np.argsort(np.array(wanted), kind="stable")
    in_order = np.array(places)[order]
    assert np.all(np.diff(in_order) >= 4.8 - 1e-9)
    assert all(-1e-9 <= place <= 100.0 + 1e-9 for place in places)


def test_labels_that_are_apart_stay_where_they_are():
    assert spread([90.0, 10.0, 50.0], 5.0) == [90.0, 10.0, 50.0]


@given(st.integers(1, 3000), st.integers(12, 300))
def test_thinning_is_the_mean_of_neighbours_and_the_envelope_of_their_bands(points, most):
    rng = np.random.default_rng(points)
    x = np.arange(1.0, points + 1.0)
    mean = rng.normal(size=points)
    width = rng.random(points)
    few = downsample(Series("a", x, mean, mean - width, mean + width), most)
    assert few.x.size == min(points, most)
    if points <= most:
        assert np.array_equal(few.mean, mean)
        return
    at = 0  # groups follow one another: the size of each is seen from its mean place
    for i in range(few.x.size):
        size = round(2 * (few.x[i] - x[at])) + 1
        group = slice(at, at + size)
        assert few.mean[i] == pytest.approx(mean[group].mean())
        assert few.low[i] == (mean - width)[group].min()
        assert few.high[i] == (mean + width)[group].max()
        at += size
    assert at == points
    for end in (0, -1):
        assert (few.x[end], few.mean[end]) == (x[end], mean[end])
