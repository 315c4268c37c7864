"""Tables and figures of docs/appendix/variance.md, from what variance_study.py has measured."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from variance_kept import measured
from variance_problems import PRESETS, make_problem
from variance_study import METHODS, Cell, cells

from isfed.theory import Ways, compare_ways

PAGE = Path(__file__).parents[1] / "appendix" / "variance.md"
FIGURES = PAGE.parents[1] / "figures"
BEGIN = "<!-- begin: made by `python docs/make/variance_study.py page` -->"
END = "<!-- end -->"
DRAWS = 20_000  # of chance alone
PICTURES = """
![How far every way is below uniform sampling](../figures/variance-gain.png)

![Predicted against measured gains](../figures/variance-predicted.png)
"""
PREDICTED = """### Predicted and measured

How many times smaller the variance of a round is than under uniform sampling, at w^o; the causes of
the error that uniform sampling leaves; what `diagnose` recommends at the step size at which uniform
sampling did best; and the error of the recommended way over that of the best of all. Bold: more
than one standard error above the best.
"""


def result(cell: Cell, method: str) -> tuple[float, float] | None:
    """Mean and standard error over the seeds; None if it was not run."""
    found = measured(cell, method)
    return None if found is None else (found.mean, found.error)


def shown(cell: Cell, method: str) -> str:
    """A cell of a table: msd in dB for the presets, excess risk in thousandths for the others."""
    found = result(cell, method)
    if found is None:
        return ""
    return as_text(cell, *found)


def as_text(cell: Cell, mean: float, error: float) -> str:
    """A mean and its standard error, in the units of a cell."""
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
        if not any(result(cell, method) for cell in group):
            continue
        row = [
            f"**{shown(cell, method)}**" if method == best[cell] else shown(cell, method)
            for cell in group
        ]
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    return "\n".join(lines)


@cache
def recommended(cell: Cell) -> tuple[Ways, str]:
    """What `diagnose` says of a cell, and the method of the study that does it."""
    uniform = measured(cell, "uniform")
    assert uniform is not None
    found = compare_ways(
        make_problem(cell.problem, cell.steps), num_active=cell.active, step_size=uniform.step,
        rounds=cell.rounds,
    )  # fmt: skip
    name = found.best.name
    if name == "drift, spread":
        return found, "drift, importance, spread"
    if name in ("difference", "drift") and found.weighted:
        name = f"{name}, importance"
    if name == "difference" and result(cell, name) is None and cell.problem not in PRESETS:
        name = "drift" if cell.steps == 1 else name  # with one step the two are the same
    return found, name


class Verdict(NamedTuple):
    """What `diagnose` recommends in a cell, and how it did."""

    chosen: str
    best: str  # of all methods
    ratio: float  # the error of the one over that of the other
    good: bool  # whether they are within one standard error


@cache
def verdict(cell: Cell) -> Verdict:
    """The recommended method of a cell against the one of the least error."""
    known = {m: r for m in METHODS if (r := result(cell, m)) is not None}
    chosen, best = recommended(cell)[1], min(known, key=lambda m: known[m][0])
    (mean, error), (least, its_error) = known[chosen], known[best]
    return Verdict(chosen, best, mean / least, mean <= least + math.hypot(error, its_error))


def predicted_table() -> str:
    """What `diagnose` says of every cell without absences, and how often it is right."""
    lines = [
        "| | importance | spread | correction | with spread | size | direction | drift | noise "
        "| recommended | measured best | recommended over best |",
        "|---" * 12 + "|",
    ]
    for cell in cells():
        if cell.absent:
            continue
        found, judged = recommended(cell)[0], verdict(cell)
        ways = ("importance", "spread", "drift", "drift, spread")
        times = " | ".join(f"{found.ways[way].times_smaller:.3g}" for way in ways)
        shares = " | ".join(f"{part:.0%}" for part in found.sources.shares().values())
        mark = f"{judged.ratio:.2f}" if judged.good else f"**{judged.ratio:.2f}**"
        names = f"{judged.chosen} | {judged.best}"
        lines.append(f"| {heading(cell)} | {times} | {shares} | {names} | {mark} |")
    return "\n".join([*lines, "", count_line()])


def chance_of(cell: Cell) -> float:
    """How likely the recommendation is counted right if nothing but chance is behind differences.

    All methods within two standard errors of the best are taken to be equally good in truth, and
    their means to be normal with the standard errors measured.
    """
    known = {r: m for m in METHODS if (r := result(cell, m)) is not None}  # the same method once
    own = result(cell, verdict(cell).chosen)
    assert own is not None
    least = min(known)
    near = [r for r in known if r[0] <= least[0] + 2.0 * math.hypot(r[1], least[1]) and r != own]
    errors = np.array([own[1], *(r[1] for r in near)])
    drawn = errors * np.random.default_rng(0).standard_normal((DRAWS, errors.size))
    lowest = drawn.argmin(axis=1)
    ahead = drawn[:, 0] - drawn.min(axis=1)
    return float(np.mean((lowest == 0) | (ahead <= np.hypot(errors[0], errors[lowest]))))


def count_line() -> str:
    """How often the recommendation is right, in the columns of the table and in all."""
    present = [verdict(cell).good for cell in cells() if not cell.absent]
    absent = [verdict(cell).good for cell in cells() if cell.absent]
    return (
        f"The recommendation is the best, or within one standard error of it, in {sum(present)} of "
        f"these {len(present)} cells and in {sum(absent)} of the {len(absent)} in which 30% of the "
        f"turns are lost, of which `diagnose` knows nothing and says the same: "
        f"{sum(present + absent)} of {len(present + absent)}. If all methods within two standard "
        f"errors of the best of a cell were equally good in truth, chance alone would let a "
        f"recommendation of one of them be counted right in "
        f"{sum(map(chance_of, cells())):.0f} of {len(present + absent)}."
    )


def tables() -> str:
    """All tables, in markdown."""
    everything = cells()
    labelled = [c for c in everything if c.problem not in PRESETS]
    groups = {
        "The regression presets, step size 0.01, msd in dB": [
            c for c in everything if c.problem in PRESETS and not c.absent
        ],
        "Labels, L=10, excess risk in thousandths": [
            c for c in labelled if c.active == 10 and not c.absent
        ],
        "Labels, L=2": [c for c in labelled if c.active == 2],
        "Labels, L=30": [c for c in labelled if c.active == 30],
        "30% of the turns are lost (msd in dB for the presets, else thousandths)": [
            c for c in everything if c.absent
        ],
    }
    parts = [f"### {name}\n\n{table(group)}\n" for name, group in groups.items() if table(group)]
    return "\n".join([*parts, PREDICTED, predicted_table(), ""])


def page() -> str:
    """Put figures and tables into docs/appendix/variance.md, between the two marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    figures()
    PAGE.write_text(f"{head}{BEGIN}\n{PICTURES}\n{tables()}{END}{tail}", encoding="utf-8")
    return f"{PAGE} has the tables"


