"""The tables and the figure of a leaderboard: one specification for terminal, page and docs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.base.text_format import plain_number
from isfed.report.page_data import Figure, PageTable, Series, TableCell, number_cell
from isfed.studies.leaderboard_scores import AXES, FARTHEST
from isfed.studies.results_reader import Results

AXIS_NAMES = {
    "rounds": "rounds", "bytes_up": "bytes up", "work": "gradients", "seconds": "virtual seconds",
}  # fmt: skip
MOST_CURVES = 8  # of a figure, beside the reference
WORSE = 10.0  # dB beyond the start: where the figure of step sizes ends


def _gain_cell(gain: Mapping[str, Any] | None, diverged: int, runs: int) -> TableCell:
    """A gain in dB with its interval; a star where Holm's p is below 5%."""
    if gain is None:
        return TableCell("reference", 0.0)
    star = "*" if gain["p"] < 0.05 else ""
    lost = f", {diverged}/{runs} diverged" if diverged else ""
    text = f"{gain['mean']:.1f} ({gain['low']:.1f} to {gain['high']:.1f}){star}{lost}"
    return TableCell(text.replace("-", "−"), gain["mean"])


def _overview(caption: str, rows: Sequence[Mapping[str, Any]], runs: int) -> PageTable:
    """Methods by their mean gain over the reference; a column for every problem."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    by_method: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["problem"]] = row

    def mean(method: str) -> float:
        gains = [row["gain"]["mean"] if row["gain"] else 0.0 for row in by_method[method].values()]
        return float(np.mean(gains))

    table = []
    for method in sorted(by_method, key=lambda name: -mean(name)):
        found = by_method[method]
        cells: list[str | TableCell] = [method, next(iter(found.values()))["hears"]]
        cells.append(number_cell(mean(method), ".1f"))
        for problem in problems:
            row = found.get(problem)
            cell = "not run" if row is None else _gain_cell(row["gain"], row["diverged_runs"], runs)
            cells.append(cell)
        table.append(cells)
    return PageTable.of(caption, ["method", "must hear", "mean", *problems], table)


def _ranking_tables(results: Results) -> Iterator[PageTable]:
    """One table for every class: the area under the profile on every axis."""
    by_class: dict[str, dict[str, dict[str, Any]]] = {}
    for ranking in results.summary["rankings"]:
        scores = by_class.setdefault(ranking["hears"], {})
        for one in ranking["methods"]:
            scores.setdefault(one["method"], {})[ranking["axis"]] = one
    for hears, methods in by_class.items():
        axes = [axis for axis in AXES if any(axis in row for row in methods.values())]
        order = sorted(methods, key=lambda name: -methods[name].get(axes[0], {"score": 0})["score"])
        rows = (
            [
                name,
                *(number_cell(methods[name][axis]["score"], ".3f") for axis in axes),
                number_cell(100.0 * methods[name][axes[0]]["reached"], ".0f"),
            ]
            for name in order
        )
        yield PageTable.of(
            f"Ranking of methods, {hears}: area under the performance profile, by cost to "
            "reach where the tuned reference ends",
            ["method", *(AXIS_NAMES[axis] for axis in axes), "% reached"],
            rows,
        )


def _problem_tables(results: Results) -> Iterator[PageTable]:
    """For every problem all that is shown beside the ranking."""
    columns = [
        "method", "must hear", "level (dB)", "gain (dB)", "wins", "p (Holm)", "step size", "knobs",
        *(f"{AXIS_NAMES[axis]} to target" for axis in AXES), "rounds half-way", "kB up in all",
        "excess risk", "worst tenth", "spread of agents", "worst peak (dB)",
    ]  # fmt: skip
    for problem in results.summary["problems"]:
        if not problem["tuned"]:
            continue
        tested = "majority_error" in problem
        errors = {"test_error": "test error (%)", "balanced_error": "balanced (%)"}
        errors = errors if tested else {}
        rows = []
        mine = [r for r in results.summary["algorithms"] if r["problem"] == problem["name"]]
        for row in sorted(mine, key=lambda row: row["level_db"]):
            gain = row["gain"]
            end, half = row["to_target"]["end"], row["to_target"]["half"]
            sent = row["costs"]["bytes_up"]
            rows.append([
                row["method"], row["hears"], number_cell(row["level_db"], ".1f"),
                _gain_cell(gain, row["diverged_runs"], row["runs"]),
                "" if gain is None else f"{gain['wins']}/{gain['pairs']}",
                "" if gain is None else number_cell(gain["p"], ".2g"),
                number_cell(row["step_size"], ".3g"),
                ", ".join(f"{k} {plain_number(v, 3)}" for k, v in row["knobs"].items()),
                *(_reached(end.get(axis)) for axis in AXES), _reached(half.get("rounds")),
                number_cell(None if sent is None else sent / 1e3, ".3g"),
                *(number_cell(row[key], ".3g") for key in ("excess", "worst_tenth",
                                                           "agent_spread")),
                number_cell(row["peak_db"], ".1f"),
                *(number_cell(None if row[key] is None else 100.0 * row[key], ".2f")
                  for key in errors),
            ])  # fmt: skip
        caption = (
            f"{problem['name']}: {problem['agents']} agents, {problem['active']} a round; target "
            f"{problem['end_db']:.1f} dB, half-way {problem['half_db']:.1f} dB"
        )
        if tested:
            caption += (
                f"; always the most frequent class errs in {100.0 * problem['majority_error']:.2f}%"
                f" of the test rows, balanced {100.0 * problem['chance_error']:.0f}%"
            )
        yield PageTable.of(caption, [*columns, *errors.values()], rows)


def _told_table(results: Results) -> PageTable:
    """What does not depend on the problem: what a method must be told, and what the cloud keeps."""
    methods = {row["method"]: row for row in results.summary["algorithms"]}
    return PageTable.of(
        "What methods need", ["method", "must hear", "is told", "state of the cloud", "confirmed"],
        ([name, row["hears"], row["told"], row["state"],
          "yes" if row["confirmed"] else "unconfirmed"] for name, row in methods.items()),
    )  # fmt: skip


def _reached(value: float | None) -> TableCell:
    return TableCell("never", math.inf) if value is None else number_cell(value)


def _effect_rows(effects: Iterable[Mapping[str, Any]], names: Any) -> Iterator[list[Any]]:
    for effect in effects:
        yield [*names(effect), _gain_cell(effect, 0, 0), number_cell(effect["p"], ".2g")]


def _factorial_tables(factorial: Mapping[str, Any]) -> Iterator[PageTable]:
    """Main effects, interactions, every combination, and the best against every method."""
    if not factorial.get("effects"):
        return
    yield PageTable.of(
        "What a part gains over the first of its kind, whatever the other parts are (dB, 95% "
        "interval over problems and seeds)",
        ["part", "is", "instead of", "gain (dB)", "p (Holm)"],
        _effect_rows(factorial["effects"], lambda e: (e["factor"], e["level"], e["base"])),
    )
    yield PageTable.of(
        "What two parts gain together beyond the sum of what each gains (dB)",
        ["part", "with", "gain (dB)", "p (Holm)"],
        _effect_rows(factorial["interactions"], lambda e: (e["level"], e["other_level"])),
    )
    yield PageTable.of(
        "Every combination: mean level on the runs that count and on the tuning seeds",
        ["sampler", "estimator", "server", "level (dB)", "tuning level (dB)"],
        (
            [c["sampler"], c["estimator"], c["server"],
             number_cell(c["level_db"], ".1f"), number_cell(c["tuning_db"], ".1f")]
            for c in factorial["combinations"]
        ),
    )  # fmt: skip
    yield PageTable.of(
        f"What the best combination, {factorial['best']}, gains over every method at its best",
        ["method", "gain (dB)", "p (Holm)"],
        _effect_rows(
            sorted(factorial["against"], key=lambda e: e["mean"]), lambda e: (e["method"],)
        ),
    )
    yield PageTable.of(
        "Combinations that cannot work", ["sampler", "estimator", "server", "why"],
        ([c["sampler"], c["estimator"], c["server"], c["reason"]] for c in factorial["refused"]),
    )  # fmt: skip


def leaderboard_tables(results: Results, *, short: bool = False) -> list[PageTable]:
    """The tables of a leaderboard; none for another study.

    Args:
        results: its folder.
        short: whether to leave out the details of every problem, as the terminal does.
    """
    summary = results.summary
    if results.kind != "leaderboard":
        return []
    runs = int(summary["repetitions"])
    tables = [
        _overview(
            f"Gain over {summary['reference']} in dB, each at its best; * where p < 5% after Holm",
            summary["algorithms"], runs,
        ),
        *_ranking_tables(results),
        _overview(
            f"Gain over {summary['reference']} without tuning: published defaults, automatic step",
            summary["untuned"], runs,
        ),
        *_factorial_tables(summary["factorial"]),
        PageTable.of(
            "What could not run", ["method", "problem", "why"],
            ([a["method"], a["problem"], a["reason"]] for a in summary["absent"]),
        ),
    ]  # fmt: skip
    failed = [row for row in summary["algorithms"] if row["reason"]]
    tables.append(
        PageTable.of(
            "Runs that diverged or failed; they count as the worst level", 
            ["method", "problem", "runs", "why"],
            ([r["method"], r["problem"], f"{r['diverged_runs']}/{r['runs']}", r["reason"]]
             for r in failed),
        )
    )  # fmt: skip
    tables += [] if short else [*_problem_tables(results), _told_table(results)]
    return [table for table in tables if table.rows]


def closest(results: Results) -> Results:
    """The same with the curves that a figure can hold: the reference, and those that end lowest."""
    first, *others = results.algorithms
    others.sort(key=lambda a: a.number("level_db"))
    return replace(results, algorithms=(first, *others[:MOST_CURVES]))


def leaderboard_figures(results: Results) -> Iterator[Figure]:
    """Performance profiles, and how the step size matters; nothing for another study."""
    if results.kind == "leaderboard":
        yield from _profiles(results)
        yield from _sensitivity(results)


def _profiles(results: Results) -> Iterator[Figure]:
    """Performance profiles by rounds of the methods that need only those heard."""
    rankings = results.summary["rankings"]
    if not rankings:
        return
    first = rankings[0]
    at = np.linspace(1.0, FARTHEST, len(first["methods"][0]["profile"]))
    shown = first["methods"][:MOST_CURVES]
    series = []
    for one in shown:
        y = np.array(one["profile"])
        series.append(Series(one["method"], at, y, y, y, {"ratio": 1.0}))
    table = PageTable.of(
        "Area under the profile", ["method", "area"],
        ([one["method"], number_cell(one["score"], ".3f")] for one in first["methods"]),
    )  # fmt: skip
    yield Figure(
        "Performance profiles", "share of problems and seeds within that multiple of the best",
        {"ratio": f"{AXIS_NAMES[first['axis']]} to the target over those of the best"},
        tuple(series), table, linear_only=True,
    )  # fmt: skip


def _sensitivity(results: Results) -> Iterator[Figure]:
    """How the level of the trials depends on the step size, for those that end closest."""
    for problem in results.summary["problems"]:
        rows = [r for r in results.summary["algorithms"] if r["problem"] == problem["name"]]
        first, others = rows[:1], sorted(rows[1:], key=lambda row: row["level_db"])
        steps = [step for row in rows for step, _ in row["tried"]]
        least = min(steps, default=1.0)  # horizontal axes begin at zero
        worst = problem["start_db"] + WORSE  # what grew without end would hide all the others
        series, best = [], []
        for row in (*first, *others[:MOST_CURVES]):
            pairs = [(step, level) for step, level in row["tried"] if level is not None]
            if pairs:
                steps, levels = (
                    np.array(values, np.float64) for values in zip(*pairs, strict=True)
                )
                y = np.minimum(10.0 * np.log10(np.maximum(levels, 1e-300)), worst)
                x = np.log10(steps / least)
                series.append(Series(row["method"], x, y, y, y, {"step": 1.0}))
                best.append([row["method"], number_cell(row["step_size"], ".3g")])
        if series:
            yield Figure(
                f"Step sizes that were tried, {problem['name']}",
                f"distance to the minimiser at the end of a trial, dB, at most {worst:.0f}",
                {"step": f"powers of 10 above the step size {least:.2g}"}, tuple(series),
                PageTable.of("Best step size", ["method", "step size"], best), linear_only=True,
            )  # fmt: skip
