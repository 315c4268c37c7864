"""Networks in a configuration: `data = "network"`, with rows, model and partition by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.datasets.images import fashion_mnist, mnist
from isfed.datasets.named import digits, mnist_by_writer
from isfed.datasets.partition import Partition, by_column
from isfed.experiments.deals import Dirichlet, Partitioning
from isfed.experiments.measures import LossAndAccuracy
from isfed.experiments.sources import DATA, DataSet
from isfed.problems import Problem, Softmax
from isfed.problems.devices import Synthetic
from isfed.simulate import Measure

Rows = Literal["digits", "mnist", "fashion-mnist", "writers", "synthetic"]
TEST_EVERY = 10  # of rows without a test part of their own, every tenth is kept for it
HELD_OUT_EVERY = 5


class _Loaded(NamedTuple):
    """Rows with their classes, the natural owners if any, and the rows to test on."""

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray | None
    test_x: np.ndarray
    test_y: np.ndarray


def make_module(model: str, shape: tuple[int, ...], hidden: int) -> Any:
    """A module for rows of that shape and ten classes; a function that can be sent elsewhere."""
    from isfed.torch.models import find_model

    return find_model(model)(shape, 10, hidden)


@dataclass(frozen=True, kw_only=True)
class NetworkData(DataSet):
    """A neural network on images or on FedProx's synthetic data.

    rows: which data. "digits" needs no files; "writers" and "synthetic" are divided into agents
        already.
    model: softmax, mlp, cnn, or "package.module:function", called with the shape of a row, the
        number of classes and `hidden`.
    compiled: whether to run the softmax model in compiled code instead of PyTorch, which is many
        times faster on small data.
    hidden: units of the hidden layer.
    side: pixels along an image, 28 or 14; 14 averages MNIST's pixels two by two.
    num_agents: among how many agents the rows are divided, unless they are divided already.
    partition: how they are divided.
    local_steps: E_k, steps of an agent per round, unless `passes` is given.
    passes: E_k as the number of times that an agent goes through its examples; 0 for `local_steps`.
    batch_size: B_k, examples per step; an agent with fewer examples uses all of them.
    score: how the norm of an example's gradient is found: "last_layer" (an upper bound, cheap) or
        "exact".
    test_rows: the largest number of rows to test on; 0 for all.
    every: rounds between evaluations.
    """

    rows: Rows = "digits"
    model: str = "mlp"
    compiled: bool = False
    hidden: int = 32
    side: int = 28
    num_agents: int = 20
    partition: Partitioning = field(default_factory=Dirichlet)
    local_steps: int = 5
    passes: int = 0
    batch_size: int = 20
    score: Literal["last_layer", "exact"] = "last_layer"
    test_rows: int = 0
    every: int = 10
    seed: int = 0
    held_out: bool = False
    not_keys: ClassVar[tuple[str, ...]] = ("held_out",)
    usual_active: ClassVar[int] = 5

    def __post_init__(self) -> None:
        for name in ("hidden", "num_agents", "batch_size", "every", "local_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name, none in (("test_rows", "all rows"), ("passes", "local_steps steps")):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be at least 1, or 0 for {none}"
                )
        if self.side not in (14, 28):
            raise ValueError(f"side={self.side} must be 28 or 14")
        if self.compiled and self.model != "softmax":
            raise ValueError(f"compiled=true needs model='softmax', not {self.model!r}")

    def _load(self) -> _Loaded:
        if self.rows == "digits":
            found = digits()
            return _split(found.features.reshape(-1, 8, 8).astype(np.float32), found.targets, None)
        if self.rows == "synthetic":
            data = Synthetic(num_agents=self.num_agents).make(seed=self.seed).data
            owners = np.repeat(np.arange(data.num_agents), data.num_examples)
            # A network has biases of its own: it does without the constant feature.
            return _split(data.features[:, :-1].astype(np.float32), data.targets, owners)
        if self.rows == "writers":
            both = mnist_by_writer(self.data_dir)
            parts = [
                (_images(p.features.reshape(-1, 28, 28), self.side), p.targets)
                for p in (both.train, both.test)
            ]
            return _Loaded(*parts[0], both.train.groups, *parts[1])
        load = mnist if self.rows == "mnist" else fashion_mnist
        found = load(self.data_dir)
        train, test = _images(found.train_x, self.side), _images(found.test_x, self.side)
        return _Loaded(train, found.train_y, None, test, found.test_y)

    def _kept(self, rows: int) -> np.ndarray:
        """Which training rows are not held out; the same whatever the partition."""
        order = np.random.default_rng(12345).permutation(rows)
        return order % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def make(self) -> Problem:
        """The training problem."""
        found = self._load()
        x, y, owners = found.x, found.y.astype(np.int64), found.owners
        if self.held_out:
            kept = self._kept(len(y))
            x, y = x[kept], y[kept]
            owners = None if owners is None else owners[kept]
        targets = y.astype(np.float64) if self.compiled else y
        data = self._dealt(y, owners).federate(self._flat(x), targets)
        sizes = np.minimum(self.batch_size, data.num_examples)
        steps: Any = self.local_steps
        if self.passes:
            steps = -(-self.passes * data.num_examples // sizes)
        loss = self._loss(x.shape[1:])
        # As with a network, nobody asks for the minimiser, which need not exist without a ridge.
        return Problem(
            data, loss, local_steps=steps, batch_size=sizes, optimum=None, name=self.rows
        )

    def _loss(self, shape: tuple[int, ...]) -> Any:
        if self.compiled:
            return Softmax(ridge=0.0, num_classes=10)
        from isfed.torch import Network

        module = partial(make_module, self.model, shape, self.hidden)
        return Network(module, score=self.score, seed=self.seed)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        """Rows as the loss takes them: flat and with a constant feature for the compiled agents."""
        if not self.compiled:
            return x
        flat = x.reshape(len(x), -1).astype(np.float64)
        return np.hstack([flat, np.ones((len(flat), 1))])

    def _evaluated(self, problem: Problem, x: np.ndarray, y: np.ndarray) -> Measure:
        """Loss and accuracy on rows, `test_rows` of them at most."""
        step = -(-len(y) // self.test_rows) if self.test_rows else 1
        x, y = self._flat(x[::step]), y[::step].astype(np.int64)
        if self.compiled:
            return LossAndAccuracy(problem.loss, x, y.astype(np.float64), every=self.every)
        from isfed.torch import Evaluate

        return Evaluate(problem.loss, x, y, every=self.every)

    def _dealt(self, y: np.ndarray, owners: np.ndarray | None) -> Partition:
        if owners is not None:
            return by_column(owners)
        return self.partition(y, self.num_agents, self.seed)

    def measure(self, problem: Problem) -> Measure:
        """Loss and accuracy on the test rows."""
        found = self._load()
        return self._evaluated(problem, found.test_x, found.test_y)

    def held_out_loss(self, problem: Problem) -> Measure:
        """Loss and accuracy on the training rows held out."""
        found = self._load()
        out = np.flatnonzero(~self._kept(len(found.y)))
        return self._evaluated(problem, found.x[out], found.y[out])


def _split(x: np.ndarray, y: np.ndarray, owners: np.ndarray | None) -> _Loaded:
    """Every tenth row, of every owner in turn, is for the test."""
    out = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    kept = None if owners is None else owners[~out]
    return _Loaded(x[~out], y[~out], kept, x[out], y[out])


def _images(pixels: np.ndarray, side: int) -> np.ndarray:
    pixels = pixels.astype(np.float32)
    if side == 14:
        pixels = pixels.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))
    return pixels


DATA.add("network", NetworkData)
