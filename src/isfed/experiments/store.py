"""A results folder that survives a crash: every file is written beside its place and renamed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isfed.base.files import PART, hold, load_arrays, save_arrays, write_whole

CONFIG = "config.toml"
SUMMARY = "summary.json"
HISTORY = "history.parquet"
MEASURES = "measures.parquet"
CHECKPOINTS = "checkpoints"
DIGEST = "digest.txt"
FIGURES = tuple(f"{n}.{k}" for n in ("msd", "measures", "heterogeneity") for k in ("png", "svg"))
STEPS = "steps.json"
WRITTEN = (CONFIG, SUMMARY, HISTORY, MEASURES, STEPS, "heterogeneity.json", *FIGURES)


class StoreError(RuntimeError):
    """The folder cannot be used, said in one line."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other run writes to it."""
    try:
        lock = hold(folder / ".lock")
    except BlockingIOError as error:
        raise StoreError(f"another run is writing to {folder}; wait for it or use --out") from error
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:
        yield


def read_json(path: Path) -> dict[str, Any] | None:
    """The object that a JSON file holds; None if there is no file, an error if it is no object."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}); delete it to start again") from error
    if not isinstance(found, dict):
        raise StoreError(
            f"{path} is damaged (a {type(found).__name__} instead of an object); "
            "delete it to start again"
        )
    return found


class Configured(Protocol):
    """What a results folder belongs to."""

    @property
    def digest(self) -> str:
        """A fingerprint of the configuration."""
        ...

    def to_toml(self) -> str:
        """The configuration."""
        ...


class Store:
    """One results folder of one experiment."""

    def __init__(self, folder: Path, experiment: Configured) -> None:
        self.folder = folder
        self.experiment = experiment

    @contextlib.contextmanager
    def opened(self, *, resume: bool, overwrite: bool) -> Iterator[None]:
        """Hold the folder for one run; refuse it if it holds something else."""
        with locked(self.folder):
            self._prepare(resume=resume, overwrite=overwrite)
            yield

    def _prepare(self, *, resume: bool, overwrite: bool) -> None:
        self._remove_parts()
        found = self.folder / DIGEST
        if overwrite:
            self._remove()
        elif found.exists():
            if not resume:
                raise StoreError(
                    f"{self.folder} already holds results; --resume continues them, --overwrite "
                    "replaces them, --out names another folder"
                )
            if found.read_text().strip() != self.experiment.digest:
                raise StoreError(
                    f"{self.folder} holds results of another configuration (see its {CONFIG}); "
                    "--out names another folder, --overwrite replaces them"
                )
        elif any(p.name != ".lock" for p in self.folder.iterdir()):
            raise StoreError(
                f"{self.folder} holds files that are not results; choose another --out"
            )
        # The digest first: a folder with it is ours, whenever the process is killed.
        write_whole(found, f"{self.experiment.digest}\n".encode())
        write_whole(self.folder / CONFIG, self.experiment.to_toml().encode())

    def _remove_parts(self) -> None:
        """Remove what a killed process was writing beside its place."""
        for folder in (self.folder, self.folder / CHECKPOINTS):
            for path in folder.glob(f".*{PART}"):
                path.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Remove what a run writes, and nothing else."""
        if not (self.folder / DIGEST).exists():
            if any(p.name != ".lock" for p in self.folder.iterdir()):
                raise StoreError(
                    f"{self.folder} holds files that are not results; nothing was removed"
                )
            return
        for path in (self.folder / CHECKPOINTS).glob("algorithm-*.npz"):
            path.unlink()
        for name in WRITTEN:  # not the digest: the folder stays ours if we are killed here
            (self.folder / name).unlink(missing_ok=True)

    def _checkpoint(self, index: int) -> Path:
        return self.folder / CHECKPOINTS / f"algorithm-{index + 1}.npz"

    def save(self, index: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the checkpoint of one algorithm."""
        digest = np.array(f"{self.experiment.digest} {version('isfed')}")
        save_arrays(self._checkpoint(index), {"digest": digest, **arrays})

    def load(self, index: int) -> dict[str, np.ndarray] | None:
        """Read the checkpoint of one algorithm; None if there is none."""
        path = self._checkpoint(index)
        if not path.exists():
            return None
        try:
            arrays = load_arrays(path)
            digest = str(arrays.pop("digest"))
        except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError) as error:
            raise StoreError(
                f"the checkpoint {path} is damaged ({error}); delete it to run this algorithm "
                "again from its first round"
            ) from error
        if digest != f"{self.experiment.digest} {version('isfed')}":
            raise StoreError(
                f"the checkpoint {path} belongs to another configuration or version of isfed; "
                "--overwrite starts again"
            )
        return arrays

    def write_table(self, name: str, columns: dict[str, Any]) -> None:
        """Write a Parquet file."""
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        write_whole(self.folder / name, sink.getvalue())

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, after all other numbers: where it is, the run is complete."""
        text = json.dumps(_finite(summary), indent=2, allow_nan=False)
        write_whole(self.folder / SUMMARY, f"{text}\n".encode())


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no word for, such as the error of one repetition."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
