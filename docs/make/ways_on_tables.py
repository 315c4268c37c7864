"""Every way to learn on bundled and public tables and on all presets: predicted against measured.

    python docs/make/ways_on_tables.py [--only NAME] [--anew PART] [--page]

Each problem is compared as `isfed compare` does, with more runs. What was found is kept in
docs/make/ways.json, and only what is missing there is run; --anew makes one part of it anew
(measured, predicted or estimators). Prints the gain over FedAvg at each way's best step size,
predicted and measured, whether the recommended way is near the best, and what averaging does for
the estimators. --page writes the tables into docs/appendix/ways.md. Tables of statsmodels and
vega_datasets cannot be run where these packages are not installed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from auto_steps import problems, table

from isfed import LeastSquares, Logistic, Problem, Softmax
from isfed.datasets.named_datasets import parkinsons
from isfed.studies import Budget, Comparison, Workers, ways_by_short_runs
from isfed.studies.comparison import Curve
from isfed.studies.comparison_run import ComparisonStudy
from isfed.studies.executors import Executor
from isfed.studies.problem_sources import Given
from isfed.studies.sklearn_estimators import FederatedRegressor
from isfed.studies.work_cells import CellStore
from isfed.theory.tuned_ways import AVERAGED, BASE, TunedWays

PAGE = Path(__file__).parent.parent / "appendix" / "ways.md"
KEPT = Path(__file__).with_name("ways.json")
PUBLIC = {"statsmodels": "datasets", "vega_datasets": "_data"}
LONG = {"synthetic": 40, "digits": 20}  # runs, where they take long
ASIDE = ("fair", "parkinsons")  # not looked at while the prediction was written
ROUNDS, RUNS, RUNS_TO_TUNE = 1000, 200, 8
USUAL = Budget(num_active=1)  # what `isfed compare` does
TWICE = 2.01  # rounded
SPREAD, SPREAD_RUNS = ("outliers",), 100  # runs end so differently that 8 do not find the steps
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


def measured(problem: Problem, num_active: int, runs: int) -> dict[str, Any]:
    """Every way at its tuned step size, and what fewer runs to tune it would have cost.

    The loss of all ways is measured in the same runs, so that a step size that is found again with
    fewer runs costs nothing.
    """
    budget = Budget(num_active=num_active, rounds=ROUNDS, repetitions=runs,
                    tuning_repetitions=RUNS_TO_TUNE)  # fmt: skip
    study = ComparisonStudy("ways", Given(problem), budget)
    few = replace(study, budget=replace(budget, tuning_repetitions=USUAL.tuning_repetitions))
    curves: dict[str, Curve] = {}
    usual: dict[str, Curve] = {}
    workers = Workers()
    with workers.opened() as jobs:
        executors = [Executor(workers, jobs, CellStore(), None) for _ in range(2)]
        for name, way in study.ways.items():
            for shown, tried in study._tuned(executors[0], name, way).items():
                curves[shown] = study._curve(executors[0], shown, tried)[0]
            for shown, tried in few._tuned(executors[1], name, way).items():
                same = min(tried, key=lambda step: tried[step]) == curves[shown].step_size
                usual[shown] = curves[shown] if same else few._curve(executors[1], shown, tried)[0]
    curves = {name: curves[name] for name in study.algorithms}
    found = Comparison(curves, 0.0)
    gains = {
        name: [decibels(curves[BASE].final / ways[name].final) for ways in (curves, usual)]
        for name in curves
    }
    first = {n: replace(usual[n], excess=usual[n].excess[: USUAL.repetitions]) for n in curves}
    _, low, high = found.gain_db("importance" + AVERAGED)
    return {
        "agents": problem.num_agents, "params": problem.num_params, "active": num_active,
        "runs": runs, "compare": Comparison(first, 0.0).winner,
        "both": [rounded(low), rounded(high)],
        "ways": {
            name: {
                "gain": rounded(more.mean()), "step": rounded(curves[name].step_size),
                "stderr": rounded(more.std(ddof=1) / np.sqrt(more.size)),
                "rounds": curves[name].first_at(found.level),
                "usual_gain": rounded(fewer.mean()), "usual_step": rounded(usual[name].step_size),
            }
            for name, (more, fewer) in gains.items()
        },
    }  # fmt: skip


def at_predicted(problem: Problem, num_active: int, steps: dict[str, float]) -> dict[str, float]:
    """The gain of every way over FedAvg if both run at the step sizes that are predicted."""
    budget = Budget(num_active=num_active, rounds=ROUNDS, repetitions=SPREAD_RUNS)
    study = ComparisonStudy("ways", Given(problem), budget)
    with Workers().opened() as jobs:
        executor = Executor(Workers(), jobs, CellStore(), None)
        ends = {
            name: study._curve(executor, name, {steps[name]: 0.0})[0].final
            for name in study.algorithms
        }
    return {name: rounded(decibels(ends[BASE] / end).mean()) for name, end in ends.items()}


def predicted(problem: Problem, num_active: int) -> dict[str, Any]:
    """What `isfed diagnose` says of it."""
    ways = ways_by_short_runs(problem, num_active=num_active, rounds=ROUNDS)
    tuned = TunedWays(ways, ROUNDS)
    found = {
        name: {"gain": rounded(tuned.gain(name)), "step": rounded(w.step_size), "rounds": w.reaches}
        for name, w in ways.items()
    }
    return {"kind": ways[BASE].how, "advised": tuned.advised.name, "ways": found}


def estimators(problem: Problem, num_active: int) -> list[float]:
    """What averaging gains for the scikit-learn estimators, in dB, of eight seeds."""
    least = problem.risk(problem.optimum)
    last, averaged = (
        np.array([
            problem.risk(model._train(problem)) - least
            for seed in range(8)
            for model in [FederatedRegressor(num_active=num_active, average=on, random_state=seed)]
        ])
        for on in (False, True)
    )  # fmt: skip
    return [rounded(value) for value in decibels(last / averaged)]


def decibels(values: Any) -> np.ndarray:
    """10 log10."""
    return 10.0 * np.log10(np.asarray(values, dtype=float))


def rounded(value: float) -> float:
    """With as many digits as are worth keeping."""
    return float(f"{value:.4g}")


def gains(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The table of gains as Markdown, every cell, and what the predictions are worth."""
    names = list(dict.fromkeys(name for c in cells.values() for name in c["measured"]["ways"]))[1:]
    lines = [f"| problem | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows = []
    for problem, cell in cells.items():
        own, known = cell["measured"]["ways"], cell["predicted"]["ways"]
        shown = []
        for name in names:
            if name not in own:
                shown.append("")
                continue
            one, other = own[name], known[name]
            shown.append(f"{one['gain']:z.1f} ({other['gain']:z.1f})")
            rows.append({
                "problem": problem, "kind": cell["predicted"]["kind"], "stderr": one.get("stderr"),
                "error": abs(other["gain"] - one["gain"]), "step": apart(one, other, "step"),
                "rounds": apart(one, other, "rounds"),
            })  # fmt: skip
        lines.append(f"| {problem} | {' | '.join(shown)} |")
    lines += ["", "| problems | cells | mean error | median | worst | step size within 2 | "
              "rounds within 2 | standard error of what is measured |",
              "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    groups: dict[str, Any] = {
        "all": lambda row: True,
        "set aside": lambda row: row["problem"] in ASIDE,
        "the others": lambda row: row["problem"] not in ASIDE,
        **{kind: lambda row, k=kind: row["kind"] == k for kind in ("computed", "from a few runs")},
    }
    for group, inside in groups.items():
        part = [row for row in rows if inside(row)]
        if part:
            errors, *known = (
                np.array([row[key] for row in part if row[key] is not None])
                for key in ("error", "step", "rounds", "stderr")
            )
            shown = [f"{np.mean(k <= TWICE):.0%} of {k.size}" if k.size else "" for k in known[:2]]
            shown.append(f"{known[2].mean():.2f} dB" if known[2].size else "")
            lines.append(
                f"| {group} | {len(part)} | {errors.mean():.2f} dB | {np.median(errors):.2f} | "
                f"{errors.max():.1f} | {' | '.join(shown)} |"
            )
    return lines


def same_steps(cells: dict[str, dict[str, Any]]) -> list[str]:
    """How near predictions are where tuning cannot be to blame."""
    pairs = {
        (problem, way): (found, cell["predicted"]["ways"][way]["gain"])
        for problem, cell in cells.items()
        for way, found in cell.get("at_predicted", {}).items()
        if way != BASE
    }
    if not pairs:
        return []
    names = list(dict.fromkeys(problem for problem, _ in pairs))
    tuned = [cells[p]["measured"]["ways"][w]["gain"] for p, w in pairs]
    errors = [abs(found - gain) for found, gain in pairs.values()]
    before = [abs(t - gain) for t, (_, gain) in zip(tuned, pairs.values(), strict=True)]
    more = np.mean([found - t for t, (found, _) in zip(tuned, pairs.values(), strict=True)])
    return [
        "",
        f"The largest errors of computed gains are in {', '.join(names)}: a few noisy agents and "
        "two parameters let runs end so differently that 8 of them do not find the best step "
        f"size. At the predicted step sizes, in {SPREAD_RUNS} runs, predictions differ by "
        f"{np.mean(errors):.2f} dB from what is measured ({max(errors):.1f} at most), instead of "
        f"{np.mean(before):.2f} ({max(before):.1f}). The ways then gain {more:.1f} dB more on "
        "average than at the step sizes that 8 runs chose.",
    ]


def apart(one: dict[str, Any], other: dict[str, Any], key: str) -> float | None:
    """The factor between two numbers; none if not kept or not there, infinite if one is not."""
    a, b = one.get(key), other[key]
    if key not in one or a is b is None:
        return None
    return np.inf if a is None or b is None else max(a / b, b / a)


def fewer_runs(cells: dict[str, dict[str, Any]]) -> str:
    """What it costs that `isfed compare` tunes with fewer runs than were made here."""
    ways = [way for cell in cells.values() for way in cell["measured"]["ways"].values()]
    ways = [way for way in ways if "usual_step" in way]
    lost = np.array([way["gain"] - way["usual_gain"] for way in ways])
    same = np.mean([way["step"] == way["usual_step"] for way in ways])
    return (
        f"Step sizes here are tuned with {RUNS_TO_TUNE} runs, those of `isfed compare` with "
        f"{USUAL.tuning_repetitions}. It finds the same step size in {same:.0%} of {len(ways)} "
        f"cells, and what it finds ends {lost.mean():.2f} dB higher on average; in the worst cell "
        f"{lost.max():.1f} dB higher, in the best {-lost.min():.1f} dB lower."
    )


def advice(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Which way is recommended, and how near it is to the best."""
    lines = ["| problem | K, L, M | diagnose | compare | best measured | diagnose behind | "
             "compare behind | importance averaged below FedAvg |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    behind: dict[str, list[float]] = {"diagnose": [], "compare": []}
    for problem, cell in cells.items():
        found = cell["measured"]
        means = {name: way["gain"] for name, way in found["ways"].items()}
        best = max(means, key=lambda name: means[name])
        told = {"diagnose": cell["predicted"]["advised"], "compare": found["compare"]}
        behind["diagnose"].append(means[best] - means[told["diagnose"]])
        way = found["ways"][told["compare"]]
        behind["compare"].append(means[best] - way.get("usual_gain", way["gain"]))
        low, high = found["both"]
        lines.append(
            f"| {problem} | {found['agents']}, {found['active']}, {found['params']} | "
            f"{told['diagnose']} | {told['compare']} | {best} | {behind['diagnose'][-1]:.1f} dB | "
            f"{behind['compare'][-1]:.1f} dB | {means['importance' + AVERAGED]:.1f} ({low:.1f} to "
            f"{high:.1f}) |"
        )
    lines.append("")
    for by, values in behind.items():
        near = np.mean(np.array(values) <= NEAR_DB)
        lines.append(
            f"The way that {by} recommends is within {NEAR_DB:g} dB of the best in {near:.0%} of "
            f"{len(values)} problems, and {max(values):.1f} dB behind at most."
        )
    both = {n: c["measured"]["ways"]["importance" + AVERAGED]["gain"] for n, c in cells.items()}
    worse = [name for name, found in both.items() if found < 0.0]
    lines.append(
        f"Importance sampling with averaging ends below FedAvg in {len(both) - len(worse)} of them"
        + (f", above it in {', '.join(worse)}." if worse else ".")
    )
    return [*lines, "", fewer_runs(cells)]


def which_runs(cells: dict[str, dict[str, Any]]) -> list[str]:
    """How often the ways of each problem ran, and of which problems only gains are kept."""
    runs: dict[int, list[str]] = {}
    for name, cell in cells.items():
        runs.setdefault(cell["measured"]["runs"], []).append(name)
    often = max(runs, key=lambda count: len(runs[count]))
    others = "".join(
        f" ({count} times on {', '.join(names)})" for count, names in runs.items() if count != often
    )
    lines = [f"Every way ran {often} times{others}, as often at its best step size alone."]
    bare = [n for n, c in cells.items() if "step" not in c["measured"]["ways"][BASE]]
    if bare:
        lines.append(
            f"Of {', '.join(bare)}, measured before, only the gains are kept: not the step sizes, "
            "the rounds, nor what the estimators gain."
        )
    return [" ".join(lines), ""]


def averaging(cells: dict[str, dict[str, Any]]) -> list[str]:
    """What the average of the last half of the rounds gains, each at its own best step size."""
    every = list(dict.fromkeys(name for c in cells.values() for name in c["measured"]["ways"]))
    plain = [name for name in every if not name.endswith(AVERAGED)]
    lines = [f"| problem | {' | '.join(plain)} | estimators |", f"|---|{'---|' * (len(plain) + 1)}"]
    for problem, cell in cells.items():
        ways, own = cell["measured"]["ways"], np.array(cell.get("estimators", []))
        shown = [
            f"{ways[name + AVERAGED]['gain'] - ways[name]['gain']:.1f}" if name in ways else ""
            for name in plain
        ]
        spread = own.std(ddof=1) / np.sqrt(own.size) if own.size else 0.0
        estimated = f"{own.mean():.1f} ± {spread:.1f}" if own.size else ""
        lines.append(f"| {problem} | {' | '.join(shown)} | {estimated} |")
    return lines


def page(cells: dict[str, dict[str, Any]]) -> list[str]:
    """All tables."""
    return [
        *START, *which_runs(cells), *GAINS, *gains(cells), *same_steps(cells),
        "", "## What is recommended", "", *advice(cells), "", *AVERAGES, *averaging(cells),
    ]  # fmt: skip


def main() -> None:
    """Run what is not there, print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--anew", choices=("measured", "predicted", "estimators", "at_predicted"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cells = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    order = []
    for name, problem, active in everything():
        order.append(name)
        cell = cells.setdefault(name, {})
        if options.only not in ("", name):
            continue
        runs = LONG.get(name, RUNS)
        parts: dict[str, Callable[[], Any]] = {
            "measured": partial(measured, problem, active, runs),
            "estimators": partial(estimators, problem, active),
            "predicted": partial(predicted, problem, active),
        }
        if name in SPREAD and "predicted" in cell:
            steps = {n: way["step"] for n, way in cell["predicted"]["ways"].items()}
            parts["at_predicted"] = partial(at_predicted, problem, active, steps)
        for part, make in parts.items():
            if part not in cell or part == options.anew:
                began = time.process_time()
                cell[part] = make()
                KEPT.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
                print(f"{name}: {part}, {time.process_time() - began:.0f} s", flush=True)
    order += [name for name in cells if name not in order]
    whole = {name: cells[name] for name in order if {"measured", "predicted"} <= cells[name].keys()}
    lines = page(whole)
    print("\n".join(lines))
    if options.page:
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


START = [
    "# Appendix: ways to learn on tables",
    "",
    "Made by `python docs/make/ways_on_tables.py --page` from docs/make/ways.json, which it fills: "
    "1 000 rounds, batches of eight, one local step unless a preset has more (digits: three). "
    "Every way runs at its own best step size, as in `isfed compare`. In brackets is what `isfed "
    "diagnose` predicts. A gain is how far the loss above the lowest possible ends below that of "
    "FedAvg after as many uploads, in dB, on average over runs. Rounds are those until the mean "
    "loss is where FedAvg ends.",
    "",
    "Least squares is computed. For other losses `diagnose` makes 16 runs at the best step size, "
    "after a short search for it. `compare` is judged by the first 12 of the runs here, at step "
    "sizes tuned as it tunes them, where these are kept. Two problems were set aside while the "
    f"prediction was written: {', '.join(ASIDE)}.",
    "",
]
GAINS = ["## Gain over FedAvg, measured (predicted), in dB", ""]
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
