"""docs/systems.md, its appendix and figures, of docs/make/systems_page.txt and the results of
`isfed reproduce systems`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image

from isfed import load_results
from isfed.report.page_data import markdown
from isfed.report.systems_report import (
    AXES,
    STILL_MOVING,
    curve,
    figure_name,
    systems_table,
)
from isfed.studies.results_reader import AlgorithmResult, Results

SOURCE = Path(__file__).with_suffix(".txt")
DOCS = Path(__file__).parents[1]
WIDTH, COLOURS = 1500, 64  # of the figures on the page: the command's own are five times as large
REFERENCE = "FedAvg"
MARK = "<!-- appendix -->\n"  # in systems_page.txt, before the part that is the appendix


def main() -> None:
    """Write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="results of `isfed reproduce systems`")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where to write")
    options = parser.parse_args()
    results = load_results(options.folder)
    text = SOURCE.read_text(encoding="utf-8")
    (options.docs / "figures").mkdir(parents=True, exist_ok=True)
    for problem in dict.fromkeys(a.summary["problem"] for a in results.algorithms):
        name = figure_name(problem)
        for part, made in (("ends", ends(results, problem)), ("prices", prices(results, problem))):
            text = put(text, f"{{{name}: {part}}}", made)
        small_figure(results.path / f"{name}.png", options.docs / "figures" / f"{name}.png")
    (options.docs / "appendix").mkdir(exist_ok=True)
    for name, part in zip(("systems.md", "appendix/systems.md"), text.split(MARK), strict=True):
        (options.docs / name).write_text(part, encoding="utf-8")
    print(f"{options.docs / 'systems.md'}, its appendix and its figures")


def put(text: str, mark: str, made: str) -> str:
    """The text with a part in place of its mark."""
    if text.count(mark) != 1:
        raise ValueError(f"{SOURCE} must have {mark} once")
    return text.replace(mark, made)


def ends(results: Results, problem: str) -> str:
    """Where every method ended, where it rests, and what it cost."""
    table = systems_table(results, problem)
    return f"{markdown(table.columns, table.texts, numbers='---:')}\n\n\\{STILL_MOVING}"


def prices(results: Results, problem: str) -> str:
    """What every method needs until it is as near to w^o as FedAvg ends; the cheapest first."""
    found = {a.summary["method"]: a for a in results.algorithms if a.summary["problem"] == problem}
    level = found[REFERENCE].number("msd_db")
    needs = {name: needed(algorithm, level) for name, algorithm in found.items()}
    reached = sorted((n for n in needs if needs[n]), key=lambda n: needs[n]["bytes_up"])
    best = {cost: min(needs[name][cost] for name in reached) for cost in AXES}
    rows = []
    for name in reached:
        cells = []
        for cost in AXES:
            value = needs[name][cost]
            shown = f"{value / 1e6:.3g}" if cost == "bytes_up" else f"{value:,.0f}"
            cells.append(f"**{shown}**" if value == best[cost] else shown)
        rows.append((name, *cells))
    never = [name for name in needs if not needs[name]]
    headings = (f"until {level:.1f} dB", "rounds", "MB up", "gradients", "virtual seconds")
    table = markdown(headings, rows, numbers="---:")
    return f"{table}\n\nNever within these rounds: {', '.join(never) or 'none'}."


def needed(algorithm: AlgorithmResult, level: float) -> dict[str, float]:
    """Every cost at the first look at the ledger from which the distance is at that level."""
    if algorithm.diverged_round is not None:
        return {}
    _, distances = curve(algorithm, "round")
    there = np.flatnonzero(distances <= level)
    if not there.size or not math.isfinite(level):
        return {}
    return {cost: float(curve(algorithm, cost)[0][there[0]]) for cost in AXES}


def small_figure(source: Path, target: Path) -> None:
    """The command's figure, smaller and with fewer colours."""
    with Image.open(source) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(COLOURS).save(target, optimize=True)


if __name__ == "__main__":
    main()
