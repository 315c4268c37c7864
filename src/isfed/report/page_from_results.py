"""A results folder as a page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.report.comparison_report import agreement_line
from isfed.report.diagnosis_report import step_lines, sure_line
from isfed.report.networks_report import networks_verdict
from isfed.report.page_curves import (
    Quantity,
    level_cell,
    number_cell,
    quantities,
    series_of,
    units_of,
)
from isfed.report.page_data import Cell, Figure, PageData, PageTable, Series
from isfed.report.page_tables import further_tables, points
from isfed.report.strategies_table import ways_line
from isfed.report.verdict import deciding, measured_verdict
from isfed.studies.network_config import unused_keys
from isfed.studies.results_folder import COMMAND, CONFIG
from isfed.studies.results_reader import AlgorithmResult, Results

MEANING = {
    "experiment": "An experiment",
    "tuned": "Methods at one step size, and each again at its own best one",
    "comparison": "FedAvg against importance sampling, each at its own best step size",
    "heterogeneity": "The gain of importance sampling over the heterogeneity of the agents",
    "diagnosis": "What importance sampling would do, predicted without training",
    "systems": "Every system that the paper names",
    "networks": "Neural networks, every method at its own best step size",
}
MOST_NAMES = 8  # in a warning
NEEDED = ("rounds", "uploads", "gradients")  # to reach the level of a comparison


def ordered(results: Results) -> list[Quantity]:
    """What can be drawn, and first what the verdict speaks of."""
    measure = deciding(results)
    first = "excess" if results.kind == "comparison" else measure.key if measure else ""
    return sorted(quantities(results), key=lambda quantity: quantity.key != first)


def page_data(results: Results) -> PageData:
    """The page of one folder."""
    found = ordered(results)
    if results.kind == "systems":  # what it measures beside are costs, which its table shows
        found = [quantity for quantity in found if quantity.key == "msd"]
    figures = tuple(
        _figure(part, quantity, problem)
        for quantity in found
        for problem, part in by_problem(results)
    )
    if results.inclusion:
        figures += tuple(_inclusion(results))
    figures = (*_gains(results), *figures)
    return PageData(
        title=results.name,
        summary=summary_line(results),
        verdict=verdict(results),
        advice=tuple(advice(results)),
        figures=figures,
        tables=tuple(further_tables(results)),
        warnings=tuple(warnings(results)),
        data=tuple(data_account(results)),
        configurations={CONFIG: configuration(results)},
        versions={key: str(value) for key, value in results.made_with.items()},
        commands=commands(results),
    )


def by_problem(results: Results) -> list[tuple[str, Results]]:
    """The algorithms on each problem, if a study has several; else all of them."""
    titles = dict.fromkeys(str(a.summary.get("problem", "")) for a in results.algorithms)
    return [
        (
            title,
            replace(
                results,
                algorithms=tuple(
                    a for a in results.algorithms if str(a.summary.get("problem", "")) == title
                ),
            ),
        )
        for title in titles
    ]


def configuration(results: Results) -> str:
    """The configuration as it is in the folder."""
    return (results.path / CONFIG).read_text(encoding="utf-8")


def commands(results: Results) -> tuple[str, ...]:
    """What to type to run it again; nothing if it was not a command that made the folder."""
    recorded = results.path / COMMAND
    if recorded.exists():
        return (recorded.read_text(encoding="utf-8").strip(),)
    if results.kind != "experiment":
        return ()  # only an experiment can be run from its configuration alone
    again = results.path.with_name(f"{results.path.name}-again")
    return (shlex.join(["isfed", "run", str(results.path / CONFIG), "--out", str(again)]),)


def summary_line(results: Results) -> str:
    """What was run."""
    found = results.summary
    said = f"{MEANING.get(results.kind, results.kind)}: {len(results.algorithms)} algorithms"
    if results.kind == "diagnosis":
        setting = found["setting"]
        said = f"{MEANING['diagnosis']}: {setting['num_agents']:,} agents, {setting['rows']:,} rows"
    if "rounds" in found:
        said += f", {found['rounds']:,} rounds, {found['repetitions']:,} repetitions"
    return f"{said}."


def verdict(results: Results) -> str:
    """The answer in one sentence: that of the folder, or who is best by how much."""
    for key in ("verdict", "recommendation"):
        if results.summary.get(key):
            return str(results.summary[key])
    parts = by_problem(results)
    if len(parts) > 1:
        return " ".join(f"On {problem}: {verdict(part)}" for problem, part in parts)
    if measure := deciding(results):
        return measured_verdict(results, measure)
    rows = [a for a in results.algorithms if math.isfinite(a.number("gain_db"))]
    if len(rows) < 2:
        return "There is nothing to compare: fewer than two algorithms ended with a known level."
    best = max(rows, key=lambda a: a.number("gain_db"))
    first, gain, error = (
        results.algorithms[0],
        best.number("gain_db"),
        best.number("gain_stderr_db"),
    )
    against = "FedAvg at the same point" if results.kind == "heterogeneity" else first.name
    if math.isnan(error):
        return (
            f"{best.name} ends {gain:.1f} dB below {against}; with one repetition there is no "
            "standard error, so chance may have made the difference."
        )
    if best is first or gain <= 2.0 * error:
        return f"No algorithm ends below {against} by more than two standard errors."
    said = f"{best.name} ends lowest: {gain:.1f} ± {error:.1f} dB below {against}"
    if False in (best.settled, first.settled):
        return f"{said}, but the run was too short to have settled."
    return f"{said}."


def advice(results: Results) -> Iterator[str]:
    """Of a diagnosis: how sure it is, the step size to begin with, the other ways to sample.

    Of a comparison: what a diagnosis predicts, and why that differs. Of networks: the rounds to
    FedAvg's accuracy.
    """
    if results.summary.get("networks"):
        yield from networks_verdict(results)
    if results.kind == "comparison" and (line := agreement_line(results)):
        yield line
    if "settling_rounds" not in results.summary or results.summary.get("degenerate"):
        return
    yield sure_line(results)
    yield from step_lines(results)
    if "ways" in results.summary:
        yield ways_line(results)


def warnings(results: Results) -> Iterator[str]:
    """What to know before trusting the numbers."""
    for algorithm in results.diverged:
        yield (
            f"{algorithm.name} diverged in round {algorithm.diverged_round:,}; use a smaller step "
            f"size than {algorithm.step_size:.3g}."
        )
    moving = [a.name for a in results.algorithms if a.settled is False]
    if moving:
        more = f" and {len(moving) - MOST_NAMES} more" if len(moving) > MOST_NAMES else ""
        yield (
            f"Not settled at the end: {'; '.join(moving[:MOST_NAMES])}{more}. A gain then says "
            "who is faster, not who ends lower: use more rounds."
        )
    yield from results.summary.get("remarks", ())
    if results.summary.get("no_msd") and deciding(results) is None:
        yield f"The distance to the optimum is not known: {results.summary['no_msd']}"
    yield from edge_lines(results)


def edge_lines(results: Results) -> Iterator[str]:
    """Whose best step size is at the edge of those tried, in one line; of two both are."""
    tried = {n: s for n, s in results.searches.items() if len(s.losses) > 1}  # else none was chosen
    if tried and all(len(search.losses) == 2 for search in tried.values()):
        yield "Only two step sizes were tried for each algorithm; a better one may lie beyond them."
        return
    edge = [f"{name} ({s.best:.3g})" for name, s in tried.items() if s.at_edge]
    if edge:
        yield (
            f"The best step size is at the edge of those tried for {'; '.join(edge)}: a better one "
            "may lie beyond."
        )


def data_account(results: Results) -> Iterator[tuple[str, str]]:
    """What became of the data: the folder's own account, or what the configuration says."""
    account = results.summary.get("data")
    if isinstance(account, Mapping):
        yield from ((str(key), _words(value)) for key, value in account.items())
        return
    if isinstance(account, list):
        yield from (("", _words(line)) for line in account)
        return
    said = results.summary.get("setting") or results.config.get("problem") or {}
    if said.get("data") == "network":
        unused = unused_keys(said)
        said = {key: value for key, value in said.items() if key not in unused}
    for key, value in flat(said):
        yield key.replace("_", " "), _words(value)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a configuration; a table in a list goes by its name.

    >>> list(flat({"a": {"b": 1}, "algorithm": [{"name": "x", "step": 2}], "c": [1, 2]}))
    [('a.b', 1), ('algorithm.x.step', 2), ('c', [1, 2])]
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
        for number, part in enumerate(value, start=1):
            rest = {key: v for key, v in part.items() if key != "name"}
            yield from flat(rest, f"{path}.{part.get('name', number)}")
    else:
        yield path, value


