"""`isfed designs`."""

from __future__ import annotations

from isfed.cli.command_helpers import console


def designs() -> None:
    """List the sampling designs and what each of them guarantees."""
    from rich.table import Table

    from isfed.sampling.designs import ALL_DESIGNS, SPREAD_DESIGNS
    from isfed.studies.name_registry import DESIGNS

    names = {make: name for name, make in DESIGNS.items()}
    table = Table("design", "guarantees", show_lines=True)
    for design in (*ALL_DESIGNS, *SPREAD_DESIGNS):
        table.add_row(names[design], design.guarantee)
    console.print(table)
