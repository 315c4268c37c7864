"""The commands of `isfed federation`; Flower is imported when one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isfed.flower import require_flwr

app = typer.Typer(no_args_is_help=True, help="Agents and cloud over a network, on Flower.")
LARGEST_DIFFERENCE = 1e-12


def _fail(message: object) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(1)


@app.command()
def demo(
    agents: Annotated[int, typer.Option(min=1, max=32, help="How many SuperNodes.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=1000)] = 5,
    active: Annotated[int | None, typer.Option(min=1, help="Agents per round.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Run the paper's regression on a real federation on this machine, and compare.

    Starts a SuperLink and SuperNodes on loopback with TLS and node authentication, in a temporary
    folder, and stops all of them at the end, on Ctrl-C and on failure.
    """
    active = active or max(1, (2 * agents) // 3)
    if active > agents:
        raise _fail(f"--active {active} exceeds --agents {agents}; draw at most all of them")
    try:
        require_flwr()
        from isfed.flower.demo import run_demo
        from isfed.flower.processes import FederationError
    except ImportError as error:
        raise _fail(error) from None
    try:
        worst = run_demo(agents=agents, rounds=rounds, active=active, seed=seed, say=typer.echo)
    except FederationError as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        typer.echo("interrupted: every process was stopped", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"largest difference from the in-process simulation: {worst:.1e}")
    if worst > LARGEST_DIFFERENCE:
        raise _fail(f"expected at most {LARGEST_DIFFERENCE:.0e}: the two disagree")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Made if missing; nothing in it is overwritten.")],
    host: Annotated[
        list[str], typer.Option(help="Name or address of the cloud's host, as agents reach it.")
    ],
    agents: Annotated[int, typer.Option(min=1, max=100_000, help="How many key pairs.")],
) -> None:
    """Make the certificates and node keys of a real deployment.

    isfed federation keys KEYS --host cloud.example --host 10.0.0.5 --agents 20
    """
    try:
        require_flwr()
        from isfed.flower.keys import make_keys
    except ImportError as error:
        raise _fail(error) from None
    names = [f"agent{k}" for k in range(agents)]
    try:
        make_keys(folder, hosts=host, agents=names)
    except (ValueError, OSError) as error:
        raise _fail(error) from None
    typer.echo(f"{folder}/ca.crt       to every party")
    typer.echo(f"{folder}/ca.key       stays here, better offline: it can sign a false cloud")
    typer.echo(f"{folder}/server.*     to the cloud's host ({', '.join(host)})")
    typer.echo(f"{folder}/agent0 ...   one to each agent, and to nobody else")
    typer.echo(f"{folder}/agent0.pub   register: flwr supernode register agent0.pub --name agent0")


def print_engines(*, rounds: int, seed: int) -> None:
    """One small setting on the kernel, the objects and Flower's simulation: do they agree?"""
    try:
        from isfed.flower.simulation import compare_engines

        found = compare_engines(rounds=rounds, seed=seed)
    except ImportError as error:
        raise _fail(error) from None
    typer.echo(f"12 agents of the paper's regression, 4 per round, {rounds} rounds, seed {seed}")
    for engine in found:
        typer.echo(
            f"{engine.engine:8s} difference from the kernel {engine.difference:.1e} "
            f"({engine.seconds:.1f} s)"
        )
    if max(engine.difference for engine in found) > LARGEST_DIFFERENCE:
        raise _fail(f"expected at most {LARGEST_DIFFERENCE:.0e}: the engines disagree")
