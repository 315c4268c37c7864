"""Networks in a configuration: `data = "network"`, with rows, model and partition by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np

from isfed.base.atomic_files import declared_size
from isfed.base.import_by_name import check_allowed
from isfed.datasets.dataset_files import RefusedFileError, check_size
from isfed.datasets.named_datasets import digits, fashion_mnist, mnist, mnist_by_writer
from isfed.datasets.partition import Partition, by_column
from isfed.problems import Problem, Softmax
from isfed.problems.synthetic_problems import Synthetic
from isfed.simulate import Measure
from isfed.studies.dataset_config import Dirichlet, Partitioning
from isfed.studies.problem_sources import DATA, DataSet, check_digest, file_digest
from isfed.studies.test_measures import LossAndAccuracy

IMAGES = ("mnist", "fashion-mnist", "writers")  # those of which `side` is the size
ROWS = ("digits", *IMAGES, "synthetic")
HELD_OUT_EVERY = 5
KNOWN = ("x", "y", "agent", "test_x", "test_y")
TEST_EVERY = 10  # of rows without a test part of their own, every tenth is kept for it


class Rows(NamedTuple):
    """Rows with their classes, the natural owners if any, and the rows to test on."""

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray | None
    test_x: np.ndarray
    test_y: np.ndarray

    @property
    def num_classes(self) -> int:
        """One more than the largest."""
        return 1 + int(max(self.y.max(), self.test_y.max()))


def read_rows(file: Path, most_gigabytes: float | None = None) -> Rows:
    """The arrays x and y, and agent, test_x and test_y if any; a ValueError says what is wrong.

    Args:
        most_gigabytes: what the file may unpack to, see `isfed.datasets.dataset_files.unpacked`.
    """
    arrays = _load_file(file, most_gigabytes)
    x, y = _pair(file, arrays, "x", "y")
    owners = arrays.get("agent")
    if owners is not None:
        _check_owners(file, owners, y)
    if "test_x" in arrays:
        rows = Rows(x, y, owners, *_pair(file, arrays, "test_x", "test_y"))
        if rows.x.shape[1:] != rows.test_x.shape[1:]:
            raise ValueError(f"{file}: the rows of x and test_x have different shapes")
    else:
        rows = _split_file(file, x, y, owners)
    _check_classes(file, rows)
    return rows


def _load_file(file: Path, most_gigabytes: float | None) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as content:
            check_size(file, declared_size(content.zip), most_gigabytes)
            arrays = {name: content[name] for name in content.files}
    except RefusedFileError:
        raise
    except (OSError, ValueError, BadZipFile, MemoryError) as error:
        raise ValueError(f"{file} is not a file that numpy.savez wrote: {error}") from error
    tests = {"test_x", "test_y"} & arrays.keys()
    if not {"x", "y"} <= arrays.keys() or len(tests) == 1 or arrays.keys() - set(KNOWN):
        raise ValueError(
            f"{file} has the arrays {', '.join(arrays)}; it needs x and y, may have agent, and "
            "test_x with test_y"
        )
    return arrays


def _pair(file: Path, arrays: dict[str, np.ndarray], *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their classes.

    Floats become float32, bytes are pixels from 0 to 255 and become floats from 0 to 1, and other
    whole numbers, e.g. token ids, stay.
    """
    x, y = (arrays[name] for name in names)
    if x.ndim < 2 or y.shape != (len(x),) or len(x) == 0:
        raise ValueError(
            f"{file}: {names[0]} has shape {x.shape} and {names[1]} {y.shape}; they must have one "
            "row and one class per example"
        )
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise ValueError(f"{file}: {names[1]} must be whole numbers from 0, the classes")
    if x.dtype.kind not in "iuf":
        raise ValueError(f"{file}: {names[0]} has numbers of type {x.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"{file}: {names[0]} has entries that are not finite")
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255), y
    return x.astype(np.float32 if x.dtype.kind == "f" else np.int64), y


def _check_owners(file: Path, owners: np.ndarray, y: np.ndarray) -> None:
    if owners.shape != y.shape:
        raise ValueError(f"{file}: agent has shape {owners.shape}, y {y.shape}")
    if owners.dtype.kind not in "iuUS":
        raise ValueError(f"{file}: agent must be whole numbers or text, not {owners.dtype}")


def _check_classes(file: Path, rows: Rows) -> None:
    present = np.unique(np.concatenate([rows.y, rows.test_y]))
    if present[0] > 0 or 2 * present.size < rows.num_classes:
        listed = ", ".join(map(str, present[:5])) + (", ..." if present.size > 5 else "")
        raise ValueError(
            f"{file}: y has the {present.size} classes {listed}; number them from 0 without gaps"
        )


