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
from matplotlib.figure import Figure

from isfed.base.atomic_files import write_whole
from isfed.report.terminal_tables import PAPER_GAIN_DB
from isfed.studies.results_reader import AlgorithmResult, Results

# The paper's four colours, each with its own dashes so that they can be told apart in grey.
STYLES: dict[str, tuple[str, Any]] = {
    "FedAvg": ("tab:blue", "-"),
    "ISFedAvg, oracle": ("tab:green", (0, (9, 1.5))),
    "ISFedAvg, current": ("tab:red", (0, (6, 2))),
    "ISFedAvg, running": ("tab:purple", (0, (3, 1, 1, 1))),
    "FedAvg with 1/E_k": ("lightsteelblue", "-"),
    "ISFedAvg, memory (ours)": ("black", (0, (1, 1.2))),
}
SHORT_STYLES = {  # the same for the short names of tuned experiments
    name.removeprefix("ISFedAvg, ").removesuffix(" (ours)"): look for name, look in STYLES.items()
}
OTHERS = [("tab:orange", "-"), ("tab:brown", "--"), ("tab:pink", "-."), ("tab:olive", ":")]


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG and close it; the same figure makes the same files."""
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(buffer, format=kind, dpi=160, bbox_inches="tight", metadata=metadata)
        paths.append(folder / f"{name}.{kind}")
        write_whole(paths[-1], buffer.getvalue())
    plt.close(figure)
    return paths


def plot_band(axes: Any, x: Any, mean: Any, error: Any, colour: str, **look: Any) -> None:
    """A curve with a band of two standard errors."""
    axes.plot(x, mean, color=colour, **look)
    low, high = mean - 2 * error, mean + 2 * error
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def label_axes(axes: Any, x_label: str, y_label: str, **legend: Any) -> None:
    """The labels, the grid and the legend that all figures share."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, **legend)


