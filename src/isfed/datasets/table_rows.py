"""Which rows of a table are used: those with an agent and a target, agent by agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from isfed.base.text_format import problem_list
from isfed.datasets import column_encoding
from isfed.datasets.encoder import Columns
from isfed.datasets.partition import by_column
from isfed.datasets.table_sources import Source


class TableErrors(list[str]):
    """What is wrong with a table, to be reported in one error."""

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Go on after an error, to report it with the others."""
        try:
            yield
        except ValueError as error:
            self.append(str(error))

    def check(self) -> None:
        """Raise a ValueError that lists the errors, if there are any."""
        if self:
            raise ValueError(problem_list(self))


@dataclass
class ChosenRows:
    """The rows that are used, and what was found out on the way."""

    rows: np.ndarray  # of the file, agent by agent
    offsets: np.ndarray  # (K + 1,) where every agent's rows begin, and the end
    targets: np.ndarray  # of all rows of the file, NaN where one is missing
    agents: np.ndarray = field(default_factory=lambda: np.array([]))  # (K,) their names
    classes: Sequence = ()
    few: tuple[int, int] = (0, 0)  # agents left out because they have too few rows, and their rows
    incomplete: tuple[int, int] = (0, 0)  # rows left out: without an agent, without a target


def all_rows(source: Source) -> ChosenRows:
    """All rows in the order of the file, as if of one agent; targets are not looked at."""
    count = source.table.num_rows
    return ChosenRows(np.arange(count), np.array([0, count]), np.zeros(count))


def choose_rows(
    source: Source, columns: Columns, classes: Sequence | None, errors: TableErrors
) -> ChosenRows:
    """Divide the rows among the agents; `classes` are those of the training, if it was before.

    After an error in agents or targets all rows are there, to look at the other columns.
    """
    chosen = all_rows(source)
    # Known even where the other values cannot be read.
    chosen.targets[np.asarray(source.column(columns.target).is_null())] = np.nan
    with errors.collecting():
        if column_encoding.says_nothing(source, columns.target):
            chosen.targets[:] = np.nan
        elif columns.task == "regression":
            chosen.targets = column_encoding.measured_target(source, columns.target)
        else:
            chosen.targets, chosen.classes = column_encoding.class_target(
                source, columns.target, classes
            )
    with errors.collecting():
        places, names = column_encoding.codes(source, columns.agent)  # names in sorted order
        no_agent, no_target = places < 0, np.isnan(chosen.targets)
        if columns.drop_missing_target:
            chosen.incomplete = (int(np.sum(no_agent)), int(np.sum(no_target & ~no_agent)))
            known = np.flatnonzero(~no_agent & ~no_target)
            if not known.size:
                raise ValueError(f"{source.name} has no row with both an agent and a target")
            chosen.rows = known
        else:
            _check_known(source, columns.agent, "agent", no_agent, errors)
            _check_known(source, columns.target, "target", no_target, errors)
        if not np.any(no_agent[chosen.rows]):
            _divide(source, columns, chosen, places, np.array(names))
    return chosen


def _check_known(
    source: Source, column: str, role: str, missing: np.ndarray, errors: TableErrors
) -> None:
    rows = np.flatnonzero(missing)
    if rows.size:
        errors.append(
            f"{source.place(rows[0], column)}: the {role} is missing ({rows.size} such); fill it "
            "in, or leave such rows out with --drop-missing-target"
        )


def _divide(
    source: Source, columns: Columns, chosen: ChosenRows, places: np.ndarray, names: np.ndarray
) -> None:
    """Divide the rows among their agents, and leave out agents that have few."""
    partition = by_column(places[chosen.rows])
    sizes, names = partition.sizes, names[partition.names]
    rows = chosen.rows[partition.rows]
    least = 2 if columns.least_rows is None else columns.least_rows
    few = np.flatnonzero(sizes < least)
    if few.size and columns.least_rows is None:
        row = int(rows[partition.offsets[few[0]]])
        raise ValueError(
            f"{source.place(row, columns.agent)}: agent {names[few[0]]!s} has 1 row(s); "
            f"{few.size} of {names.size} agents have so few. Is {columns.agent!r} the column "
            "of the agents? If so, leave such agents out with least_rows=2, or keep them with "
            "least_rows=1"
        )
    kept = sizes >= least
    if not kept.any():
        raise ValueError(
            f"{source.name}: every agent has fewer rows than least_rows={least} (the largest "
            f"has {sizes.max()}); use a smaller number"
        )
    chosen.few = (few.size, int(sizes[few].sum()))
    chosen.rows = rows[np.repeat(kept, sizes)]
    chosen.offsets = np.concatenate([[0], np.cumsum(sizes[kept])])
    chosen.agents = names[kept]
