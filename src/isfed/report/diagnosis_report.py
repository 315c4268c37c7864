"""What a diagnosis shows: a table, a figure, some lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from isfed.base.text_format import counted, plain_number
from isfed.report.page_data import PageTable, TableCell, number_cell
from isfed.studies.results_reader import Results

STRATEGIES = {
    "uniform": "uniform",
    "importance": "importance by norm, Memory()",
    "spread": "uniform, Spread()",
    "difference": "correction='difference'",
    "drift": "correction='drift'",
    "drift, spread": "correction='drift', Spread()",
}
# The mean and the largest error of predicted gains in dB, by how they are found: the table of
# docs/appendix/ways.md, which a test compares.
ERRORS = {"computed": (0.59, 3.2), "from a few runs": (0.60, 4.0)}
STRATEGY_KEYS = ("variance", "times_smaller", "drift", "excess")


def diagnosis_table(results: Results) -> PageTable:
    """The four ways to sample, side by side."""
    summary = results.summary
    options, num_active = summary["options"], summary["setting"]["num_active"]
    batch = options[0]["examples_size"]  # equal chances: the batch itself
    error = "distance to w^o" if summary["weighted_by_curvature"] else "variance"
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "variance of a round's gradient": lambda o: f"{_finite(o['variance']):.3g}",
        "times smaller": lambda o: f"{_finite(o['variance_ratio']):.3g}",
        "part that comes from agents": lambda o: f"{o['agents_share']:.0%}",
        f"gain in the {error} (dB)": lambda o: f"{_finite(o['gain_db']):.2f}",
        "largest stable step size (1)": lambda o: _known(o["step_limit"]),
        "careful step size (2)": lambda o: _known(o["careful_limit"]),
        "effective agents (3)": lambda o: f"{o['agents_size'] / num_active:.0%}",
        "effective examples (3)": lambda o: f"{o['examples_size'] / batch:.0%}",
    }
    names = ["none" if o["sampling"] == "uniform" else o["sampling"] for o in options]
    return PageTable.of(
        f"{summary['problem']}, importance sampling of: predicted at {summary['at']}",
        ["", *names],
        ([heading, *map(cell, options)] for heading, cell in shown.items()),
        note="(1) Of ISFedAvg with this sampling; that of FedAvg, which does not divide a step "
        "by E_k, is smaller. (2) Stable even if every example had the largest curvature that it "
        "can have. (3) The effective sample size "
        "of a draw, compared with that of a uniform draw.",
        narrow=True,
    )


def sampling_table(results: Results) -> PageTable:
    """The same for the page, a row for each."""
    shown = {
        "variance": ("variance", ".3g"),
        "times smaller": ("variance_ratio", ".3g"),
        "gain (dB)": ("gain_db", ".2f"),
        "largest stable step": ("step_limit", ".3g"),
        "careful step": ("careful_limit", ".3g"),
        "rounds to settle": ("settled_after", ".3g"),
    }
    rows = (
        (
            "uniform sampling"
            if option["sampling"] == "uniform"
            else f"importance sampling of {option['sampling']}",
            *(number_cell(option.get(key), form) for key, form in shown.values()),
        )
        for option in results.summary.get("options") or ()
    )
    return PageTable.of("The ways to sample", ("sampling", *shown), rows)


def _known(value: float | None) -> str:
    return "unknown" if value is None else plain_number(value, 3)


def _finite(value: float | None) -> float:
    return math.inf if value is None else value  # JSON has no infinity


def setting_line(results: Results) -> str:
    """What was looked at, in words."""
    setting = results.summary["setting"]
    spans = [
        str(value) if isinstance(value, int) else f"{value[0]} to {value[1]}"
        for value in (setting["batch_size"], setting["local_steps"])
    ]
    return (
        f"{counted(setting['num_agents'], 'agent')}, {setting['num_active']} per round (L); "
        f"{counted(setting['rows'], 'row')}, {spans[0]} per step (B), "
        f"{spans[1]} {'step' if spans[1] == '1' else 'steps'} per turn (E); "
        f"{counted(setting['num_params'], 'parameter')}, {setting['loss']}; probabilities of "
        f"the policy {setting['policy']}, floor {setting['floor']:g}"
    )


def answer_lines(results: Results) -> list[str]:
    """The answer in plain words: what to do, what it gains, how sure that is, who is drawn most."""
    summary = results.summary
    first = summary.get("answer") or summary["recommendation"]
    cause = summary.get("cause") if not summary.get("degenerate") else ""
    answer = [first, *([cause] if cause else []), *summary["remarks"]]
    if summary.get("degenerate"):
        return answer  # there is no gain to be sure of, and nobody worth drawing more often
    return [*answer, sure_line(results), *first_step_lines(results), *dominant_lines(results)]


def sure_line(results: Results) -> str:
    """How sure the gain is, and when it counts."""
    if results.summary.get("tuned"):
        kind = results.summary["tuned"][0].get("how", "")
        if kind not in ERRORS:
            return (
                "How certain: not at all. This table is too long for trial runs, and formulas "
                "alone were up to 28 dB off for classes. `isfed compare` measures yours."
            )
        mean, worst = ERRORS[kind]
        return (
            f"How certain: on tables of this kind, predicted gains ({kind}) were {mean:.1f} dB "
            f"from those measured on average and {worst:.1f} dB at most "
            "(docs/appendix/ways.md). `isfed compare` measures yours."
        )
    rounds = results.summary["settling_rounds"]
    when = "once the model has settled"
    if rounds is not None:
        about = plain_number(max(1.0, rounds), 2)
        when += f", after about {about} rounds at a quarter of the largest step"
    waits = [row["feature_name"] for row in results.summary["waits_for"][:2]]
    slow = f" (the slowest to settle: {' and '.join(waits)})" if waits and rounds else ""
    return (
        "How certain: the gain is computed from all rows for small step sizes, where runs on nine "
        "classification problems agreed to 0.2 dB on average and 1.2 dB at worst; it counts "
        f"{when}{slow}. Until then, all ways to sample are equally fast at the same step size, and "
        "at large step sizes the gain is smaller: `isfed compare` shows by how much."
    )


def first_step_lines(results: Results) -> list[str]:
    """The step size to begin with."""
    summary = results.summary
    for way in summary.get("tuned") or ():
        if way["name"] == summary["advised"]:
            line = f"Step size: {way['step_size']:.2g} for {summary['run_rounds']:,} rounds"
            if way["name"] != "FedAvg" and way.get("reaches"):
                line += f"; the loss that FedAvg ends with is reached after about {_rounds(way)}"
            return [line + "."]
    best = next(o for o in summary["options"] if o["sampling"] == summary["best"])
    largest, careful = best["step_limit"], best["careful_limit"]
    if largest is None:
        return []
    line = f"Step size: try {0.25 * largest:.2g}, a quarter of the largest stable one"
    line += f" near the solution ({largest:.2g})"
    if careful < 0.9 * largest:
        line += (
            f"; {careful:.2g} is the careful limit, with every example at its largest curvature "
            "anywhere"
        )
    return [line + "."]


def dominant_lines(results: Results) -> list[str]:
    """Which agents and examples would be drawn most, in words."""
    return [
        f"{what} drawn most, compared with uniform sampling: "
        + ", ".join(f"{name} ({times:.3g} times as often)" for name, times in rows.items())
        for what, rows in zip(("Agents", "Examples"), drawn_most(results).values(), strict=True)
        if rows
    ]


def drawn_most(results: Results) -> dict[str, dict[str, float]]:
    """How many times as often as under uniform sampling, by name, of agents and of examples."""
    agents, examples = (results.summary.get(f"top_{unit}", ()) for unit in ("agents", "examples"))
    return {
        "agent": {str(row["agent_name"]): row["times_uniform"] for row in agents},
        "example": {
            f"{row['row_name']} of agent {row['agent_name']}": row["times_uniform"]
            for row in examples
        },
    }


def constant_lines(results: Results) -> list[str]:
    """The paper's constants, or why one does not exist."""
    return [
        f"{name}: none; {value}" if isinstance(value, str) else f"{name}: {_finite(value):.3g}"
        for name, value in results.summary["constants"].items()
    ]


