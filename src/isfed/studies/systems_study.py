"""Every system that the paper names, on its regression and on synthetic(1,1), with one clock.

The problems, the draws and the delays are the same for all. What each costs is read off the
agents' ledger as it runs, and the point to which it goes, where that is not w^o, is computed by
`isfed.studies.fixed_points`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isfed.base.portable_arithmetic import inner
from isfed.federation.virtual_clock import Clock
from isfed.methods import DynamicFedAvg, FedAvg, ISFedAvg
from isfed.methods.adaptive_tau import AdaptiveTau
from isfed.methods.agnostic_fl import AgnosticFL
from isfed.methods.cooperative_sgd import DecentralisedSGD, ElasticAveraging, FullySynchronousSGD
from isfed.methods.fedasync import FedAsync
from isfed.methods.fedavg_schemes import FedAvgScheme
from isfed.methods.fedcs import FedCS
from isfed.methods.fedprox import FedProx
from isfed.methods.folb import FOLB
from isfed.methods.hierfavg import HierFAVG
from isfed.methods.hybrid_fl import HybridFL
from isfed.methods.local_sgd import LocalGD, LocalSGD, MomentumSGD, RestartedSGD, StichSGD
from isfed.methods.mocha import Mocha
from isfed.methods.q_ffl import QFedAvg, QFedSGD
from isfed.problems import PAPER, Problem
from isfed.studies.config_schema import write_value
from isfed.studies.dataset_config import SyntheticSource
from isfed.studies.executors import Executor
from isfed.studies.fixed_points import Known, Rest, resting_distances
from isfed.studies.problem_sources import RegressionSource
from isfed.studies.results_summary import algorithm_rows, mean_and_stderr
from isfed.studies.study_engine import Outcome, Study
from isfed.studies.work_cells import Cell, Finished, problem_of

POINTS = 100  # looks at the ledger in a run
# Rows of the figure; the two references are in all of them.
FAMILIES: dict[str, tuple[str, ...]] = {
    "everybody works": (
        "local GD", "local SGD", "Stich's SGD", "restarted SGD, unequal steps", "momentum SGD",
        "adaptive tau",
    ),
    "cooperation, edges, old models": (
        "synchronous SGD", "decentralised SGD, ring", "elastic averaging", "HierFAVG",
        "FedAsync, drawn age", "FedAsync, event queue",
    ),
    "some are heard": (
        "Dynamic FedAvg", "scheme I", "scheme II", "transformed scheme II", "original scheme",
        "FedProx", "FedProx, stragglers",
    ),
    "selectors and other objectives": (
        "FedCS", "Hybrid-FL", "FOLB", "agnostic FL", "agnostic FL, stochastic", "q-FedAvg",
        "q-FedSGD", "MOCHA",
    ),
}  # fmt: skip
REFERENCES = ("FedAvg", "ISFedAvg, memory")


@dataclass(frozen=True)
class Systems(Study):
    """Which problems to run on, and how long.

    Args:
        rounds, repetitions: on the regression.
        synthetic_rounds, synthetic_repetitions: on synthetic(1,1).
        step_size, synthetic_step_size: of a local step, the same for every method that has one.
        most_examples: sizes of synthetic(1,1) above it are cut.
        ridge: of synthetic(1,1), ten times that of its authors: then w^o is within reach.
        resting: whether to compute where every method rests.
        seed: of all draws; the data have seeds of their own.
    """

    rounds: int = 2000
    repetitions: int = 10
    synthetic_rounds: int = 1000
    synthetic_repetitions: int = 3
    step_size: float = 0.01
    synthetic_step_size: float = 0.01
    most_examples: int = 300
    ridge: float = 0.01
    resting: bool = True
    seed: int = 0
    kind: ClassVar[str] = "systems"
    name: ClassVar[str] = "systems"

    @property
    def resolved(self) -> dict[str, Any]:
        """The configuration."""
        return write_value(self)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The two problems."""
        synthetic = SyntheticSource(most_examples=self.most_examples, ridge=self.ridge)
        return (
            Part("regression", RegressionSource(PAPER), self.rounds, self.repetitions,
                 self.step_size, 6),
            Part("synthetic(1,1)", synthetic, self.synthetic_rounds, self.synthetic_repetitions,
                 self.synthetic_step_size, 10),
        )  # fmt: skip

    @property
    def source(self) -> RegressionSource:
        """Of the first problem."""
        return self.parts[0].source

    def outcome(self, executor: Executor) -> Outcome:
        """Run all methods on both problems."""
        groups = {part.title: _groups(self, part, executor) for part in self.parts}
        cells = {name: group for part in groups.values() for name, group in part.items()}
        results = executor.run(cells, "every system", warn=False)
        rows: list[dict[str, Any]] = []
        for part in self.parts:
            of_part = {name: results[name] for name in groups[part.title]}
            rows += _rows(part, of_part, executor, resting=self.resting)
        return self.summarised(results, algorithms=rows)


