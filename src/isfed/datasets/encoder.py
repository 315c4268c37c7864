"""How a table became numbers: all that is needed to encode another one in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from isfed.datasets.column_roles import Columns
from isfed.datasets.feature_scaling import Scaling


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a table became numbers.

    columns: which column is what; `features` are named.
    features: names of the M features; "colour=red" for a category.
    classes: what the targets -1, +1 or 0, 1, ... stand for; empty for a regression.
    categories: the values of every categorical column.
    constant: columns that were left out because they had one value.
    fill: (M,), what stands for a missing value; without the intercept.
    scaling: mean and scale of the measured features; 0 and 1 for the others.
    """

    columns: Columns
    features: tuple[str, ...]
    classes: tuple
    categories: Mapping[str, list]
    constant: frozenset[str]
    fill: np.ndarray
    scaling: Scaling

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        for name, values in {**self.categories, self.columns.target: self.classes}.items():
            odd = [value for value in values if not isinstance(value, str | int | float)]
            if odd:
                raise ValueError(
                    f"column {name!r} has values such as {odd[0]!r}, which a model file cannot "
                    "hold; make them text or numbers"
                )
        columns = {f.name: getattr(self.columns, f.name) for f in fields(Columns)}
        return {
            "columns": columns,
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
