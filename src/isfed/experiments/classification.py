"""The paper's classification (section V-B) on ijcnn1, and the same on MNIST by writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isfed.algorithms import FedAvg, ISFedAvg
from isfed.datasets.named import Ijcnn1, Writers, ijcnn1, mnist_by_writer
from isfed.datasets.partition import by_column, iid, one_class, sizes_in_range
from isfed.experiments.measures import ErrorRates, HeldOutLoss
from isfed.experiments.tuned import Tuned
from isfed.problems import Logistic, Problem, Softmax
from isfed.sampling.policies import Current, Memory, Running

BLOCK = 500  # rows of the time series that are held out together
HELD_OUT_EVERY = 5  # every fifth block (or writer)
PAPER_ERRORS = {"FedAvg": 0.2245, "ISFedAvg": 0.1846}


@dataclass(frozen=True)
class Ijcnn1Source:
    """ijcnn1 over 100 agents: every agent one class (half of them positive), or a natural mix.

    With `held_out`, the training rows without every fifth block of 500: neighbouring rows are
    alike, so rows taken at random would be known from their neighbours.
    """

    partition: Literal["one-class", "natural"] = "one-class"
    num_agents: int = 100
    ridge: float = 1e-4
    seed: int = 0
    held_out: bool = False
    every: int = 50
    data_dir: Path | None = field(default=None, compare=False)

    def _load(self) -> Ijcnn1:
        return ijcnn1(self.data_dir)

    def _kept(self, rows: int) -> np.ndarray:
        blocks = np.arange(rows) // BLOCK
        return blocks % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def make(self) -> Problem:
        """The training problem."""
        train = self._load().train
        x, y = train.features, train.targets
        if self.held_out:
            kept = self._kept(len(y))
            x, y = x[kept], y[kept]
        if self.partition == "one-class":  # 3415 positive rows on 50 agents: 68 each
            shares = {-1.0: 0.5, 1.0: 0.5}
            split = one_class(y, num_agents=self.num_agents, shares=shares, seed=self.seed)
        else:
            share = len(y) / 35_000
            sizes = sizes_in_range(
                len(y), num_agents=self.num_agents, low=round(79 * share), high=round(688 * share),
                seed=self.seed,
            )  # fmt: skip
            split = iid(len(y), num_agents=self.num_agents, sizes=sizes, seed=self.seed)
        return Problem(split.federate(x, y), Logistic(ridge=self.ridge), name=self.partition)

    def measure(self, problem: Problem) -> ErrorRates:
        """Errors on the 91 701 test rows."""
        test = self._load().test
        return ErrorRates(test.features, test.targets, every=self.every)

    def held_out_loss(self, problem: Problem) -> HeldOutLoss:
        """The loss on the blocks held out, weighing the classes as the agents do."""
        train = self._load().train
        out = ~self._kept(len(train.targets))
        y = train.targets[out]
        weight = np.ones(y.size)
        if self.partition == "one-class":
            weight = np.where(y > 0, 1.0 / (y > 0).sum(), 1.0 / (y < 0).sum())
        return HeldOutLoss(problem.loss, train.features[out], y, weight, every=self.every)

    def describe(self) -> dict[str, Any]:
        """What the configuration says of the problem."""
        return {
            "kind": "ijcnn1",
            "partition": self.partition,
            "num_agents": self.num_agents,
            "ridge": self.ridge,
            "seed": self.seed,
            "every": self.every,
        }


@dataclass(frozen=True)
class WritersSource:
    """MNIST with one agent per writer, softmax regression, tested on writers never seen."""

    ridge: float = 1e-3
    batch_size: int = 10
    seed: int = 0
    held_out: bool = False
    every: int = 50
    data_dir: Path | None = field(default=None, compare=False)

    def _load(self) -> Writers:
        return mnist_by_writer(self.data_dir)

    def _kept(self, groups: np.ndarray) -> np.ndarray:
        _, index = np.unique(groups, return_inverse=True)
        return index % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def make(self) -> Problem:
        """The training problem."""
        train = self._load().train
        assert train.groups is not None
        x, y, groups = train.features, train.targets, train.groups
        if self.held_out:
            kept = self._kept(groups)
            x, y, groups = x[kept], y[kept], groups[kept]
        return Problem(
            by_column(groups).federate(x, y),
            Softmax(ridge=self.ridge, num_classes=10),
            batch_size=self.batch_size,
            name="writers",
        )

    def measure(self, problem: Problem) -> ErrorRates:
        """Errors on the 10 000 digits of 297 other writers."""
        test = self._load().test
        return ErrorRates(test.features, test.targets, every=self.every)

    def held_out_loss(self, problem: Problem) -> HeldOutLoss:
        """The loss on the writers held out, every writer with the same weight."""
        train = self._load().train
        assert train.groups is not None
        out = ~self._kept(train.groups)
        _, index, counts = np.unique(train.groups[out], return_inverse=True, return_counts=True)
        x, y = train.features[out], train.targets[out]
        return HeldOutLoss(problem.loss, x, y, 1.0 / counts[index], every=self.every)

    def describe(self) -> dict[str, Any]:
        """What the configuration says of the problem."""
        return {
            "kind": "writers",
            "ridge": self.ridge,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "every": self.every,
        }


def _methods(step_size: float, num_active: int, *, current: bool = True) -> dict[str, ISFedAvg]:
    common = {"step_size": step_size, "num_active": num_active}
    methods = {"FedAvg": FedAvg(**common)}
    if current:
        methods["current"] = ISFedAvg(**common, agents=Current(), examples=Current())
    methods["running"] = ISFedAvg(**common, agents=Running(), examples=Running())
    methods["memory"] = ISFedAvg(**common, agents=Memory(), examples=Memory())
    return methods


def paper_classification(source: Ijcnn1Source) -> Tuned:
    """Section V-B: K=100, L=10, B_k=E_k=1, mu=0.25, rho=1e-4."""
    grid = (0.0625, 0.25, 1.0, 2.0, 4.0, 8.0, 16.0)
    name = f"classification-{source.partition}"
    return Tuned(name, source, _methods(0.25, 10), grid, paper=PAPER_ERRORS)


def writers(source: WritersSource) -> Tuned:
    """539 writers, ten a round, ten digits each; `current` would read all 60 000 every round."""
    grid = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    return Tuned(
        "writers", source, _methods(0.2, 10, current=False), grid,
        rounds=1500, grid_rounds=500, grid_repetitions=2,
    )  # fmt: skip
