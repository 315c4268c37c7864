"""What is made of the results of a study beside the usual tables: one function for every kind.

    kind = "tuned"     # a file of a study names it

Each takes the study, its tasks, their results, the executor and the searches for step sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isfed.federation.agents import Ledger
from isfed.problems import Problem
from isfed.studies.executors import Executor
from isfed.studies.fixed_points import remembering, resting_distances
from isfed.studies.results_reader import StepSearch
from isfed.studies.results_summary import algorithm_rows, mean_and_stderr
from isfed.studies.step_grid import LAST_SHARE
from isfed.studies.study_engine import Outcome, ending
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Finished, merged, problem_of

ByName = Mapping[str, Finished]
GUESS = math.log(10.0)  # the loss of a guess at random among ten classes
RIVALS = ("FedAvg", "FedAvg, averaged")  # whose final accuracies other networks are timed by
LEVEL_SHARE = 0.5  # of the rounds, the last ones, whose mean is the level of a point


def _tuned(study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any) -> Outcome:
    """Methods at a common step size and each at its best one, beside what w^o reaches."""
    (task,) = tasks
    with executor.reporting("the minimiser w^o"):  # it may take a while
        known = landmarks(*problem_of(task.source))
    paper = dict(study.options.get("paper", {}))  # its test error, by method
    for name in set(task.tuned) & paper.keys():
        first, for_good = passage(results[name], paper[name])
        known |= {"passage_round": first, "below_for_good_round": for_good}
    return study.summarised(
        results, common_step_size=next(iter(task.algorithms.values())).step_size,
        landmarks=known | {"paper_test_error": paper}, step_sizes=as_dicts(searches),
    )  # fmt: skip


def as_dicts(searches: Mapping[str, StepSearch]) -> dict[str, Any]:
    """The step sizes that were tried, for summary.json."""
    return {name: found.as_dict() for name, found in searches.items()}


def landmarks(problem: Problem, measure: Any) -> dict[str, Any]:
    """What a good error is: that of w^o itself and that of always naming the majority."""
    error, balanced = measure(problem.optimum[None])[0]
    return {
        "optimum_test_error": float(error),
        "optimum_balanced_error": float(balanced),
        "majority_test_error": measure.majority_error(),
    }


def passage(result: Finished, level: float) -> tuple[int, int] | tuple[None, None]:
    """The measured rounds at which the mean test error first falls to a level, and for good.

    At the start every row is called negative, which errs little where positives are rare: the
    passage is the one after the error's peak, and there is none where the peak is lower.
    """
    errors = result.history.measured[ErrorRates.names[0]].mean(axis=0)
    above = np.flatnonzero(errors > level)
    if not above.size or above[-1] == errors.size - 1:
        return None, None
    peak = int(errors.argmax())
    first = peak + np.flatnonzero(errors[peak:] <= level)[0]
    rounds = result.history.measured_rounds
    return int(rounds[first]), int(rounds[above[-1] + 1])


def _networks(
    study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any
) -> Outcome:
    """The accuracy of every method, what it costs, and how it stands to FedAvg."""
    problem, _ = problem_of(tasks[0].source)
    rows = [network_row(name, result, problem.num_params) for name, result in results.items()]
    levels = {row["name"]: row["accuracy"] for row in rows if row["name"] in RIVALS}
    for row, result in zip(rows, results.values(), strict=True):
        history = result.history
        mean = history.measured["accuracy"].mean(axis=0)
        row["rounds_to"] = {
            rival: first_round(history.measured_rounds, mean, level)
            for rival, level in levels.items()
        }
        row |= useless_steps(searches[row["name"]])
    title = study.options.get("title", study.name)
    return study.summarised(results, title=title, networks=rows, step_sizes=as_dicts(searches))


def network_row(name: str, result: Finished, num_params: int) -> dict[str, Any]:
    """The accuracy at the end, the worst drop on the way, and what a round costs."""
    history = result.history
    accuracy = history.measured["accuracy"]  # (R, points)
    last = accuracy[:, -max(1, round(LAST_SHARE * accuracy.shape[1] / 2)) :].mean(axis=1)
    count = max(len(last), 1)
    drops = (np.maximum.accumulate(accuracy, axis=1) - accuracy)[:, accuracy.shape[1] // 4 :]
    ledgers = [Ledger.from_array(row) for row in history.ledgers]
    total = float(np.mean([b.bytes_up(num_params) + b.bytes_down(num_params) for b in ledgers]))
    return {
        "name": name,
        "step_size": history.step_size,
        "accuracy": float(last.mean()),
        "accuracy_stderr": float(last.std(ddof=1) / np.sqrt(count)) if count > 1 else None,
        "worst_drop": float(drops.max(axis=1).mean()) if drops.size else None,
        "megabytes_per_round": total / max(history.rounds, 1) / 1e6,
        "seconds_per_round": result.seconds / count / max(history.rounds, 1),
        "diverged": result.diverged,
    }


def useless_steps(search: StepSearch) -> dict[str, int]:
    """Of the step sizes tried up to twice the chosen one: how many, and how many ended useless.

    Useless is a model that diverged, or whose loss is no less than that of a guess at random.
    """
    tried = [loss for step, loss in search.losses.items() if step <= 2.001 * search.best]
    return {"steps_tried": len(tried), "steps_useless": sum(not x < GUESS for x in tried)}


def first_round(rounds: np.ndarray, accuracy: np.ndarray, target: float) -> int | None:
    """The first evaluation at which the mean accuracy is at least the target."""
    reached = np.flatnonzero(accuracy >= target)
    return int(rounds[reached[0]]) if reached.size else None


def by_title(tasks: Any, results: ByName) -> list[tuple[Any, dict[str, Finished]]]:
    """The first task of every title and its results, the repetitions of all seeds together."""
    found = []
    for first in {task.title: task for task in reversed(tasks)}.values():
        seeds = [task.seeded for task in tasks if task.title == first.title]
        names = [f"{first.title}{name}" for name in first.algorithms]
        found.append(
            (first, {n: merged([results[n + seed] for seed in seeds], rows=1) for n in names})
        )
    return found[::-1]


def several_problems(
    study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any
) -> Outcome:
    """On every problem the level of every method; gains are over the first one there."""
    groups = by_title(tasks, results)
    whole = {name: result for _, found in groups for name, result in found.items()}
    rows = [row for task, found in groups for row in _rows_of(task, found)]
    return study.summarised(whole, algorithms=rows)


def _rows_of(task: Any, found: ByName) -> list[dict[str, Any]]:
    rows = algorithm_rows(task.source, found)
    for row, name in zip(rows, task.algorithms, strict=True):
        row |= {"problem": task.title.removesuffix(": ").removesuffix(", "), "method": name}
    return rows


def _systems(study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any) -> Outcome:
    """On every problem the level of every method, its costs, and where it rests."""
    outcome = several_problems(study, tasks, results, executor, searches)
    rests: dict[str, Any] = {}
    for task in tasks if study.options.get("rest", True) else ():
        title = task.title.removesuffix(": ")
        problem, _ = problem_of(task.source)
        kept = remembering(executor.store, title)
        with executor.reporting(f"{title}: where each rests", len(task.algorithms)) as advance:
            found = resting_distances(problem, task.algorithms, advance, kept)
        rests |= {f"{task.title}{name}": rest for name, rest in found.items()}
    for row in outcome.summary["algorithms"]:
        row["rests_at_db"], row["rests_how"] = rests.get(row["name"], (None, "not computed"))
        result = results[row["name"]]
        if not result.diverged:
            row["costs"] = mean_and_stderr(result.history)
    return outcome


def _levels(study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any) -> Outcome:
    """The level of every run, the mean over its last part; None where one diverged."""
    outcome = several_problems(study, tasks, results, executor, searches)
    groups = by_title(tasks, results)
    runs = [(task, result) for task, found in groups for result in found.values()]
    for row, (task, result) in zip(outcome.summary["algorithms"], runs, strict=True):
        known = not result.diverged
        row["levels"] = (
            ending(result, task.share, task.level).mean(axis=1).tolist() if known else None
        )
    return outcome._replace(summary=outcome.summary | {"step_sizes": as_dicts(searches)})


def _heterogeneity(
    study: Any, tasks: Any, results: ByName, executor: Executor, searches: Any
) -> Outcome:
    """The gain over the first method at every point of a grid of problems."""
    outcome = several_problems(study, tasks, results, executor, searches)
    titles = dict.fromkeys(task.title for task in tasks)
    points = [_point([task for task in tasks if task.title == title], results) for title in titles]
    return outcome._replace(summary=outcome.summary | {"points": points})


def _point(tasks: list[Any], results: ByName) -> dict[str, Any]:
    """The gains at one point: mean and standard error over problems of other seeds."""
    db = {}
    for name in tasks[0].algorithms:
        parts = [results[f"{task.title}{name}{task.seeded}"] for task in tasks]
        levels = [np.nan if p.diverged else p.history.steady(share=LEVEL_SHARE).db for p in parts]
        db[name] = np.array(levels)
    base, best, *others = db
    gain = db[base] - db[best]
    return {
        **tasks[0].place,
        f"{base}_db": float(db[base].mean()),
        "gain_db": float(gain.mean()),
        "gain_stderr_db": float(gain.std(ddof=1) / np.sqrt(len(tasks))) if len(tasks) > 1 else 0.0,
        **{f"{name}_gain_db": float((db[base] - db[name]).mean()) for name in others},
    }


SUMMARIES: dict[str, Callable[..., Outcome]] = {
    "tuned": _tuned, "networks": _networks, "systems": _systems,
    "heterogeneity": _heterogeneity, "levels": _levels,
}  # fmt: skip
