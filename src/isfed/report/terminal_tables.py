"""The tables that a run prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from isfed.report.page_data import PageTable
from isfed.studies.results_reader import AlgorithmResult, Results

PAPER_GAIN_DB = 23.1


def summary_table(results: Results) -> PageTable:
    """Steady-state msd, gain over the first algorithm, and the distances to the optimal p."""
    summary, first = results.summary, results.algorithms[0]
    # A column of its own only where there is something to show or to compare.
    steps = len({algorithm.step_size for algorithm in results.algorithms}) > 1
    known = summary["no_msd"] is None
    far = summary["uniform_agent_distance"] is not None
    timed = not all(math.isnan(a.number("seconds_per_round")) for a in results.algorithms)

    def cells(algorithm: AlgorithmResult) -> Iterator[tuple[str, str]]:
        """Every heading with what is below it."""
        yield "algorithm", algorithm.name
        if steps:
            yield "step", f"{algorithm.step_size:.3g}"
        if known:
            yield "msd (dB)", msd_text(algorithm)
            yield f"gain over {first.name} (dB)", _gain(algorithm, first)
        if far:
            yield "|p_k - p_k^o|", _shown(algorithm.number("agent_distance"), ".2e")
            yield "mean |p_n - p_n^o|", _shown(algorithm.number("example_distance"), ".2e")
        for measure in first.measures:
            heading = "accuracy (%)" if measure == "accuracy" else measure
            yield heading, _final(algorithm, measure)
        yield "gradients per round", _shown(algorithm.number("gradients_per_round"), ".0f")
        if timed:
            seconds = _shown(algorithm.number("seconds_per_round"), ".3g")
            yield "virtual seconds per round", seconds
        yield "rounds per second", _shown(algorithm.rounds_per_second, ",.0f")

    rows = [[text for _, text in cells(algorithm)] for algorithm in results.algorithms]
    foot = far and "problem" not in first.summary  # of several, what is known is of the first
    if foot:
        empty = [""] * (steps + 2 * known)
        keys = ("uniform_agent_distance", "uniform_example_distance")
        rows.append(["uniform probabilities", *empty, *(f"{summary[key]:.2e}" for key in keys)])
    return PageTable.of(
        f"{results.name}: {summary['repetitions']} repetitions, mean over the last "
        f"{summary['steady_rounds']} of {summary['rounds']} rounds",
        [heading for heading, _ in cells(first)], rows, foot=int(foot),
    )  # fmt: skip


def _shown(value: float, form: str) -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


MOVING = "*"  # beside a level that had not settled


def _level(algorithm: AlgorithmResult, key: str, *others: AlgorithmResult) -> str:
    """A number of the summary with its standard error, and whether it was still moving."""
    value, error = algorithm.number(f"{key}_db"), algorithm.number(f"{key}_stderr_db")
    moving = any(one.settled is False for one in (algorithm, *others))
    return f"{value:.2f} ± {error:.2f}{MOVING if moving else ''}"


def msd_text(algorithm: AlgorithmResult) -> str:
    """The msd in decibels, or when the algorithm diverged."""
    if algorithm.diverged_round is not None:
        return f"diverged in round {algorithm.diverged_round}"
    return _level(algorithm, "msd")


def _gain(algorithm: AlgorithmResult, first: AlgorithmResult) -> str:
    known = algorithm is not first and not math.isnan(algorithm.number("gain_db"))
    diverged = algorithm.diverged_round is not None
    return _level(algorithm, "gain", first) if known and not diverged else ""


def _final(algorithm: AlgorithmResult, measure: str) -> str:
    final = algorithm.summary["final"].get(measure)
    if final is None:
        return ""
    if measure == "accuracy":  # as on the page
        return percent(final["mean"], final["stderr"])
    error = "" if final["stderr"] is None else f" ± {final['stderr']:.2g}"
    return f"{final['mean']:.4g}{error}"


def percent(accuracy: float, error: float | None) -> str:
    """An accuracy with its standard error, which one repetition does not have.

    >>> percent(0.891, 0.0071), percent(0.891, None)
    ('89.1 ± 0.7', '89.1')
    """
    return f"{100 * accuracy:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def settling_lines(results: Results) -> list[str]:
    """Which runs were too short to have settled, and of which nobody can tell."""
    lines, moved = [], []
    for a in (a for a in results.algorithms if a.settled is False):
        change, error = a.number("change_db"), a.number("change_stderr_db")
        way = "fell" if change < 0 else "rose"
        moved.append(f"{a.name} {way} by {abs(change):.1f} ± {error:.1f} dB")
    if moved:
        lines.append(
            "Not settled (*): from the third quarter of the run to the last, "
            f"{', '.join(moved)}. A gain then says who is faster, not who ends lower: use more "
            "--rounds."
        )
    unsure = [a for a in results.algorithms if a.settled is None and a.diverged_round is None]
    if unsure and results.summary["no_msd"] is None:
        names = ", ".join(a.name for a in unsure)
        lines.append(f"It is unclear whether {names} settled: use more --repetitions or --rounds.")
    return lines


def tested_lines(results: Results) -> list[str]:
    """Accuracy and loss on rows that were not trained on, of every algorithm."""
    lines = []
    for name, parts in (results.summary.get("held_out") or {}).items():
        for kind, part in parts.items():
            errors = (part["error_stderr"], part["loss_stderr"])
            accuracy = percent(1.0 - part["error"], errors[0])
            loss = f"{part['loss']:.3g}" + ("" if errors[1] is None else f" ± {errors[1]:.1g}")
            where = "test" if kind == "test" else "held-out"
            lines.append(
                f"{name}, {part['examples']:,} {where} rows: accuracy {accuracy}%, loss {loss}"
            )
    return lines


def paper_verdict(results: Results) -> list[str]:
    """Where the regression agrees with the paper and where it does not, in plain sentences."""
    oracle, current = results["ISFedAvg, oracle"], results["ISFedAvg, current"]
    running, memory = results["ISFedAvg, running"], results["ISFedAvg, memory (ours)"]
    fair = results["FedAvg with 1/E_k"]
    summary = results.summary

    def versus(one: AlgorithmResult, other: AlgorithmResult) -> str:
        distance = one.number("msd_db") - other.number("msd_db")
        error = math.hypot(one.number("msd_stderr_db"), other.number("msd_stderr_db"))
        if math.isnan(distance):
            return "no verdict, one of them diverged"
        if math.isnan(error):
            return f"{distance:+.2f} dB (one repetition: no standard error, no verdict)"
        if abs(distance) <= 2.0 * error:
            return f"level with it ({distance:+.2f} ± {error:.2f} dB)"
        return f"{abs(distance):.2f} ± {error:.2f} dB {'above' if distance > 0 else 'below'} it"

    lines = [
        f"Gain of the oracle over FedAvg: {oracle.number('gain_db'):.1f} dB here, {PAPER_GAIN_DB} "
        "dB in the paper, which does not state its data; the second figure shows which data give "
        "it.",
        f"Of this, {fair.number('gain_db'):.1f} dB is the division by E_k alone, without any "
        "importance sampling.",
        f"Current probabilities against the oracle: {versus(current, oracle)}; the paper: better.",
        f"Running probabilities against the oracle: {versus(running, oracle)}; the paper: equal.",
        f"Memory probabilities (ours) against the oracle: {versus(memory, oracle)}.",
        f"Distance of the running probabilities to the optimal ones: agents "
        f"{running.number('agent_distance'):.2e} (paper 1.22e-02; uniform would "
        f"be {summary['uniform_agent_distance']:.2e}), examples "
        f"{running.number('example_distance'):.2e} (paper 1.54e-02; uniform "
        f"{summary['uniform_example_distance']:.2e}).",
    ]
    return [*settling_lines(results), *lines]


def measures_table(results: Results) -> PageTable:
    """Final errors of every algorithm, with what the optimum and the majority class reach."""
    summary = results.summary
    landmarks = summary["landmarks"]
    rows = []
    for algorithm in results.algorithms:
        if algorithm.diverged_round is not None:
            rows.append((algorithm.name, msd_text(algorithm)))
            continue
        errors = [algorithm.summary["final"][name] for name in ("test_error", "balanced_error")]
        gradients = _shown(algorithm.number("gradients_per_round"), ".0f")
        rows.append((algorithm.name, *map(_percent, errors), msd_text(algorithm), gradients))
    errors_of = {
        "the minimiser w^o itself": [landmarks[f"optimum_{e}_error"] for e in ("test", "balanced")],
        "always the majority class": [landmarks["majority_test_error"]],
    } | {f"the paper's {name}": [error] for name, error in landmarks["paper_test_error"].items()}
    foot = [(name, *(f"{100 * e:.2f}%" for e in errors)) for name, errors in errors_of.items()]
    return PageTable.of(
        f"{summary['experiment']}: {summary['repetitions']} repetitions, errors after "
        f"{summary['rounds']} rounds, squared distance to w^o over the last "
        f"{summary['steady_rounds']} (± standard error)",
        ("algorithm", "test error", "balanced error", "|w - w^o|^2 (dB)", "gradients per round"),
        [*rows, *foot], foot=len(foot),
    )  # fmt: skip


def _percent(error: dict[str, Any]) -> str:
    spread = "" if error["stderr"] is None else f" ± {100 * error['stderr']:.2f}"
    return f"{100 * error['mean']:.2f}%{spread}"


def best_step_lines(results: Results) -> list[str]:
    """The best step size of every method, and whether the grid was too narrow for it."""
    edge = ", at the edge of the grid: a better one may lie beyond"
    own = results.config.get("step_sizes", {}).get("own")
    where = "by the level of its own trials" if own else "on the rows held out"
    return [
        f"Best step size of {name} {where}: {search.best:g}{edge if search.at_edge else ''}."
        for name, search in results.searches.items()
    ]


def classification_verdict(results: Results) -> list[str]:
    """ISFedAvg's error beside the paper's, and when FedAvg passes the paper's FedAvg."""
    landmarks = results.summary["landmarks"]
    paper, passage = landmarks["paper_test_error"], landmarks["passage_round"]
    errors = {
        algorithm.name: _percent(algorithm.summary["final"]["test_error"])
        for algorithm in results.algorithms
        if algorithm.diverged_round is None
    }
    level = f"{100 * paper['FedAvg']:.2f}%"
    when = f"does not come down through the paper's {level}"
    if passage is not None:
        for_good = landmarks["below_for_good_round"]
        when = f"passes the paper's {level} in round {passage}"
        when += "" if passage == for_good else f" (for good in round {for_good})"
    lines = [f"FedAvg at the paper's step size {when}; it ends at {errors.get('FedAvg', 'nan')}."]
    for name, error in errors.items():
        if not name.startswith("FedAvg"):
            lines.append(
                f"ISFedAvg, {name}: {error}; the paper's ISFedAvg: {100 * paper['ISFedAvg']:.2f}%."
            )
    return lines
