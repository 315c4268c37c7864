"""A results folder: whose it is, and how new results take the place of old ones.

    config.toml  summary.json  history.parquet  ...   complete results
    cells/DIGEST/                                      work in progress on one configuration

summary.json is written last and removed first: where it is, the results are complete. Until new
results are complete the old ones stay, and then the work in progress is removed. manifest.json has
the checksums of the others, so that a change after the run is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tomli_w

from isfed.base.atomic_files import (
    PART,
    clear_parts,
    lock_file,
    read_json,
    write_columns,
    write_json,
    write_whole,
)

FORMAT = 1  # of the folder; a reader refuses a later one
CONFIG = "config.toml"
SUMMARY = "summary.json"
TIMES = "times.json"  # the one file that two runs of the same configuration may differ in
HISTORY = "history.parquet"
MEASURES = "measures.parquet"
REPETITIONS = "repetitions.parquet"
INCLUSION = "inclusion.parquet"
TABLES = (HISTORY, MEASURES, REPETITIONS, INCLUSION)
MANIFEST = "manifest.json"  # the sha256 of what two runs of the same configuration share
COMMAND = "command.txt"  # what was typed, if a command made the folder
REPORT = "report.html"
CELLS = "cells"
LOCK = ".lock"
FIGURES = (
    "msd", "measures", "heterogeneity", "comparison", "inclusion", "systems-regression",
    "systems-synthetic",
)  # fmt: skip
WRITTEN = (
    SUMMARY, MANIFEST, CONFIG, TIMES, *TABLES, COMMAND, REPORT,
    *(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")),
)  # fmt: skip
# What the first format wrote; --overwrite clears it away.
OLD_MARKS = ("digest.txt", "diagnosis.json")
OLD = (*OLD_MARKS, "steps.json", "heterogeneity.json")
OLD_CELLS = "checkpoints"


class StoreError(RuntimeError):
    """The folder cannot be used, said in one line."""


# Keys of a problem that say where the data are, or how much may be read, not what they are.
PLACES = ("file", "data_dir", "most_gigabytes", "most_columns")


def fingerprint(kind: str, tables: Mapping[str, Any]) -> str:
    """Sixteen characters that stand for a configuration; two kinds never share one."""
    tables = dict(tables)
    if "problem" in tables:
        tables["problem"] = _without_places(tables["problem"])
    content = json.dumps({"kind": kind, "tables": tables}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _without_places(problem: Any) -> Any:
    """A problem, or several with a source each, without where their data are."""
    if isinstance(problem, list):
        return [_without_places(one) for one in problem]
    if not isinstance(problem, Mapping):
        return problem
    kept = {key: value for key, value in problem.items() if key not in PLACES}
    return kept | {key: _without_places(kept[key]) for key in ("source",) if key in kept}


class Configured:
    """What a results folder belongs to: a study of some kind, with all that decides about it."""

    kind: ClassVar[str]
    resolved: Any  # the configuration with every default, a dict

    @property
    def digest(self) -> str:
        """A fingerprint: two studies with the same one give the same results."""
        return fingerprint(self.kind, self.resolved)

    def to_toml(self) -> str:
        """The configuration."""
        return tomli_w.dumps(self.resolved)


def check_name(path: Path) -> None:
    """Refuse a name that is not UTF-8: tables and pages could not be written under it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StoreError(
            f"cannot use {str(path)!a}: the name is not UTF-8; choose another --out"
        ) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other run writes to it."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"cannot write to {folder}: it is not a folder")
    try:
        lock = lock_file(folder / LOCK)
    except BlockingIOError as error:
        raise StoreError(f"another run is writing to {folder}; wait for it or use --out") from error
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:
        yield


@dataclass(frozen=True)
class Contents:
    """What a folder holds: complete results, work in progress, or files of somebody else."""

    format: int | None  # of the complete results; None if there are none
    digest: str | None  # of the complete results
    unfinished: frozenset[str]  # digests
    others: tuple[str, ...] = ()  # names, if nothing says that the folder is ours
    damage: str | None = None  # of the summary


def look_at(folder: Path) -> Contents:
    """What is in a folder, whether it exists or not."""
    inside = {path.name for path in folder.glob(f"{CELLS}/*")}
    unfinished = frozenset(name for name in inside if re.fullmatch("[0-9a-f]{16}", name))
    # Also while it is being made: a process may be killed between any two lines.
    ours = {LOCK, CELLS} if inside == unfinished and (folder / CELLS).is_dir() else {LOCK}
    names = sorted(path.name for path in folder.glob("*") if path.name not in ours)
    if SUMMARY in names:
        try:
            summary = read_json(folder / SUMMARY)
        except ValueError as error:
            return Contents(FORMAT, None, unfinished, damage=str(error))
        known = isinstance(summary.get("format"), int)
        if known or "algorithms" in summary:
            version = summary["format"] if known else 0
            return Contents(version, summary.get("digest"), unfinished)
    if any(name in names for name in OLD_MARKS):
        return Contents(0, None, unfinished)
    return Contents(None, None, unfinished, () if unfinished else tuple(names))