QUICK = {
    "rounds": 200, "repetitions": 2, "synthetic_rounds": 40, "synthetic_repetitions": 2,
    "resting": False,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One problem with its numbers; `num_active` is L."""

    title: str
    source: Any
    rounds: int
    repetitions: int
    step_size: float
    num_active: int


def methods_of(part: Part, problem: Problem) -> dict[str, Any]:
    """Every method on a problem, by the name that the figure uses."""
    step: dict[str, Any] = {"step_size": part.step_size}
    some: dict[str, Any] = {**step, "num_active": part.num_active}
    steps = max(1, round(float(problem.local_steps.mean())))  # H, as much work as E_k on average
    asked = {**step, "num_active": min(2 * part.num_active, problem.num_agents)}
    deadline = _deadline(problem, part.num_active)
    unequal = tuple(int(e) for e in np.maximum(1, _ramp(problem.num_agents, 2 * steps - 1)))
    strong, largest = _curvatures(problem)
    methods: dict[str, Any] = {
        "FedAvg": FedAvg(**some),
        "ISFedAvg, memory": ISFedAvg(**some),
        "local GD": LocalGD(steps=steps, **step),
        "local SGD": LocalSGD(steps=steps, **step),
        "Stich's SGD": StichSGD(strong=strong, shift=16.0 * largest / strong + steps, steps=steps),
        "restarted SGD, unequal steps": RestartedSGD(steps=unequal, **step),
        "momentum SGD": MomentumSGD(steps=steps, step_size=part.step_size / 10.0, momentum=0.9),
        "adaptive tau": AdaptiveTau(steps=1, budget=0.15 * part.rounds, **step),
        "synchronous SGD": FullySynchronousSGD(**step),
        "decentralised SGD, ring": DecentralisedSGD(**step),
        "elastic averaging": ElasticAveraging(steps=steps, **step),
        "HierFAVG": HierFAVG(steps=steps, edge_rounds=2, edges=5, **step),
        "FedAsync, drawn age": FedAsync(**step),
        "FedAsync, event queue": FedAsync(in_flight=part.num_active, **step),
        "Dynamic FedAvg": DynamicFedAvg(**some),
        "scheme I": FedAvgScheme(scheme="I", **some),
        "scheme II": FedAvgScheme(scheme="II", **some),
        "transformed scheme II": FedAvgScheme(scheme="transformed-II", **some),
        "original scheme": FedAvgScheme(scheme="original", **some),
        "FedProx": FedProx(prox=1.0, **some),
        "FedProx, stragglers": FedProx(prox=1.0, stragglers=0.5, **some),
        "FedCS": FedCS(deadline=deadline, **asked),
        "Hybrid-FL": HybridFL(deadline=deadline, permit=0.05, **asked),
        "FOLB": FOLB(prox=1.0, **some),
        "agnostic FL": AgnosticFL(mixture_step=part.step_size / 10.0, **step),
        "agnostic FL, stochastic": AgnosticFL(
            mixture_step=part.step_size / 100.0, stochastic=True, **step
        ),
        "q-FedAvg": QFedAvg(power=1.0, **some),
        "q-FedSGD": QFedSGD(power=1.0, **some),
    }  # fmt: skip
    if problem.num_params == problem.data.num_features:  # MOCHA has no conjugate step for softmax
        methods["MOCHA"] = Mocha(penalty=0.01)
    return methods


def _ramp(count: int, most: int) -> np.ndarray:
    """Numbers from 1 to `most`, spread evenly over the agents."""
    return 1 + (np.arange(count) * most) // count


def _deadline(problem: Problem, num_active: int) -> float:
    """About what L uploads one after the other take on the clock of this study."""
    message = 4.0 * problem.num_params
    upload = message / np.sqrt(CLOCK.upload[0] * CLOCK.upload[1]) + CLOCK.latency
    work = float((problem.local_steps * problem.batch_size).mean())
    return num_active * upload + work / np.sqrt(CLOCK.rate[0] * CLOCK.rate[1])


CLOCK = Clock(jitter=0.2)


def _curvatures(problem: Problem) -> tuple[float, float]:
    """Strong convexity and smoothness of P: from the data for least squares, else bounds."""
    if problem.num_params == problem.data.num_features:
        x, weights = problem.data.features, problem.data.row_weights()
        values = np.linalg.eigvalsh(2.0 * (x.T * weights) @ x)
        return float(values[0] + 2 * problem.loss.ridge), float(values[-1] + 2 * problem.loss.ridge)
    mean = inner(problem.data.row_weights(), problem.loss.curvature(problem.data.features))
    return 2.0 * problem.loss.ridge, float(mean)


def _groups(systems: Systems, part: Part, executor: Executor) -> dict[str, list[Cell]]:
    """One group for every method on a problem."""
    problem, _ = problem_of(part.source)
    methods = methods_of(part, problem)
    return {
        title: executor.cells(
            title, title, part.repetitions, 2 * len(methods), source=part.source,
            algorithm=methods[name], rounds=part.rounds, seed=systems.seed, engine="agents",
            details=False, clock=CLOCK, costs_every=max(1, part.rounds // POINTS),
        )
        for name in methods
        for title in [f"{part.title}: {name}"]
    }  # fmt: skip


def _rows(
    part: Part, results: dict[str, Finished], executor: Executor, *, resting: bool
) -> list[dict[str, Any]]:
    """What the summary says of every method on a problem: its level, its costs, where it rests."""
    problem, _ = problem_of(part.source)
    methods = methods_of(part, problem)
    rows = algorithm_rows(part.source, results)
    rests: dict[str, Rest] = {}
    if resting:
        known = Known(executor.store, part.title)
        with executor.reporting(f"{part.title}: where each rests", len(rows)) as advance:
            rests = resting_distances(problem, methods, advance, known)
    for row, result in zip(rows, results.values(), strict=True):
        name = row["name"].partition(": ")[2]
        at, how = rests.get(name, (None, "not computed"))
        row["problem"], row["method"] = part.title, name
        row["rests_at_db"], row["rests_how"] = at, how
        if not result.diverged:
            row["costs"] = mean_and_stderr(result.history)
    return rows
