"""A results folder as a page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.base.text_format import plain_number
from isfed.report import page_sentences
from isfed.report.comparison_report import held_out_page_table, ways_table
from isfed.report.diagnosis_report import (
    drawn_most,
    sampling_table,
    strategies_page_table,
    tuned_page_table,
)
from isfed.report.leaderboard_report import closest, leaderboard_figures, leaderboard_tables
from isfed.report.networks_report import targets_table
from isfed.report.page_curves import Quantity, quantities, series_of, units_of
from isfed.report.page_data import (
    Figure,
    PageData,
    PageTable,
    Series,
    TableCell,
    level_cell,
    number_cell,
)
from isfed.report.page_sentences import by_problem, deciding
from isfed.studies.neural_network_config import unused_keys
from isfed.studies.results_folder import COMMAND, CONFIG
from isfed.studies.results_reader import AlgorithmResult, Results
from isfed.theory.tuned_ways import in_words


def ordered(results: Results) -> list[Quantity]:
    """What can be drawn, and first what the verdict speaks of."""
    measure = deciding(results)
    first = "excess" if results.kind == "comparison" else measure.key if measure else ""
    return sorted(quantities(results), key=lambda quantity: quantity.key != first)


def page_data(results: Results) -> PageData:
    """The page of one folder."""
    shown = ordered(results)
    parts = by_problem(results)
    if results.kind in ("systems", "leaderboard"):  # what they measure beside are costs
        shown = [quantity for quantity in shown if quantity.key == "msd"]
    if results.kind == "comparison":  # the distance to the optimum would be the same curve again
        shown = shown[:1]
    if results.kind == "leaderboard":
        parts = [(problem, closest(part)) for problem, part in parts]
    figures = [
        quantity_figure(
            quantity,
            {problem: part},
            ways_table(part) if results.kind == "comparison" else _levels(part, quantity),
        )
        for quantity in shown
        for problem, part in parts
    ]
    first = (tuned_page_table, held_out_page_table)
    further = (targets_table, _step_sizes, sampling_table, strategies_page_table)
    return PageData(
        title=results.name,
        summary=page_sentences.summary_line(results),
        verdict=page_sentences.verdict(results),
        advice=tuple(page_sentences.advice(results)),
        next_steps=tuple(steps_to_type(results)),
        differences=tuple(table for make in first if (table := make(results)).rows),
        figures=(*_gains(results), *leaderboard_figures(results), *figures, *_inclusion(results)),
        tables=(
            *leaderboard_tables(results),
            *(table for make in further if (table := make(results)).rows),
        ),
        warnings=tuple(page_sentences.warnings(results)),
        data=tuple(data_account(results)),
        configurations={CONFIG: configuration(results)},
        versions={key: str(value) for key, value in results.made_with.items()},
        commands=commands(results),
    )


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


def steps_to_type(results: Results) -> Iterator[tuple[str, str]]:
    """After a diagnosis of a table: measure what it predicts. After that: use what is best."""
    if lines := results.summary.get("next_steps"):
        winner = in_words(results.summary.get("winner", "it"))
        yield f"Use {winner}, at its best step size, in Python:", "\n".join(lines)
    for command in commands(results):
        words = shlex.split(command)
        if results.kind == "diagnosis" and "--agent" in words:
            words = ["compare" if w == "diagnose" else w for w in words if w != "--theory"]
            yield "Measure on the same table what is predicted here:", shlex.join(words)
        if results.kind == "comparison" and "--save" not in words:
            again = [*words, "--save", "model.json", "--resume"]
            same = "Keep the best model, without training again (with --out, if you gave one):"
            yield same, shlex.join(again)
        if results.kind == "comparison":
            model = words[words.index("--save") + 1] if "--save" in words else "model.json"
            predict = ["isfed", "predict", model, "NEW.csv", "--append", "--out", "predicted.csv"]
            yield "Predict the rows of a new table with it:", shlex.join(predict)


def data_account(results: Results) -> Iterator[tuple[str, str]]:
    """What became of the data: the folder's own account, or what the configuration says."""
    account = results.summary.get("data")
    if isinstance(account, Mapping):
        yield from ((str(key), _words(value)) for key, value in account.items())
        return
    if isinstance(account, list):
        yield from (("", _words(line)) for line in account)
        return
    setting = results.summary.get("setting") or results.config.get("problem") or {}
    if isinstance(setting, list):  # a study of several problems
        setting = {one["name"]: one["source"] for one in setting}
    if setting.get("data") == "network":
        unused = unused_keys(setting)
        setting = {key: value for key, value in setting.items() if key not in unused}
    for key, value in flat(setting):
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


