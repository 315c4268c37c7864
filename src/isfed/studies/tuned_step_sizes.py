"""Methods at their own best step size, found on rows held out: the paper's classification.

Section V-B on ijcnn1, and the same on MNIST by writer; every method also runs at a common step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from isfed.methods import FedAvg, ISFedAvg
from isfed.problems import Problem
from isfed.sampling.policies import Current, Memory, Running
from isfed.simulate import Measure
from isfed.studies.config_schema import write_table
from isfed.studies.dataset_config import Ijcnn1Source, WritersSource
from isfed.studies.executors import Executor
from isfed.studies.name_registry import write_algorithm
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_engine import Outcome, Search, Study, search_step_size
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Finished, problem_of

LAST_SHARE = 0.25  # of the measurements, whose mean decides on a step size


@dataclass(frozen=True)
class HeldOut(ProblemSource):
    """The same source with rows held out, and the loss on them."""

    source: Any  # has `held_out` and `held_out_loss`, as `Ijcnn1Source`

    @property
    def holding(self) -> Any:
        """The source that holds rows out."""
        return replace(self.source, held_out=True)

    def make(self) -> Problem:
        """The problem without the rows held out."""
        return self.holding.make()

    def measure(self, problem: Problem) -> Measure:
        """The loss on the rows held out."""
        return self.holding.held_out_loss(problem)


class TunedStudy(Study):
    """A study whose methods get their step sizes from a grid, by their loss on rows held out."""

    methods: Any  # by name
    grid: Any
    grid_rounds: Any
    grid_repetitions: Any
    num_active: Any = None
    widen: Any = None  # how often the grid may grow at each end
    tuning_seed: ClassVar[int] = 0  # added to the seed

    @property
    def resolved(self) -> dict[str, Any]:
        """All that decides about the results; the step sizes chosen follow from it."""
        top = ("name", "rounds", "repetitions", "seed", "num_active")
        steps = {
            "grid": self.grid, "rounds": self.grid_rounds, "repetitions": self.grid_repetitions,
            "widen": self.widen,
        }  # fmt: skip
        return {
            **write_table({key: getattr(self, key) for key in top}),
            "problem": self.source.describe(),
            "step_sizes": write_table(steps),
            "algorithm": [write_algorithm(name, a) for name, a in self.methods.items()],
        }

    def check(self) -> None:
        """Refuse a method that cannot run on the problem."""
        self.checked_problem(self.methods)

    def search(self, executor: Executor, name: str, factor: float = 1) -> StepSearch:
        """Find the best step size of a method, in a grid that is multiplied by a factor."""
        search = Search(
            source=HeldOut(self.source), grid=[factor * step for step in self.grid],
            rounds=self.grid_rounds, repetitions=self.grid_repetitions,
            seed=self.seed + self.tuning_seed, share=LAST_SHARE, widen=self.widen or 0,
        )  # fmt: skip
        return search_step_size(executor, name, self.methods[name], search)


@dataclass(frozen=True)
class Tuned(TunedStudy):
    """Methods at one common step size, and each again at its own best one from a grid."""

    name: str
    source: Any  # as `HeldOut` takes it
    methods: dict[str, Any]  # at the common step size; the first is the reference
    grid: Sequence[float]
    rounds: int = 3000
    repetitions: int = 20
    seed: int = 0
    grid_rounds: int = 1500
    grid_repetitions: int = 4
    paper: Mapping[str, float] = field(default_factory=dict)  # its test error, by method
    kind: ClassVar[str] = "tuned"

    def outcome(self, executor: Executor) -> Outcome:
        """Choose the step sizes, then run all methods at the common step and at their best."""
        choices = {name: self.search(executor, name) for name in self.methods}
        methods = dict(self.methods)
        for name, choice in choices.items():
            best = replace(self.methods[name], step_size=choice.best)
            methods[f"{name}, best step {choice.best:g}"] = best
        with executor.reporting("the minimiser w^o"):  # it may take a while
            known = landmarks(*problem_of(self.source))
        results = self.run_methods(executor, methods)
        for name in self.methods.keys() & self.paper.keys():
            first, for_good = passage(results[name], self.paper[name])
            known |= {"passage_round": first, "below_for_good_round": for_good}
        return self.summarised(
            results,
            common_step_size=next(iter(self.methods.values())).step_size,
            landmarks=known | {"paper_test_error": dict(self.paper)},
            step_sizes={name: choice.as_dict() for name, choice in choices.items()},
        )


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


PAPER_ERRORS = {"FedAvg": 0.2245, "ISFedAvg": 0.1846}


def _methods(step_size: float, *policies: Any) -> dict[str, ISFedAvg]:
    common = {"step_size": step_size, "num_active": 10}
    by_importance = {
        policy.name: ISFedAvg(**common, agents=policy, examples=policy) for policy in policies
    }
    return {"FedAvg": FedAvg(**common), **by_importance}


def paper_classification(source: Ijcnn1Source) -> Tuned:
    """Section V-B: K=100, L=10, B_k=E_k=1, mu=0.25, rho=1e-4."""
    grid = (0.0625, 0.25, 1.0, 2.0, 4.0, 8.0, 16.0)
    methods = _methods(0.25, Current(), Running(), Memory())
    return Tuned(f"classification-{source.partition}", source, methods, grid, paper=PAPER_ERRORS)


def tuned_writers(source: WritersSource) -> Tuned:
    """539 writers, ten a round, ten digits each; `current` would read all 60 000 every round."""
    return Tuned(
        "writers", source, _methods(0.2, Running(), Memory()), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
        rounds=1500, grid_rounds=500, grid_repetitions=2,
    )  # fmt: skip
