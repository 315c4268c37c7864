"""Your own table as federated data: name the columns of agent and target, the rest is features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_argument, shown
from isfed.base.progress import say
from isfed.datasets import column_encoding, table_report
from isfed.datasets.encoder import Columns, Recipe, Scaling, federated_mean, federated_scaling
from isfed.datasets.partition import by_column
from isfed.datasets.read_options import Reading
from isfed.datasets.table_report import Role, TableReport
from isfed.datasets.table_sources import Source, open_source
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LeastSquares, LinearLoss, Logistic, Softmax

INTERCEPT = "(intercept)"


@dataclass(frozen=True, eq=False)
class FederatedTable:
    """A table as federated data, with the names that the numbers had.

    Args:
        data: The examples of all agents.
        agents: (K,) the agents' names, in the order of `data`.
        imputed: How many missing values of which feature were filled.
        rows: (N,) the row of the file, counted from 0, that every example was.
        account: What became of the table.
        recipe: How its columns became numbers.
        spot: Describes a row of the file in words, such as "line 7".
    """

    data: FederatedData
    agents: np.ndarray
    imputed: Mapping[str, int]
    rows: np.ndarray
    account: TableReport
    recipe: Recipe = field(repr=False)
    spot: Callable[[int], str] = field(repr=False)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the M features; "colour=red" for a category."""
        return self.recipe.features

    @property
    def classes(self) -> tuple:
        """What the targets -1, +1 or 0, 1, ... stand for; empty for a regression."""
        return self.recipe.classes

    @property
    def scaling(self) -> Scaling:
        """Of the measured features; mean 0 and scale 1 for the others."""
        return self.recipe.scaling

    def loss(self, *, ridge: float) -> LinearLoss:
        """The loss that fits the target: least squares, logistic or softmax."""
        if not self.classes:
            return LeastSquares(ridge=ridge)
        if len(self.classes) == 2:
            return Logistic(ridge=ridge)
        return Softmax(ridge=ridge, num_classes=len(self.classes))

    def more(self, source: Any, reading: Reading | None = None) -> FederatedTable:
        """Another table, for instance to test on, encoded exactly as this one was.

        A category or class that this one does not have is an error; an agent may have one row.
        """
        columns = replace(self.recipe.columns, least_rows=1)
        return _Encoder(open_source(source, reading), columns, self.recipe).table()


def read_table(
    source: Any, columns: Columns, reading: Reading | None = None, *, release: bool = False
) -> FederatedTable:
    """Read a table as federated data, one agent per value of a column.

    Args:
        source: A path (see `open_source`), or a table of pandas, polars or Arrow.
        columns: Which column is what.
        reading: How to read a text file; found out from the file unless given.
        release: Whether a `Source` forgets every column once it is encoded, to save memory.

    Examples:
        >>> import pyarrow as pa
        >>> table = pa.table({"site": ["a", "a", "b", "b"], "x": [1, 2, 3, 5], "y": [0.0, 1, 2, 3]})
        >>> read = read_table(table, Columns(agent="site", target="y"))
        >>> read.agents.tolist(), read.features, read.data.num_examples.tolist()
        (['a', 'b'], ('x', '(intercept)'), [2, 2])
    """
    if not isinstance(columns, Columns):
        raise TypeError(f"columns={shown(columns)} must be Columns(agent=..., target=...)")
    if reading is not None and not isinstance(reading, Reading):
        raise TypeError(f"reading={shown(reading)} must be Reading(...)")
    check_argument("release", release, bool)
    return _Encoder(open_source(source, reading), columns, None, release=release).table()


def encode_features(source: Any, recipe: Recipe, reading: Reading | None = None) -> np.ndarray:
    """The features of another table, (rows, M) in its order; it needs no agents and no target."""
    columns = replace(recipe.columns, categorical=())
    return _Encoder(open_source(source, reading), columns, recipe, whole=True).matrix()


@dataclass
class _Feature:
    """A feature, or those of a column of categories, in the order of the agents."""

    column: str
    names: list[str]
    values: np.ndarray  # (N, 1), or (N, categories)
    raw: np.ndarray | None = None  # of a measured feature: in the order of the file