def quantity_figure(quantity: Quantity, runs: Mapping[str, Results], table: PageTable) -> Figure:
    """The curves of a folder, or of several: one colour for an algorithm, dashes for every curve.

    Args:
        quantity: what is drawn.
        runs: folders by name; of a single one the name is that of its problem, if it has several.
        table: the numbers.
    """
    everybody = [a for results in runs.values() for a in results.algorithms]
    axes = units_of(everybody)
    colours = {name: i for i, name in enumerate(dict.fromkeys(a.name for a in everybody))}
    several = len(runs) > 1
    series, bands = [], []
    for label, results in runs.items():
        for a in results.algorithms:
            name = f"{a.name} · {label}" if several else a.name
            series.append(series_of(quantity, a, axes, name, colours[a.name]))
        if text := _bands(results):
            bands.append(f"{text} ({label})" if several else text)
    problem = "" if several else next(iter(runs))
    return Figure(
        f"{quantity.title}, {problem}" if problem else quantity.title, quantity.label, axes,
        tuple(one for one in series if one is not None), table, band=" and ".join(bands),
        logarithmic=True if quantity.key in ("msd", "excess") else None,
        linear_only=quantity.unit == "%",  # a logarithmic axis would make no sense
    )  # fmt: skip


def _bands(results: Results) -> str:
    """What the bands are; nothing for a single repetition."""
    repetitions = int(results.summary.get("repetitions", 1))
    return "" if repetitions < 2 else f"2 standard errors over {repetitions:,} repetitions"


def _levels(results: Results, quantity: Quantity) -> PageTable:
    """Every algorithm: where it ended, how far beyond the first, what it cost."""
    first = results.algorithms[0]
    base = "FedAvg there" if results.kind == "heterogeneity" else first.name
    way = "above" if quantity.rising else "below"
    unit = f" ({quantity.gap_unit})" if quantity.rising else ""
    has_msd = not results.summary.get("no_msd")  # it is the msd that settles
    columns = ["algorithm", "step size", quantity.level_name, f"{way} {base}{unit}"]
    columns += ["settled"] if has_msd else []
    # No seconds: a page of the same results is the same page (they are in times.json).
    columns += ["uploads per round", "gradients per round"]
    rows = []
    for algorithm in results.algorithms:
        level = level_cell(*quantity.level(algorithm), quantity.unit)
        if algorithm.diverged_round is not None:
            level = f"diverged in round {algorithm.diverged_round:,}"
        gap = "" if algorithm is first else _beyond(quantity, algorithm, first)
        cells = [algorithm.name, number_cell(algorithm.step_size, ".3g"), level, gap]
        if has_msd:
            cells.append({True: "yes", False: "no", None: "unknown"}[algorithm.settled])
        each = ("uploads_per_round", "gradients_per_round")
        cells += [number_cell(algorithm.number(key)) for key in each]
        rows.append(cells)
    return PageTable.of(f"{quantity.title}, with standard errors", columns, rows)


