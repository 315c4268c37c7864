"""Data sets that have a name in a configuration, each with the keys that its record has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from isfed.datasets.encoder import standardise
from isfed.datasets.named_datasets import (
    Ijcnn1,
    Writers,
    breast_cancer,
    digits,
    ijcnn1,
    mnist_by_writer,
    parkinsons,
)
from isfed.datasets.partition import by_column, iid, one_class, sizes_in_range
from isfed.problems import LeastSquares, Logistic, Problem, Softmax, Synthetic
from isfed.studies.partition_config import Dirichlet, Iid, Partitioning
from isfed.studies.problem_sources import DATA, DataSet
from isfed.studies.test_measures import ErrorRates, HeldOutLoss

BLOCK = 500  # rows of the time series that are held out together
HELD_OUT_EVERY = 5  # every fifth block (or writer)


@dataclass(frozen=True, kw_only=True)
class Ijcnn1Source(DataSet):
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
    not_keys: ClassVar[tuple[str, ...]] = ("held_out",)
    usual_active: ClassVar[int] = 10

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


@dataclass(frozen=True, kw_only=True)
class WritersSource(DataSet):
    """MNIST with one agent per writer, softmax regression, tested on writers never seen."""

    ridge: float = 1e-3
    batch_size: int = 10
    held_out: bool = False
    every: int = 50
    not_keys: ClassVar[tuple[str, ...]] = ("held_out",)
    usual_active: ClassVar[int] = 10

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


@dataclass(frozen=True, kw_only=True)
class Parkinsons(DataSet):
    """Parkinson's telemonitoring: one agent per subject, a score of the symptoms to predict."""

    target: Literal["motor_UPDRS", "total_UPDRS"] = "total_UPDRS"
    ridge: float = 1e-2
    batch_size: int = 8
    local_steps: int = 1
    usual_active: ClassVar[int] = 4

    def make(self) -> Problem:
        """Standardised features, centred targets."""
        data, _ = standardise(parkinsons(self.data_dir, target=self.target).federate())
        centred = type(data)(data.features, data.targets - data.targets.mean(), data.offsets)
        return Problem(
            centred, LeastSquares(ridge=self.ridge), batch_size=self.batch_size,
            local_steps=self.local_steps, name="parkinsons",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BreastCancer(DataSet):
    """569 tumours, malignant or not, dealt to agents."""

    num_agents: int = 20
    partition: Partitioning = field(default_factory=Iid)
    ridge: float = 1e-2
    batch_size: int = 4
    local_steps: int = 1
    seed: int = 0
    usual_active: ClassVar[int] = 2

    def make(self) -> Problem:
        """Standardised features, logistic regression."""
        rows = breast_cancer()
        split = self.partition(rows.targets, self.num_agents, self.seed)
        data, _ = standardise(split.federate(rows.features, rows.targets))
        sizes = np.minimum(self.batch_size, data.num_examples)
        return Problem(
            data, Logistic(ridge=self.ridge), batch_size=sizes, local_steps=self.local_steps,
            name="breast-cancer",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Digits(DataSet):
    """1797 small digits, dealt to agents."""

    num_agents: int = 30
    partition: Partitioning = field(default_factory=Dirichlet)
    ridge: float = 1e-2
    batch_size: int = 4
    local_steps: int = 1
    seed: int = 0
    usual_active: ClassVar[int] = 3

    def make(self) -> Problem:
        """Softmax regression."""
        rows = digits()
        split = self.partition(rows.targets, self.num_agents, self.seed)
        data = split.federate(rows.features, rows.targets)
        sizes = np.minimum(self.batch_size, data.num_examples)
        loss = Softmax(ridge=self.ridge, num_classes=10)
        return Problem(data, loss, batch_size=sizes, local_steps=self.local_steps, name="digits")


@dataclass(frozen=True, kw_only=True)
class SyntheticSource(DataSet, Synthetic):
    """synthetic(alpha, beta) of FedProx: the fields of `isfed.Synthetic`, and a seed."""

    seed: int = 0
    not_keys: ClassVar[tuple[str, ...]] = ("data_dir",)
    usual_active: ClassVar[int] = 10

    def make(self) -> Problem:
        """Generate the problem."""
        return Synthetic.make(self, seed=self.seed)


DATA.add("ijcnn1", Ijcnn1Source)
DATA.add("writers", WritersSource)
DATA.add("parkinsons", Parkinsons)
DATA.add("breast-cancer", BreastCancer)
DATA.add("digits", Digits)
DATA.add("synthetic", SyntheticSource)
