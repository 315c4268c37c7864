"""Problems that have a name on the command line, each with the number of agents a round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from isfed.datasets.named import breast_cancer, digits, parkinsons
from isfed.datasets.partition import dirichlet, iid
from isfed.datasets.scaling import standardise
from isfed.experiments.classification import Ijcnn1Source
from isfed.problems import LeastSquares, Logistic, Problem, Softmax
from isfed.problems.synthetic import PRESETS

Made = tuple[Problem, int]


def _preset(name: str) -> Callable[[Path | None], Made]:
    return lambda _: (PRESETS[name].make(), 6)


def _ijcnn1(partition) -> Callable[[Path | None], Made]:
    return lambda data_dir: (Ijcnn1Source(partition=partition, data_dir=data_dir).make(), 10)


def _parkinsons(data_dir: Path | None) -> Made:
    data, _ = standardise(parkinsons(data_dir).federate())
    centred = type(data)(data.features, data.targets - data.targets.mean(), data.offsets)
    return Problem(centred, LeastSquares(ridge=1e-2), batch_size=8, name="parkinsons"), 4


def _breast_cancer(data_dir: Path | None) -> Made:
    rows = breast_cancer()
    split = iid(len(rows.targets), num_agents=20, seed=0)
    data, _ = standardise(split.federate(rows.features, rows.targets))
    return Problem(data, Logistic(ridge=1e-2), batch_size=4, name="breast-cancer"), 2


def _digits(data_dir: Path | None) -> Made:
    rows = digits()
    split = dirichlet(rows.targets, num_agents=30, concentration=0.5, seed=0)
    data = split.federate(rows.features, rows.targets)
    sizes = np.minimum(4, data.num_examples)
    loss = Softmax(ridge=1e-2, num_classes=10)
    return Problem(data, loss, batch_size=sizes, name="digits"), 3


NAMED: dict[str, Callable[[Path | None], Made]] = {
    **{name: _preset(name) for name in PRESETS},
    "ijcnn1": _ijcnn1("one-class"),
    "ijcnn1-natural": _ijcnn1("natural"),
    "parkinsons": _parkinsons,
    "digits": _digits,
    "breast-cancer": _breast_cancer,
}
