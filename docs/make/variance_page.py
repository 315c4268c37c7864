"""Tables and figures of docs/appendix/variance.md.

    python docs/make/variance_page.py [runs/variance]   # a folder of isfed run variance.toml
    python docs/make/variance_page.py --again runs/variance-again

With a folder its numbers replace those in docs/make/variance.json, from which the page is made, so
that it can be made again without the study. `--again` prints the table of variance_again.toml: is
the best way of a column still the best with other seeds? The lowest of many is lower than it
deserves; with new seeds it is not.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from isfed.base.atomic_files import read_json, write_whole
from isfed.report.page_data import markdown
from isfed.studies import load_results, read_experiment
from isfed.studies.experiment import StudyTask
from isfed.studies.problem_sources import RegressionSource
from isfed.studies.results_reader import AlgorithmResult
from isfed.studies.work_cells import problem_of
from isfed.theory import Ways, compare_ways

HERE = Path(__file__).parent
STUDY, KEPT = HERE / "variance.toml", HERE / "variance.json"
PAGE = HERE.parent / "appendix" / "variance.md"
FIGURES = HERE.parent / "figures"
BEGIN = "<!-- begin: made by `python docs/make/variance_page.py` -->"
END = "<!-- end -->"
DIGITS = 6
DRAWS = 20_000  # of chance alone
LOST = ", 30% lost"
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


class Measured(NamedTuple):
    """Of one method in one cell."""

    mean: float  # of the msd (presets) or of the excess risk; inf if a seed diverged
    error: float  # its standard error
    step: float | None  # that was best when tuned; None where an early run did not keep it
    seeds: int


class Cell(NamedTuple):
    """One column of a table: a problem, L, and whether turns are lost."""

    title: str
    active: int
    absent: bool
    preset: bool
    steps: int  # E of the labelled problems; the presets have their own E_k
    rounds: int

    @property
    def heading(self) -> str:
        """Of the column."""
        return self.title.removesuffix(LOST)


@cache
def tasks() -> dict[Cell, StudyTask]:
    """The cells of the study, the most telling first."""
    found = {}
    for task in read_experiment(STUDY, trust=HERE).tasks:
        title = task.title.removesuffix(": ")
        active = next(iter(task.algorithms.values())).num_active
        preset = isinstance(task.source, RegressionSource)
        steps = getattr(task.source, "local_steps", 1)
        absent = title.endswith(LOST)
        found[Cell(title, active, absent, preset, steps, task.rounds)] = task
    return found


def cells() -> list[Cell]:
    """The columns of all tables."""
    return list(tasks())


def methods() -> list[str]:
    """The rows of all tables."""
    return list(next(iter(tasks().values())).algorithms)


@cache
def kept() -> dict[str, dict[str, Measured]]:
    """What the file has, by title and method."""
    return {
        title: {m: Measured(math.inf if row[0] is None else row[0], *row[1:])
                for m, row in rows.items()}
        for title, rows in read_json(KEPT).items()
    }  # fmt: skip


def measured(algorithm: AlgorithmResult) -> Measured:
    """Mean and standard error over the seeds, in few digits."""
    levels, step = algorithm.summary["levels"], algorithm.step_size
    if levels is None:
        return Measured(math.inf, 0.0, step, 0)
    numbers = np.mean(levels), np.std(levels, ddof=1) / math.sqrt(len(levels))
    mean, error = (float(f"{number:.{DIGITS}g}") for number in numbers)
    return Measured(mean, error, step, len(levels))


def collect(folder: Path) -> None:
    """Take a results folder into the file, a line for each method."""
    found = {title: dict(rows) for title, rows in kept().items()}
    for algorithm in load_results(folder).algorithms:
        row = algorithm.summary
        found[row["problem"]][row["method"]] = measured(algorithm)
    parts = []
    for title, rows in found.items():
        lines = [
            f"  {json.dumps(m)}: {json.dumps([r.mean if math.isfinite(r.mean) else None, *r[1:]])}"
            for m, r in rows.items()
        ]
        parts.append(f"{json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n}")
    write_whole(KEPT, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    kept.cache_clear()


def result(cell: Cell, method: str) -> tuple[float, float]:
    """Mean and standard error over the seeds."""
    return kept()[cell.title][method][:2]


def as_text(preset: bool, mean: float, error: float) -> str:
    """Mean ± standard error: msd in dB for the presets, excess risk in thousandths for others."""
    if not math.isfinite(mean):
        return "diverged"
    if preset:
        return f"{10 * math.log10(mean):.1f} ± {10 / math.log(10) * error / mean:.1f}"
    return f"{1e3 * mean:.2f} ± {1e3 * error:.2f}"


def best_of(cell: Cell) -> str:
    """The method of the least error."""
    return min((result(cell, method)[0], method) for method in methods())[1]


def table(group: list[Cell]) -> str:
    """Methods down, cells across; the best of a column is bold."""
    rows = []
    for method in methods():
        texts = ((cell, as_text(cell.preset, *result(cell, method))) for cell in group)
        rows.append([f"**{text}**" if method == best_of(cell) else text for cell, text in texts])
    named = ([method, *row] for method, row in zip(methods(), rows, strict=True))
    return markdown(["", *(cell.heading for cell in group)], named)


@cache
def recommended(cell: Cell) -> tuple[Ways, str]:
    """What `diagnose` says of a cell, and the method of the study that does it."""
    step = kept()[cell.title]["uniform"].step
    problem = problem_of(tasks()[cell].source)[0]
    found = compare_ways(problem, num_active=cell.active, step_size=step, rounds=cell.rounds)
    name = found.best.name
    if name == "drift, spread":
        return found, "drift, importance, spread"
    if name in ("difference", "drift") and found.weighted:
        name = f"{name}, importance"
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
    known = {method: result(cell, method) for method in methods()}
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
        lines.append(f"| {cell.heading} | {times} | {shares} | {names} | {mark} |")
    return "\n".join([*lines, "", count_line()])


def chance_of(cell: Cell) -> float:
    """How likely the recommendation is counted right if nothing but chance is behind differences.

    All methods within two standard errors of the best are taken to be equally good in truth, and
    their means to be normal with the standard errors measured.
    """
    known = dict.fromkeys(result(cell, method) for method in methods())  # the same method once
    own = result(cell, verdict(cell).chosen)
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
    labelled = [c for c in everything if not c.preset]
    groups = {
        "The regression presets, step size 0.01, msd in dB": [
            c for c in everything if c.preset and not c.absent
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
    parts = [f"### {name}\n\n{table(group)}\n" for name, group in groups.items()]
    return "\n".join([*parts, PREDICTED, predicted_table(), ""])


def page() -> None:
    """Put figures and tables into docs/appendix/variance.md, between the two marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    gain_figure()
    predicted_figure()
    PAGE.write_text(f"{head}{BEGIN}\n{PICTURES}\n{tables()}{END}{tail}", encoding="utf-8")


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
    (base, _), (found, _) = result(cell, "uniform, random order"), result(cell, method)
    return 10 * math.log10(base / found) if math.isfinite(base + found) else math.nan


