"""`isfed methods` and `isfed designs`."""

from __future__ import annotations

from typing import Annotated

import typer

from isfed.cli.command_helpers import console, fail, print_line


def list_methods(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only methods in whose entry all these words occur, e.g. a name."),
    ] = None,
    unbiased: Annotated[bool, typer.Option("--unbiased", help="Only unbiased methods.")] = False,
    network: Annotated[
        bool, typer.Option("--network", help="Only methods that run over a network.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of docs/appendix/methods.md.")
    ] = False,
) -> None:
    """List the methods: whom each selects, how it steps and combines, and what it minimises.

    The name is the value of `kind` in an experiment's file, and the name to import from isfed.
    """
    from isfed.report import methods_table

    listed = methods_table.select(words or [], unbiased=unbiased, network=network)
    if not listed:
        fail(f"no method has {' '.join(words or [])!r} in its entry; `isfed methods` lists all", 2)
    if json:
        typer.echo(methods_table.as_json(listed))
    elif markdown:
        typer.echo(methods_table.as_markdown(), nl=False)
    elif words or unbiased or network:
        console.print(methods_table.as_list(listed))
    else:
        console.print(methods_table.for_terminal(console.width))
        print_line(
            "`isfed methods WORD` shows those with the word, and their constructors; "
            "isfed run FILE.toml runs any of them; docs/methods.md says more."
        )


def list_designs() -> None:
    """List the sampling designs and what each of them guarantees."""
    from rich.table import Table

    from isfed.sampling import designs
    from isfed.studies.name_registry import DESIGNS

    names = {make: name for name, make in DESIGNS.items()}
    table = Table("design", "guarantees", show_lines=True)
    for name in designs.__all__:
        design = getattr(designs, name)
        if hasattr(design, "guarantee"):
            table.add_row(names.get(design, name), design.guarantee)
    console.print(table)
    print_line(
        "Names in small letters are for files of `isfed run`; isfed.sampling has all. "
        "docs/sampling.md says what each lets you estimate."
    )
