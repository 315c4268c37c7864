"""Every way to learn on bundled and public tables and on all presets: predicted against measured.

    python docs/make/ways_on_tables.py [--rounds N] [--folder DIR] [--only NAME] [--again] [--page]

Each problem is compared as `isfed compare` does, with more runs, and kept in files of the folder,
so that a run that was stopped goes on; --again predicts anew. Prints the gain over FedAvg at each
way's best step size, predicted and measured, whether the recommended way is near the best, and what
averaging does for the estimators. --page writes the tables into docs/appendix/ways.md. Tables of
statsmodels and vega_datasets are left out, with a word, where these packages are not installed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from auto_steps import problems, table

from isfed import LeastSquares, Logistic, Problem, Softmax
from isfed.datasets.named_datasets import parkinsons
from isfed.studies import Budget, Comparison, compare, ways_by_short_runs
from isfed.studies.comparison import Curve
from isfed.studies.sklearn_estimators import FederatedRegressor
from isfed.theory.tuned_ways import AVERAGED, TunedWays

PAGE = Path(__file__).parent.parent / "appendix" / "ways.md"
PUBLIC = {"statsmodels": "datasets", "vega_datasets": "_data"}
LONG = ("synthetic", "digits")
ASIDE = ("outliers", "fair", "parkinsons")  # not looked at while the prediction was written
RUNS, FEWER, USUAL = 200, 40, Budget(num_active=1).repetitions
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


def measured(name: str, problem: Problem, num_active: int, rounds: int) -> dict[str, Any]:
    """Every way of one problem at its tuned step size, the final loss of every run."""
    runs = FEWER if name in LONG else RUNS
    budget = Budget(num_active=num_active, rounds=rounds, repetitions=runs, tuning_repetitions=8)
    found = compare(problem, budget)
    ways = {
        row["name"]: {
            "gain": row["gain_db"], "low": row["gain_low_db"], "high": row["gain_high_db"],
            "step": row["step_size"], "finals": found.curves[row["name"]].final.tolist(),
        }
        for row in found.rows()
    }  # fmt: skip
    return {
        "agents": problem.num_agents, "params": problem.num_params, "active": num_active,
        "rounds": rounds, "ways": ways, "winner": found.winner,
    }  # fmt: skip


def predicted(problem: Problem, num_active: int, rounds: int) -> dict[str, Any]:
    """What `isfed diagnose` says of it, and how long that takes."""
    began = time.process_time()
    ways = ways_by_short_runs(problem, num_active=num_active, rounds=rounds)
    spent = time.process_time() - began
    advised = TunedWays(ways, rounds).advised.name
    found = {name: {"typical": w.typical, "step": w.step_size} for name, w in ways.items()}
    return {"kind": ways["FedAvg"].how, "advised": advised, "seconds": spent, "ways": found}


def estimators(problem: Problem, num_active: int) -> dict[str, Any]:
    """The excess loss of the scikit-learn estimators without and with averaging, of eight seeds."""
    least = problem.risk(problem.optimum)
    return {
        key: [
            problem.risk(model._train(problem)) - least
            for seed in range(8)
            for model in [FederatedRegressor(num_active=num_active, average=on, random_state=seed)]
        ]
        for key, on in (("last", False), ("averaged", True))
    }


def decibels(values: Any) -> np.ndarray:
    """10 log10."""
    return 10.0 * np.log10(np.asarray(values, dtype=float))


def gain(cell: dict[str, Any], name: str) -> np.ndarray:
    """(R,) how far every run of a way ends below that of FedAvg, in dB."""
    return decibels(cell["ways"]["FedAvg"]["finals"]) - decibels(cell["ways"][name]["finals"])


def gains(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The table of gains as Markdown, every cell, and what the predictions are worth."""
    names = list(dict.fromkeys(name for c in cells.values() for name in c["ways"]))[1:]
    lines = [f"| problem | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows = []
    for problem, cell in cells.items():
        own, known = cell["predicted"], cell["predicted"]["ways"]
        shown = []
        for name in names:
            if name not in cell["ways"]:
                shown.append("")
                continue
            runs = gain(cell, name)
            expected = float(decibels(known["FedAvg"]["typical"] / known[name]["typical"]))
            shown.append(f"{runs.mean():.1f} ({expected:.1f})")
            step = abs(np.log2(cell["ways"][name]["step"] / known[name]["step"]))
            stderr = runs.std(ddof=1) / np.sqrt(runs.size)
            rows.append((problem, own["kind"], abs(expected - runs.mean()), step, stderr))
        lines.append(f"| {problem} | {' | '.join(shown)} |")
    lines += ["", "| problems | cells | mean error | median | worst | step size within 2 | "
              "standard error of what is measured |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    groups: dict[str, Any] = {
        "all": lambda row: True,
        "set aside": lambda row: row[0] in ASIDE,
        "the others": lambda row: row[0] not in ASIDE,
        **{kind: lambda row, k=kind: row[1] == k for kind in ("computed", "from a few runs")},
    }
    for group, inside in groups.items():
        part = [row for row in rows if inside(row)]
        if part:
            errors, steps, stderr = (np.array([row[at] for row in part]) for at in (2, 3, 4))
            lines.append(
                f"| {group} | {len(part)} | {errors.mean():.2f} dB | {np.median(errors):.2f} | "
                f"{errors.max():.1f} | {np.mean(steps <= 1.01):.0%} | {stderr.mean():.2f} dB |"
            )
    return lines


def first_winner(cell: dict[str, Any]) -> str:
    """What `isfed compare` recommends after as many runs as it makes."""
    curves = {}
    for name, way in cell["ways"].items():
        finals = np.array(way["finals"][:USUAL])[:, None]
        curves[name] = Curve(name, way["step"], {}, np.arange(1), finals, 0, 0)
    return Comparison(curves, 0.0).winner


def advice(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Which way is recommended, and how near it is to the best."""
    lines = ["| problem | K, L, M | diagnose | compare | best measured | diagnose behind | "
             "compare behind | importance averaged below FedAvg |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    behind: dict[str, list[float]] = {"diagnose": [], "compare": []}
    for problem, cell in cells.items():
        means = {name: float(gain(cell, name).mean()) for name in cell["ways"]}
        best = max(means, key=lambda name: means[name])
        told = {"diagnose": cell["predicted"]["advised"], "compare": first_winner(cell)}
        for by, name in told.items():
            behind[by].append(means[best] - means[name])
        both = cell["ways"]["importance, averaged"]
        lines.append(
            f"| {problem} | {cell['agents']}, {cell['active']}, {cell['params']} | "
            f"{told['diagnose']} | {told['compare']} | {best} | {behind['diagnose'][-1]:.1f} dB | "
            f"{behind['compare'][-1]:.1f} dB | {both['gain']:.1f} ({both['low']:.1f} to "
            f"{both['high']:.1f}) |"
        )
    lines.append("")
    for by, values in behind.items():
        near = np.mean(np.array(values) <= NEAR_DB)
        lines.append(
            f"The way that {by} recommends is within {NEAR_DB:g} dB of the best in {near:.0%} of "
            f"{len(values)} problems, and {max(values):.1f} dB behind at most."
        )
    return lines


def averaging(cells: dict[str, dict[str, Any]]) -> list[str]:
    """What the average of the last half of the rounds gains, each at its own best step size."""
    pairs = [n for n in next(iter(cells.values()))["ways"] if not n.endswith(AVERAGED)]
    lines = [f"| problem | {' | '.join(pairs)} | estimators |", f"|---|{'---|' * (len(pairs) + 1)}"]
    for problem, cell in cells.items():
        ways = cell["ways"]
        shown = [
            f"{(gain(cell, name + AVERAGED) - gain(cell, name)).mean():.1f}" if name in ways else ""
            for name in pairs
        ]
        own = ""
        if "estimators" in cell:
            each = decibels(cell["estimators"]["last"]) - decibels(cell["estimators"]["averaged"])
            own = f"{each.mean():.1f} ± {each.std(ddof=1) / np.sqrt(each.size):.1f}"
        lines.append(f"| {problem} | {' | '.join(shown)} | {own} |")
    return lines


def kept(file: Path, make: Callable[[], dict[str, Any]], *, wanted: bool) -> dict[str, Any] | None:
    """What a file holds; made first if it is wanted and not there."""
    if not file.exists() and wanted:
        found = make()
        part = file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1), encoding="utf-8")
        part.replace(file)
        print(f"{file.name}: made", flush=True)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def main() -> None:
    """Run what is not there, print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/ways-on-tables"))
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    cells = {}
    for name, problem, active in everything():
        wanted = options.only in ("", name)
        file = options.folder / f"{name}-{options.rounds}.json"
        if options.again and wanted:
            file.with_suffix(".predicted.json").unlink(missing_ok=True)
        common = problem, active, options.rounds
        cell = kept(file, partial(measured, name, *common), wanted=wanted)
        known = kept(
            file.with_suffix(".predicted.json"), partial(predicted, *common), wanted=wanted
        )
        if cell is None or known is None:
            continue
        cells[name] = cell | {"predicted": known}
        own = kept(
            file.with_suffix(".estimators.json"),
            partial(estimators, problem, active),
            wanted=wanted,
        )
        if own is not None:
            cells[name]["estimators"] = own
    lines = [*START, *gains(cells), "", "## What is recommended", "", *advice(cells)]
    lines += ["", *AVERAGES, *averaging(cells)]
    print("\n".join(lines))
    if options.page:
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


START = [
    "# Appendix: ways to learn on tables",
    "",
    "Made by `python docs/make/ways_on_tables.py --page`: 1 000 rounds, batches of eight, one "
    "local step unless a preset has more. Every way runs at its own best step size, as in `isfed "
    "compare`, but 200 times (40 times for synthetic and digits). In brackets is what `isfed "
    "diagnose` predicts. A gain is how far the loss above the lowest possible ends below that of "
    "FedAvg after as many uploads, in dB, on average over runs.",
    "",
    "Least squares is computed. For other losses `diagnose` makes 16 runs at the best step size, "
    "after a short search for it. `compare` is judged by the first 12 of the runs here. Three "
    "problems were set aside while the prediction was written: "
    f"{', '.join(ASIDE)}.",
    "",
    "## Gain over FedAvg, measured (predicted), in dB",
    "",
]
AVERAGES = [
    "## What averaging gains",
    "",
    "The mean of the models of the last half of the rounds against the last model, in dB. The last "
    "column is for `FederatedRegressor` and `FederatedClassifier` (1 500 rounds, eight "
    "seeds), whose automatic step sizes shrink. There averaging does not always pay, so it is not "
    "their default. `ISFedAvg` is the paper's method and shows the last model unless asked; "
    "`compare` and `diagnose` look at both.",
    "",
]

if __name__ == "__main__":
    main()
