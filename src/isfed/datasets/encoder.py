"""How a table becomes numbers: the roles of its columns, their scales, and how to repeat both.

Means and standard deviations come from sums of the agents alone: no row moves. Agents report
twice, sums and then squared deviations from the mean of all: the difference of two large sums would
lose every digit of a feature such as a time stamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isfed.base.argument_checks import check_fields, is_number, shown
from isfed.problems.federated_data import FederatedData


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column is what, and how to treat them.

    Args:
        agent: The column that names the agent of a row.
        target: The column to predict.
        features: The columns to learn from. Unless given, all the others are, but for those that
            have no name, no value, or the number of the row.
        drop: Columns to leave out of the features.
        categorical: Columns of numbers that stand for categories. Like text columns, each of them
            becomes one column of zeros and ones per category.
        measured: Columns of numbers to take as such, though they look like codes (they have leading
            zeros) or like row numbers.
        task: "regression" for a measured target, "classification" for classes.
        missing: How to treat missing values: "error" stops, "mean" fills with the mean of all
            agents' known values, a number fills with that number.
        standardise: Whether to give every measured feature mean 0 and standard deviation 1. Agents
            report sums for this, never rows.
        intercept: Whether to add a feature that is always 1; constant columns, which would say the
            same, are then left out.
        least_rows: Agents with fewer rows are left out; unless given, an agent of one row is an
            error.
        drop_missing_target: Whether to leave out rows without a target or an agent, which otherwise
            are an error.
    """

    agent: str
    target: str
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    measured: Sequence[str] = ()
    task: Literal["regression", "classification"] = "regression"
    missing: Literal["error", "mean"] | float = "error"
    standardise: bool = True
    intercept: bool = True
    least_rows: int | None = None
    drop_missing_target: bool = False

    def __post_init__(self) -> None:
        for name in ("features", "drop", "categorical", "measured"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a list of columns")
        check_fields(self)
        if self.agent == self.target:
            raise ValueError(f"column {self.agent!r} cannot be both the agent and the target")
        if not isinstance(self.missing, str) and not is_number(self.missing):
            raise ValueError(f"missing={shown(self.missing)} must be 'error', 'mean' or a number")
        for role in ("agent", "target"):
            name = getattr(self, role)
            if name in self.drop:
                raise ValueError(
                    f"drop={name!r} is the column of the {role}, which is never a feature; remove "
                    "it from what is left out"
                )
            if self.features is not None and name in self.features:
                raise ValueError(f"column {name!r} cannot be a feature too")
            if name in (*self.categorical, *self.measured):
                raise ValueError(
                    f"column {name!r} is the agent or the target; only features are categorical or "
                    "measured (a target of classes needs task='classification')"
                )
        for one, other in (("categorical", "measured"), ("features", "drop")):
            both = {*(getattr(self, one) or ())} & {*getattr(self, other)}
            if both:
                raise ValueError(f"column {min(both)!r} is in {one} and in {other}; keep one")
        if self.least_rows is not None and self.least_rows < 1:
            raise ValueError(f"least_rows={self.least_rows} must be at least 1")


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x - mean) / scale, feature by feature.

    Args:
        mean: (M,) what is subtracted.
        scale: (M,) what is divided by.
    """

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, features: np.ndarray) -> np.ndarray:
        """The standardised features; also for examples that the scaling was not made from."""
        return (features - self.mean) / self.scale


def agent_sums(features: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What every agent reports first: (K, M) counts and sums of its values, NaN left out."""
    known = ~np.isnan(features)
    counts = np.add.reduceat(known, offsets[:-1], axis=0, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, features, 0.0), offsets[:-1], axis=0)
    return counts, sums


def agent_squares(features: np.ndarray, offsets: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What every agent reports second: (K, M) sums of the squared deviations from the mean."""
    deviation = features - mean
    return np.add.reduceat(np.where(np.isnan(deviation), 0.0, deviation**2), offsets[:-1], axis=0)


def federated_mean(features: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The mean of every feature over all rows that have it; 0 where none has."""
    counts, sums = agent_sums(features, offsets)
    return sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)


def federated_scaling(features: np.ndarray, offsets: np.ndarray) -> Scaling:
    """Mean and standard deviation over all rows; a constant feature keeps the scale 1."""
    counts, sums = agent_sums(features, offsets)
    rows = np.maximum(counts.sum(axis=0), 1)
    mean = sums.sum(axis=0) / rows
    scale = np.sqrt(agent_squares(features, offsets, mean).sum(axis=0) / rows)
    # A constant deviates from its own rounded mean by rounding alone: that is no spread.
    constant = scale <= 1e-12 * np.abs(mean)
    return Scaling(mean, np.where(constant, 1.0, scale))


def standardise(data: FederatedData) -> tuple[FederatedData, Scaling]:
    """Scale features to mean 0 and standard deviation 1; returns the data and the scaling.

    Args:
        data: The examples of all agents. Mean and deviation are computed from the agents' sums.

    >>> data, scaling = standardise(FederatedData.from_agents([([[1.0]], [0.0]), ([[3.0]], [0.0])]))
    >>> data.features.ravel().tolist(), scaling.mean.tolist()
    ([-1.0, 1.0], [2.0])
    """
    scaling = federated_scaling(data.features, data.offsets)
    scaled = scaling.apply(data.features)
    return FederatedData(scaled, data.targets, data.offsets, data.weights), scaling


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a table became numbers."""

    columns: Columns  # which column is what; `features` are named
    features: tuple[str, ...]  # the names of the M features; "colour=red" for a category
    classes: tuple  # what the targets -1, +1 or 0, 1, ... stand for; empty for a regression
    categories: Mapping[str, list]  # the values of every categorical column
    constant: frozenset[str]  # columns that were left out because they had one value
    fill: np.ndarray  # (M,) what stands for a missing value; without the intercept
    scaling: Scaling  # mean and scale of the measured features; 0 and 1 for the others

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        for name, values in {**self.categories, self.columns.target: self.classes}.items():
            odd = [value for value in values if not isinstance(value, str | int | float)]
            if odd:
                raise ValueError(
                    f"column {name!r} has values such as {odd[0]!r}, which a model file cannot "
                    "hold; make them text or numbers"
                )
        return {
            "columns": dict(vars(self.columns)),
            "features": list(self.features),
            "classes": list(self.classes),
            "categories": dict(self.categories),
            "constant": sorted(self.constant),
            "fill": self.fill.tolist(),
            "mean": self.scaling.mean.tolist(),
            "scale": self.scaling.scale.tolist(),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Recipe:
        """What `as_dict` gave."""
        columns: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given["columns"].items()
        }
        return cls(
            Columns(**columns),
            tuple(given["features"]),
            tuple(given["classes"]),
            given["categories"],
            frozenset(given["constant"]),
            np.array(given["fill"], dtype=np.float64),
            Scaling(np.array(given["mean"]), np.array(given["scale"])),
        )
