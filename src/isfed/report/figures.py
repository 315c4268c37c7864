"""The figures of a results folder, as PNG and SVG."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from isfed.experiments.store import HISTORY, MEASURES
from isfed.report.tables import PAPER_GAIN_DB
from isfed.store import write_whole

# The paper's four colours, each with its own dashes so that they can be told apart in grey.
STYLES: dict[str, tuple[str, Any]] = {
    "FedAvg": ("tab:blue", "-"),
    "ISFedAvg, oracle": ("tab:green", (0, (9, 1.5))),
    "ISFedAvg, current": ("tab:red", (0, (6, 2))),
    "ISFedAvg, running": ("tab:purple", (0, (3, 1, 1, 1))),
    "FedAvg with 1/E_k": ("lightsteelblue", "-"),
    "ISFedAvg, memory (ours)": ("black", (0, (1, 1.2))),
}
_LOOKS: list[tuple[str, Any]] = [
    ("tab:blue", "-"),
    ("tab:red", (0, (6, 2))),
    ("tab:purple", (0, (3, 1, 1, 1))),
    ("black", (0, (1, 1.2))),
    ("lightsteelblue", "-"),
    ("lightcoral", (0, (6, 2))),
    ("plum", (0, (3, 1, 1, 1))),
    ("grey", (0, (1, 1.2))),
]
OTHERS = [("tab:orange", "-"), ("tab:brown", "--"), ("tab:pink", "-."), ("tab:olive", ":")]


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG and close it."""
    paths = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160, bbox_inches="tight")
        paths.append(folder / f"{name}.{kind}")
        write_whole(paths[-1], buffer.getvalue())
    plt.close(figure)
    return paths


def _smooth(values: np.ndarray, width: int) -> np.ndarray:
    """A centred mean over `width` rounds, narrower at the two ends."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    place = np.arange(values.size)
    reach = np.minimum(np.minimum(place, values.size - 1 - place), width // 2)
    return (sums[place + reach + 1] - sums[place - reach]) / (2 * reach + 1)


def msd_figure(folder: Path) -> list[Path]:
    """msd in decibels against rounds, one curve per algorithm, from history.parquet."""
    history = pq.read_table(folder / HISTORY).to_pydict()
    names = np.array(history["algorithm"])
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    others = cycle(OTHERS)
    for name in dict.fromkeys(history["algorithm"]):
        rows = names == name
        rounds = np.array(history["round"])[rows]
        msd = np.array(history["msd"])[rows]
        colour, dashes = STYLES.get(name) or next(others)
        width = max(1, rounds.size // 150)
        axes.plot(
            rounds, 10 * np.log10(_smooth(msd, width)), color=colour, linestyle=dashes, label=name
        )
    axes.set_xlabel("round")
    axes.set_ylabel("mean-square deviation (dB)")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return save_figure(figure, folder, "msd")


MEASURE_LABELS = {
    "test_error": "test error (%)",
    "balanced_error": "balanced test error (%)",
    "msd": "mean-square deviation (dB)",
}


def measures_figure(folder: Path, levels: dict[str, float]) -> list[Path]:
    """Errors and msd against rounds, a panel each; `levels` are horizontal lines in the first."""
    found = pq.read_table(folder / MEASURES).to_pydict()
    history = pq.read_table(folder / HISTORY).to_pydict()
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 4.2))
    names = list(dict.fromkeys(found["algorithm"]))
    looks = dict(zip(names, cycle(_LOOKS), strict=False))
    for axes, measure in zip(panels, MEASURE_LABELS, strict=True):
        for name in names:
            colour, dashes = looks[name]
            if measure == "msd":
                rows = np.array(history["algorithm"]) == name
                x = np.array(history["round"])[rows]
                y = 10 * np.log10(_smooth(np.array(history["msd"])[rows], max(1, x.size // 150)))
                low = high = y
            else:
                rows = (np.array(found["algorithm"]) == name) & (
                    np.array(found["measure"]) == measure
                )
                x = np.array(found["round"])[rows]
                y = 100 * np.array(found["mean"])[rows]
                error = 100 * np.array(found["stderr"])[rows]
                low, high = y - 2 * error, y + 2 * error
            axes.plot(x, y, color=colour, linestyle=dashes, label=name)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel(MEASURE_LABELS[measure])
        axes.grid(alpha=0.3)
    for label, level in levels.items():
        panels[0].axhline(100 * level, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
        above = 3 if label.startswith("paper") else -9  # w^o lies close below the paper's ISFedAvg
        panels[0].annotate(
            label, (1.0, 100 * level), xycoords=("axes fraction", "data"), xytext=(-4, above),
            textcoords="offset points", fontsize=8, ha="right",
        )  # fmt: skip
    panels[0].set_ylim(0, 60)
    panels[1].set_ylim(0, 60)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False,
        fontsize=9, bbox_to_anchor=(0.5, -0.1),
    )  # fmt: skip
    return save_figure(figure, folder, "measures")


def heterogeneity_figure(folder: Path, study: dict[str, Any]) -> list[Path]:
    """Gain of the oracle over FedAvg against the noise ratio, one curve per share of noisy agents.

    The crossings with the paper's 23.1 dB are marked.
    """
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    shares = sorted({point["noisy_share"] for point in study["points"]})
    greys = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(shares)))
    crossings = []
    for colour, share, marker in zip(greys, shares, "osD^vP*", strict=False):
        points = [p for p in study["points"] if p["noisy_share"] == share]
        ratios = np.array([p["noise_ratio"] for p in points])
        gains = np.array([p["gain_db"] for p in points])
        errors = np.array([p["gain_stderr_db"] for p in points])
        axes.errorbar(
            ratios, gains, 2 * errors, color=colour, marker=marker, markersize=5, capsize=2,
            label=f"{100 * share:g}% of the agents",
        )  # fmt: skip
        crossings += _crossings(ratios, gains, PAPER_GAIN_DB)
    axes.axhline(PAPER_GAIN_DB, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        f"the paper: {PAPER_GAIN_DB} dB", (1.05, PAPER_GAIN_DB), xytext=(0, 4),
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    for ratio in crossings:
        axes.plot(ratio, PAPER_GAIN_DB, marker="x", markersize=11, color="black", mew=2.2)
    axes.set_xscale("log")
    axes.set_xlabel("noise of the noisy agents over noise of the others (standard deviations)")
    axes.set_ylabel("gain of ISFedAvg (oracle) over FedAvg (dB)")
    axes.grid(alpha=0.3)
    axes.legend(
        frameon=False, fontsize=9, title="noisy (bars: 2 standard\nerrors over the data seeds)",
        title_fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0),
    )  # fmt: skip
    return save_figure(figure, folder, "heterogeneity")


def _crossings(ratios: np.ndarray, gains: np.ndarray, level: float) -> list[float]:
    """Where the curve crosses a level, linear in the logarithm of the ratio."""
    found = []
    for i in range(len(ratios) - 1):
        low, high = gains[i] - level, gains[i + 1] - level
        if low * high < 0:
            share = low / (low - high)
            found.append(float(ratios[i] ** (1 - share) * ratios[i + 1] ** share))
    return found
