"""Tables and figures of docs/systems.md from a results folder of `isfed reproduce systems`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image

from isfed import load_results
from isfed.experiments.results import AlgorithmResult, Results
from isfed.report.systems import AXES, HEADINGS, STILL_MOVING, curve, figure_name, systems_rows

PAGE = Path(__file__).parents[1] / "docs" / "systems.md"
FIGURES = PAGE.parent / "figures"
WIDTH, COLOURS = 1500, 64  # of the figures on the page: the command's own are five times as large
REFERENCE = "FedAvg"


def main() -> None:
    """Write the parts of the page that are made of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="results of `isfed reproduce systems`")
    results = load_results(parser.parse_args().folder)
    text = PAGE.read_text(encoding="utf-8")
    for problem in dict.fromkeys(a.summary["problem"] for a in results.algorithms):
        name = figure_name(problem)
        for part, made in (("ends", ends(results, problem)), ("prices", prices(results, problem))):
            text = put(text, f"{name}: {part}", made)
        small_figure(results.path / f"{name}.png", FIGURES / f"{name}.png")
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE} and the figures in {FIGURES}")


def put(text: str, name: str, made: str) -> str:
    """The page with one part made anew, between its two marks."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{PAGE} has no part {name!r}")
    return f"{before}{begin}{made}\n{end}{after}"


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown; numbers to the right."""
    lines = [headings, ("---", *["---:"] * (len(headings) - 1)), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def ends(results: Results, problem: str) -> str:
    """Where every method ended, where it rests, and what it cost."""
    return f"{table(HEADINGS, systems_rows(results, problem))}\n\n\\{STILL_MOVING}"


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
    return f"{table(headings, rows)}\n\nNever within these rounds: {', '.join(never) or 'none'}."


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
