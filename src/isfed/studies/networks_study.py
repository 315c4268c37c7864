"""`isfed reproduce networks`: ways to sample and to correct on networks, each at its own best step.

Step sizes are chosen on training rows held out and on seeds of their own; the results are on the
test rows, from other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from isfed.federation.agents import Ledger
from isfed.methods.clustered_sampling import ClusteredSampling
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.fedavg import FedAvg, importance
from isfed.methods.federated import Federated
from isfed.methods.fedvarp import FedVARP
from isfed.methods.local_steps import LocalSteps
from isfed.methods.look_ahead_passes import LookAheadPasses
from isfed.methods.method_wrappers import Served, at_step_size
from isfed.methods.power_of_choice import PowerOfChoice
from isfed.methods.scaffold import SCAFFOLD
from isfed.methods.servers import Average, FedAdam, LookAhead, ServerMomentum
from isfed.methods.stratified_passes import StratifiedPasses
from isfed.sampling.designs import HartleyRao
from isfed.sampling.policies import Memory, Uniform
from isfed.studies.dataset_config import Dirichlet, EasyAndHard, FewClasses, OneClass, Shards
from isfed.studies.executors import Executor
from isfed.studies.network_config import NetworkData
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_engine import Outcome
from isfed.studies.tuned_step_sizes import LAST_SHARE, TunedStudy
from isfed.studies.work_cells import Finished, problem_of

GUESS = math.log(10.0)  # the loss of a guess at random among ten classes


@dataclass(frozen=True)
class Setting:
    """One set-up: the problem, who is heard, and for how long.

    Args:
        grid: step sizes of a local step, by factors of 2; it grows while the best is at its edge.
    """

    name: str
    title: str
    source: NetworkData
    num_active: int
    rounds: int
    grid: Sequence[float]


_MNIST: dict[str, Any] = {"rows": "mnist", "side": 14, "test_rows": 2000, "every": 5}
_MLP: dict[str, Any] = {
    **_MNIST,
    "model": "mlp",
    "hidden": 64,
    "num_agents": 100,
    "local_steps": 10,
}
_CNN: dict[str, Any] = {**_MNIST, "model": "cnn", "num_agents": 100}
MLP_STEPS, CNN_STEPS = (0.2, 0.4, 0.8), (0.05, 0.1, 0.2)

SETTINGS = {
    "a": Setting(
        "a", "MNIST, 100 agents with one digit each, one hidden layer",
        NetworkData(**_MLP, partition=OneClass()), 10, 100, MLP_STEPS,
    ),
    "b-dirichlet": Setting(
        "b-dirichlet", "MNIST, 100 agents, Dirichlet(0.1), small CNN",
        NetworkData(**_CNN, partition=Dirichlet(concentration=0.1, least=20)), 10, 100, CNN_STEPS,
    ),
    "b-shards": Setting(
        "b-shards", "MNIST, 100 agents, two shards each, small CNN",
        NetworkData(**_CNN, partition=Shards()), 10, 100, CNN_STEPS,
    ),
    "c": Setting(
        "c", "MNIST, one agent per writer, small CNN",
        NetworkData(rows="writers", side=14, model="cnn", test_rows=2000, every=5),
        10, 100, CNN_STEPS,
    ),
    "d": Setting(
        "d", "synthetic(1,1), 30 agents, softmax regression, 20 passes of batches of 10",
        NetworkData(rows="synthetic", model="softmax", compiled=True, num_agents=30, passes=20,
                    batch_size=10, every=5),
        10, 100, (0.005, 0.01, 0.02),
    ),
    "e": Setting(
        "e", "MNIST, 1000 agents with two digits each, power-law sizes, softmax regression",
        NetworkData(**_MNIST, model="softmax", num_agents=1000, partition=FewClasses(), passes=1,
                    batch_size=10),
        10, 100, (0.03, 0.06, 0.12),
    ),
    "f": Setting(
        "f", "MNIST, 80 agents with two easy digits, 20 with one of the others, one hidden layer",
        NetworkData(**_MLP, partition=EasyAndHard()), 10, 100, MLP_STEPS,
    ),
}  # fmt: skip
RIVALS = ("FedAvg", "FedAvg, averaged")  # whose final accuracies the others are timed by


def network_methods(setting: Setting) -> dict[str, Any]:
    """What is compared; every local step is step_size, so that one grid suits all."""
    step, num_active = setting.grid[0], setting.num_active
    common: dict[str, Any] = {"step_size": step, "num_active": num_active}
    adam = FedAdam(step_size=0.02)
    ahead = Average(LookAhead(adam), window="pass")
    default = LookAheadPasses(**common)
    fedavg = FedAvg(**common)

    def passes(policy: Any, server: Any) -> Federated:
        sampler = StratifiedPasses(num_active, policy)
        return Federated(sampler, LocalSteps(step), HorvitzThompson(), server)

    return {
        "FedAvg": fedavg,
        "FedAvg, averaged": FedAvg(**common, average="pass"),
        "FedAdam": Served(fedavg, adam),
        "FedAdam, averaged": Served(fedavg, Average(adam, window="pass")),
        "FedACG": Served(fedavg, LookAhead(ServerMomentum(momentum=0.85))),
        "FedVARP": FedVARP(**common),
        "SCAFFOLD": SCAFFOLD(**common),
        "clustered": ClusteredSampling(**common),
        "clustered, averaged": Served(ClusteredSampling(**common), Average(window="pass")),
        "Power-of-Choice": PowerOfChoice(**common),
        # In random order: agents are dealt class by class, and a draw along that order would take
        # about one agent of each class, which is a gain of the order and not of the method.
        "importance": importance(**common, agent_design=HartleyRao()),
        "stratified passes, averaged": passes(Uniform(), Average(window="pass")),
        "look-ahead Adam, averaged": Served(fedavg, ahead),
        "stratified passes, look-ahead Adam, averaged": passes(Uniform(), ahead),
        "default": default,
        "default, last model": passes(Memory(floor=default.floor), ahead.server),
    }


@dataclass(frozen=True)
class NetworkStudy(TunedStudy):
    """All methods on one set-up."""

    setting: Setting
    repetitions: int = 5
    seed: int = 0
    grid_rounds: int = 60
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
        """Choose the step sizes, run every method at its own and tell how it stands to FedAvg."""
        problem, _ = problem_of(self.source)
        chosen, methods = {}, {}
        for name, method in self.methods.items():
            chosen[name] = self.search(executor, name)
            methods[name] = at_step_size(method, chosen[name].best)
        results = self.run_methods(executor, methods)
        rows = [network_row(name, result, problem.num_params) for name, result in results.items()]
        levels = {row["name"]: row["accuracy"] for row in rows if row["name"] in RIVALS}
        for row, result in zip(rows, results.values(), strict=True):
            history = result.history
            mean = history.measured["accuracy"].mean(axis=0)
            row["rounds_to"] = {
                rival: first_round(history.measured_rounds, mean, level)
                for rival, level in levels.items()
            }
            row |= useless_steps(chosen[row["name"]])
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
        grid=setting.grid[-2:],
    )
    return replace(study, setting=small, repetitions=2, grid_rounds=10, grid_repetitions=1, widen=0)


def _quick_words(source: NetworkData, changes: Mapping[str, Any]) -> str:
    """What `quick` changes of the work: only what was different before."""
    words = {"side": "smaller images", "passes": "1 pass per turn"}
    words["local_steps"] = f"{changes.get('local_steps')} steps per turn"
    changed = {key for key, value in changes.items() if value != getattr(source, key)}
    listed = [word for key, word in words.items() if key in changed]
    return f"quick: {', '.join(listed)}" if listed else "quick"


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
