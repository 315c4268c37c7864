"""The command line, put together from its groups."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperOption

from isfed.cli import (
    compare_and_diagnose,
    federation,
    leaderboard,
    listings,
    predict,
    report,
    reproduce,
)
from isfed.cli.command_helpers import print_line

_made = TyperArgument.__init__


def _made_with_help(self: TyperArgument, *, help: str | None = None, **options: Any) -> None:
    """Click 8.5 has a `help` of its own for arguments, and overwrites what Typer 0.20 put there."""
    _made(self, help=help, **options)
    self.help = help


def _shown_type(self: Any, ctx: Any) -> str | None:
    """Typer 0.29 writes <bool> beside flags, and the names of Python's types beside the rest."""
    if getattr(self, "is_flag", False):
        return None
    shown = self.display_type(ctx).strip("<>").removesuffix(" range")
    if shown.startswith("list["):
        shown = shown[len("list[") : -1]
    return {"str": "text", "int": "integer", "float": "number"}.get(shown, shown)


TyperArgument.__init__ = _made_with_help
for _kind in (TyperArgument, TyperOption):
    _kind.display_type_rich = _shown_type  # pyright: ignore[reportAttributeAccessIssue]

app = typer.Typer(
    help="Federated learning under importance sampling.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(federation.app, name="federation")
app.add_typer(leaderboard.app, name="leaderboard")
for _name, _command in {
    "compare": compare_and_diagnose.compare_on_table,
    "diagnose": compare_and_diagnose.diagnose_problem,
    "predict": predict.predict_table,
    "run": reproduce.run,
    "report": report.report,
    "designs": listings.list_designs,
    "methods": listings.list_methods,
}.items():
    app.command(_name)(_command)


def _keep_brackets(group: typer.Typer) -> None:
    """Let Rich print the help of every command as it is: it takes [torch] for one of its tags."""
    for command in group.registered_commands:
        command.help = escape(inspect.getdoc(command.callback) or "")
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _keep_brackets(below.typer_instance)


_keep_brackets(app)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print_line(f"isfed {version('isfed')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
