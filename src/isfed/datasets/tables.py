"""Your own table as federated data: name the columns of agent and target, the rest is features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from isfed.datasets import encoding
from isfed.datasets.partition import Partition, by_column
from isfed.datasets.scaling import Scaling, federated_mean, federated_scaling
from isfed.datasets.sources import Source, open_source
from isfed.problems.data import FederatedData
from isfed.problems.losses import LeastSquares, LinearLoss, Logistic, Softmax

INTERCEPT = "(intercept)"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column is what, and what is done to them.

    `features` are all the other columns unless named. Text columns become one column of zeros and
    ones per category, and so do the columns named in `categorical`. `missing` is "error", "mean"
    (of all agents' known values) or a number to put there. `standardise` gives every measured
    feature mean 0 and standard deviation 1, from sums only; `intercept` adds a feature that is 1.
    """

    agent: str
    target: str
    features: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    task: Literal["regression", "classification"] = "regression"
    missing: Literal["error", "mean"] | float = "error"
    standardise: bool = True
    intercept: bool = True
    least_rows: int = 2  # an agent with fewer is an error

    def __post_init__(self) -> None:
        if self.agent == self.target:
            raise ValueError(f"column {self.agent!r} cannot be both the agent and the target")
        for name in ("features", "categorical"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a list of columns")
        for name in (self.agent, self.target):
            if name in (self.features or ()):
                raise ValueError(f"column {name!r} cannot be a feature too")
        if self.task not in ("regression", "classification"):
            raise ValueError(f"task={self.task!r} must be 'regression' or 'classification'")
        number = isinstance(self.missing, int | float) and np.isfinite(self.missing)
        if self.missing not in ("error", "mean") and not number:
            raise ValueError(f"missing={self.missing!r} must be 'error', 'mean' or a number")
        if self.least_rows < 1:
            raise ValueError(f"least_rows={self.least_rows} must be at least 1")


@dataclass(frozen=True, eq=False)
class FederatedTable:
    """A table as federated data, with the names that the numbers had."""

    data: FederatedData
    columns: Columns
    agents: np.ndarray  # (K,) names
    features: tuple[str, ...]  # (M,) names; "colour=red" for a category
    classes: tuple  # what the targets -1, +1 or 0, 1, ... stand for; empty for a regression
    imputed: Mapping[str, int]  # how many missing values of which feature were filled
    scaling: Scaling  # of the measured features; mean 0 and scale 1 for the others
    _categories: Mapping[str, list] = field(repr=False)
    _fill: np.ndarray = field(repr=False)

    def loss(self, *, ridge: float) -> LinearLoss:
        """The loss that fits the target: least squares, logistic or softmax."""
        if not self.classes:
            return LeastSquares(ridge=ridge)
        if len(self.classes) == 2:
            return Logistic(ridge=ridge)
        return Softmax(ridge=ridge, num_classes=len(self.classes))

    def more(self, source: Any) -> FederatedTable:
        """Another table, for instance to test on, encoded exactly as this one was.

        A category or class that this one does not have is an error; an agent may have one row.
        """
        return _encode(open_source(source), replace(self.columns, least_rows=1), like=self)


def read_table(source: Any, columns: Columns) -> FederatedTable:
    """Read a path (Parquet, CSV, LIBSVM) or a table of pandas, polars or Arrow.

    >>> import pyarrow as pa
    >>> table = pa.table({"site": ["a", "a", "b", "b"], "x": [1, 2, 3, 4], "y": [0.0, 1, 2, 3]})
    >>> read = read_table(table, Columns(agent="site", target="y"))
    >>> read.agents.tolist(), read.features, read.data.num_examples.tolist()
    (['a', 'b'], ('x', '(intercept)'), [2, 2])
    """
    return _encode(open_source(source), columns, like=None)


def _encode(source: Source, columns: Columns, like: FederatedTable | None) -> FederatedTable:
    for name in (columns.agent, columns.target, *(columns.features or ()), *columns.categorical):
        source.column(name)  # before any work, an error if one is not there
    partition = _partition(source, columns)
    if columns.task == "regression":
        targets, classes = encoding.measured_target(source, columns.target), ()
    else:
        known = like.classes if like else None
        targets, classes = encoding.class_target(source, columns.target, known)
    blocks = _Blocks(source, columns, dict(like._categories) if like else None)
    raw = blocks.matrix[partition.rows]
    measured = np.array(blocks.measured)
    offsets = partition.offsets
    fill = like._fill if like else _fill(source, columns, blocks, raw, offsets)
    absent = np.isnan(raw)
    if columns.missing == "error" and absent.any():
        raise _missing_error(source, blocks)
    raw = np.where(absent, fill, raw)
    scaling = like.scaling if like else _scaling(raw, offsets, measured, columns)
    features = scaling.apply(raw)
    names = blocks.names
    if columns.intercept:
        features = np.column_stack([features, np.ones(len(features))])
        names = [*names, INTERCEPT]
    return FederatedTable(
        data=FederatedData(features, targets[partition.rows], offsets),
        columns=replace(columns, features=tuple(blocks.wanted)),
        agents=partition.names,
        features=tuple(names),
        classes=tuple(classes),
        imputed={blocks.names[j]: int(n) for j, n in enumerate(absent.sum(axis=0)) if n},
        scaling=scaling,
        _categories=blocks.categories,
        _fill=fill,
    )


def _partition(source: Source, columns: Columns) -> Partition:
    places, names = encoding.agents(source, columns.agent)
    partition = by_column(places)
    few = np.flatnonzero(partition.sizes < columns.least_rows)
    if few.size:
        first = few[0]
        row = int(partition.rows[partition.offsets[first]])
        raise ValueError(
            f"{source.place(row, columns.agent)}: agent {names[first]!s} has "
            f"{partition.sizes[first]} row(s), fewer than least_rows={columns.least_rows}; "
            f"{few.size} of {names.size} agents have so few. Is {columns.agent!r} the column of "
            "the agents? If so, leave such agents out or set least_rows=1"
        )
    return Partition(partition.rows, partition.offsets, names)


class _Blocks:
    """The encoded features of all rows, in the order of the table, NaN where a value is missing."""

    def __init__(self, source: Source, columns: Columns, known: dict[str, list] | None) -> None:
        wanted = columns.features
        if wanted is None:
            taken = (columns.agent, columns.target)
            wanted = [name for name in source.table.column_names if name not in taken]
        if not wanted:
            raise ValueError(f"{source.name} has no column left for a feature")
        self.wanted = wanted
        self.names: list[str] = []
        self.origin: list[str] = []
        self.measured: list[bool] = []
        self.categories: dict[str, list] = {}
        parts = []
        for name in wanted:
            as_category = name in columns.categorical
            if known is not None:
                as_category = name in known
            if as_category or (known is None and not encoding.holds_numbers(source, name)):
                part, values = encoding.one_hot(source, name, known[name] if known else None)
                self.categories[name] = values
                self.names += [f"{name}={value}" for value in values]
            else:
                if known is not None and not encoding.holds_numbers(source, name):
                    raise ValueError(
                        f"{source.name}: column {name!r} is text, but it was numbers in training"
                    )
                part = encoding.numbers(source, name)[:, None]
                self.names.append(name)
            self.origin += [name] * part.shape[1]
            self.measured += [name not in self.categories] * part.shape[1]
            parts.append(part)
        self.matrix = np.concatenate(parts, axis=1)


def _missing_error(source: Source, blocks: _Blocks) -> ValueError:
    absent = np.isnan(blocks.matrix)
    first = int(np.flatnonzero(absent.any(axis=0))[0])
    rows = np.flatnonzero(absent[:, first])
    return ValueError(
        f"{source.place(rows[0], blocks.origin[first])}: the value is missing ({rows.size} such in "
        "this column); fill it in, leave the column out, or set missing='mean' or a number"
    )


def _fill(source: Source, columns: Columns, blocks: _Blocks, raw, offsets) -> np.ndarray:
    """What stands for a missing value of every feature."""
    if columns.missing == "error":
        return np.zeros(raw.shape[1])
    if columns.missing != "mean":
        return np.full(raw.shape[1], float(columns.missing))
    empty = np.flatnonzero(np.isnan(raw).all(axis=0))
    if empty.size:
        raise ValueError(f"{source.name}: column {blocks.origin[empty[0]]!r} has no values at all")
    return federated_mean(raw, offsets)


def _scaling(raw, offsets, measured: np.ndarray, columns: Columns) -> Scaling:
    if not columns.standardise:
        return Scaling(np.zeros(raw.shape[1]), np.ones(raw.shape[1]))
    found = federated_scaling(raw, offsets)
    # Zeros and ones stay as they are: they have a scale of their own.
    return Scaling(np.where(measured, found.mean, 0.0), np.where(measured, found.scale, 1.0))