def gain_figure() -> None:
    """What each way gains."""
    chosen = [c for c in cells() if c.active in (6, 10) and not c.absent]
    figure, axes = plt.subplots(figsize=(7.5, 0.75 * len(chosen) + 1.2))
    places = np.arange(len(chosen))
    for i, (method, colour) in enumerate(SHOWN.items()):
        gains = [gain(cell, method) for cell in chosen]
        axes.barh(places + 0.16 * (i - 2), gains, 0.15, label=method, color=colour)
    axes.set_yticks(places, [cell.heading for cell in chosen])
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
    chosen = [c for c in cells() if not c.absent]
    predictions = {cell: recommended(cell)[0].ways for cell in chosen}
    figure, axes = plt.subplots(figsize=(6.0, 5.0))
    for way, method, marker in PREDICTABLE:
        predicted = [
            10 * math.log10(predictions[c]["uniform"].excess / predictions[c][way].excess)
            for c in chosen
        ]
        gains = [gain(cell, method) for cell in chosen]
        axes.scatter(predicted, gains, label=method, color=SHOWN[method], marker=marker, s=28)
    low, high = axes.get_xlim()
    axes.plot((low, high), (low, high), color="black", linewidth=0.8, label="as predicted")
    axes.grid(alpha=0.3)
    axes.set_xlabel("predicted: error below that of uniform sampling, dB")
    axes.set_ylabel("measured, dB")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(FIGURES / "variance-predicted.png", dpi=110)
    plt.close(figure)


def print_again(folder: Path) -> None:
    """The columns in which the recommendation was not the best, with new seeds."""
    print("| | recommended | best of the study | over best, study | new seeds: recommended | best |"
          " recommended over best |\n" + "|---" * 7 + "|", flush=True)  # fmt: skip
    new = {(a.summary["problem"], a.summary["method"]): a for a in load_results(folder).algorithms}
    good = []
    for cell in cells():
        judged = verdict(cell)
        pair = [new.get((cell.title, name)) for name in (judged.chosen, judged.best)]
        if pair[0] is None or pair[1] is None:
            continue
        (mean, error, *_), (least, its_error, *_) = (measured(one) for one in pair if one)
        good.append(mean <= least + math.hypot(error, its_error))
        ratio = f"{mean / least:.2f}" if good[-1] else f"**{mean / least:.2f}**"
        texts = as_text(cell.preset, mean, error), as_text(cell.preset, least, its_error)
        print(f"| {cell.heading} | {judged.chosen} | {judged.best} | {judged.ratio:.2f} | "
              f"{texts[0]} | {texts[1]} | {ratio} |", flush=True)  # fmt: skip
    print(f"\nWith new seeds the recommendation is the better, or within one standard error, in "
          f"{sum(good)} of these {len(good)} columns.")  # fmt: skip


def main() -> None:
    """Collect what a folder has, then make the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="of variance.toml")
    parser.add_argument("--again", type=Path, help="the folder of variance_again.toml")
    given = parser.parse_args()
    if given.again is not None:
        print_again(given.again)
        return
    if given.folder is not None:
        collect(given.folder)
    page()
    print(f"{PAGE} has the tables")


if __name__ == "__main__":
    main()