def bands(results: Results) -> str:
    """What the bands are; nothing for a single repetition."""
    repetitions = int(results.summary.get("repetitions", 1))
    return "" if repetitions < 2 else f"2 standard errors over {repetitions:,} repetitions"


def _figure(results: Results, quantity: Quantity, problem: str = "") -> Figure:
    axes = units_of(results.algorithms)
    found = (series_of(quantity, a, axes, a.name, i) for i, a in enumerate(results.algorithms))
    series = tuple(one for one in found if one is not None)
    table = _levels(results, quantity)
    title = f"{quantity.title}, {problem}" if problem else quantity.title
    return Figure(
        title, quantity.label, axes, series, table, band=bands(results),
        logarithmic=True if quantity.key in ("msd", "excess") else None,
        linear_only=quantity.linear_only,
    )  # fmt: skip


def _levels(results: Results, quantity: Quantity) -> PageTable:
    """Every algorithm: where it ended, how far beyond the first, what it cost."""
    first = results.algorithms[0]
    needed = quantity.key == "excess" and "rounds" in first.summary
    base = "FedAvg there" if results.kind == "heterogeneity" else first.name
    way = "above" if quantity.rising else "below"
    unit = f" ({quantity.gap_unit})" if quantity.rising else ""
    settling = not results.summary.get("no_msd")  # it is the msd that settles
    columns = ["algorithm", "step size", quantity.level_name, f"{way} {base}{unit}"]
    columns += ["settled"] if settling else []
    columns += [f"{key} to reach FedAvg's end" for key in NEEDED] if needed else []
    # No seconds: a page of the same results is the same page (they are in times.json).
    columns += ["uploads per round", "gradients per round"]
    rows = []
    for algorithm in results.algorithms:
        value, error = quantity.level(algorithm)
        cells = [
            Cell(algorithm.name),
            number_cell(algorithm.step_size, ".3g"),
            _level(algorithm, value, error, quantity.unit),
            Cell("") if algorithm is first else _beyond(quantity, algorithm, first),
        ]
        if settling:
            cells.append(Cell({True: "yes", False: "no", None: "unknown"}[algorithm.settled]))
        cells += [_reached(algorithm.summary.get(key)) for key in NEEDED] if needed else []
        cells += [number_cell(algorithm.number(f"{k}_per_round")) for k in NEEDED[1:]]
        rows.append(tuple(cells))
    return PageTable(f"{quantity.title}, with standard errors", tuple(columns), tuple(rows))