def _smooth(values: np.ndarray, width: int) -> np.ndarray:
    """A centred mean over `width` rounds, narrower at the two ends."""
    # Window by window: differences of running sums would lose small values after large ones.
    place = np.arange(values.size)
    reach = np.minimum(np.minimum(place, values.size - 1 - place), width // 2)
    ends = zip(place - reach, place + reach + 1, strict=True)
    return np.array([values[begin:end].mean() for begin, end in ends])


def msd_figure(results: Results) -> list[Path]:
    """msd in decibels against rounds, one curve per algorithm; measures where there is no msd."""
    known = results.summary["no_msd"] is None
    names = ["msd"] if known else list(results.algorithms[0].measures)
    if not names:
        return []
    size = (7.0 * len(names), 4.4)  # a panel for each
    figure, panels = plt.subplots(1, len(names), figsize=size, squeeze=False)
    for axes, measure in zip(panels[0], names, strict=True):
        others = cycle(OTHERS)
        for algorithm in results.algorithms:
            colour, dashes = STYLES.get(algorithm.name) or next(others)
            if known:
                width = max(1, algorithm.rounds.size // 150)
                x, y = algorithm.rounds, 10 * np.log10(_smooth(algorithm.msd, width))
            else:
                x, y = algorithm.measures[measure].rounds, algorithm.measures[measure].mean
            axes.plot(x, y, color=colour, linestyle=dashes, label=algorithm.name)
        if known:
            axes.set_xlim(left=0)
        label_axes(axes, "round", "mean-square deviation (dB)" if known else measure)
    return save_figure(figure, results.path, "msd" if known else "measures")


BEST_STEP = ", best step "
MEASURE_LABELS = {
    "test_error": "test error (%)",
    "balanced_error": "balanced test error (%)",
    "msd": r"$|w_i - w^o|^2$ (dB)",
}


def measures_figure(results: Results) -> list[Path]:
    """Errors and distance against rounds: above all at one step size, below each at its best."""
    summary = results.summary
    names = [algorithm.name for algorithm in results.algorithms]
    best = [name for name in names if BEST_STEP in name]
    groups = {
        f"all at step {summary['common_step_size']:g}": [n for n in names if n not in best],
        "each at its own best step": best,
    }
    figure, grid = plt.subplots(
        2, 3, figsize=(13.5, 7.6), sharex=True, sharey="col", layout="constrained"
    )
    for (title, names), panels in zip(groups.items(), grid, strict=True):
        panels[0].set_title(title, loc="left", fontsize=10)
        for axes, measure in zip(panels, MEASURE_LABELS, strict=True):
            for name in names:
                colour, dashes = SHORT_STYLES[name.partition(BEST_STEP)[0]]
                label = name if name.startswith("FedAvg") else f"ISFedAvg, {name}"
                label = label.replace(BEST_STEP, ", step ")
                curve = _curve(results[name], measure)
                plot_band(axes, *curve, colour, linestyle=dashes, label=label)
            axes.set_ylabel(MEASURE_LABELS[measure])
            axes.tick_params(labelbottom=True, labelleft=True)
            axes.grid(alpha=0.3)
        panels[2].legend(frameon=False, fontsize=9)
    for column, measure in enumerate(("test_error", "balanced_error")):
        levels = _levels(summary["landmarks"], measure)
        limits = _limits(results, measure, levels.values())
        grid[0, column].set_ylim(*limits)
        for axes in grid[:, column]:
            _draw_levels(axes, levels, limits)
    for axes in grid[1]:
        axes.set_xlabel("round (bands: 2 standard errors)")
    rounds = summary["rounds"]
    # Room for the names of the levels, to the right of where the curves end.
    grid[0, 0].set_xlim(-0.01 * rounds, 1.4 * rounds)
    grid[0, 0].set_xticks([t for t in grid[0, 0].get_xticks() if 0 <= t <= rounds])
    return save_figure(figure, results.path, "measures")


def _curve(algorithm: AlgorithmResult, measure: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, values and standard errors, in the units of the axis."""
    if measure == "msd":
        msd = algorithm.msd
        smooth = _smooth(msd, max(1, msd.size // 150))
        error = 10.0 / np.log(10.0) * algorithm.msd_stderr / msd
        return algorithm.rounds, 10 * np.log10(smooth), error
    measured = algorithm.measures[measure]
    return measured.rounds, 100 * measured.mean, 100 * measured.stderr


def _limits(results: Results, measure: str, levels: Any) -> tuple[float, float]:
    """Around all errors once the first rounds are run, and the levels that are not above."""
    seen = [algorithm.measures[measure] for algorithm in results.algorithms]
    errors = 100 * np.concatenate([curve.mean[curve.rounds > 0] for curve in seen])
    errors = np.append(errors, [level for level in levels if level <= errors.max()])
    room = 0.12 * max(float(np.ptp(errors)), 1e-3)
    return max(0.0, float(errors.min()) - room), float(errors.max()) + room


def _levels(landmarks: dict[str, Any], measure: str) -> dict[str, float]:
    """What the minimiser, the majority class and the paper reach, in percent."""
    levels = {r"$w^o$": 100 * landmarks[f"optimum_{measure}"]}
    if measure == "test_error":
        levels["majority class"] = 100 * landmarks["majority_test_error"]
        levels |= {f"paper's {n}": 100 * e for n, e in landmarks["paper_test_error"].items()}
    return levels


def _draw_levels(axes: Any, levels: dict[str, float], limits: tuple[float, float]) -> None:
    """A line with its name for every level in sight."""
    seen = sorted((e, name) for name, e in levels.items() if limits[0] < e < limits[1])
    height = 0.06 * (limits[1] - limits[0])  # of a name
    for i, (level, name) in enumerate(seen):
        axes.axhline(level, color="black", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        crowded = i + 1 < len(seen) and seen[i + 1][0] - level < height
        axes.annotate(
            name, (0.99, level), xycoords=("axes fraction", "data"),
            xytext=(0, -2 if crowded else 1), textcoords="offset points", fontsize=8,
            ha="right", va="top" if crowded else "bottom",
        )  # fmt: skip


def heterogeneity_figure(results: Results) -> list[Path]:
    """Gain of the oracle over FedAvg against the noise ratio, one curve per share of noisy agents.

    The crossings with the paper's 23.1 dB are marked.
    """
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    study = results.summary["points"]
    shares = sorted({point["noisy_share"] for point in study})
    greys = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(shares)))
    crossings = []
    for colour, share, marker in zip(greys, shares, "osD^vP*", strict=False):
        points = [p for p in study if p["noisy_share"] == share]
        ratios, gains, errors = (
            np.array([p[key] for p in points])
            for key in ("noise_ratio", "gain_db", "gain_stderr_db")
        )
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
    label_axes(
        axes, "noise of the noisy agents relative to the others (standard deviations)",
        "gain of ISFedAvg (oracle) over FedAvg (dB)", title_fontsize=9, loc="upper left",
        title="noisy (bars: 2 standard\nerrors over the data seeds)", bbox_to_anchor=(1.01, 1.0),
    )  # fmt: skip
    return save_figure(figure, results.path, "heterogeneity")


def _crossings(ratios: np.ndarray, gains: np.ndarray, level: float) -> list[float]:
    """Where the curve crosses a level, linear in the logarithm of the ratio."""
    crossings = []
    for i in range(len(ratios) - 1):
        low, high = gains[i] - level, gains[i + 1] - level
        if low * high < 0:
            share = low / (low - high)
            crossings.append(float(ratios[i] ** (1 - share) * ratios[i + 1] ** share))
    return crossings


def comparison_figure(results: Results) -> list[Path]:
    """Loss over the optimum against rounds, with FedAvg's final loss as a line."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    winner = results.summary.get("winner")
    for algorithm in results.algorithms:
        curve = algorithm.measures["excess"]
        look: dict[str, Any] = {"linestyle": "-", "linewidth": 0.8}
        colour = "lightgrey"
        if algorithm.name in ("FedAvg", winner):
            first = algorithm.name == "FedAvg"
            colour = "tab:blue" if first else "black"
            label = f"{algorithm.name}, step {algorithm.step_size:.3g}"
            look = {"linestyle": "-" if first else (0, (4, 1.5)), "label": label, "zorder": 3}
        plot_band(axes, curve.rounds, curve.mean, curve.stderr, colour, **look)
    axes.plot([], [], color="lightgrey", label="the other ways")
    level = results.summary["level"]
    axes.axhline(level, color="tab:blue", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(
        "what FedAvg ends with", (0.01, level), xycoords=("axes fraction", "data"),
        xytext=(0, 2), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set_yscale("log")
    label_axes(axes, "round (bands: 2 standard errors)", "risk minus the lowest possible risk")
    return save_figure(figure, results.path, "comparison")


def inclusion_figure(results: Results) -> list[Path]:
    """The inclusion probabilities of agents and of examples, sorted, beside the uniform ones."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.8))
    table = results.inclusion
    of_agents, of_examples = (table["unit"] == unit for unit in ("agent", "example"))
    agents, times = table["inclusion"][of_agents], table["over_uniform"][of_examples]
    left.plot(table["rank"][of_agents], agents, color="black", label="importance sampling")
    level = agents.sum() / agents.size
    left.axhline(level, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    right.plot(table["share"][of_examples], times, color="black", label="importance sampling")
    right.axhline(1.0, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    right.set_xscale("log")
    for axes, values in ((left, agents), (right, times)):
        axes.set_yscale("log")
        smallest = values[values > 0.0].min()
        axes.set_ylim(bottom=min(smallest / 1.5, 0.5 * values.max()))
    label_axes(left, "agent, by rank", "inclusion probability, L p_k")
    over = "inclusion probability over the uniform one"
    label_axes(right, "example, by rank, share of all", over)
    figure.tight_layout()
    return save_figure(figure, results.path, "inclusion")


# What `isfed report --figures` draws, by the kind of the folder; other commands draw at once.
BY_KIND = {
    "comparison": comparison_figure,
    "diagnosis": inclusion_figure,
    "experiment": msd_figure,
}