def _beyond(quantity: Quantity, algorithm: AlgorithmResult, first: AlgorithmResult) -> TableCell:
    """How much better than the first: above it where more is better, else below it."""
    if quantity.key == "msd":  # over FedAvg at the same point, in a study of many problems
        return level_cell(algorithm.number("gain_db"), algorithm.number("gain_stderr_db"), "dB")
    (value, error), (level, level_error) = map(quantity.level, (algorithm, first))
    spread = math.hypot(error, level_error)
    if not quantity.rising:
        return level_cell(level - value, spread, quantity.unit)
    cell = level_cell(value - level, spread, quantity.gap_unit)
    sign = "+" if value > level else ""
    return TableCell(sign + cell.text.removesuffix(f" {quantity.gap_unit}"), cell.value)


def _step_sizes(results: Results) -> PageTable:
    """The step sizes that were tried."""
    rows = (
        (
            name,
            number_cell(step, ".3g"),
            TableCell(plain_number(loss, 4), loss) if math.isfinite(loss) else "diverged",
            "best" if step == search.best else "",
        )
        for name, search in results.searches.items()
        for step, loss in search.losses.items()
    )
    columns = ("algorithm", "step size", "loss", "choice")
    return replace(PageTable.of("Step sizes that were tried", columns, rows), folded=True)


def _gains(results: Results) -> Iterator[Figure]:
    """Of a study of heterogeneity: the gain over how unequal the noise is."""
    points = results.summary.get("points")
    if not points:
        return
    series = []
    for colour, share in enumerate(dict.fromkeys(p["noisy_share"] for p in points)):
        here = [p for p in points if p["noisy_share"] == share]
        x = 10.0 * np.log10([p["noise_ratio"] for p in here])
        for key, name in (("gain_db", "oracle"), ("memory_gain_db", "memory")):
            gain, error = (
                np.array([math.nan if p.get(k) is None else p[k] for p in here], dtype=np.float64)
                for k in (key, "gain_stderr_db" if key == "gain_db" else "")
            )
            label, reach = f"{100 * share:g}% noisy, {name}", 2.0 * error
            edges = gain - reach, gain + reach
            series.append(Series(label, x, gain, *edges, {"ratio": 1.0}, colour))
    rows = (
        (
            f"{100 * p['noisy_share']:g}% of the agents noisy",
            number_cell(p["noise_ratio"], "g"),
            level_cell(p["gain_db"], p.get("gain_stderr_db") or math.nan, "dB"),
            level_cell(p.get("memory_gain_db") or math.nan, math.nan, "dB"),
        )
        for p in points
    )
    columns = ("agents", "noise ratio", "gain of the oracle", "gain of memory")
    yield Figure(
        "Gain over FedAvg", "gain, dB", {"ratio": "noise of the noisy agents over the others, dB"},
        tuple(series), PageTable.of("Gain over FedAvg", columns, rows), band=_bands(results),
    )  # fmt: skip


def _inclusion(results: Results) -> Iterator[Figure]:
    """Of a diagnosis: how often every agent and every example is drawn, by rank."""
    table = results.inclusion
    for unit in ("agent", "example") if table else ():
        here = table["unit"] == unit
        times = table["over_uniform"][here]
        if not times.size:
            continue
        rank = table["rank"][here].astype(np.float64)  # of many, only some are kept
        curves = {"importance sampling": times, "uniform": np.ones(times.size)}
        most = drawn_most(results)[unit]
        middle, top = 0.5 * (rank[0] + rank[-1]), {} if most else {"most drawn": rank[0]}
        places = {**top, "in the middle": middle, "least drawn": rank[-1]}
        named = most | {w: float(np.interp(at, rank, times)) for w, at in places.items()}
        rows = ((words, number_cell(value, ".3g")) for words, value in named.items())
        yield Figure(
            f"How often every {unit} is drawn",
            "inclusion probability over the uniform one",
            {"rank": f"{unit}, by rank"},
            tuple(Series(n, rank, y, y, y, {"rank": 1.0}) for n, y in curves.items()),
            PageTable.of(f"Every {unit} against uniform", (unit, "times uniform"), rows),
        )
