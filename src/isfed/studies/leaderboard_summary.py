"""From the runs of a leaderboard to its files: rankings, tracks, the factorial, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isfed.methods.catalogue import ALL
from isfed.studies.leaderboard_config import Protocol
from isfed.studies.leaderboard_entries import CLASSES
from isfed.studies.leaderboard_factorial import summarise_factorial
from isfed.studies.leaderboard_problem import TUNED, UNTUNED, Board, BoardEntry, BoardRun
from isfed.studies.leaderboard_scores import AXES, PLACES, Difference, Scored, rank
from isfed.studies.results_folder import HISTORY, REPETITIONS
from isfed.studies.results_summary import history_columns, made_with, times_of
from isfed.studies.study_engine import Outcome


def summarise_board(
    protocol: Protocol, runs: Mapping[str, BoardRun], absent: Sequence[Mapping[str, str]]
) -> Outcome:
    """The files of a leaderboard.

    Args:
        protocol: what was to be run.
        runs: what was run, by the name of its entry.
        absent: what could not run, and why.
    """
    boards = [
        Board(protocol, problem, [run for run in runs.values() if run.entry.problem == problem])
        for problem in protocol.problems
    ]
    tuned = [board for board in boards if board.problem.tuned]
    curves = {run.entry.name: run.finished for board in tuned for run in board.track(TUNED)}
    rows = [row for board in tuned for row in board.rows()]
    factorial = summarise_factorial(protocol, tuned)
    tables = {HISTORY: history_columns(curves), REPETITIONS: _repetitions(runs)}
    summary = {
        "experiment": protocol.name,
        "rounds": protocol.numbers["rounds"],
        "repetitions": protocol.numbers["repetitions"],
        "steady_rounds": max(1, round(0.25 * protocol.numbers["rounds"])),
        "no_msd": None,
        "reference": protocol.reference,
        "problems": [board.facts() for board in boards],
        "algorithms": rows,
        "rankings": _rankings(tuned, _ties(boards)),
        "untuned": [row for board in boards for row in board.untuned()],
        "factorial": factorial,
        "absent": list(absent),
        "runs": {name: _run_facts(run.entry, run.scored) for name, run in runs.items()},
        "verdict": " ".join(_verdict(protocol, rows, factorial)),
        "made_with": made_with(),
    }
    return Outcome(tables, summary, times_of({name: run.finished for name, run in runs.items()}))


def _run_facts(entry: BoardEntry, scored: Scored) -> dict[str, Any]:
    """What `verify` needs to run it again."""
    return {
        "problem": entry.problem.name, "method": entry.method.name, "track": entry.track,
        "step_size": entry.step_size, "knobs": dict(entry.knobs),
        "prints": list(scored.prints),
    }  # fmt: skip


def _repetitions(runs: Mapping[str, BoardRun]) -> dict[str, Any]:
    """One row for every run that counts."""
    names = [name for name, run in runs.items() for _ in run.scored.levels]
    parts = [run.scored for run in runs.values()]
    costs = {axis: np.concatenate([part.costs[axis][:, -1] for part in parts]) for axis in AXES[1:]}
    return {
        "algorithm": names,
        "repetition": np.concatenate([np.arange(part.levels.size) for part in parts]),
        "steady_msd": np.concatenate([part.levels for part in parts]),
        **costs,
        "checksum": [mark for part in parts for mark in part.prints],
    }


def _ties(boards: Sequence[Board]) -> dict[str, float]:
    """By method, its mean untuned gain on the problems that nobody tuned on."""
    gains: dict[str, list[float]] = {}
    for board in boards:
        if not board.problem.tuned:
            for name, gain in board.gains(UNTUNED).items():
                gains.setdefault(name, []).append(gain.mean)
    return {name: float(np.mean(values)) for name, values in gains.items()}


def _rankings(boards: Sequence[Board], ties: Mapping[str, float]) -> list[dict[str, Any]]:
    """One ranking for every axis and class; those who hear all are ranked by costs alone."""
    rankings = []
    for hears in CLASSES[:-1]:
        for axis in AXES:
            if hears == ALL and axis == "rounds":
                continue
            by_problem = []
            for board in boards:
                costs = {
                    e.method.name: s.costs_to(board.targets["end"])[axis]
                    for e, s, _ in board.track(TUNED)
                    if e.method.hears == hears
                }
                by_problem += [costs] if costs else []
            if by_problem:
                rankings.append(
                    {
                        "axis": axis, "hears": hears, "problems": len(by_problem),
                        "methods": [
                            {"method": one.method, "score": one.score, "reached": one.reached,
                             "profile": one.profile[:: len(PLACES) // 12].tolist()}
                            for one in rank(by_problem, ties)
                        ],
                    }
                )  # fmt: skip
    return rankings


def _verdict(
    protocol: Protocol, rows: Sequence[Mapping[str, Any]], factorial: Mapping[str, Any]
) -> list[str]:
    """Who ends closest on each problem, and the best combination."""
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = [r for r in rows if r["problem"] == problem and r["hears"] != CLASSES[-1]]
        best = min(here, key=lambda row: row["level_db"])
        if best["gain"] is None:
            lines.append(f"On {problem} nobody ends closer than {protocol.reference}.")
            continue
        gain = Difference(**best["gain"])
        sure = "" if gain.p < 0.05 else ", which may be chance"
        lines.append(f"On {problem} {best['method']} ends closest to the minimiser, "
                     f"{gain.words()} closer than {protocol.reference}{sure}.")  # fmt: skip
    return lines + list(factorial.get("sentences", ()))[-1:]