SHOWN = {
    "importance": "tab:blue",
    "spread": "tab:green",
    "difference, importance": "tab:orange",
    "drift, importance": "tab:red",
    "SCAFFOLD": "tab:gray",
}
PREDICTABLE = (
    ("importance", "importance", "o"),
    ("spread", "spread", "s"),
    ("difference", "difference, importance", "^"),
    ("drift", "drift, importance", "v"),
)


def gain(cell: Cell, method: str) -> float:
    """How far the error of a method is below that of uniform sampling, in dB."""
    base = result(cell, "uniform, random order") or result(cell, "uniform")
    found = result(cell, method)
    if base is None or found is None or not math.isfinite(base[0] + found[0]):
        return math.nan
    return 10 * math.log10(base[0] / found[0])


def gain_figure() -> None:
    """What each way gains."""
    import matplotlib.pyplot as plt

    chosen = [c for c in cells() if c.active in (6, 10) and not c.absent and result(c, "uniform")]
    figure, axes = plt.subplots(figsize=(7.5, 0.75 * len(chosen) + 1.2))
    places = np.arange(len(chosen))
    for i, (method, colour) in enumerate(SHOWN.items()):
        gains = [gain(cell, method) for cell in chosen]
        axes.barh(places + 0.16 * (i - 2), gains, 0.15, label=method, color=colour)
    axes.set_yticks(places, [heading(cell) for cell in chosen])
    axes.invert_yaxis()
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel("error below that of uniform sampling, dB (to the right is better)")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.3, 1.0), ncols=5, fontsize=8)
    figure.tight_layout()
    figure.savefig(FIGURES / "variance-gain.png", dpi=110)
    plt.close(figure)


def predicted_figure() -> None:
    """Predicted against measured gains."""
    import matplotlib.pyplot as plt

    chosen = [c for c in cells() if not c.absent and result(c, "uniform")]
    predictions = {cell: recommended(cell)[0].ways for cell in chosen}
    figure, axes = plt.subplots(figsize=(6.0, 5.0))
    for way, method, marker in PREDICTABLE:
        predicted = [
            10 * math.log10(predictions[c]["uniform"].excess / predictions[c][way].excess)
            for c in chosen
        ]
        measured = [gain(cell, method) for cell in chosen]
        axes.scatter(predicted, measured, label=method, color=SHOWN[method], marker=marker, s=28)
    low, high = axes.get_xlim()
    axes.plot((low, high), (low, high), color="black", linewidth=0.8, label="as predicted")
    axes.grid(alpha=0.3)
    axes.set_xlabel("predicted: error below that of uniform sampling, dB")
    axes.set_ylabel("measured, dB")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(FIGURES / "variance-predicted.png", dpi=110)
    plt.close(figure)


def figures() -> str:
    """Both figures."""
    import matplotlib

    matplotlib.use("Agg")
    FIGURES.mkdir(exist_ok=True)
    gain_figure()
    predicted_figure()
    return f"{FIGURES}/variance-gain.png and variance-predicted.png"