class _Encoder:
    """From a source to federated data; `like` says how another table was encoded.

    With `whole` all rows are taken as they come: no column of agents or targets is needed.
    """

    def __init__(
        self, source: Source, columns: Columns, like: Recipe | None, *, whole=False, release=False
    ) -> None:
        self.source, self.columns, self.like, self.release = source, columns, like, release
        named = () if whole else (columns.agent, columns.target)
        constant = like.constant if like else ()
        features = [name for name in columns.features or () if name not in constant]
        for name in (*named, *features, *columns.categorical):
            source.column(name)  # before any work, an error if one is not there
        if whole:
            self.rows = np.arange(source.table.num_rows)
            self.offsets = np.array([0, self.rows.size])
        else:
            self.rows, self.offsets, self.agents = self._partition()
        taken = (columns.agent, columns.target)
        rest = [name for name in source.table.column_names if name not in taken]
        self.wanted = rest if columns.features is None else columns.features
        if not self.wanted:
            raise ValueError(
                f"{source.name} has no column left for a feature beside the agent "
                f"{columns.agent!r} and the target {columns.target!r}"
            )
        self.names: list[str] = []  # of the features; with the intercept in the end
        self.measured: list[int] = []  # which of them are
        self.categories: dict[str, list] = {}
        self.constant: set[str] = set()
        self.imputed: dict[str, int] = {}
        self.roles: list[Role] = []

    def _partition(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of the file, agent by agent, the agents' offsets and their names."""
        columns, source = self.columns, self.source
        places, names = column_encoding.agents(source, columns.agent)
        partition = by_column(places)
        sizes = partition.sizes
        least = 2 if columns.least_rows is None else columns.least_rows
        few = np.flatnonzero(sizes < least)
        self.few = (few.size, int(sizes[few].sum()))
        if few.size and columns.least_rows is None:
            row = int(partition.rows[partition.offsets[few[0]]])
            raise ValueError(
                f"{source.place(row, columns.agent)}: agent {names[few[0]]!s} has 1 row(s); "
                f"{few.size} of {names.size} agents have so few. Is {columns.agent!r} the column "
                "of the agents? If so, leave such agents out with least_rows=2, or keep them with "
                "least_rows=1"
            )
        kept = sizes >= least
        if not kept.any():
            raise ValueError(
                f"{source.name}: every agent has fewer rows than least_rows={least} (the largest "
                f"has {sizes.max()}); use a smaller number"
            )
        rows = partition.rows[np.repeat(kept, sizes)]
        return rows, np.concatenate([[0], np.cumsum(sizes[kept])]), names[kept]

    def table(self) -> FederatedTable:
        columns, source, like = self.columns, self.source, self.like
        if columns.task == "regression":
            targets, classes = column_encoding.measured_target(source, columns.target), ()
        else:
            known = like.classes if like else None
            targets, classes = column_encoding.class_target(source, columns.target, known)
        data = FederatedData(self.matrix(), targets[self.rows], self.offsets)
        recipe = Recipe(
            columns=replace(columns, features=tuple(self.wanted)),
            features=tuple(self.names),
            classes=tuple(classes),
            categories=self.categories,
            constant=frozenset(self.constant),
            fill=self.fill,
            scaling=self.scaling,
        )
        account = self._account(data, classes)
        return FederatedTable(
            data, self.agents, self.imputed, self.rows, account, recipe, source.spot
        )

    def matrix(self) -> np.ndarray:
        """The features as one block, column by column: no second block is ever needed."""
        like, columns, names = self.like, self.columns, self.names
        plans = {}
        for name in self.wanted:
            say(f"reading {self.source.name}")
            plans[name] = self._categories_of(name)
        width = sum(1 if codes is None else len(codes[1]) for codes in plans.values())
        block = np.empty((len(self.rows), width + columns.intercept))
        parts = [np.zeros((3, 0))]  # fill, mean and scale of every feature
        for name, codes in plans.items():
            if like and name in like.constant:
                continue
            say(f"reading {self.source.name}")
            feature = self._feature(name, codes)
            here = slice(len(names), len(names) + len(feature.names))
            fill = like.fill[here] if like else self._fill(feature)
            absent = self._fill_in(feature, fill)
            if like is None and self._is_constant(feature, absent):
                continue
            if feature.raw is not None:
                self.measured.append(here.start)
            scaling = self._scaling(feature, here)
            block[:, here] = scaling.apply(feature.values)
            if self.release:
                self.source.release(name)
            parts.append(np.array([fill, scaling.mean, scaling.scale]))
            names += feature.names
        self.fill, mean, scale = np.concatenate(parts, axis=1)
        self.scaling = Scaling(mean, scale)
        if columns.intercept:
            block[:, len(names)] = 1.0
            names.append(INTERCEPT)
        if not names:
            raise ValueError(f"{self.source.name} has no column left for a feature")
        if len(names) < block.shape[1]:
            block = np.ascontiguousarray(block[:, : len(names)])
        block.flags.writeable = False  # FederatedData then takes it as it is
        return block

    def _categories_of(self, name: str) -> tuple[np.ndarray, list] | None:
        """The codes and the values of a column of categories; None for one of numbers."""
        source, like = self.source, self.like
        if like is None:
            column_encoding.check_filled(source, name)
            if name not in self.columns.categorical:
                source.read_dates(name)
                if column_encoding.holds_numbers(source, name):
                    return None
            return column_encoding.categories(source, name, None)
        if name in like.categories:
            return column_encoding.categories(source, name, like.categories[name])
        if name in like.constant:
            return None  # not looked at, and it may be missing
        source.read_dates(name)
        if not (
            column_encoding.says_nothing(source, name)
            or column_encoding.holds_numbers(source, name, trained=True)
        ):
            raise ValueError(
                f"{source.name}: column {name!r} is text, but it was numbers in training"
                f"{column_encoding.unclear_dates(source, name)}"
            )
        return None

    def _feature(self, name: str, codes: tuple[np.ndarray, list] | None) -> _Feature:
        if codes is None:
            raw = column_encoding.numbers(self.source, name)
            return _Feature(name, [name], raw[self.rows, None], raw)
        places, values = codes[0][self.rows], codes[1]
        self.categories[name] = values
        block = np.zeros((places.size, len(values)))  # a column of zeros and ones for each category
        block[np.arange(places.size), places] = 1.0
        block[places < 0] = np.nan
        return _Feature(name, [f"{name}={value}" for value in values], block)

    def _fill(self, feature: _Feature) -> np.ndarray:
        """What stands for a missing value of a feature."""
        missing, width = self.columns.missing, len(feature.names)
        if missing != "mean":
            return np.full(width, 0.0 if missing == "error" else float(missing))
        if np.isnan(feature.values).all():
            raise ValueError(
                f"{self.source.name}: column {feature.column!r} has no values at all; leave it out "
                f"(--drop {feature.column!r})"
            )
        return federated_mean(_doubled(feature.values), self.offsets)[:width]

    def _fill_in(self, feature: _Feature, fill: np.ndarray) -> int:
        """Fill what is missing; returns how many rows that were."""
        absent = np.isnan(feature.values)
        count = int(absent[:, 0].sum())
        if not count:
            return 0
        if self.columns.missing == "error":
            first = int(self.rows[absent[:, 0]].min())
            otherwise = (
                f"leave the column out (--drop {feature.column!r}), or set missing='mean' or "
                "missing=0"
            )
            if self.like:
                otherwise = "or train the model with missing='mean'"
            raise ValueError(
                f"{self.source.place(first, feature.column)}: the value is missing ({count} such "
                f"in this column); fill it in, {otherwise}"
            )
        feature.values[:] = np.where(absent, fill, feature.values)
        self.imputed |= dict.fromkeys(feature.names, count)
        return count

    def _is_constant(self, feature: _Feature, filled: int) -> bool:
        """Whether a column says no more than the intercept; notes the column's role."""
        values, name = feature.values, feature.column
        alike = bool(np.all(values == values[0])) and self.columns.intercept
        if alike:
            self.constant.add(name)
            self.categories.pop(name, None)
            text = feature.names[0].partition("=")[2] or f"{values[0, 0]:g}"
            role = Role(name, table_report.CONSTANT, f"always {text}", filled)
        elif feature.raw is not None:
            role = table_report.role_of(self.source, name, feature.raw, filled=filled)
        else:
            levels = [str(value) for value in self.categories[name]]
            note = f"{len(levels)}: {', '.join(levels[:5])}" + ", ..." * (len(levels) > 5)
            role = Role(name, table_report.CATEGORIES, note, filled)
        self.roles.append(role)
        return alike

    def _scaling(self, feature: _Feature, here: slice) -> Scaling:
        if self.like:
            return Scaling(self.like.scaling.mean[here], self.like.scaling.scale[here])
        width = len(feature.names)
        # Zeros and ones stay as they are: they have a scale of their own.
        if feature.raw is None or not self.columns.standardise:
            return Scaling(np.zeros(width), np.ones(width))
        twice = federated_scaling(_doubled(feature.values), self.offsets)
        return Scaling(twice.mean[:width], twice.scale[:width])

    def _account(self, data: FederatedData, classes) -> TableReport:
        sizes, columns = data.num_examples, self.columns
        shares, span = {}, None
        if classes:
            codes = (data.targets + 1.0) / 2.0 if len(classes) == 2 else data.targets
            counts = np.bincount(codes.astype(np.int64), minlength=len(classes))
            shares = {str(c): float(n / counts.sum()) for c, n in zip(classes, counts, strict=True)}
        else:
            span = (float(data.targets.min()), float(data.targets.max()))
        sums = []
        if self.like is None:
            sums = table_report.dependent(data.features, self.names, self.measured)
        return TableReport(
            rows=int(sizes.sum()), agents=sizes.size, smallest=int(sizes.min()),
            median=float(np.median(sizes)), largest=int(sizes.max()), few_agents=self.few[0],
            few_rows=self.few[1], least_rows=columns.least_rows or 2, roles=self.roles,
            target=columns.target, shares=shares, span=span, sums=sums,
            filling="the mean" if columns.missing == "mean" else f"{columns.missing}",
        )  # fmt: skip


def _doubled(values: np.ndarray) -> np.ndarray:
    """The columns twice: NumPy adds a lone column in pairs, which rounds unlike a whole table."""
    return np.concatenate([values, values], axis=1)