def tuned_table(results: Results) -> PageTable:
    """All ways, the best first, each at its best step size."""
    summary = results.summary
    ranked = _ranked(summary["tuned"])
    return PageTable.of(
        f"Predicted after {summary['run_rounds']:,} rounds, each way at its best step size",
        ("way", "below FedAvg's loss (dB)", "step size", "rounds to FedAvg's end"),
        (
            (
                ("> " if way["name"] == summary["advised"] else "") + way["name"],
                number_cell(way["gain_db"], ".1f").text, f"{way['step_size']:.3g}", _rounds(way),
            )
            for way in ranked
        ),
        note="Losses above the lowest possible. 2 L: with twice the agents per round, for twice "
        "the uploads and gradients; 2 B: with twice the rows per step, for twice the gradients. > "
        "is what is recommended: the simplest of the best.",
        narrow=True,
    )  # fmt: skip


def _ranked(tuned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best first; last those that would end nowhere."""
    gains = [-math.inf if way["gain_db"] is None else way["gain_db"] for way in tuned]
    return [tuned[place] for place in sorted(range(len(tuned)), key=lambda p: -gains[p])]


def _rounds(way: dict[str, Any]) -> str:
    """Rounds to the loss that FedAvg ends with."""
    return "never" if way.get("reaches") is None else plain_number(way["reaches"], 2)


def strategies_page_table(results: Results) -> PageTable:
    """The same for the page."""
    summary = results.summary.get("ways")
    if not summary or results.summary.get("degenerate"):
        return PageTable("", (), ())
    columns = ("agents", "variance", "times smaller", "risk by drift", "excess risk")
    rows = (
        (STRATEGIES[row["name"]], *(number_cell(row[key], ".3g") for key in STRATEGY_KEYS))
        for row in summary["ways"]
    )
    caption = f"Ways to sample agents, at step size {summary['step_size']:.3g}"
    return replace(PageTable.of(caption, columns, rows), folded=True)


def tuned_page_table(results: Results) -> PageTable:
    """The same for the page."""
    advised = results.summary.get("advised")
    columns = (
        "way", "below FedAvg's loss (dB)", "step size", "rounds to FedAvg's end",
        "uploads per round", "gradients per round",
    )  # fmt: skip
    rows = (
        (
            way["name"] + " (recommended)" * (way["name"] == advised),
            number_cell(way["gain_db"], ".1f"), number_cell(way["step_size"], ".3g"),
            TableCell(_rounds(way), way.get("reaches")),
            *(TableCell(f"{way[key]:g}x", way[key]) for key in ("uploads", "gradients")),
        )
        for way in _ranked(results.summary.get("tuned") or ())
    )  # fmt: skip
    return PageTable.of("Every way at its best step size, predicted", columns, rows)


def strategies_line(results: Results) -> str:
    """What to do about the agents beside drawing them by importance, and why."""
    advice = results.summary["ways"]["recommendation"]
    return f"For the agents alone, with options of ISFedAvg: {advice}"