class Folder:
    """The results folder of one configuration."""

    def __init__(self, path: Path, configured: Configured) -> None:
        self.path = path
        self.configured = configured

    @property
    def cells(self) -> Path:
        """Where the work in progress is kept."""
        return self.path / CELLS / self.configured.digest

    @contextlib.contextmanager
    def opened(self, *, resume: bool, overwrite: bool) -> Iterator[bool]:
        """Hold the folder for one run, if it may be used; yields whether all is done already."""
        self.check(resume=resume, overwrite=overwrite)  # a folder that is refused is not made
        with locked(self.path):
            complete = self.check(resume=resume, overwrite=overwrite)
            if complete:  # a process may have been killed before it cleared away its own
                clear_parts(self.path)
                self._remove_cells()
            else:
                self._prepare(overwrite=overwrite)
            yield complete

    def check(self, *, resume: bool, overwrite: bool) -> bool:
        """Refuse a folder that must not be used; returns whether its results are complete."""
        check_name(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"cannot write to {self.path}: it is not a folder")
        contents = look_at(self.path)
        replaces = "--overwrite replaces them, --out names another folder"
        if contents.others:
            raise StoreError(
                f"{self.path} holds files that are not results ({contents.others[0]}); choose "
                "another --out"
            )
        if contents.format is not None and contents.format > FORMAT:
            raise StoreError(
                f"{self.path} was written by a later version of isfed (format {contents.format}, "
                f"this one knows {FORMAT}); choose another --out"
            )
        if overwrite:
            return False
        if contents.format == 0:
            raise StoreError(
                f"{self.path} holds results of an earlier version of isfed (format 0), which this "
                f"one cannot continue; {replaces}"
            )
        if contents.damage:
            raise StoreError(f"{contents.damage}; {replaces}")
        mine = self.configured.digest
        if mine == contents.digest or mine in contents.unfinished:
            if not resume:
                raise StoreError(f"{self.path} already holds results; --resume continues them, "
                                 f"{replaces}")  # fmt: skip
            return mine == contents.digest
        if contents.digest is not None or contents.unfinished:
            config = CONFIG if contents.digest else f"{CELLS}/{min(contents.unfinished)}/{CONFIG}"
            raise StoreError(
                f"{self.path} holds results of another configuration (see its {config}); {replaces}"
            )
        return False

    def _prepare(self, *, overwrite: bool) -> None:
        for folder in (self.path, self.cells):
            clear_parts(folder)
        if overwrite:
            _remove_cells(self.cells)
        write_whole(self.cells / CONFIG, self.configured.to_toml().encode())  # now it is ours

    def refuse_worse(self, summary: Mapping[str, Any]) -> None:
        """Refuse results in which everything diverged if there are others, and keep those."""
        reasons = _divergences(summary)
        if reasons is None or not (self.path / SUMMARY).is_file():
            return
        with contextlib.suppress(ValueError):  # what is damaged is not worth keeping
            if _divergences(read_json(self.path / SUMMARY)) is None:
                self._remove_cells()
                raise StoreError(
                    f"the results in {self.path} are kept, because nothing of the new run could "
                    f"take their place: {'; '.join(reasons)}"
                )

    def replace(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        summary: Mapping[str, Any],
        times: Mapping[str, Any],
    ) -> None:
        """Put complete results in the place of whatever is there; `tables` are Parquet files.

        All of them are on the disk before the first old one is removed: it may be full.
        """
        heading = {
            "format": FORMAT, "kind": self.configured.kind, "digest": self.configured.digest,
        }  # fmt: skip
        for name, columns in tables.items():
            write_columns(self._beside(name), columns)
        write_whole(self._beside(CONFIG), self.configured.to_toml().encode())
        write_json(self._beside(TIMES), times)
        write_json(self._beside(SUMMARY), heading | dict(summary))
        checksums = {n: _sha256(self._beside(n)) for n in sorted((*tables, CONFIG, SUMMARY))}
        write_json(self._beside(MANIFEST), checksums)
        for name in (*WRITTEN, *OLD):  # the summary first
            (self.path / name).unlink(missing_ok=True)
        for name in (*tables, CONFIG, TIMES, MANIFEST, SUMMARY):
            self._beside(name).replace(self.path / name)
        for folder in (self.path / CELLS).glob("*"):
            _remove_cells(folder)
        _remove_empty(self.path / CELLS)
        _remove_cells(self.path / OLD_CELLS)

    def _beside(self, name: str) -> Path:
        """Where a file waits until all are there; what a killed process left is cleared away."""
        return self.path / f".{name}.new{PART}"

    def _remove_cells(self) -> None:
        _remove_cells(self.cells)
        _remove_empty(self.path / CELLS)


def check_manifest(folder: Path) -> None:
    """Raise a ValueError if a file is not as the run left it; earlier versions left no manifest."""
    if not (folder / MANIFEST).exists():
        return
    written = read_json(folder / MANIFEST)
    for name in (CONFIG, SUMMARY, *TABLES):
        actual = _sha256(folder / name) if (folder / name).exists() else None
        if actual != written.get(name):
            what = "is missing" if actual is None else "is not as the run left it"
            raise ValueError(
                f"{name} {what}, by its checksum in {MANIFEST}; put the file back, or remove "
                f"{MANIFEST} to read the folder as it is"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _divergences(summary: Mapping[str, Any]) -> list[str] | None:
    """Why every algorithm of a summary diverged; None if one did not, or there is none."""
    rows = summary.get("algorithms")
    reasons = [row.get("diverged") for row in rows] if isinstance(rows, list) else []
    return [str(reason) for reason in reasons] if reasons and all(reasons) else None


def _remove_cells(folder: Path) -> None:
    """Remove what a run keeps while it is not complete, and nothing else."""
    clear_parts(folder)
    for path in (*folder.glob("*.npz"), folder / CONFIG):
        path.unlink(missing_ok=True)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is not there, or somebody put something in it
        folder.rmdir()
