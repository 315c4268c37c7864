"""Where the problem of an experiment comes from: a recipe, a data set, or a file of the user's.

A source is a small record that makes the problem wherever it is needed, so that a cell can run in
another process or on another machine. Its table in the configuration makes it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from isfed.base.argument_checks import is_number
from isfed.datasets.read_options import Reading
from isfed.datasets.table_data import Columns, FederatedTable, read_table
from isfed.datasets.table_sources import open_source
from isfed.problems import PRESETS, Problem, Regression
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LinearLoss
from isfed.simulate import Measure
from isfed.studies.config_schema import (
    ConfigError,
    arguments,
    check_keys,
    check_known,
    make,
    read_arguments,
    read_value,
    whole_number,
    write_table,
    write_value,
)
from isfed.studies.name_registry import LOSSES, READERS, Registry, written


class ProblemSource(Protocol):
    """Where the problem of an experiment comes from."""

    def make(self) -> Problem:
        """Make or load the problem."""
        ...

    def measure(self, problem: Problem) -> Measure | None:
        """What to measure along the way beside the msd."""
        return None

    def describe(self) -> dict[str, Any]:
        """The [problem] that makes it again, with every default; what is derived has none."""
        return {}


@dataclass(frozen=True)
class RegressionSource(ProblemSource):
    """A generated regression."""

    recipe: Regression
    seed: int = 0

    def make(self) -> Problem:
        """Generate the problem."""
        return self.recipe.make(seed=self.seed)

    def describe(self) -> dict[str, Any]:
        """The recipe with every default."""
        table = write_table({key: getattr(self.recipe, key) for key in RECIPE_KEYS})
        return {"preset": self.recipe.name, "seed": self.seed, **table}


RECIPE_KEYS = arguments(Regression, without=("name",))


def _read_preset(given: Mapping[str, Any]) -> RegressionSource:
    check_keys(given, ("preset", "seed", *RECIPE_KEYS), where="[problem]")
    name = given.get("preset", "paper")
    check_known(name, PRESETS, where="[problem]: preset")
    changes = {
        key: read_value(value, RECIPE_KEYS[key].hint, where=f"[problem]: {key}")
        for key, value in given.items()
        if key in RECIPE_KEYS
    }
    recipe = make(PRESETS[name].replace, changes, where="[problem]")
    return RegressionSource(recipe, whole_number({"seed": 0, **given}, "seed", 0, "[problem]: "))


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set with a name; the fields of a subclass are its keys. These are common:

    Args:
        data_dir: the folder with the files; unless given, where `isfed.datasets.dataset_files`
            looks.
        num_agents: among how many agents the rows are divided.
        partition: how the rows are divided.
        target: the column to predict.
        ridge: weight of |params|^2.
        batch_size: B_k, examples per step.
        local_steps: E_k, steps of an agent per round.
        passes: over the data of an agent, in place of `local_steps` unless it is 0.
        every: rounds between two measurements.
        seed: the seed of the partition, or of data that are generated.
    """

    data_dir: Path | None = field(default=None, compare=False)
    not_keys: ClassVar[tuple[str, ...]] = ()
    usual_active: ClassVar[int] = 1  # agents a round, where nobody says how many

    @classmethod
    def located(cls, given: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The keys as read, with paths that are relative to `folder`."""
        if given.get("data_dir") is None:
            return given
        return given | {"data_dir": folder / given["data_dir"]}

    def make(self) -> Problem:
        """Load the data and deal them to the agents."""
        raise NotImplementedError

    def measure(self, problem: Problem) -> Measure | None:
        """Nothing beside the msd."""
        return None

    def describe(self) -> dict[str, Any]:
        """The name of the data set and every key."""
        keys = arguments(type(self), without=self.not_keys)
        options = {key: getattr(self, key) for key in keys}
        return {"data": DATA.name_of(self), **written(options, keys)}


DATA = Registry("data", DataSet)


def _read_data(given: Mapping[str, Any], folder: Path) -> DataSet:
    kind: Any = DATA.find(given["data"], where="[problem]: data")
    options = {key: value for key, value in given.items() if key != "data"}
    known = arguments(kind, without=kind.not_keys)
    check_keys(given, ("data", *known), where="[problem]")
    values = read_arguments(options, known, where="[problem]", readers=READERS)
    return make(kind, kind.located(values, folder), where="[problem]")


@dataclass(frozen=True, kw_only=True)
class FileSource(ProblemSource):
    """A table of the user's own.

    Args:
        file: Parquet, CSV, LIBSVM, Feather or Excel, packed or not.
        columns: which column is what.
        reading: how the file is read, where its name and its content do not say.
        loss: by name, or with its options; unless given, the one that fits the target.
        ridge: weight of |params|^2, of the loss that fits the target.
        batch_size: B_k, examples per step; an agent with fewer examples uses all of them.
        local_steps: E_k, steps of an agent per round.
        weights: whether every agent counts the same, or every row.
        sha256: the checksum of the file. If it is given, the file must have it.
    """

    file: Path
    columns: Columns
    reading: Reading = field(default_factory=Reading)
    loss: LinearLoss | None = None
    ridge: float = 1e-3
    batch_size: int = 8
    local_steps: int = 1
    weights: Literal["agents", "rows"] = "agents"
    sha256: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", Path(self.file))
        for name in ("batch_size", "local_steps"):
            value = getattr(self, name)
            if is_number(value) and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if not self.sha256:
            object.__setattr__(self, "sha256", file_digest(self.file))
        check_digest(self.file, self.sha256)

    def table(self) -> FederatedTable:
        """The table as federated data; read once for all that ask."""
        check_digest(self.file, self.sha256)
        table = _read(self.file, self.sha256, self.columns, self.reading)
        return replace(table, account=replace(table.account, weights=self.weights))

    def make(self) -> Problem:
        """Read the table; the loss is the one that fits its target unless another is given."""
        return self.problem_of(self.table())

    def problem_of(self, table: FederatedTable) -> Problem:
        """The problem of a table that was read."""
        sizes = np.minimum(self.batch_size, table.data.num_examples)
        loss = table.loss(ridge=self.ridge) if self.loss is None else self.loss
        steps = self.local_steps
        data = table.data
        if self.weights == "rows":
            counts = data.num_examples
            data = FederatedData(data.features, data.targets, data.offsets, counts)
        return Problem(data, loss, batch_size=sizes, local_steps=steps, name=self.file.name)

    def describe(self) -> dict[str, Any]:
        """The file with its columns and every default."""
        separate = ("columns", "reading")
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in separate}
        given |= {"file": self.file.resolve(), "loss": None}
        loss = {} if self.loss is None else {"loss": LOSSES.write(self.loss)}
        return write_table(given) | loss | write_value(self.columns) | write_value(self.reading)


def file_digest(file: Path) -> str:
    """The sha256 of a file; ValueError if there is none."""
    if not file.is_file():
        what = "is a folder" if file.exists() else "does not exist"
        raise ValueError(f"file {str(file)!r} {what}")
    status = file.stat()
    return _digest(file, status.st_mtime_ns, status.st_size)


def check_digest(file: Path, sha256: str) -> None:
    """Raise a ValueError unless a file has that checksum."""
    if file_digest(file) != sha256:
        raise ValueError(
            f"{file} is not the file that the configuration was written for (its sha256 "
            "differs); remove the key sha256 to take the file as it is now"
        )


@lru_cache(maxsize=8)
def _digest(file: Path, changed: int, size: int) -> str:
    """The sha256 of a file, computed again if it was written to."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _read(file: Path, sha256: str, columns: Columns, reading: Reading) -> FederatedTable:
    return read_table(open_source(file, reading), columns, release=True)


def _read_file(given: Mapping[str, Any], folder: Path) -> FileSource:
    parts = {
        FileSource: arguments(FileSource, without=("columns", "reading")),
        Columns: arguments(Columns),
        Reading: arguments(Reading),
    }
    check_keys(given, [key for known in parts.values() for key in known], where="[problem]")
    mine, columns, reading = (
        read_arguments(
            {k: v for k, v in given.items() if k in known}, known, where="[problem]",
            readers=READERS,
        )
        for known in parts.values()
    )  # fmt: skip
    options = mine | {
        "file": folder / mine["file"],
        "columns": make(Columns, columns, where="[problem]"),
        "reading": make(Reading, reading, where="[problem]"),
    }
    return make(FileSource, options, where="[problem]")


def read_problem(given: Any, folder: Path) -> Any:
    """The source that a [problem] names; paths in it are relative to `folder`."""
    kinds = ("preset", "data", "file")
    check_keys(given, where="[problem]")
    named = [key for key in kinds if key in given]
    if len(named) > 1:
        raise ConfigError(
            f"[problem] names a {named[0]} and a {named[1]}; it takes one of {', '.join(kinds)}"
        )
    if "data" in given:
        return _read_data(given, folder)
    return _read_file(given, folder) if "file" in given else _read_preset(given)


@dataclass(frozen=True, eq=False)
class Given(ProblemSource):
    """A problem that is there already."""

    problem: Problem

    def make(self) -> Problem:
        """The problem itself."""
        return self.problem

    def describe(self) -> dict[str, Any]:
        """A fingerprint of the data, and what is done with them."""
        data = self.problem.data
        parts = [data.features, data.targets, data.offsets, self.problem.local_steps,
                 self.problem.batch_size]  # fmt: skip
        parts += [] if data.weights is None else [data.weights]
        content = hashlib.sha256()
        for part in parts:
            content.update(f"{part.dtype} {part.shape} ".encode())
            content.update(np.ascontiguousarray(part).tobytes())
        return {
            "name": self.problem.name, "loss": repr(self.problem.loss),
            "sha256": content.hexdigest(),
        }  # fmt: skip
