"""`isfed reproduce networks`: ways to sample and to correct on networks, each at its own best step.

Step sizes are chosen on training rows held out and on seeds of their own; the results are on the
test rows, from other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from isfed.federation.agents import Ledger
from isfed.methods import FedAvg
from isfed.methods.clustered_sampling import ClusteredSampling
from isfed.methods.fedavg import importance
from isfed.methods.fedprox import FedProx
from isfed.methods.fedvarp import FedVARP
from isfed.methods.power_of_choice import PowerOfChoice
from isfed.methods.scaffold import SCAFFOLD
from isfed.sampling.designs import HartleyRao, Spread
from isfed.sampling.policies import Memory, Score, Uniform
from isfed.studies.dataset_config import Dirichlet, FewClasses, OneClass, Shards
from isfed.studies.executors import Executor
from isfed.studies.network_config import NetworkData
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_engine import Outcome
from isfed.studies.tuned_step_sizes import LAST_SHARE, TunedStudy
from isfed.studies.work_cells import Finished, problem_of


@dataclass(frozen=True)
class Setting:
    """One set-up: the problem, who is heard, and for how long.

    Args:
        grid: step sizes of a local step; it grows while the best is at its edge.
        targets: accuracies whose rounds, bytes and seconds are told.
        fixed: a step size at which nothing is chosen, as published.
    """

    name: str
    title: str
    source: NetworkData
    num_active: int
    rounds: int
    grid: Sequence[float]
    targets: Sequence[float]
    fixed: float | None = None


SETTINGS = {
    "a": Setting(
        "a", "MNIST, 100 agents with one digit each, one hidden layer, 50 steps of 50",
        NetworkData(rows="mnist", model="mlp", hidden=50, num_agents=100, partition=OneClass(),
                    local_steps=50, batch_size=50, every=5),
        10, 300, (0.003, 0.01, 0.03, 0.1), (0.7, 0.8, 0.85, 0.9),
    ),
    "b-dirichlet": Setting(
        "b-dirichlet", "MNIST, 100 agents, Dirichlet(0.1), small CNN",
        NetworkData(rows="mnist", side=14, model="cnn", num_agents=100, test_rows=2000,
                    partition=Dirichlet(concentration=0.1, least=20), every=5),
        10, 200, (0.03, 0.055, 0.1, 0.17, 0.3), (0.8, 0.9, 0.95),
    ),
    "b-shards": Setting(
        "b-shards", "MNIST, 100 agents, two shards each, small CNN",
        NetworkData(rows="mnist", side=14, model="cnn", num_agents=100, test_rows=2000,
                    partition=Shards(), every=5),
        10, 200, (0.03, 0.055, 0.1, 0.17, 0.3), (0.8, 0.9, 0.95),
    ),
    "c": Setting(
        "c", "MNIST, one agent per writer, small CNN",
        NetworkData(rows="writers", side=14, model="cnn", test_rows=2000, every=5),
        10, 200, (0.03, 0.055, 0.1, 0.17, 0.3), (0.8, 0.9, 0.95),
    ),
    "d": Setting(
        "d", "synthetic(1,1), 30 agents, softmax regression, 20 passes of batches of 10",
        NetworkData(rows="synthetic", model="softmax", compiled=True, num_agents=30, passes=20,
                    batch_size=10, every=5),
        10, 200, (0.001, 0.003, 0.01, 0.03), (0.6, 0.7, 0.75),
    ),
    "e": Setting(
        "e", "MNIST, 1000 agents with two digits each, power-law sizes, softmax regression",
        NetworkData(rows="mnist", model="softmax", num_agents=1000, partition=FewClasses(),
                    passes=1, batch_size=10, every=5),
        10, 100, (0.03,), (0.7, 0.8, 0.85), fixed=0.03,
    ),
}  # fmt: skip


def network_methods(setting: Setting) -> dict[str, Any]:
    """What is compared; every local step is step_size, so that one grid suits all."""
    common: dict[str, Any] = {"step_size": setting.grid[0], "num_active": setting.num_active}
    second = Memory(score=Score.SECOND_MOMENT, floor=0.2)
    # In random order: agents are dealt class by class, and a draw along that order would take about
    # one agent of each class, which is a gain of the order and not of the method.
    ours = {**common, "agent_design": HartleyRao()}
    return {
        "FedAvg": FedAvg(**common),
        "importance": importance(**ours),
        "spread": importance(**common, agents=Uniform(), agent_design=Spread(), label="spread"),
        "difference": importance(**ours, correction="difference"),
        "drift": importance(**ours, correction="drift"),
        "drift, importance": importance(
            **ours, correction="drift", agents=second, label="drift, importance"
        ),
        "FedProx": FedProx(**common, prox=0.1),
        "SCAFFOLD": SCAFFOLD(**common),
        "FedVARP": FedVARP(**common),
        "clustered": ClusteredSampling(**common),
        "Power-of-Choice": PowerOfChoice(**common),
    }


@dataclass(frozen=True)
class NetworkStudy(TunedStudy):
    """All methods on one set-up."""

    setting: Setting
    repetitions: int = 5
    seed: int = 0
    grid_rounds: int = 100
    grid_repetitions: int = 2
    widen: int = 3
    only: Sequence[str] = ()  # the methods to run; all unless given
    kind: ClassVar[str] = "networks"
    tuning_seed: ClassVar[int] = 1000  # step sizes are chosen on draws of their own
    name = property(lambda self: f"networks-{self.setting.name}")
    source = property(lambda self: self.setting.source)
    rounds = property(lambda self: self.setting.rounds)
    grid = property(lambda self: self.setting.grid)
    num_active = property(lambda self: self.setting.num_active)

    @property
    def methods(self) -> dict[str, Any]:
        """Those to run."""
        known = network_methods(self.setting)
        return {name: known[name] for name in self.only or known}

    def outcome(self, executor: Executor) -> Outcome:
        """Choose the step sizes, run every method at its own and tell what the targets took."""
        problem, _ = problem_of(self.source)
        mean_steps = round(float(problem.local_steps.mean()))
        chosen, methods = {}, {}
        for name, method in self.methods.items():
            # What is divided by E_k needs a step E_k times as large to step as far.
            factor = mean_steps if getattr(method, "divide_by_steps", False) else 1
            if self.setting.fixed is None:
                chosen[name] = self.search(executor, name, factor)
            else:
                chosen[name] = StepSearch.of({factor * self.setting.fixed: 0.0})
            methods[name] = replace(method, step_size=chosen[name].best)
        results = self.run_methods(executor, methods)
        rows = [
            network_row(name, result, self.setting.targets, problem.num_params)
            for name, result in results.items()
        ]
        steps = {name: choice.as_dict() for name, choice in chosen.items()}
        title = self.setting.title
        return self.summarised(results, title=title, networks=rows, step_sizes=steps)


def quick(study: NetworkStudy) -> NetworkStudy:
    """The same in minutes: fewer rounds, seeds and step sizes, smaller images."""
    setting = study.setting
    source = setting.source
    changes: dict[str, Any] = {"test_rows": 1000}
    if source.rows not in ("synthetic", "digits"):
        changes["side"] = 14
    if source.passes:
        changes["passes"] = 1
    else:
        changes["local_steps"] = min(source.local_steps, 10)
    small = replace(
        setting,
        title=f"{setting.title} ({_quick_words(source, changes)})",
        source=replace(source, **changes),
        rounds=min(setting.rounds, 30),
        grid=setting.grid[-2:] if setting.fixed is None else setting.grid,
    )
    return replace(study, setting=small, repetitions=2, grid_rounds=10, grid_repetitions=1, widen=0)


def _quick_words(source: NetworkData, changes: Mapping[str, Any]) -> str:
    """What `quick` changes of the work: only what was different before."""
    words = {"side": "smaller images", "passes": "1 pass per turn"}
    words["local_steps"] = f"{changes.get('local_steps')} steps per turn"
    changed = {key for key, value in changes.items() if value != getattr(source, key)}
    listed = [word for key, word in words.items() if key in changed]
    return f"quick: {', '.join(listed)}" if listed else "quick"


def network_row(
    name: str, result: Finished, targets: Sequence[float], num_params: int
) -> dict[str, Any]:
    """The accuracy at the end, and what it took to reach the targets."""
    history = result.history
    accuracy = history.measured["accuracy"]  # (R, points)
    last = accuracy[:, -max(1, round(LAST_SHARE * accuracy.shape[1] / 2)) :].mean(axis=1)
    count = max(len(last), 1)
    ledgers = [Ledger.from_array(row) for row in history.ledgers]
    total = float(np.mean([b.bytes_up(num_params) + b.bytes_down(num_params) for b in ledgers]))
    per_round = total / max(history.rounds, 1)
    seconds = result.seconds / count / max(history.rounds, 1)
    row: dict[str, Any] = {
        "name": name,
        "step_size": history.step_size,
        "accuracy": float(last.mean()),
        "accuracy_stderr": float(last.std(ddof=1) / np.sqrt(count)) if count > 1 else None,
        "megabytes_per_round": per_round / 1e6,
        "seconds_per_round": seconds,
        "diverged": result.diverged,
        "targets": [],
    }
    mean = accuracy.mean(axis=0)
    for target in targets:
        rounds = first_round(history.measured_rounds, mean, target)
        entry: dict[str, Any] = {"accuracy": target, "rounds": rounds}
        if rounds is not None:
            entry |= {"megabytes": rounds * per_round / 1e6, "seconds": rounds * seconds}
        row["targets"].append(entry)
    return row


def first_round(rounds: np.ndarray, accuracy: np.ndarray, target: float) -> int | None:
    """The first evaluation at which the mean accuracy is at least the target."""
    reached = np.flatnonzero(accuracy >= target)
    return int(rounds[reached[0]]) if reached.size else None
