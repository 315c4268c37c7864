"""Tables and figures of docs/variance.md from what benchmarks/variance_study.py has measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from variance_problems import PRESETS, make_problem
from variance_study import METHODS, Cell, cells, path_of

from isfed.base.files import read_json
from isfed.theory import compare_ways

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
# What `compare_ways` recommends, as methods of the study.
RECOMMENDED = {
    "uniform": "uniform",
    "importance": "importance",
    "spread": "spread",
    "difference": "difference, importance",
    "drift": "drift, importance",
}


def result(cell: Cell, method: str) -> tuple[float, float] | None:
    """Mean and standard error over the seeds; None if it was not run."""
    place = path_of(cell, method)
    if not place.exists():
        return None
    found = [math.inf if e is None else e for e in read_json(place)["errors"]]
    if not np.isfinite(found).all():
        return math.inf, 0.0
    spread = float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.nan
    return float(np.mean(found)), spread


def shown(cell: Cell, method: str) -> str:
    """A cell of a table: msd in dB for the presets, excess risk in thousandths for the others."""
    found = result(cell, method)
    if found is None:
        return ""
    mean, error = found
    if not math.isfinite(mean):
        return "diverged"
    if cell.problem in PRESETS:
        return f"{10 * math.log10(mean):.1f} ± {10 / math.log(10) * error / mean:.1f}"
    return f"{1e3 * mean:.2f} ± {1e3 * error:.2f}"


def heading(cell: Cell) -> str:
    """Of a column."""
    steps = "" if cell.problem in PRESETS else f", E={cell.steps}"
    return f"{cell.problem}{steps}, L={cell.active}"


def table(group: list[Cell]) -> str:
    """Methods down, cells across; the best of a column is bold."""
    group = [cell for cell in group if any(result(cell, m) for m in METHODS)]
    if not group:
        return ""
    lines = ["| | " + " | ".join(map(heading, group)) + " |", "|---" * (len(group) + 1) + "|"]
    best = {
        cell: min((r[0], m) for m in METHODS if (r := result(cell, m)) is not None)[1]
        for cell in group
    }
    for method in METHODS:
        row = [
            f"**{shown(cell, method)}**" if method == best[cell] else shown(cell, method)
            for cell in group
        ]
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def frozen_table() -> str:
    """The variance of one round at w^o, and what `diagnose` says."""
    ways = ("importance", "spread", "difference")
    lines = [
        "| problem, E, L | importance | spread | correction | size | direction | drift | noise "
        "| recommended | measured best | recommended over best |",
        "|---" * 11 + "|",
    ]
    right = total = 0
    for cell in cells():
        known = {m: r for m in METHODS if (r := result(cell, m)) is not None}
        if cell.absent or len(known) < 5:
            continue
        step = read_json(path_of(cell, "uniform"))["step"]
        problem = make_problem(cell.problem, cell.steps)
        found = compare_ways(problem, num_active=cell.active, step_size=step)
        chosen = RECOMMENDED[found.best.name]
        best = min(known, key=lambda m: known[m][0])
        ratio = known[chosen][0] / known[best][0] if chosen in known else math.nan
        error = math.hypot(known[best][1], known.get(chosen, (0.0, 0.0))[1])
        good = chosen in known and known[chosen][0] <= known[best][0] + error
        right, total = right + good, total + 1
        times = " | ".join(f"{found.ways[way].times_smaller:.3g}" for way in ways)
        shares = " | ".join(f"{part:.0%}" for part in found.sources.shares().values())
        lines.append(f"| {heading(cell)} | {times} | {shares} | {chosen} | {best} | {ratio:.2f} |")
    lines.append(
        "\nThe recommendation is the best, or within one standard error of it, in "
        f"{right} of {total} cells."
    )
    return "\n".join(lines)


def tables() -> str:
    """All tables, in markdown."""
    everything = cells()
    groups = {
        "The regression presets, step 0.01, msd in dB": [
            c for c in everything if c.problem in PRESETS and not c.absent
        ],
        "Labels, L=10, excess risk in thousandths": [
            c for c in everything if c.problem not in PRESETS and c.active == 10 and not c.absent
        ],
        "L=2": [c for c in everything if c.problem not in PRESETS and c.active == 2],
        "L=30": [c for c in everything if c.problem not in PRESETS and c.active == 30],
        "30% of the uploads are lost (dropped)": [c for c in everything if c.absent],
    }
    parts = [f"### {name}\n\n{table(group)}\n" for name, group in groups.items() if table(group)]
    return "\n".join([*parts, "### Predicted\n", frozen_table()])


def figures() -> str:
    """Two figures: what each way gains, and predicted against measured."""
    import matplotlib.pyplot as plt

    shown_methods = (
        "importance",
        "spread",
        "difference, importance",
        "drift, importance",
        "SCAFFOLD",
    )
    chosen = [c for c in cells() if c.active in (6, 10) and not c.absent and result(c, "uniform")]
    figure, axes = plt.subplots(figsize=(9.0, 4.2))
    places = np.arange(len(chosen))
    for i, method in enumerate(shown_methods):
        gains = []
        for cell in chosen:
            base, found = result(cell, "uniform"), result(cell, method)
            fine = base and found and math.isfinite(found[0])
            gains.append(10 * math.log10(base[0] / found[0]) if fine else math.nan)  # type: ignore[index]
        axes.bar(places + 0.16 * (i - 2), gains, 0.15, label=method)
    axes.set_xticks(places, [heading(c).replace(", L", "\nL") for c in chosen], fontsize=7)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_ylabel("error below uniform sampling, dB")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "variance-gain.png", dpi=110)
    plt.close(figure)

    figure, axes = plt.subplots(figsize=(5.2, 4.2))
    for way, method in (
        ("importance", "importance"),
        ("spread", "spread"),
        ("drift", "drift, importance"),
    ):
        predicted, measured = [], []
        for cell in chosen:
            base, found = result(cell, "uniform"), result(cell, method)
            if not (base and found and math.isfinite(found[0])):
                continue
            step = read_json(path_of(cell, "uniform"))["step"]
            problem = make_problem(cell.problem, cell.steps)
            ways = compare_ways(problem, num_active=cell.active, step_size=step).ways
            predicted.append(10 * math.log10(ways["uniform"].excess / ways[way].excess))
            measured.append(10 * math.log10(base[0] / found[0]))
        axes.scatter(predicted, measured, label=method)
    ends = axes.get_xlim()
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xlabel("predicted gain over uniform sampling, dB")
    axes.set_ylabel("measured gain, dB")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(FIGURES / "variance-predicted.png", dpi=110)
    plt.close(figure)
    return f"{FIGURES}/variance-gain.png and variance-predicted.png"
