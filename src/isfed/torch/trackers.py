"""Where the course of a training goes: TensorBoard's event files, MLflow, the terminal.

A tracker is a callback of `train` that may also have `close()`.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np


class Point(NamedTuple):
    """A training at an evaluation.

    round: how many rounds are done.
    loss, accuracy: on the test rows; nan without any, the accuracy also where targets are not
        classes.
    seconds: seconds of training so far.
    megabytes: sent up and down so far.
    best: whether no evaluation before was better.
    params: (M,) the model.
    """

    round: int
    loss: float
    accuracy: float
    seconds: float
    megabytes: float
    best: bool
    params: np.ndarray

    @property
    def numbers(self) -> dict[str, float]:
        """What can be drawn as a curve."""
        named = {"loss": self.loss, "accuracy": self.accuracy}
        found = {name: value for name, value in named.items() if not math.isnan(value)}
        return {**found, "seconds": self.seconds, "megabytes": self.megabytes}


class Lines:
    """One line per evaluation, on standard error or in a file.

    file: where to write; standard error unless given.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file

    def __call__(self, point: Point) -> None:
        """Print it."""
        parts = [f"round {point.round}"]
        if not math.isnan(point.loss):
            parts.append(f"loss {point.loss:.4f}")
        if not math.isnan(point.accuracy):
            parts.append(f"accuracy {point.accuracy:.4f}")
        parts += [f"{point.seconds:.1f} s", f"{point.megabytes:.1f} MB"]
        print(", ".join(parts), file=self.file or sys.stderr, flush=True)


class TensorBoard:
    """Event files for TensorBoard; needs `pip install tensorboard`.

    folder: where to write them.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard(...) needs: pip install tensorboard") from error
        self.writer = SummaryWriter(str(folder))

    def __call__(self, point: Point) -> None:
        """One value of every curve."""
        for name, value in point.numbers.items():
            self.writer.add_scalar(name, value, point.round)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class MLflow:
    """A run of MLflow; needs `pip install mlflow`, or mlflow-skinny.

    run_name: the name of the run. If a run is already active, it is used and left open.
    options: parameters to log with it.
    """

    def __init__(self, run_name: str | None = None, **options: Any) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise ImportError("MLflow(...) needs: pip install mlflow") from error
        self.mlflow = mlflow
        self.ours = mlflow.active_run() is None
        if self.ours:
            mlflow.start_run(run_name=run_name)
        if options:
            mlflow.log_params(options)

    def __call__(self, point: Point) -> None:
        """One value of every metric."""
        self.mlflow.log_metrics(point.numbers, step=point.round)

    def close(self) -> None:
        """End the run, if it was begun here; as failed, if an error ends the training."""
        if self.ours:
            self.mlflow.end_run("FINISHED" if sys.exc_info()[0] is None else "FAILED")
