"""Tables of docs/appendix/leaderboard.md from the folders of `isfed leaderboard`.

    python docs/make/leaderboard_page.py runs/leaderboard [runs/combinations] [--no-variance]

The second folder has the combinations of parts, if they ran apart from the methods: with the same
rounds and seeds, so that its runs are paired with those of the first. Beside the tables of
the page there are three: gains at one step size for all, the exact variance of a round, and the
best combination against every method.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isfed.base.atomic_files import read_columns, write_whole
from isfed.methods.catalogue import ORACLE
from isfed.report.leaderboard_report import leaderboard_tables
from isfed.report.page_data import PageTable, markdown, number_cell
from isfed.studies import load_results
from isfed.studies.leaderboard_config import BoardProblem, Protocol, make_protocol
from isfed.studies.leaderboard_scores import holm, paired
from isfed.studies.results_folder import REPETITIONS
from isfed.studies.results_reader import Results
from isfed.theory.composition_variance import composition_variance, known_parts, turns_of
from isfed.theory.probabilities import TheoryError, risk_gradients

PAGE = Path(__file__).parents[1] / "appendix" / "leaderboard.md"
MARK = "<!-- what follows is made by `python docs/make/leaderboard_page.py` -->\n"
SAME = ("rounds", "seed", "tuning_rounds", "tuning_seed")  # of both folders
FROZEN = (0, 3, 10, 30, 100)  # full gradient steps after which the variance is looked at


def same_step(results: Results) -> PageTable:
    """What every method gains at the best step size of the reference, beside its own best."""
    reference = results.summary["reference"]
    gains: dict[str, list[tuple[float, float]]] = {}
    for problem in results.summary["problems"]:
        rows = [r for r in results.summary["algorithms"] if r["problem"] == problem["name"]]
        tried = {row["method"]: dict(map(tuple, row["tried"])) for row in rows}
        if reference not in tried:
            continue
        base = {step: level for step, level in tried[reference].items() if level is not None}
        if not base:
            continue  # the reference diverged at every step size
        step = min(base, key=lambda one: base[one])
        for name, levels in tried.items():
            best = min((v for v in levels.values() if v is not None), default=None)
            pair = (levels.get(step), best)
            gain = [_decibels(base[step], v) for v in pair]
            gains.setdefault(name, []).append((gain[0], gain[1]))
    means = {name: np.mean(values, axis=0) for name, values in gains.items()}
    return PageTable.of(
        f"Gain over {reference} on the tuning seed in dB, mean over the problems: all at the best "
        "step size of the reference, and each at its own; worse than 30 counts as 30",
        ["method", "at the same step", "at its best", "problems"],
        (
            [name, *(number_cell(value, ".1f") for value in means[name]), str(len(gains[name]))]
            for name in sorted(means, key=lambda name: -means[name][0])
        ),
    )  # fmt: skip


def _decibels(reference: float, level: float | None) -> float:
    """By how much a level is below the reference's, at most 30 dB; None is one that diverged."""
    if level is None:
        return -30.0
    return float(np.clip(10.0 * np.log10(reference / level), -30.0, 30.0)) if level else 30.0


def frozen_models(problem: BoardProblem) -> Iterator[np.ndarray]:
    """Five models on the way of gradient descent with all data."""
    model = np.zeros(problem.problem.num_params)
    for count in range(FROZEN[-1] + 1):
        if count in FROZEN:
            yield model.copy()
        model -= problem.unit_step * risk_gradients(problem.problem, model).mean(axis=0)


def variance(protocol: Protocol) -> PageTable:
    """How many times smaller than the reference's the variance of one round is, exactly."""
    problems = [one for one in protocol.problems if one.tuned]
    found: dict[str, list[float]] = {}
    for problem in problems:
        models = list(frozen_models(problem))
        base = None
        for method in protocol.methods:  # the reference first
            made = method.make(
                step_size=0.1 * problem.unit_step, num_active=problem.num_active,
                rounds=protocol.numbers["rounds"],
            )  # fmt: skip
            try:
                parts = known_parts(made)
                each = np.array([
                    composition_variance(
                        problem.problem, parts, turns_of(problem.problem, parts, model), model,
                        step_size=0.1 * problem.unit_step,
                    )
                    for model in models
                ])  # fmt: skip
            except (TheoryError, ValueError, AttributeError):
                if base is None:
                    break  # not even the reference is known
                continue
            base = each if base is None else base
            found.setdefault(method.name, []).append(float(np.exp(np.log(base / each).mean())))
    return PageTable.of(
        "How many times smaller than with uniform draws the variance of one round is: exact, the "
        f"geometric mean over the models after {', '.join(map(str, FROZEN))} steps of gradient "
        "descent, with the scores of that model; of those methods for which a formula is known",
        ["method", *(problem.name for problem in problems)],
        (
            [name, *(number_cell(value, ".3g") for value in values)]
            for name, values in found.items()
            if len(values) == len(problems)
        ),
    )  # fmt: skip


