"""Every way to learn on bundled and public tables and on all presets: predicted against measured.

    python docs/make/ways_on_tables.py [--rounds N] [--folder DIR] [--only NAME] [--page]

Each problem is compared as `isfed compare` does, and kept in a file of the folder, so that a run
that was stopped goes on. Prints the gain over FedAvg at each way's best step size, predicted and
measured; whether the recommended way is near the best; importance averaged against FedAvg at equal
uploads (docs/make/auto_steps.py does automatic steps). --page writes the tables into
docs/appendix/ways.md. Tables of statsmodels and vega_datasets are left out, with a word, where
these packages are not installed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from auto_steps import problems, table

from isfed import LeastSquares, Logistic, Problem, Softmax
from isfed.datasets.named_datasets import parkinsons
from isfed.studies import Budget, compare
from isfed.theory.tuned_ways import predict_ways, recommended

PAGE = Path(__file__).parent.parent / "appendix" / "ways.md"
PUBLIC = {"statsmodels": "datasets", "vega_datasets": "_data"}
LONG = ("synthetic", "digits")
NEAR_DB = 0.5  # what is wanted


def _rows(package: str, path: str) -> list[dict[str, Any]] | None:
    """The rows of a table that comes with a package; None if that is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        print(f"{path} is left out: {package} is not installed")
        return None
    file = Path(found.submodule_search_locations[0]) / PUBLIC[package] / path
    if file.suffix == ".json":
        return json.loads(file.read_text(encoding="utf-8"))
    text = file.read_text(encoding="utf-8").replace("'", "")
    return list(csv.DictReader(text.splitlines(), delimiter="\t" if "\t" in text else ","))


def _table(
    rows: list[dict[str, Any]], features: str, target: Any, agent: Any, loss: Any
) -> Problem:
    names = features.split()
    rows = [row for row in rows if all(row[n] not in (None, "") for n in names)]
    rows = [row for row in rows if target(row) is not None]
    x = np.array([[float(row[n]) for n in names] for row in rows])
    y = np.array([target(row) for row in rows], float)
    y = y if isinstance(loss, Logistic | Softmax) else (y - y.mean()) / y.std()
    _, agents = np.unique([agent(row) for row in rows], return_inverse=True)
    return table(x, y, agents, loss)


def _number(name: str) -> Any:
    return lambda row: None if row[name] in (None, "") else float(row[name])


def _class(name: str, least: float) -> Any:
    return lambda row: 1.0 if float(row[name]) >= least else -1.0


def public() -> Iterator[tuple[str, Problem, int]]:
    """Tables of other packages, by whoever they naturally belong to."""
    square, two = LeastSquares(1e-3), Logistic(1e-3)
    if rows := _rows("statsmodels", "grunfeld/grunfeld.csv"):
        firm = lambda row: row["firm"]  # noqa: E731
        yield "grunfeld", _table(rows, "value capital", _number("invest"), firm, square), 2
    if rows := _rows("statsmodels", "fair/fair.csv"):
        who = lambda row: row["occupation"] + row["age"]  # noqa: E731
        names = "rate_marriage yrs_married children religious educ"
        yield "fair", _table(rows, names, _class("affairs", 1e-9), who, two), 3
    if rows := _rows("statsmodels", "anes96/anes96.csv"):
        names = "TVnews selfLR ClinLR DoleLR PID age educ"
        income = lambda row: row["income"]  # noqa: E731
        yield "anes96", _table(rows, names, _class("vote", 0.5), income, two), 2
    if rows := _rows("statsmodels", "randhie/randhie.csv"):
        names = "lncoins idp fmde physlm disea hlthg hlthf hlthp"
        plan = lambda row: f"{float(row['lpi']):.1f}"  # noqa: E731
        yield "randhie", _table(rows, names, _number("mdvis"), plan, square), 4
    if rows := _rows("vega_datasets", "seattle-weather.csv"):
        names = "precipitation temp_min wind"
        month = lambda row: row["date"][:7]  # noqa: E731
        yield "weather", _table(rows, names, _number("temp_max"), month, square), 5
    if rows := _rows("vega_datasets", "cars.json"):
        names = "Cylinders Displacement Horsepower Weight_in_lbs Acceleration"
        year = lambda row: row["Year"]  # noqa: E731
        yield "cars", _table(rows, names, _number("Miles_per_Gallon"), year, square), 2


def everything() -> Iterator[tuple[str, Problem, int]]:
    """Presets, bundled tables, public tables; those that take long come last."""
    made = {name: (name, problem, active) for name, problem, active in problems()}
    yield from (one for name, one in made.items() if name not in LONG)
    yield from public()
    found = parkinsons()
    assert found.groups is not None
    y = (found.targets - found.targets.mean()) / found.targets.std()
    yield "parkinsons", table(found.features, y, found.groups, LeastSquares(1e-3)), 4
    yield from (made[name] for name in LONG)


