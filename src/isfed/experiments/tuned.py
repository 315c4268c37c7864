"""Methods at one common step size, and each again at its own best one, found on rows held out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tomli_w

from isfed.algorithms import ISFedAvg
from isfed.base.files import write_whole
from isfed.experiments.config import Experiment, algorithm_table, fingerprint
from isfed.experiments.measures import ErrorRates
from isfed.experiments.runner import (
    Finished,
    Progress,
    checked_problem,
    run_all,
    write_results,
)
from isfed.experiments.steps import StepChoice, choose_step_size
from isfed.experiments.store import STEPS, Store, StoreError, read_json
from isfed.problems import Problem
from isfed.simulate import Measure


class HoldingSource(Protocol):
    """A source of a problem that can hold rows out."""

    @property
    def held_out(self) -> bool:
        """Whether rows are held out."""
        ...

    def make(self) -> Problem:
        """The problem, without the rows held out if `held_out`."""
        ...

    def measure(self, problem: Problem) -> ErrorRates:
        """What to measure along the way."""
        ...

    def held_out_loss(self, problem: Problem) -> Measure:
        """The loss on the rows held out."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the configuration says of the problem."""
        ...


@dataclass(frozen=True)
class Tuned:
    """Methods at one common step size, and each again at its own best one from a grid."""

    name: str
    source: HoldingSource
    methods: dict[str, ISFedAvg]  # at the common step size; the first is the reference
    grid: Sequence[float]
    rounds: int = 3000
    repetitions: int = 20
    seed: int = 0
    grid_rounds: int = 1500
    grid_repetitions: int = 4
    paper: Mapping[str, float] = field(default_factory=dict)  # its test error, by method

    @property
    def resolved(self) -> dict[str, Any]:
        """All that decides about the results; the step sizes chosen follow from it."""
        return {
            "name": self.name,
            "rounds": self.rounds,
            "repetitions": self.repetitions,
            "seed": self.seed,
            "problem": self.source.describe(),
            "step_sizes": {
                "grid": list(self.grid),
                "rounds": self.grid_rounds,
                "repetitions": self.grid_repetitions,
            },
            "algorithm": [algorithm_table(name, a) for name, a in self.methods.items()],
        }

    @property
    def digest(self) -> str:
        """A fingerprint of the configuration."""
        return fingerprint(self.resolved)

    def to_toml(self) -> str:
        """The configuration."""
        return tomli_w.dumps(self.resolved)

    def experiment(self, choices: Mapping[str, StepChoice]) -> Experiment:
        """All methods at the common step size, then all at their best."""
        algorithms = dict(self.methods)
        for name, choice in choices.items():
            best = replace(self.methods[name], step_size=choice.best)
            algorithms[f"{name}, best step {choice.best:g}"] = best
        return Experiment(
            self.name, self.source, algorithms, self.rounds, self.repetitions, self.seed,
            self.resolved,
        )  # fmt: skip


def run_tuned(
    tuned: Tuned,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Choose the step sizes and run; returns the summary, which is also in the folder."""
    problem = checked_problem(tuned.experiment({}))
    measure = tuned.source.measure(problem)
    store = Store(folder, tuned)
    with store.opened(resume=resume, overwrite=overwrite):
        choices = choose_steps(tuned, folder / STEPS, threads=threads, progress=progress)
        if progress is not None:
            progress.begin("the minimiser w^o", 1, 0, repetitions=1)
        known = landmarks(problem, measure)
        if progress is not None:
            progress.advance(1)
        experiment = tuned.experiment(choices)
        results = run_all(experiment, store, problem, measure, threads=threads, progress=progress)
        more: dict[str, Any] = {
            "common_step_size": next(iter(tuned.methods.values())).step_size,
            "landmarks": known | {"paper_test_error": dict(tuned.paper)},
            "step_sizes": {
                name: {"best": choice.best, "at_edge": choice.at_edge, "losses": choice.pairs}
                for name, choice in choices.items()
            },
        }
        for name in tuned.methods.keys() & tuned.paper.keys():
            first, for_good = passage(results[name], tuned.paper[name])
            more["landmarks"] |= {"passage_round": first, "below_for_good_round": for_good}
        return write_results(experiment, store, problem, results, more)


def choose_steps(
    tuned: Tuned, path: Path, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, StepChoice]:
    """The best step of every method; each is kept in the file as soon as it is known."""
    choices = _known_choices(tuned, path)
    unknown = [name for name in tuned.methods if name not in choices]
    if not unknown:
        return choices
    source: Any = replace(tuned.source, held_out=True)  # pyright: ignore[reportArgumentType]
    problem = source.make()
    measure = source.held_out_loss(problem)
    for name in unknown:
        if progress is not None:
            rounds = len(tuned.grid) * tuned.grid_rounds
            progress.begin(f"step sizes, {name}", rounds, 0, repetitions=tuned.grid_repetitions)
        choices[name] = choose_step_size(
            problem, tuned.methods[name], measure, tuned.grid,
            rounds=tuned.grid_rounds, repetitions=tuned.grid_repetitions, seed=tuned.seed,
            threads=threads, progress=None if progress is None else progress.advance,
        )  # fmt: skip
        kept = {name: choice.pairs for name, choice in choices.items()}
        write_whole(path, (json.dumps(kept, indent=2) + "\n").encode())
    return {name: choices[name] for name in tuned.methods}


def _known_choices(tuned: Tuned, path: Path) -> dict[str, StepChoice]:
    """What the file holds already."""
    try:
        found = read_json(path) or {}
        choices = {
            name: StepChoice.of(
                {float(step): np.inf if loss is None else float(loss) for step, loss in found[name]}
            )
            for name in tuned.methods
            if name in found
        }
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged ({error}); delete it to choose again") from error
    for name, choice in choices.items():
        if list(choice.losses) != list(tuned.grid):
            raise StoreError(f"{path} is damaged (the grid of {name}); delete it to choose again")
    return choices


def landmarks(problem: Problem, measure: ErrorRates) -> dict[str, Any]:
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
