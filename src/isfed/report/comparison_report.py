"""What a comparison on the user's own table shows: a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from isfed.base.text_format import plain_number
from isfed.report.page_data import PageTable, TableCell, level_cell, number_cell
from isfed.report.terminal_tables import text_table
from isfed.studies.results_reader import Results

HELD_OUT = {
    "test": "test rows", "rows": "held-out rows", "agents": "held-out agents",
    "training": "trained on",
}  # fmt: skip
UNSEEN_FIRST = ("test", "rows", "agents", "training")
HELD_OUT_TITLE = "Trained again without some rows and agents"
DOUBLED = {
    "FedAvg, 2 L agents": "twice the agents per round",
    "FedAvg, 2 B rows": "twice the rows per step",
}
MORE_ROUNDS = 0.01  # of the lowest loss: where the best way is further above, more rounds help


def comparison_table(results: Results) -> Table:
    """All ways, the best first, and what FedAvg would gain from more work."""
    ranked = sorted(results.algorithms, key=lambda a: -a.number("gain_db"))
    held_out, predicted = (results.summary.get(key) or {} for key in ("held_out", "predicted"))
    base = predicted.get("FedAvg", {}).get("typical")

    def expected(name: str) -> str:
        found = predicted.get(name, {}).get("typical")
        known = base and found and math.isfinite(base) and math.isfinite(found)
        return f"{10.0 * math.log10(base / found):.1f}" if known else ""

    rows = []
    for algorithm in ranked:
        row, name = algorithm.summary, algorithm.name
        gain = "" if row.get("gain_db") is None else f"{row['gain_db']:.1f}"
        if gain and name != "FedAvg":
            gain += f" ({row['gain_low_db']:.1f} to {row['gain_high_db']:.1f})"
        part = held_out.get(name, {}).get("rows")
        unseen = "" if part is None else _error_cell(results, part["error"])
        uploads = "never" if row["uploads"] is None else f"{row['uploads']:,.0f}"
        chosen = "> " if name == results.summary.get("winner") else ""
        final = plain_number(row["final_excess"], 3)
        step = f"{algorithm.step_size:.3g}"
        rows.append((chosen + name, step, final, gain, expected(name), uploads, unseen))
    for name, words in DOUBLED.items():
        if name in predicted and expected(name):
            more = predicted[name]
            cost = " and ".join(
                f"{more[key]:g}x the {key}" for key in ("uploads", "gradients") if more[key] > 1.0
            )
            step = f"{more['step_size']:.3g}"
            rows.append((f"FedAvg, {words}: {cost}", step, "", "", expected(name), "", ""))
    error = "RMSE" if _is_number(results) else "wrong"
    return text_table(
        "Ways to learn, each at its best step size",
        ("", "step size", "final loss over the lowest", "below FedAvg's (dB)", "predicted (dB)",
         "uploads to FedAvg's end", f"{error}, rows held out"),
        rows,
        caption="In brackets the 95% intervals of paired t tests, for all ways together. > is what "
        "is recommended: the simplest of the best, if it is surely better than FedAvg.",
        wrap=True,
    )  # fmt: skip


def _error_cell(results: Results, value: float) -> str:
    return plain_number(value, 3) if _is_number(results) else f"{100.0 * value:.3g}%"


def next_lines(results: Results, *, saved: bool = False) -> list[str]:
    """What to do next; how to save the model only if it was not."""
    winner, lines = results.summary.get("winner", "FedAvg"), results.summary.get("next_steps")
    if not lines:
        return []
    shown = [f"What to do next: use {winner} with this step size, in Python", *lines]
    if saved:
        return shown
    return [
        *shown,
        "or add --save model.json --resume to this command, and `isfed predict model.json NEW` "
        "applies its model to new rows.",
    ]


def rounds_lines(results: Results) -> list[str]:
    """Whether more rounds would lower the loss noticeably."""
    if results.kind != "comparison" or "winner" not in results.summary:
        return []
    best = min(results.algorithms, key=lambda a: a.number("final_excess")).summary
    share = best.get("final_relative")
    if share is None or share <= MORE_ROUNDS:
        return []
    return [
        f"More --rounds would lower the loss: after {results.summary['rounds']:,} the best way is "
        f"still {100.0 * share:.2g}% above the lowest possible."
    ]


def _is_number(results: Results) -> bool:
    """Whether the target is a number, not a class."""
    return results.summary.get("account", {}).get("span") is not None


def held_out_page_table(results: Results) -> PageTable:
    """For the page: what an analyst would notice, the errors on rows that were not seen first."""
    scale, unit, error = (1.0, "", "RMSE") if _is_number(results) else (100.0, "%", "wrong")
    held_out = results.summary.get("held_out") or {}
    kinds = [kind for kind in UNSEEN_FIRST if any(kind in parts for parts in held_out.values())]
    counts = {kind: parts[kind]["examples"] for parts in held_out.values() for kind in parts}
    named = {kind: f"{HELD_OUT[kind]} ({counts[kind]:,})" for kind in kinds}
    columns = [f"{error}, {named[kind]}" for kind in kinds] + [f"loss, {named[k]}" for k in kinds]

    def cells(part: Mapping[str, Any] | None) -> tuple[TableCell, TableCell]:
        if part is None:
            return number_cell(None), number_cell(None)
        text = f"{plain_number(scale * part['error'], 3)}{unit}"
        return TableCell(text, part["error"]), level_cell(part["loss"], part["loss_stderr"], "")

    rows = []
    for name, parts in held_out.items():
        errors, losses = zip(*(cells(parts.get(kind)) for kind in kinds), strict=True)
        rows.append((name, *errors, *losses))
    title = HELD_OUT_TITLE if results.kind == "comparison" else "On rows not trained on"
    return PageTable.of(title, ("way", *columns), rows)


def agreement_line(results: Results) -> str | None:
    """How well theory predicted the gains and the step sizes."""
    predicted = results.summary.get("predicted") or {}
    if "typical" not in (predicted.get("FedAvg") or {}):  # folders of older versions have others
        return None
    base, errors, steps = predicted["FedAvg"]["typical"], {}, []
    for algorithm in results.algorithms:
        found, gain = predicted.get(algorithm.name), algorithm.summary.get("gain_db")
        if found is None or gain is None or not (base > 0.0 and found["typical"] > 0.0):
            continue
        steps.append(abs(math.log(algorithm.step_size / found["step_size"])))
        if algorithm.name != "FedAvg":
            errors[algorithm.name] = 10.0 * math.log10(base / found["typical"]) - gain
    if not errors:
        return None
    worst = max(errors, key=lambda name: abs(errors[name]))
    mean = sum(map(abs, errors.values())) / len(errors)
    return (
        f"What formulas predicted without a run: gains that differ by {mean:.1f} dB on average "
        f"from those measured, and by {abs(errors[worst]):.1f} dB at most ({worst}); step sizes "
        f"within a factor of "
        f"{math.exp(max(steps)):.1f}."
    )