def cell(problem: Problem, num_active: int, rounds: int) -> dict[str, Any]:
    """One problem: every way measured, predicted, and at the automatic step."""
    began = time.process_time()
    found = compare(problem, Budget(num_active=num_active, rounds=rounds))
    spent = time.process_time() - began
    expected: dict[str, Any] = {}
    try:
        expected = predict_ways(problem, num_active=num_active, rounds=rounds)
    except ValueError as error:
        print(f"not predicted: {error}")
    rows = {}
    for row in found.rows():
        name = row["name"]
        rows[name] = {
            "excess": row["final_excess"], "gain": row["gain_db"], "step": row["step_size"],
            "stderr": row["final_stderr"], "low": row["gain_low_db"], "high": row["gain_high_db"],
        }  # fmt: skip
        if name in expected:
            way = expected[name]
            rows[name] |= {"predicted": way.excess, "predicted_step": way.step_size}
    return {
        "agents": problem.num_agents, "params": problem.num_params, "active": num_active,
        "rounds": rounds, "seconds": spent, "ways": rows, "winner": found.winner,
    }  # fmt: skip


def decibels(ratio: float) -> float:
    """10 log10."""
    return 10.0 * math.log10(ratio)


def report(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The tables as Markdown, every cell."""
    names = list(dict.fromkeys(name for c in cells.values() for name in c["ways"]))
    lines = ["## Gain over FedAvg, measured (predicted), in dB", ""]
    lines += [f"| problem | {' | '.join(names[1:])} |", f"|---|{'---|' * len(names[1:])}"]
    errors, steps = [], []
    for problem, found in cells.items():
        ways, shown = found["ways"], []
        for name in names[1:]:
            way = ways.get(name)
            text = "" if way is None or way["gain"] is None else f"{way['gain']:.1f}"
            if text and way is not None and "predicted" in way:
                gain = decibels(ways["FedAvg"]["predicted"] / way["predicted"])
                text += f" ({gain:.1f})"
                errors.append(abs(gain - way["gain"]))
                steps.append(abs(math.log2(way["step"] / way["predicted_step"])))
            shown.append(text)
        lines.append(f"| {problem} | {' | '.join(shown)} |")
    lines.append("")
    if errors:
        lines.append(
            f"The prediction differs by {np.mean(errors):.2f} dB on average, "
            f"{np.median(errors):.2f} in the median and {max(errors):.1f} at most; the predicted "
            f"step size is within a factor of 2 in {np.mean(np.array(steps) <= 1.01):.0%} of "
            f"{len(steps)} cells."
        )
    lines += ["", "## What is recommended", ""]
    lines += ["| problem | K, L, M | recommended by diagnose | by compare | best measured | "
              "diagnose behind the best | compare behind | importance averaged below FedAvg |",
              "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    behind: dict[str, list[float]] = {"diagnose": [], "compare": []}
    for problem, found in cells.items():
        ways = found["ways"]
        best = max(ways, key=lambda n: ways[n]["gain"] or 0.0)
        known = {n: w["predicted"] for n, w in ways.items() if "predicted" in w}
        advice = {"diagnose": recommended(known) if known else "", "compare": found["winner"]}
        lost = {
            by: ways[best]["gain"] - ways[name]["gain"]
            for by, name in advice.items() if name
        }  # fmt: skip
        for by, value in lost.items():
            behind[by].append(value)
        both = ways["importance, averaged"]
        interval = (
            "" if both["low"] is None else f" ({both['low']:.1f} to {both['high'] or 99:.1f})"
        )
        shape = f"{found['agents']}, {found['active']}, {found['params']}"
        late = [f"{lost[by]:.1f} dB" if by in lost else "" for by in behind]
        lines.append(
            f"| {problem} | {shape} | {advice['diagnose']} | {advice['compare']} | {best} | "
            f"{' | '.join(late)} | {both['gain']:.1f}{interval} |"
        )
    lines.append("")
    for by, values in behind.items():
        near = np.mean(np.array(values) <= NEAR_DB)
        lines.append(
            f"The way that {by} recommends is within {NEAR_DB:g} dB of the best in {near:.0%} of "
            f"{len(values)} problems, and {max(values):.1f} dB behind at most."
        )
    return lines


def main() -> None:
    """Run what is not there, print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/ways-on-tables"))
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    cells = {}
    for name, problem, num_active in everything():
        file = options.folder / f"{name}-{options.rounds}.json"
        if not file.exists() and options.only in ("", name):
            found = cell(problem, num_active, options.rounds)
            file.write_text(json.dumps(found, indent=1), encoding="utf-8")
            print(f"{name}: {found['seconds']:.0f} s of work", flush=True)
        if file.exists():
            cells[name] = json.loads(file.read_text(encoding="utf-8"))
    lines = report(cells)
    print("\n".join(lines))
    if options.page:
        PAGE.write_text("\n".join([*START, *lines]) + "\n", encoding="utf-8")


START = [
    "# Appendix: ways to learn on tables",
    "",
    "Made by `python docs/make/ways_on_tables.py --page`, 1 000 rounds, one local step unless "
    "said, batches of eight. Every way runs at its own best step size (12 runs), as in `isfed "
    "compare`; in brackets is what `isfed diagnose` predicts. A gain is how far the loss above the "
    "lowest possible ends below that of FedAvg after as many uploads. Problems that "
    "are not listed were not run; on nearly separable classes (cancer, iris) predictions fail.",
    "",
]

if __name__ == "__main__":
    main()