def levels_of(results: Results) -> dict[str, np.ndarray]:
    """(R,) the levels of the runs of every entry in dB; one that diverged is infinite."""
    table = read_columns(results.path / REPETITIONS)
    names, level = np.array(table["algorithm"]), np.array(table["steady_msd"], float)
    return {name: 10.0 * np.log10(level[names == name]) for name in dict.fromkeys(names.tolist())}


def check_pairs(methods: Results, parts: Results) -> list[str]:
    """The tuned problems of both folders; a SystemExit if their runs are no pairs."""
    if "best" not in parts.summary["factorial"]:
        raise SystemExit(f"{parts.path} has no combinations that ran")
    given = [(one.config, {p["name"]: p for p in one.config["problem"]})
             for one in (methods, parts)]  # fmt: skip
    (first, problems), (second, others) = given
    unlike = [key for key in SAME if first.get(key) != second.get(key)]
    unlike += [name for name in others if name in problems and others[name] != problems[name]]
    both = [name for name in others if name in problems and others[name].get("tuned", True)]
    if unlike or not both:
        what = ", ".join(unlike) or "all problems"
        raise SystemExit(f"{methods.path} and {parts.path} differ in {what}: no pairs of runs")
    return both


def best_against_all(methods: Results, parts: Results) -> PageTable:
    """What the combination that was best on the tuning seed gains over every method at its best."""
    problems, best = check_pairs(methods, parts), parts.summary["factorial"]["best"]
    theirs, ours = levels_of(methods), levels_of(parts)
    gains: dict[str, list[np.ndarray]] = {}
    for problem in problems:
        own = ours[f"{problem}: {best} (combined)"]
        start = next(p["start_db"] for p in parts.summary["problems"] if p["name"] == problem)
        for row in methods.summary["algorithms"]:
            if row["problem"] == problem and row["hears"] != ORACLE:
                level = theirs[f"{problem}: {row['method']}"]
                pairs = min(level.size, own.size)
                gains.setdefault(row["method"], []).append(
                    np.minimum(level[:pairs], start) - np.minimum(own[:pairs], start)
                )
    found = holm({name: paired(np.concatenate(values)) for name, values in gains.items()})
    return PageTable.of(
        f"What {best} gains over every method at its best: in dB, on the same seeds of "
        f"{' and '.join(problems)}; what ends beyond the start counts as the start",
        ["method", "gain (dB)", "wins", "p (Holm)"],
        (
            [name, found[name].words().replace("-", "−"),
             f"{found[name].wins}/{found[name].pairs}", number_cell(found[name].p, ".2g")]
            for name in sorted(found, key=lambda name: found[name].mean)
        ),
    )  # fmt: skip


def section(table: PageTable) -> str:
    """A table below a heading of its own; what its caption says more stands between."""
    heading, _, more = table.caption.partition(": ")
    lines = markdown(table.columns, table.texts)
    return "\n\n".join(part for part in (f"## {heading}", more, lines) if part)


def main() -> None:
    """Write what follows the mark in the appendix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", type=Path)
    parser.add_argument("combinations", type=Path, nargs="?")
    parser.add_argument("--variance", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    methods = load_results(given.methods)
    tables: list[Any] = [*leaderboard_tables(methods), same_step(methods)]
    if given.variance:
        tables.append(variance(make_protocol(methods.config)))
    if given.combinations is not None:
        parts = load_results(given.combinations)
        wanted = ("What a part", "What two parts", "Every combination", "Combinations that")
        tables += [t for t in leaderboard_tables(parts) if t.caption.startswith(wanted)]
        tables.append(best_against_all(methods, parts))
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    text = "\n\n".join(section(table) for table in tables)
    write_whole(PAGE, f"{head}{MARK}\n{text}\n".encode())
    print(f"{len(tables)} tables in {PAGE}")


if __name__ == "__main__":
    main()
