"""The figures and the table of `isfed reproduce systems`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from isfed.report.figures import save_figure
from isfed.report.page_data import PageTable
from isfed.report.page_sentences import by_problem
from isfed.report.terminal_tables import MOVING, msd_text
from isfed.studies.results_reader import AlgorithmResult, Results

AXES = {
    "round": "rounds",
    "bytes_up": "bytes sent up",
    "gradients": "gradients of examples",
    "seconds": "virtual seconds",
}
# Rows of the figure; the two references are in all of them.
FAMILIES: dict[str, tuple[str, ...]] = {
    "everybody works": (
        "local GD", "local SGD", "Stich's SGD", "restarted SGD, unequal steps", "momentum SGD",
        "adaptive tau",
    ),
    "cooperation, edges, old models": (
        "synchronous SGD", "decentralised SGD, ring", "elastic averaging", "HierFAVG",
        "FedAsync, drawn age", "FedAsync, event queue",
    ),
    "some are heard": (
        "Dynamic FedAvg", "scheme I", "scheme II", "transformed scheme II", "original scheme",
        "FedProx", "FedProx, stragglers",
    ),
    "selectors and other objectives": (
        "FedCS", "Hybrid-FL", "FOLB", "agnostic FL", "agnostic FL, stochastic", "q-FedAvg",
        "q-FedSGD", "MOCHA",
    ),
}  # fmt: skip
REFERENCES = ("FedAvg", "ISFedAvg, memory")
# Colours that differ in lightness, each with its own dashes: they can be told apart in grey.
LOOKS: tuple[tuple[str, Any], ...] = (
    ("#0b3c8c", "-"),
    ("#c1440e", (0, (6, 1.5))),
    ("#1b8a5a", (0, (2, 1.2))),
    ("#8e44ad", (0, (7, 1.5, 1.5, 1.5))),
    ("#d4a017", (0, (4, 1.2, 1, 1.2, 1, 1.2))),
    ("#2aa5c9", (0, (1, 1))),
    ("#6b3e26", (0, (9, 2))),
    ("#e377c2", (0, (3, 2))),
)
REFERENCE_LOOKS = {"FedAvg": ("0.6", "-"), "ISFedAvg, memory": ("black", "-")}


def systems_figures(results: Results) -> list[Path]:
    """One figure for each problem: a row for each family, a column for each cost."""
    return [
        path
        for problem, part in by_problem(results)
        for path in _figure(results, problem, {a.summary["method"]: a for a in part.algorithms})
    ]


def figure_name(problem: str) -> str:
    """The file of a problem's figure."""
    return f"systems-{problem.partition('(')[0]}"


def _figure(results: Results, problem: str, methods: dict[str, AlgorithmResult]) -> list[Path]:
    size = (14.0, 3.0 * len(FAMILIES))
    shared: Any = {"sharey": True, "sharex": "col", "layout": "constrained"}
    figure, grid = plt.subplots(len(FAMILIES), len(AXES), figsize=size, **shared)
    low, high = _limits(methods)
    for (family, names), panels in zip(FAMILIES.items(), grid, strict=True):
        looks = dict(zip((n for n in names if n in methods), LOOKS, strict=False)) | REFERENCE_LOOKS
        for axes, cost in zip(panels, AXES, strict=True):
            axes.set_ylim(low, high)
            for name, (colour, dashes) in looks.items():
                x, y = curve(methods[name], cost)
                width = 1.0 if name in REFERENCES else 1.7
                axes.plot(x, y, color=colour, linestyle=dashes, label=name, linewidth=width)
                _mark_rest(axes, methods[name], colour, x)
            axes.set_xscale("log")
            axes.grid(alpha=0.25)
        panels[0].set_ylabel(f"{family}\n" r"$|w_i - w^o|^2$ (dB)", fontsize=10)
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.03)}
        panels[-1].legend(frameon=False, fontsize=9, handlelength=3.2, **place)
    for axes, label in zip(grid[-1], AXES.values(), strict=True):
        axes.set_xlabel(label)
    figure.suptitle(
        f"{problem}: distance to the minimiser against four costs; a mark at the right edge is "
        "where the method itself rests",
        fontsize=11,
    )
    return save_figure(figure, results.path, figure_name(problem))


def curve(algorithm: AlgorithmResult, cost: str) -> tuple[np.ndarray, np.ndarray]:
    """A cost and the distance in decibels, at every look at the ledger after the start."""
    looks = algorithm.measures["bytes_up"].rounds
    ends = looks[(looks > 0) & (looks <= algorithm.rounds.size)].astype(int)
    begins = np.concatenate([[0], ends[:-1]])
    means = [algorithm.msd[a:b].mean() for a, b in zip(begins, ends, strict=True)]
    if cost == "round":
        x = ends
    else:
        measured = algorithm.measures[cost]
        x = measured.mean[np.isin(measured.rounds, ends)]
    return x, 10 * np.log10(means)


def _limits(methods: dict[str, AlgorithmResult]) -> tuple[float, float]:
    levels = np.concatenate([curve(a, "round")[1] for a in methods.values()])
    levels = levels[np.isfinite(levels)]
    rests = [a.number("rests_at_db") for a in methods.values()]
    lows = [float(levels.min()), *(r for r in rests if not math.isnan(r))]
    return max(min(lows), float(levels.min()) - 10.0) - 3.0, float(np.quantile(levels, 0.999)) + 3.0


def _mark_rest(axes: Any, algorithm: AlgorithmResult, colour: str, x: np.ndarray) -> None:
    level = algorithm.number("rests_at_db")
    low, high = axes.get_ylim()
    if low < level < high and x.size:  # not nan either
        (mark,) = axes.plot(
            [1.0], [level], marker="<", color=colour, markersize=5, clip_on=False,
            transform=axes.get_yaxis_transform(), linestyle="none",
        )  # fmt: skip
        mark.set_in_layout(False)


STILL_MOVING = f"{MOVING} still moving: the level of the last quarter is not yet where it settles."
HEADINGS = (
    "method", "|w - w^o|^2 (dB)", "its own fixed point (dB)", "MB up", "gradients (10^3)",
    "virtual seconds",
)  # fmt: skip


def systems_table(results: Results, problem: str) -> PageTable:
    """Where every method ended, where it rests, and what it cost."""
    rows = []
    for algorithm in results.algorithms:
        if algorithm.summary["problem"] != problem:
            continue
        name = algorithm.summary["method"]
        if algorithm.diverged_round is not None:
            rows.append((name, msd_text(algorithm)))
            continue
        costs = {key: cost["mean"] for key, cost in algorithm.summary["costs"].items()}
        sent, seconds = f"{costs['bytes_up'] / 1e6:.3g}", f"{costs['seconds']:,.0f}"
        gradients = f"{costs['gradients'] / 1e3:,.0f}"
        rows.append((name, msd_text(algorithm), _rest(algorithm), sent, gradients, seconds))
    title = (
        f"{problem}: mean over the last quarter of the rounds, ± standard error over the "
        "repetitions; costs of the whole run"
    )
    return PageTable.of(title, HEADINGS, rows, note=STILL_MOVING)


def _rest(algorithm: AlgorithmResult) -> str:
    """Where a method rests, or why that is not known."""
    level, how = algorithm.number("rests_at_db"), algorithm.summary["rests_how"]
    if math.isnan(level):
        return how
    return f"{level:.1f} (long run)" if how == "long run" else f"{level:.1f}"
