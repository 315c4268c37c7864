"""Figures: written whole, and marked where the paper lies."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from isfed.report.figures import _crossings, _smooth, heterogeneity_figure, save_figure
from isfed.report.networks_report import draw_accuracy
from isfed.studies.results_reader import Measurements, Results


def test_smoothing_keeps_a_line_and_the_length():
    line = np.linspace(3.0, 5.0, 50)
    assert _smooth(line, 9) == pytest.approx(line)
    assert _smooth(np.ones(7), 1) == pytest.approx(np.ones(7))


def test_crossings_are_linear_in_the_logarithm():
    assert _crossings(np.array([1.0, 100.0]), np.array([0.0, 20.0]), 10.0) == pytest.approx([10.0])
    assert _crossings(np.array([1.0, 10.0]), np.array([0.0, 5.0]), 10.0) == []


def test_heterogeneity_figure(tmp_path):
    points = [
        {"noisy_share": share, "noise_ratio": ratio, "gain_db": gain, "gain_stderr_db": 0.3}
        for share in (0.01, 0.1)
        for ratio, gain in ((1.0, 7.0), (30.0, 15.0), (100.0, 28.0))
    ]
    results = Results(tmp_path, "heterogeneity", "h", "", {}, (), {}, {}, {"points": points})
    paths = heterogeneity_figure(results)
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_the_same_figure_makes_the_same_files(tmp_path):
    contents = []
    for _ in range(2):
        figure, axes = plt.subplots()
        axes.plot([1, 2], [3, 4], label="a")
        axes.legend()
        contents.append([path.read_bytes() for path in save_figure(figure, tmp_path, "x")])
    assert contents[0] == contents[1]


def test_bands_of_an_accuracy_end_where_it_does():
    curve = Measurements(np.array([0, 1]), np.array([0.02, 0.99]), np.array([0.1, 0.1]))
    figure, axes = plt.subplots()
    draw_accuracy(axes, {"FedAvg": curve}, ["FedAvg"])
    (band,) = axes.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 100.0)
    plt.close(figure)
