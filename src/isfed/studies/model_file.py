"""A trained linear model with all that is needed to predict from a new table: a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from isfed.base.atomic_files import write_whole
from isfed.datasets.encoder import Recipe
from isfed.datasets.read_options import LIMITS, Reading
from isfed.datasets.table_data import encode_features
from isfed.datasets.table_sources import open_source
from isfed.studies.problem_sources import FileSource
from isfed.studies.results_reader import Results
from isfed.studies.results_summary import made_with

FORMAT = "isfed model 1"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained linear model.

    Attributes:
        params: (1, M), or (classes, M) for three or more.
        recipe: how a table becomes numbers.
        reading: how the file of the training was read.
        trained: what was trained, how and on what.
    """

    params: np.ndarray
    recipe: Recipe
    reading: Reading
    trained: Mapping[str, Any]

    def columns(self, source: Any, reading: Reading | None = None) -> dict[str, Any]:
        """What is predicted: a number for every row, or a class with its probabilities."""
        features = encode_features(source, self.recipe, reading or self.reading)
        margins, classes = features @ self.params.T, self.recipe.classes  # (rows, 1 or classes)
        target = self.recipe.columns.target
        if not classes:
            return {target: margins[:, 0]}
        shares = probabilities(margins)
        best = [classes[place] for place in shares.argmax(axis=1)]
        return dict(zip(self.names((), source), [best, *shares.T], strict=True))

    def predict(
        self, source: Any, *, append: bool = False, reading: Reading | None = None
    ) -> pa.Table:
        """What is predicted for every row of a new table, in its order.

        Args:
            source: a path, or a table of pandas, polars or Arrow.
            append: whether the columns of the new table come first.
            reading: how to read a file; as that of the training, in its own format, unless given.
        """
        usual = replace(self.reading, format=None)
        opened = open_source(source, reading or usual)
        given = opened.table if append else None  # before encoding, which turns words into dates
        found = self.columns(opened)
        names = self.names(given.column_names if given else (), opened.name)
        if given is None:
            return pa.table(dict(zip(names, found.values(), strict=True)))
        for name, values in zip(names, found.values(), strict=True):
            given = given.append_column(name, pa.array(values))
        return given

    def names(self, present: Sequence[str], source: Any) -> list[str]:
        """What the columns of the predictions are called, beside those that are present."""
        classes = [f"probability of {name}" for name in self.recipe.classes]
        target = self.recipe.columns.target
        names = [f"predicted {target}" if present else target, *classes]
        taken = [name for name in names if name in present]
        if taken:
            raise ValueError(
                f"{source} has a column {taken[0]!r} already; rename it, or do not append"
            )
        return names

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {
            "format": FORMAT,
            "trained": dict(self.trained),
            "made_with": made_with(),
            "params": self.params.tolist(),
            "recipe": self.recipe.as_dict(),
            "reading": {
                f.name: getattr(self.reading, f.name)
                for f in fields(Reading)
                if f.name not in LIMITS  # of the machine that trained, not of the model
            },
        }
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def probabilities(margins: np.ndarray) -> np.ndarray:
    """Of every class, from one margin (logistic) or from one for each class (softmax)."""
    both = np.column_stack([np.zeros(len(margins)), margins]) if margins.shape[1] == 1 else margins
    weights = np.exp(both - both.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def load_model(path: str | Path) -> SavedModel:
    """Read what `isfed compare --save` wrote; what is wrong with it is said in one line.

    Args:
        path: the file; its model has `predict(table, append=False)`.
    """
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        if given.get("format") != FORMAT:
            raise ValueError(f"its format is {given.get('format')!r}, expected {FORMAT!r}")
        reading = given["reading"]
        return SavedModel(
            np.array(given["params"], dtype=np.float64),
            Recipe.from_dict(given["recipe"]),
            Reading(**{**reading, "na": tuple(reading["na"])}),
            given["trained"],
        )
    except FileNotFoundError:
        raise ValueError(
            f"there is no model file {path}; `isfed compare --save` makes one"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a model that `isfed compare --save` wrote ({error})"
        ) from error


def save_best(results: Results, source: FileSource, path: Path) -> SavedModel:
    """Save the model of the way that is recommended: the mean of its repetitions."""
    best = results[results.summary["winner"]]
    recipe = source.table().recipe
    params = np.array(results.summary["models"][best.name], dtype=np.float64)
    model = SavedModel(
        params.reshape(-1, len(recipe.features)), recipe, source.reading,
        {
            "algorithm": best.name, "step_size": best.step_size, "file": str(source.file),
            "rounds": results.summary["rounds"], "repetitions": results.summary["repetitions"],
            "ridge": source.ridge,
        },
    )  # fmt: skip
    model.save(path)
    return model