def _beyond(quantity: Quantity, algorithm: AlgorithmResult, first: AlgorithmResult) -> Cell:
    """How much better than the first: above it where more is better, else below it."""
    if quantity.key == "msd":  # over FedAvg at the same point, in a study of many problems
        number = algorithm.number
        return level_cell(number("gain_db"), number("gain_stderr_db"), "dB")
    (value, error), (level, level_error) = map(quantity.level, (algorithm, first))
    spread = math.hypot(error, level_error)
    if not quantity.rising:
        return level_cell(level - value, spread, quantity.unit)
    cell = level_cell(value - level, spread, quantity.gap_unit)
    sign = "+" if value > level else ""
    return Cell(sign + cell.text.removesuffix(f" {quantity.gap_unit}"), cell.value)


def _level(algorithm: AlgorithmResult, value: float, error: float, unit: str) -> Cell:
    if algorithm.diverged_round is not None:
        return Cell(f"diverged in round {algorithm.diverged_round:,}")
    return level_cell(value, error, unit)


def _reached(value: float | None) -> Cell:
    return Cell("never") if value is None else number_cell(float(value), ",.0f")


def _gains(results: Results) -> Iterator[Figure]:
    """Of a study of heterogeneity: the gain over how unequal the noise is."""
    found, table = results.summary.get("points"), points(results)
    if not found or table is None:
        return
    series = []
    for colour, share in enumerate(dict.fromkeys(p["noisy_share"] for p in found)):
        here = [p for p in found if p["noisy_share"] == share]
        x = 10.0 * np.log10([p["noise_ratio"] for p in here])
        for key, name in (("gain_db", "oracle"), ("memory_gain_db", "memory")):
            gain, error = (
                np.array([math.nan if p.get(k) is None else p[k] for p in here], dtype=np.float64)
                for k in (key, "gain_stderr_db" if key == "gain_db" else "")
            )
            label = f"{100 * share:g}% noisy, {name}"
            reach = 2.0 * error
            series.append(
                Series(label, x, gain, gain - reach, gain + reach, {"ratio": 1.0}, colour)
            )
    yield Figure(
        "Gain over FedAvg", "gain, dB", {"ratio": "noise of the noisy agents over the others, dB"},
        tuple(series), table, band=bands(results),
    )  # fmt: skip


def _inclusion(results: Results) -> Iterator[Figure]:
    """Of a diagnosis: how often every agent and every example is drawn, by rank."""
    table = results.inclusion
    for unit in ("agent", "example"):
        here = table["unit"] == unit
        times = table["over_uniform"][here]
        if not times.size:
            continue
        rank = table["rank"][here].astype(np.float64)  # of many, only some are kept
        axes = {"rank": f"{unit}, by rank"}
        ones = np.ones(times.size)
        series = (
            Series("importance sampling", rank, times, times, times, units={"rank": 1.0}),
            Series("uniform", rank, ones, ones, ones, units={"rank": 1.0}),
        )
        rows = tuple(
            (Cell(words), number_cell(float(np.interp(at, rank, times)), ".3g"))
            for words, at in (
                ("most drawn", rank[0]),
                ("in the middle", 0.5 * (rank[0] + rank[-1])),
                ("least drawn", rank[-1]),
            )
        )
        yield Figure(
            f"How often every {unit} is drawn", "inclusion probability over the uniform one", axes,
            series, PageTable(f"Every {unit} against uniform", (unit, "times uniform"), rows),
        )  # fmt: skip
