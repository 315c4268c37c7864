"""Where the course of a training goes: TensorBoard's event files, MLflow, the terminal.

A tracker is a callback of `train` that may also have `close()`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np


class Point(NamedTuple):
    """A training at an evaluation.

    Attributes:
        round: how many rounds are done.
        loss: on the test rows; nan without any.
        accuracy: likewise; nan also where targets are not classes.
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
        names = ("loss", "accuracy", "seconds", "megabytes")
        numbers = {name: getattr(self, name) for name in names}
        return {name: value for name, value in numbers.items() if not math.isnan(value)}


class Lines:
    """One line per evaluation, on standard error or in a file.

    Args:
        file: where to write; standard error unless given.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file

    def __call__(self, point: Point) -> None:
        parts = [f"round {point.round}"]
        parts += [f"{k} {v:.4f}" for k, v in point.numbers.items() if k in ("loss", "accuracy")]
        parts += [f"{point.seconds:.1f} s", f"{point.megabytes:.1f} MB"]
        print(", ".join(parts), file=self.file or sys.stderr, flush=True)


class TensorBoard:
    """Event files for TensorBoard; needs `pip install tensorboard`.

    Args:
        folder: where to write them.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard(...) needs: pip install tensorboard") from error
        self.writer = SummaryWriter(str(folder))

    def __call__(self, point: Point) -> None:
        for name, value in point.numbers.items():
            self.writer.add_scalar(name, value, point.round)

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """A run of MLflow; needs `pip install mlflow`, or mlflow-skinny.

    Args:
        run_name: the name of the run. If a run is already active, it is used and left open.
        options: parameters to log with it.
    """

    def __init__(self, run_name: str | None = None, **options: Any) -> None:
        try:
            import mlflow  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("MLflow(...) needs: pip install mlflow") from error
        self.mlflow = mlflow
        self.ours = mlflow.active_run() is None
        if self.ours:
            mlflow.start_run(run_name=run_name)
        if options:
            mlflow.log_params(options)

    def __call__(self, point: Point) -> None:
        self.mlflow.log_metrics(point.numbers, step=point.round)

    def close(self) -> None:
        if self.ours:  # a failed run, if an error ends the training
            self.mlflow.end_run("FINISHED" if sys.exc_info()[0] is None else "FAILED")
