"""What a comparison on the user's own table shows: a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.base.text_format import plain_number
from isfed.report.page_data import PageTable, TableCell, level_cell, number_cell
from isfed.studies.results_reader import Results
from isfed.theory.tuned_ways import in_words

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
FEDAVG = "FedAvg"
NEEDED = ("rounds", "uploads", "gradients")  # to reach the loss with which FedAvg ends
WIDE = ("rounds to", "gradients to", "final")  # for which a terminal has no room
WAYS, CHOSEN = "Ways to learn, each at its best step size", " (recommended)"
INTERVALS = (
    "In brackets the 95% intervals of paired t tests, for all ways together. What is recommended "
    "is the simplest of the best, if it is surely better than FedAvg."
)
MORE_ROUNDS = 0.01  # of the lowest loss: where the best way is further above, more rounds help


def ways_table(results: Results) -> PageTable:
    """All ways, the best first."""
    ranked = sorted(results.algorithms, key=lambda a: -np.nan_to_num(a.number("gain_db")))
    held_out, rows, none = results.summary.get("held_out") or {}, [], TableCell("")
    for algorithm in ranked:
        row, name = algorithm.summary, algorithm.name
        gain = none if row.get("gain_db") is None else number_cell(row["gain_db"], ".1f")
        if gain is not none and name != FEDAVG:
            low, high = (algorithm.number(f"gain_{end}_db") for end in ("low", "high"))
            between = f"{gain.text} ({low:.1f} to {high:.1f})".replace("-", "\N{MINUS SIGN}")
            gain = gain._replace(text=between)
        part = held_out.get(name, {}).get("rows")
        rows.append((
            name + CHOSEN * (name == results.summary.get("winner")),
            number_cell(algorithm.step_size, ".3g"),
            number_cell(algorithm.number("final_excess"), ".3g"),
            gain,
            none if (more := expected_gain(results, name)) is None else number_cell(more, ".1f"),
            *(_needed(row.get(key)) for key in NEEDED),
            none if part is None else TableCell(_error(results, part["error"]), part["error"]),
        ))  # fmt: skip
    error = "RMSE" if _is_number(results) else "wrong"
    return PageTable.of(
        f"{WAYS}. {INTERVALS}",
        ("way", "step size", "final loss over the lowest", "below FedAvg's (dB)", "predicted (dB)",
         *(f"{key} to FedAvg's end" for key in NEEDED), f"{error}, rows held out"),
        rows,
    )  # fmt: skip


def _needed(count: float | None) -> TableCell:
    return TableCell("never") if count is None else number_cell(count, ",.0f")


def expected_gain(results: Results, name: str) -> float | None:
    """The gain over FedAvg that was predicted, in dB; None where nothing was."""
    predicted = results.summary.get("predicted") or {}
    base, own = (predicted.get(n, {}).get("typical") or math.nan for n in (FEDAVG, name))
    gain = 10.0 * math.log10(base / own) if base > 0.0 and own > 0.0 else math.nan
    return gain if math.isfinite(gain) else None


def comparison_table(results: Results) -> PageTable:
    """The same for the terminal: what is narrow enough."""
    whole = ways_table(results)
    names = [n if n == (w := n.removesuffix(CHOSEN)) else f"> {w}" for n, *_ in whole.texts]
    kept = [place for place, name in enumerate(whole.columns) if not name.startswith(WIDE)]
    return PageTable.of(
        WAYS,
        [whole.columns[place] for place in kept],
        (
            [name, *(row[place] for place in kept[1:])]
            for name, row in zip(names, whole.texts, strict=True)
        ),
        note=f"{INTERVALS} It is marked with >.",
        narrow=True,
    )


def more_work_line(results: Results) -> str | None:
    """What FedAvg would gain from more agents or more rows, and what that costs."""
    known = {name: gain for name in DOUBLED if (gain := expected_gain(results, name)) is not None}
    parts = []
    for name, gain in known.items():
        more = results.summary["predicted"][name]
        cost = " and ".join(
            f"twice the {key}" for key in ("uploads", "gradients") if more[key] > 1.0
        )
        parts.append(f"with {DOUBLED[name]} it would end {gain:.1f} dB lower, for {cost}")
    return f"Instead of another way, FedAvg with more work: {'; '.join(parts)}." if parts else None


def _error(results: Results, value: float) -> str:
    return plain_number(value, 3) if _is_number(results) else f"{100.0 * value:.3g}%"


def next_lines(results: Results, *, saved: bool = False) -> list[str]:
    """What to do next; how to save the model only if it was not."""
    winner, lines = results.summary.get("winner", "FedAvg"), results.summary.get("next_steps")
    if not lines:
        return []
    shown = [f"What to do next: use {in_words(winner)}, with this step size, in Python", *lines]
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
    """For the page: the errors on rows that were not seen first; folded where all are alike."""
    number, held_out = _is_number(results), results.summary.get("held_out") or {}
    kinds = [kind for kind in UNSEEN_FIRST if any(kind in parts for parts in held_out.values())]
    counts = {kind: parts[kind]["examples"] for parts in held_out.values() for kind in parts}
    named = {kind: f"{HELD_OUT[kind]} ({counts[kind]:,})" for kind in kinds}
    columns = [f"{'RMSE' if number else 'wrong'}, {named[kind]}" for kind in kinds]
    if not number:  # the loss of a regression says what its RMSE says
        columns += [f"loss, {named[kind]}" for kind in kinds]

    def cells(parts: Mapping[str, Any]) -> Iterator[TableCell]:
        for kind in kinds:
            error = parts[kind]["error"] if kind in parts else None
            yield number_cell(None) if error is None else TableCell(_error(results, error), error)
        for kind in () if number else kinds:
            known = kind in parts
            yield (
                level_cell(parts[kind]["loss"], parts[kind]["loss_stderr"], "")
                if known
                else number_cell(None)
            )

    alike = bool(results.summary.get("held_out_alike"))
    title = HELD_OUT_TITLE if results.kind == "comparison" else "On rows not trained on"
    table = PageTable.of(
        title + ", where all ways are alike" * alike,
        ("way", *columns),
        ((name, *cells(parts)) for name, parts in held_out.items()),
    )
    return replace(table, folded=alike)


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