def _split_file(file: Path, x: np.ndarray, y: np.ndarray, owners: np.ndarray | None) -> Rows:
    """Every tenth row in random order is for the test; an owner keeps at least one for training."""
    place = np.random.default_rng(12345).permutation(len(y))
    out = place % TEST_EVERY == TEST_EVERY - 1
    if owners is not None:
        for owner in np.setdiff1d(owners, owners[~out]):
            out[np.flatnonzero(owners == owner)[0]] = False
    if not out.any():
        raise ValueError(
            f"{file}: {len(y)} rows are too few to keep some for the test; add test_x and test_y"
        )
    return Rows(x[~out], y[~out], None if owners is None else owners[~out], x[out], y[out])


def make_module(model: str, shape: tuple[int, ...], classes: int, hidden: int) -> Any:
    """A module for rows of that shape; a function that can be sent elsewhere."""
    from isfed.torch.models import find_model

    return find_model(model)(shape, classes, hidden)


@dataclass(frozen=True, kw_only=True)
class NetworkData(DataSet):
    """A neural network on images, on FedProx's synthetic data, or on arrays of the user's own.

    Args:
        rows: which data, by name, or the path of a file that `numpy.savez` wrote, e.g. "mine.npz":
            x with one row per example, y with classes from 0, and if you have them agent (of every
            row), test_x and test_y. "digits" needs no files; "writers", "synthetic" and a file with
            agent are divided into agents already.
        model: softmax, mlp, cnn, or "package.module:function", called with the shape of a row, the
            number of classes and `hidden`.
        compiled: whether to run the softmax model in compiled code instead of PyTorch, which is
            many times faster on small data.
        hidden: units of the hidden layer.
        side: pixels along an image, 28 or 14; 14 averages MNIST's pixels two by two.
        num_agents: among how many agents the rows are divided, unless they are divided already.
        partition: how they are divided.
        local_steps: E_k, steps of an agent per round, unless `passes` is given.
        passes: E_k as the number of times that an agent goes through its examples; 0 for
            `local_steps`.
        batch_size: B_k, examples per step; an agent with fewer examples uses all of them.
        score: how the norm of an example's gradient is found: "last_layer" (an upper bound, cheap)
            or "exact".
        optimizer: of the agents, made anew for every turn: the name of a class in torch.optim, or
            "package.module:function"; plain gradient steps unless given.
        momentum: of the optimizer; SGD unless one is named.
        weight_decay: of the optimizer; SGD unless one is named.
        device: "cpu", "cuda", "cuda:1", "mps".
        test_rows: the largest number of rows to test on; 0 for all.
        every: rounds between evaluations.
        most_gigabytes: what the file of rows may unpack to; unless given, 1 GB or 20 times the
            file.
        sha256: the checksum of the file of rows. If it is given, the file must have it.
    """

    rows: str = "digits"
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
    optimizer: str | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    device: str = "cpu"
    test_rows: int = 0
    every: int = 10
    seed: int = 0
    sha256: str | None = None
    most_gigabytes: float | None = None
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
        for name in ("momentum", "weight_decay"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be a number >= 0")
        if self.compiled and self.model != "softmax":
            raise ValueError(f"compiled=true needs model='softmax', not {self.model!r}")
        if self.compiled and (
            self.optimizer or self.momentum or self.weight_decay or self.device != "cpu"
        ):
            raise ValueError("compiled=true takes plain gradient steps on a CPU")
        if self._is_file:
            self._check_file()
        elif self.sha256 is not None:
            raise ValueError(f"sha256 is for a file of your own; rows={self.rows!r} has none")

    @property
    def _is_file(self) -> bool:
        """Whether the rows are the user's own."""
        return self.rows not in ROWS

    def _check_file(self) -> None:
        if self.side != 28:
            raise ValueError("side is for MNIST; a file has images of the size they are to have")
        if not self.rows.endswith(".npz"):
            raise ValueError(
                f"rows={self.rows!r} must be one of {', '.join(ROWS)}, or the path of an .npz file"
            )
        if not self.sha256:
            object.__setattr__(self, "sha256", file_digest(Path(self.rows)))
        check_digest(Path(self.rows), self.sha256 or "")

    @classmethod
    def located(cls, given: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The keys with paths that do not depend on where a configuration lies."""
        options = super().located(given, folder)
        if str(options["rows"]).endswith(".npz"):
            options["rows"] = str((folder / options["rows"]).resolve())
        # Checked here, although they are imported later, where the agents run.
        for name in (options["model"], options["optimizer"]):
            if name is not None and ":" in name:
                check_allowed(name)
        return options

    def _load(self) -> Rows:
        if self._is_file:
            check_digest(Path(self.rows), self.sha256 or "")
            return self._checked(read_rows(Path(self.rows), self.most_gigabytes))
        if self.rows == "digits":
            small = digits()
            return _split(small.features.reshape(-1, 8, 8).astype(np.float32), small.targets, None)
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
            return Rows(*parts[0], both.train.groups, *parts[1])
        load = mnist if self.rows == "mnist" else fashion_mnist
        loaded = load(self.data_dir)
        train, test = _images(loaded.train_x, self.side), _images(loaded.test_x, self.side)
        return Rows(train, loaded.train_y, None, test, loaded.test_y)

    def _checked(self, rows: Rows) -> Rows:
        """The user's own rows, if the model can take them and no key is at odds with them."""
        usual = NetworkData()
        dealt = (self.partition, self.num_agents) != (usual.partition, usual.num_agents)
        if rows.owners is not None and dealt:
            raise ValueError(
                f"{self.rows} says whose row is whose (agent): leave out partition and num_agents"
            )
        if rows.x.dtype.kind != "f" and ":" not in self.model:
            raise ValueError(
                f"{self.rows}: x has whole numbers, which model={self.model!r} does not take; save "
                "floats, e.g. x.astype('float32'), or name a model of your own that takes them"
            )
        return rows

    def _kept(self, rows: int) -> np.ndarray:
        """Which training rows are not held out; the same whatever the partition."""
        order = np.random.default_rng(12345).permutation(rows)
        return order % HELD_OUT_EVERY != HELD_OUT_EVERY - 1

    def make(self) -> Problem:
        """The training problem."""
        rows = self._load()
        x, y, owners = rows.x, rows.y.astype(np.int64), rows.owners
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
        loss = self._loss(x.shape[1:], rows.num_classes if self._is_file else 10)
        # As with a network, nobody asks for the minimiser, which need not exist without a ridge.
        return Problem(
            data, loss, local_steps=steps, batch_size=sizes, optimum=None, name=self.rows
        )

    def _loss(self, shape: tuple[int, ...], classes: int) -> Any:
        if self.compiled:
            return Softmax(ridge=0.0, num_classes=classes)
        from isfed.torch import Network
        from isfed.torch.models import find_optimizer

        module = partial(make_module, self.model, shape, classes, self.hidden)
        options = {k: getattr(self, k) for k in ("momentum", "weight_decay") if getattr(self, k)}
        optimizer = None
        if self.optimizer or options:
            optimizer = find_optimizer(self.optimizer or "SGD", options)
        return Network(
            module, score=self.score, optimizer=optimizer, device=self.device, seed=self.seed
        )

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
        """Loss and accuracy on the test rows, or on those held out."""
        if self.held_out:
            return self.held_out_loss(problem)
        rows = self._load()
        return self._evaluated(problem, rows.test_x, rows.test_y)

    def held_out_loss(self, problem: Problem) -> Measure:
        """Loss and accuracy on the training rows held out."""
        rows = self._load()
        out = np.flatnonzero(~self._kept(len(rows.y)))
        return self._evaluated(problem, rows.x[out], rows.y[out])


def _split(x: np.ndarray, y: np.ndarray, owners: np.ndarray | None) -> Rows:
    """Every tenth row, of every owner in turn, is for the test."""
    out = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    kept = None if owners is None else owners[~out]
    return Rows(x[~out], y[~out], kept, x[out], y[out])


def _images(pixels: np.ndarray, side: int) -> np.ndarray:
    pixels = pixels.astype(np.float32)
    return pixels.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) if side == 14 else pixels


def unused_keys(problem: Mapping[str, Any]) -> set[str]:
    """The keys of a [problem] of networks that play no role beside the others."""
    rows = problem.get("rows")
    dealt = {"writers": {"num_agents", "partition"}, "synthetic": {"partition"}}
    unused = {"local_steps" if problem.get("passes") else "passes"} | dealt.get(str(rows), set())
    if rows not in IMAGES:
        unused.add("side")
    if problem.get("model") == "softmax":
        unused.add("hidden")
    if problem.get("compiled"):
        unused |= {"score", "optimizer", "momentum", "weight_decay", "device"}
    return unused


DATA.add("network", NetworkData)
