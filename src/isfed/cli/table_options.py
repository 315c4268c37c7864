"""The options of the commands that read a table of the user's, and how errors spell them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from isfed.studies.problem_sources import FileSource

RIDGE = 1e-3
# What errors call by the names of the library, and the command line by these.
SPELLING = {
    "num_active": "--active", "least_rows": "--least-rows", "missing": "--missing",
    "task": "--task", "batch_size": "--batch-size", "local_steps": "--local-steps",
    "encoding": "--encoding", "separator": "--separator", "decimal": "--decimal",
    "format": "--format", "na": "--na", "rounds": "--rounds", "repetitions": "--repetitions",
    "ridge": "--ridge", "seed": "--seed", "drop": "--drop",
    "most_gigabytes": "--most-gigabytes", "most_columns": "--most-columns",
}  # fmt: skip


def spelled(message: str) -> str:
    """An error of the library with the options as the command line spells them.

    >>> spelled("num_active=9 exceeds num_agents=4; or set missing='mean'")
    '--active 9 exceeds the number of agents, 4; or set --missing mean'
    """
    value = r"('[^']*'|\"[^\"]*\"|[^\s,;:)]*[^\s,;:.)])"

    def option(match: re.Match) -> str:
        word = match[2]
        bare = word[1:-1] if word[0] in "'\"" and len(word) > 1 else word
        return f"{SPELLING[match[1]]} {shlex.quote(bare)}"

    message = re.sub(r"\bnum_agents=(\d+)", r"the number of agents, \1", message)
    return re.sub(rf"\b({'|'.join(SPELLING)})={value}", option, message)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How a file is read; None for the usual, which for predictions is what the training had."""

    separator: Annotated[
        str | None,
        typer.Option(
            help="What separates the fields of a text: one character, tab, space or blanks "
            "(usually found from the first lines)."
        ),
    ] = None
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a text, such as latin-1 (usually UTF-8).")
    ] = None
    decimal: Annotated[
        Literal["point", "comma"] | None,
        typer.Option(help="The sign before decimals (usually the point)."),
    ] = None
    format: Annotated[
        Literal["csv", "svmlight", "parquet", "feather", "excel"] | None,
        typer.Option(help="Format of the file (default: by its suffix)."),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line names the columns (usually); else 1, 2, ...",
        ),
    ] = None
    most_gigabytes: Annotated[
        float | None,
        typer.Option(help="What a packed file may unpack to (default: 1, or 20 times the file)."),
    ] = None
    most_columns: Annotated[
        int | None, typer.Option(help="The largest number of columns (default: 10000).")
    ] = None

    def fields_of(self, record: type) -> dict[str, Any]:
        """The given options that are fields of a record of the library."""
        given = {field.name: getattr(self, field.name, None) for field in fields(record)}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None
        }


@dataclass(frozen=True, kw_only=True)
class _ColumnOptions:
    """What the columns of a table are."""

    task: Annotated[
        Literal["regression", "classification"],
        typer.Option(help="regression (the target is a number) or classification (it is a class)."),
    ] = "regression"
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A column to leave out of the features; may be repeated."),
    ] = None
    categorical: Annotated[
        list[str] | None,
        typer.Option(help="A column of codes that stand for categories; may be repeated."),
    ] = None
    measured: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of numbers that looks like codes or row numbers; may be repeated."
        ),
    ] = None
    missing: Annotated[
        str,
        typer.Option(
            help="How to treat missing values: stop with an error, fill with the mean, or fill "
            "with this number."
        ),
    ] = "error"
    na: Annotated[
        list[str] | None,
        typer.Option(help="A value that stands for a missing one, such as -999; may be repeated."),
    ] = None
    least_rows: Annotated[
        int | None,
        typer.Option(help="Leave out agents with fewer rows (default: a single row is an error)."),
    ] = None
    drop_missing_target: Annotated[
        bool,
        typer.Option(
            "--drop-missing-target", help="Leave out rows without a target or an agent, and count."
        ),
    ] = False
    weights: Annotated[
        Literal["agents", "rows"],
        typer.Option(help="Whether every agent counts the same, or every row."),
    ] = "agents"


@dataclass(frozen=True, kw_only=True)
class TableOptions(ReadingOptions, _ColumnOptions):
    """What the columns of a table are, and how it is read."""

    def source(self, file: Path, agent: str, target: str, **more: Any) -> FileSource:
        """The user's file with its columns; `more` are other fields of the source."""
        from isfed.datasets.read_options import Reading
        from isfed.datasets.table_data import Columns
        from isfed.studies import ConfigError
        from isfed.studies.problem_sources import FileSource

        try:
            filling: Any = (
                self.missing if self.missing in ("error", "mean") else float(self.missing)
            )
        except ValueError:
            raise ConfigError(f"missing={self.missing!r} must be error, mean or a number") from None
        columns = self.fields_of(Columns) | {"agent": agent, "target": target, "missing": filling}
        return FileSource(
            file=file, columns=Columns(**columns), reading=Reading(**self.fields_of(Reading)),
            weights=self.weights, **more,
        )  # fmt: skip

    @property
    def given(self) -> list[str]:
        """The options that were given, for a problem that is no table."""
        usual = TableOptions()
        return [
            f"--{name.replace('_', '-')}"
            for name, value in vars(self).items()
            if value != getattr(usual, name) and value != []
        ]
