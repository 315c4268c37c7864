"""Which column of a table is what, and what is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from isfed.base.argument_types import check_argument, check_fields, shown
from isfed.base.value_checks import is_number


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column is what, and how to treat them.

    agent: the column that names the agent of a row.
    target: the column to predict.
    features: the columns to learn from; all the others unless given.
    categorical: columns of numbers that stand for categories. Like text columns, each of them
        becomes one column of zeros and ones per category.
    task: "regression" for a measured target, "classification" for classes.
    missing: how to treat missing values: "error" stops, "mean" fills with the mean of all agents'
        known values, a number fills with that number.
    standardise: whether to give every measured feature mean 0 and standard deviation 1. Agents
        report sums for this, never rows.
    intercept: whether to add a feature that is always 1; constant columns, which would say the
        same, are then left out.
    least_rows: agents with fewer rows are left out; unless given, an agent of one row is an error.
    """

    agent: str
    target: str
    features: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    task: Literal["regression", "classification"] = "regression"
    missing: Literal["error", "mean"] | float = "error"
    standardise: bool = True
    intercept: bool = True
    least_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("agent", "target"):
            check_argument(name, getattr(self, name), str)
        if self.agent == self.target:
            raise ValueError(f"column {self.agent!r} cannot be both the agent and the target")
        for name in ("features", "categorical"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a list of columns")
        if not isinstance(self.task, str) or self.task not in ("regression", "classification"):
            raise ValueError(f"task={shown(self.task)} must be 'regression' or 'classification'")
        word = isinstance(self.missing, str) and self.missing in ("error", "mean")
        if not word and not is_number(self.missing):
            raise ValueError(f"missing={shown(self.missing)} must be 'error', 'mean' or a number")
        check_fields(self)
        for name in (self.agent, self.target):
            if self.features is not None and name in self.features:
                raise ValueError(f"column {name!r} cannot be a feature too")
            if name in self.categorical:
                raise ValueError(
                    f"column {name!r} is the agent or the target; only features are categorical (a "
                    "target of classes needs task='classification')"
                )
        if self.least_rows is not None and self.least_rows < 1:
            raise ValueError(f"least_rows={self.least_rows} must be at least 1")
