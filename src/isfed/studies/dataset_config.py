"""Data sets and partitions that have a name in a configuration, each with the keys it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from isfed.datasets import partition as partitions
from isfed.datasets.encoder import standardise
from isfed.datasets.named_datasets import (
    breast_cancer,
    digits,
    ijcnn1,
    mnist_by_writer,
    parkinsons,
)
from isfed.datasets.partition import Partition
from isfed.problems import LeastSquares, Logistic, Problem, Softmax, Synthetic
from isfed.problems.synthetic_problems import PRESETS
from isfed.studies.name_registry import READERS, REGISTRIES, Registry
from isfed.studies.problem_sources import DATA, DataSet
from isfed.studies.test_measures import ErrorRates, HeldOutLoss

BLOCK = 500  # rows of the time series that are held out together
HELD_OUT_EVERY = 5  # every fifth block (or writer)


class Partitioning(Protocol):
    """How rows are dealt to agents."""

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        ...


class _ByClass:
    """Deals rows by their class; the fields of a subclass are the options of its function."""

    function: ClassVar[Callable[..., Partition]]

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        return type(self).function(labels, num_agents=num_agents, seed=seed, **vars(self))


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Rows dealt at random, equally many to every agent."""

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return partitions.iid(len(labels), num_agents=num_agents, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(_ByClass):
    """Every class dealt in shares of its own; the smaller `concentration`, the more unequal."""

    concentration: float = 0.5
    least: int = 1
    function = staticmethod(partitions.dirichlet)


@dataclass(frozen=True, kw_only=True)
class OneClass(_ByClass):
    """Every agent holds rows of one class."""

    function = staticmethod(partitions.one_class)


@dataclass(frozen=True, kw_only=True)
class Shards(_ByClass):
    """Rows sorted by class and cut into shards, `per_agent` of them to every agent."""

    per_agent: int = 2
    function = staticmethod(partitions.shards)


@dataclass(frozen=True, kw_only=True)
class FewClasses(_ByClass):
    """Every agent holds `per_agent` classes, in amounts with a heavy tail (FedProx's MNIST)."""

    per_agent: int = 2
    spread: float = 2.0
    least: int = 5
    function = staticmethod(partitions.few_classes)


@dataclass(frozen=True, kw_only=True)
class EasyAndHard(_ByClass):
    """A `share` of the agents holds the first `easy` classes, the others one other class each."""

    easy: int = 2
    share: float = 0.8
    function = staticmethod(partitions.easy_and_hard)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Rows dealt at random, in amounts with a heavy tail."""

    spread: float = 2.0
    least: int = 1

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        sizes = partitions.power_law_sizes(
            len(labels), num_agents=num_agents, seed=seed, **vars(self)
        )
        return partitions.iid(len(labels), num_agents=num_agents, sizes=sizes, seed=seed)


PARTITIONS = Registry(
    "partition", Partitioning, iid=Iid, dirichlet=Dirichlet, one_class=OneClass, shards=Shards,
    few_classes=FewClasses, easy_and_hard=EasyAndHard, power_law=PowerLaw,
)  # fmt: skip
REGISTRIES[Partitioning] = PARTITIONS
READERS[Partitioning] = PARTITIONS.read


class _Tested(DataSet):
    """Rows to train on, of which a fifth can be held out, and rows to test on."""

    every: int
    held_out: bool
    not_keys: ClassVar[tuple[str, ...]] = ("held_out",)
    usual_active: ClassVar[int] = 10

    def _load(self) -> Any:
        """The rows to train and to test on."""
        raise NotImplementedError

    def _kept(self, train: Any) -> np.ndarray:
        """Which rows are trained on when some are held out."""
        raise NotImplementedError

    def _weights(self, y: np.ndarray, groups: Any) -> np.ndarray:
        """The weight of every row held out."""
        raise NotImplementedError

    def _training(self) -> tuple[np.ndarray, np.ndarray, Any]:
        train = self._load().train
        kept: Any = self._kept(train) if self.held_out else slice(None)
        groups = None if train.groups is None else train.groups[kept]
        return train.features[kept], train.targets[kept], groups

    def measure(self, problem: Problem) -> ErrorRates | HeldOutLoss:
        """Errors on the test rows: 91 701 of ijcnn1, 10 000 digits of 297 other writers.

        Where rows are held out, the loss on these.
        """
        if self.held_out:
            return self.held_out_loss(problem)
        test = self._load().test
        return ErrorRates(test.features, test.targets, every=self.every)

    def held_out_loss(self, problem: Problem) -> HeldOutLoss:
        """The loss on the rows held out, weighing them as the agents do."""
        train = self._load().train
        out = ~self._kept(train)
        x, y = train.features[out], train.targets[out]
        weights = self._weights(y, None if train.groups is None else train.groups[out])
        return HeldOutLoss(problem.loss, x, y, weights, every=self.every)


@dataclass(frozen=True, kw_only=True)
class Ijcnn1Source(_Tested):
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

    def _load(self) -> Any:
        return ijcnn1(self.data_dir)

    def _kept(self, train: Any) -> np.ndarray:
        blocks = np.arange(len(train.targets)) // BLOCK
        return blocks % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def _weights(self, y: np.ndarray, groups: Any) -> np.ndarray:
        if self.partition == "natural":
            return np.ones(y.size)
        return np.where(y > 0, 1.0 / (y > 0).sum(), 1.0 / (y < 0).sum())

    def make(self) -> Problem:
        """The training problem."""
        x, y, _ = self._training()
        common: dict[str, Any] = {"num_agents": self.num_agents, "seed": self.seed}
        if self.partition == "one-class":  # 3415 positive rows on 50 agents: 68 each
            split = partitions.one_class(y, shares={-1.0: 0.5, 1.0: 0.5}, **common)
        else:
            share = len(y) / 35_000
            low, high = round(79 * share), round(688 * share)
            sizes = partitions.sizes_in_range(len(y), low=low, high=high, **common)
            split = partitions.iid(len(y), sizes=sizes, **common)
        return Problem(split.federate(x, y), Logistic(ridge=self.ridge), name=self.partition)


@dataclass(frozen=True, kw_only=True)
class WritersSource(_Tested):
    """MNIST with one agent per writer, softmax regression, tested on writers never seen."""

    ridge: float = 1e-3
    batch_size: int = 10
    held_out: bool = False
    every: int = 50

    def _load(self) -> Any:
        return mnist_by_writer(self.data_dir)

    def _kept(self, train: Any) -> np.ndarray:
        _, index = np.unique(train.groups, return_inverse=True)
        return index % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def _weights(self, y: np.ndarray, groups: Any) -> np.ndarray:
        """Every writer has the same weight."""
        _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
        return 1.0 / counts[index]

    def make(self) -> Problem:
        """The training problem."""
        x, y, groups = self._training()
        data = partitions.by_column(groups).federate(x, y)
        loss = Softmax(ridge=self.ridge, num_classes=10)
        return Problem(data, loss, batch_size=self.batch_size, name="writers")


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
        return self._dealt(breast_cancer(), Logistic(ridge=self.ridge), "breast-cancer")

    def _dealt(self, rows: Any, loss: Any, name: str, *, scaled: bool = True) -> Problem:
        split = self.partition(rows.targets, self.num_agents, self.seed)
        data = split.federate(rows.features, rows.targets)
        data = standardise(data)[0] if scaled else data
        sizes = np.minimum(self.batch_size, data.num_examples)
        return Problem(data, loss, batch_size=sizes, local_steps=self.local_steps, name=name)


@dataclass(frozen=True, kw_only=True)
class Digits(BreastCancer):
    """1797 small digits, dealt to agents."""

    num_agents: int = 30
    partition: Partitioning = field(default_factory=Dirichlet)
    usual_active: ClassVar[int] = 3

    def make(self) -> Problem:
        """Softmax regression."""
        loss = Softmax(ridge=self.ridge, num_classes=10)
        return self._dealt(digits(), loss, "digits", scaled=False)


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

Made = tuple[Problem, int]  # with the usual number of agents a round


def _preset(name: str, data_dir: Path | None) -> Made:
    return PRESETS[name].make(), 6


def _data(name: str, data_dir: Path | None, **options: Any) -> Made:
    source = DATA[name](data_dir=data_dir, **options)
    return source.make(), source.usual_active


# Problems that have a name on the command line.
NAMED: dict[str, Callable[[Path | None], Made]] = {
    **{name: partial(_preset, name) for name in PRESETS},
    "ijcnn1": partial(_data, "ijcnn1"),
    "ijcnn1-natural": partial(_data, "ijcnn1", partition="natural"),
    **{n: partial(_data, n) for n in ("parkinsons", "digits", "breast-cancer", "synthetic")},
}
