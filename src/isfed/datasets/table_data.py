"""Your own table as federated data: name the columns of agent and target, the rest is features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_argument, shown
from isfed.base.progress import say
from isfed.base.text_format import typed
from isfed.datasets import column_encoding, table_report
from isfed.datasets.encoder import Columns, Recipe, Scaling, federated_mean, federated_scaling
from isfed.datasets.read_options import Reading
from isfed.datasets.table_report import Role, TableReport
from isfed.datasets.table_rows import TableErrors, all_rows, choose_rows
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
        self.errors = TableErrors()
        self.roles: list[Role] = []
        self.gaps: dict[str, tuple[int, int]] = {}  # by column: missing values, the first one's row
        named = () if whole else (columns.agent, columns.target)
        constant = like.constant if like else ()
        features = [name for name in columns.features or () if name not in constant]
        if like is None:
            features += [name for name in (*columns.drop, *columns.measured) if name]
        source.check_columns((*named, *features, *columns.categorical))  # before any work
        self.wanted = self._wanted() if columns.features is None else columns.features
        if whole:
            self.chosen = all_rows(source)
        else:
            known = like.classes if like else None
            self.chosen = choose_rows(source, columns, known, self.errors)
        self.rows, self.offsets = self.chosen.rows, self.chosen.offsets
        self.names: list[str] = []  # of the features; with the intercept in the end
        self.measured: list[int] = []  # which of them are
        self.categories: dict[str, list] = {}
        self.constant: set[str] = set()
        self.imputed: dict[str, int] = {}

    def _wanted(self) -> list[str]:
        """The columns that are features where the user names none; the others get a word."""
        columns, source = self.columns, self.source
        rest = [
            name
            for name in source.table.column_names
            if name not in (columns.agent, columns.target, *columns.drop)
        ]
        meant = (*columns.categorical, *columns.measured)
        why = {n: column_encoding.why_left_out(source, n) for n in rest if n not in meant}
        wanted = [name for name in rest if not why.get(name)]
        if not wanted:  # then a number that rises with the row is all there is to learn from
            wanted = [name for name in rest if why[name].startswith(column_encoding.ROW_NUMBER)]
        self.roles += [
            Role(name, table_report.LEFT_OUT, reason)
            for name, reason in why.items()
            if reason and name not in wanted
        ]
        if source.unnamed:
            self.roles.append(Role("", table_report.LEFT_OUT, f"{source.unnamed} without a name"))
        if not wanted:
            others = "; ".join(f"left out: {typed(r.name)} ({r.note})" for r in self.roles)
            raise ValueError(
                f"{source.name} has no column left for a feature beside the agent "
                f"{columns.agent!r} and the target {columns.target!r}{others and f'; {others}'}"
            )
        return wanted

    def table(self) -> FederatedTable:
        columns, source = self.columns, self.source
        chosen = self.chosen
        data = FederatedData(self.matrix(), chosen.targets[self.rows], self.offsets)
        recipe = Recipe(
            columns=replace(columns, features=tuple(self.wanted), drop=()),
            features=tuple(self.names),
            classes=tuple(chosen.classes),
            categories=self.categories,
            constant=frozenset(self.constant),
            fill=self.fill,
            scaling=self.scaling,
        )
        account = self._account(data, chosen.classes)
        return FederatedTable(
            data, chosen.agents, self.imputed, self.rows, account, recipe, source.spot
        )

    def matrix(self) -> np.ndarray:
        """The features as one block, column by column: no second block is ever needed."""
        like, columns, names = self.like, self.columns, self.names
        plans = {}
        # A column that had one value in the training is not looked at, and may be missing.
        for name in (name for name in self.wanted if not (like and name in like.constant)):
            say(f"reading {self.source.name}")
            with self.errors.collecting():
                plans[name] = self._categories_of(name)
        width = sum(1 if codes is None else len(codes[1]) for codes in plans.values())
        block = np.empty((len(self.rows), width + columns.intercept))
        parts = [np.zeros((3, 0))]  # fill, mean and scale of every feature
        for name, codes in plans.items():
            say(f"reading {self.source.name}")
            feature = None
            with self.errors.collecting():
                feature = self._feature(name, codes)
            if feature is None:
                continue
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
        if self.gaps:
            self.errors.append(self._missing_values())
        self.errors.check()
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
                measured = name in self.columns.measured
                if column_encoding.holds_numbers(source, name, codes=not measured):
                    return None
                if measured:
                    raise ValueError(
                        f"{source.name}: column {name!r} is text; remove --measured {name!r}"
                    )
            return column_encoding.categories(source, name, None)
        if name in like.categories:
            return column_encoding.categories(source, name, like.categories[name])
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
        return federated_mean(_doubled(feature.values), self.offsets)[:width]

    def _fill_in(self, feature: _Feature, fill: np.ndarray) -> int:
        """Fill what is missing; returns how many rows that were."""
        absent = np.isnan(feature.values)
        count = int(absent[:, 0].sum())
        if not count:
            return 0
        if self.columns.missing == "error":
            self.gaps[feature.column] = (count, int(self.rows[absent[:, 0]].min()))
        feature.values[:] = np.where(absent, fill, feature.values)
        self.imputed |= dict.fromkeys(feature.names, count)
        return count

    def _missing_values(self) -> str:
        """That values are missing, where, and what to do about it."""
        column, (count, first) = next(iter(self.gaps.items()))
        where = f"{self.source.place(first, column)}: the value is missing ({count} such in this "
        where += "column)"
        mend = "fill it in"
        otherwise = f"leave the column out (--drop {column!r}), or set missing='mean' or missing=0"
        if len(self.gaps) > 1:
            each = (
                f"{typed(name)} ({n}, the first in {self.source.spot(row)})"
                for name, (n, row) in self.gaps.items()
            )
            where = f"{self.source.name}: values are missing in {table_report.listed(list(each))}"
            mend = "fill them in"
            most = table_report.MOST_MISSING * len(self.rows)
            worst = [f"--drop {name!r}" for name, (n, _) in self.gaps.items() if n >= most]
            options = f"{' '.join(worst)}, almost empty" if worst else "--drop"
            otherwise = f"leave columns out ({options}), or set missing='mean' or missing=0"
        if self.like:
            otherwise = "or train the model with missing='mean'"
        return f"{where}; {mend}, {otherwise}"

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
        if filled >= table_report.MOST_MISSING * len(values):
            share = 100 * filled / len(values)
            hint = f"{share:.0f}% of its values are missing; to leave it out, use --drop {name!r}"
            role = replace(role, hint=hint)
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
            median=float(np.median(sizes)), largest=int(sizes.max()), few_agents=self.chosen.few[0],
            few_rows=self.chosen.few[1], least_rows=columns.least_rows or 2, roles=self.roles,
            target=columns.target, shares=shares, span=span, sums=sums,
            incomplete=self.chosen.incomplete, header=self.source.hint,
            filling="the mean" if columns.missing == "mean" else f"{columns.missing}",
        )  # fmt: skip


def _doubled(values: np.ndarray) -> np.ndarray:
    """The columns twice: NumPy adds a lone column in pairs, which rounds unlike a whole table."""
    return np.concatenate([values, values], axis=1)
