"""`isfed methods` and `isfed designs`."""

from __future__ import annotations

from typing import Annotated

import typer

from isfed.cli.command_helpers import console, print_line


def list_methods(
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of docs/appendix/methods.md.")
    ] = False,
) -> None:
    """List the methods: whom each selects, how it steps and combines, and what it minimises.

    The name is the value of `kind` in an experiment's file, and the name to import from isfed.
    """
    from isfed.report.methods_table import as_json, as_markdown, for_terminal

    if json:
        typer.echo(as_json())
    elif markdown:
        typer.echo(as_markdown(), nl=False)
    else:
        console.print(for_terminal(console.width))
        print_line("isfed run FILE.toml runs any of them; docs/methods.md says more.")


def list_designs() -> None:
    """List the sampling designs and what each of them guarantees."""
    from rich.table import Table

    from isfed.sampling.designs import ALL_DESIGNS, SPREAD_DESIGNS
    from isfed.studies.name_registry import DESIGNS

    names = {make: name for name, make in DESIGNS.items()}
    table = Table("design", "guarantees", show_lines=True)
    for design in (*ALL_DESIGNS, *SPREAD_DESIGNS):
        table.add_row(names[design], design.guarantee)
    console.print(table)
