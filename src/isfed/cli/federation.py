"""The commands of `isfed federation`; Flower is imported when one of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isfed.cli.interrupt_exit import INTERRUPTED, interrupts_raise
from isfed.flower import require_flwr

if TYPE_CHECKING:
    from isfed.flower.certificates import KeyFolder

app = typer.Typer(no_args_is_help=True, help="Run agents and cloud over a network, on Flower.")
LARGEST_DIFFERENCE = 1e-12


def _fail(message: object) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(1)


@app.command()
def demo(
    agents: Annotated[
        int, typer.Option(min=1, max=32, help="Number of SuperNodes, one per agent.")
    ] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Number of rounds.")] = 5,
    active: Annotated[
        int | None, typer.Option(min=1, help="Agents per round (default: two thirds of them).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of all draws.")] = 0,
) -> None:
    """Run the paper's regression on a real federation on this machine.

    Starts a SuperLink and SuperNodes on loopback with TLS and node authentication, in a temporary
    folder, and compares the model with the one of a simulation. Everything is stopped at the end,
    also after Ctrl-C or a failure.
    """
    active = active or max(1, (2 * agents) // 3)
    if active > agents:
        raise _fail(f"--active {active} exceeds --agents {agents}; draw at most all of them")
    try:
        require_flwr()
        from isfed.flower.demo import run_demo
        from isfed.flower.local_processes import FederationError
    except ImportError as error:
        raise _fail(error) from None
    try:
        worst = run_demo(agents=agents, rounds=rounds, active=active, seed=seed, say=typer.echo)
    except FederationError as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        typer.echo("interrupted: every process was stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"largest difference from the in-process simulation: {worst:.1e}")
    if worst > LARGEST_DIFFERENCE:
        raise _fail(f"expected at most {LARGEST_DIFFERENCE:.0e}: the two disagree")


@app.command("check")
def check_connection(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the cloud, as for --superlink.")],
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="Path of ca.crt; without it the connection is not encrypted."),
    ] = None,
) -> None:
    """Find out why a node on this host cannot reach the cloud: network, certificates or clock.

    isfed federation check cloud.example:8443 --root-certificates /etc/isfed/ca.crt
    """
    from isfed.flower.connection_check import connection_status

    try:
        status = connection_status(address, authority=root_certificates)
    except ValueError as error:
        raise _fail(error) from None
    typer.echo(f"{address} answers; this clock is {status.ahead:+.0f} s from its clock")
    if status.days_left is not None:
        typer.echo(f"its certificate is valid for {status.days_left} more days")
    problem = status.problem()
    if problem is not None:
        raise _fail(problem)


keys = typer.Typer(
    no_args_is_help=True, help="Make and manage the certificates and node keys of a deployment."
)
app.add_typer(keys, name="keys")
OWN_HOST = ("localhost", "127.0.0.1")  # the SuperLink's server apps and the proxy connect here
Folder = Annotated[Path, typer.Option(help="The folder with the keys.")]
Link = Annotated[
    str | None,
    typer.Option(
        help="Also tell this SuperLink (the name of a connection in $FLWR_HOME/config.toml)."
    ),
]


@keys.command("make")
def make_key_folder(
    folder: Annotated[
        Path, typer.Argument(help="The folder to write to; existing files are not overwritten.")
    ],
    host: Annotated[
        list[str],
        typer.Option(help="Name or address by which agents reach the cloud; may be repeated."),
    ],
    agents: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="Number of agents, each of which gets a key pair."),
    ],
) -> None:
    """Make the certificates and node keys of a real deployment.

    isfed federation keys make keys --host cloud.example --agents 20

    The server's certificate is also valid for localhost and 127.0.0.1, by which processes on the
    cloud's own host reach it.
    """
    hosts = list(dict.fromkeys([*host, *OWN_HOST]))
    with _mistakes():
        from isfed.flower.certificates import make_keys

        make_keys(folder, hosts=hosts, agents=[f"agent{k}" for k in range(agents)])
    typer.echo(f"{folder}/ca.crt       copy it to every host")
    typer.echo(f"{folder}/ca.key       keep it here or offline: it can sign a false cloud")
    typer.echo(f"{folder}/server.*     copy them to the cloud's host ({', '.join(hosts)})")
    typer.echo(f"{folder}/agent0 ...   give each agent its own, and nobody else")
    typer.echo(f"{folder}/agent0.pub   register it at the SuperLink, and so on for every agent:")
    typer.echo(f"  flwr supernode register {folder}/agent0.pub CONNECTION --name agent0")
    typer.echo(
        "CONNECTION is the name of the SuperLink in $FLWR_HOME/config.toml, see docs/deploy.md"
    )


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="The name of the new agent.")],
    folder: Folder = Path("keys"),
    link: Link = None,
) -> None:
    """Make a key pair for one more agent."""
    with _key_folder(folder) as held:
        public = held.add(name)
        typer.echo(f"{folder / name}: give it to {name}, and to nobody else")
        _register(link, public, name)


@keys.command()
def renew(
    name: Annotated[str, typer.Argument(help="server, ca, or the name of an agent.")],
    folder: Folder = Path("keys"),
    link: Link = None,
) -> None:
    """Replace a certificate or key pair that is about to expire or has leaked."""
    with _key_folder(folder) as held:
        if name == "ca":
            typer.echo(f"{held.renew_authority()}: copy it to every host, and restart what uses it")
        elif name == "server":
            typer.echo(f"{held.renew_server()}, server.key: copy to the cloud's host; restart it")
        else:
            old = held.revoke(name)
            public = held.add(name)
            typer.echo(f"{folder / name}: give it to {name} to replace the old key")
            _unregister(link, old, name)
            _register(link, public, name)


@keys.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The name of the agent.")],
    folder: Folder = Path("keys"),
    link: Link = None,
) -> None:
    """Lock an agent out: remove its secret here, and its key from the SuperLink."""
    with _key_folder(folder) as held:
        old = held.revoke(name)
        typer.echo(f"{folder / name} is deleted; its public key is kept as {old}")
        _unregister(link, old, name)


@keys.command("list")
def list_keys(folder: Folder = Path("keys")) -> None:
    """List certificates and keys, and how many days they are still valid."""
    with _key_folder(folder) as held:
        from isfed.flower.certificates import SOON_DAYS

        for key in held.list():
            days = key.days_left()
            left = "no end" if days is None else f"{days} days left"
            soon = "" if days is None or days >= SOON_DAYS else f"  renew: keys renew {key.name}"
            typer.echo(f"{key.name:20s} {key.what:12s} since {key.since:%Y-%m-%d}  {left}{soon}")


def _register(link: str | None, public: Path, name: str) -> None:
    if link is None:
        typer.echo(f"to let it in: flwr supernode register {public} CONNECTION --name {name}")
        return
    from isfed.flower.certificates import register_node

    typer.echo(f"registered at {link!r} as node {register_node(link, public, name=name)}")


def _unregister(link: str | None, public: Path, name: str) -> None:
    if link is None:
        typer.echo(
            f"{name} can connect until you unregister it at the SuperLink: flwr supernode list, "
            "then flwr supernode unregister NODE_ID; or use --link"
        )
        return
    from isfed.flower.certificates import unregister_node

    typer.echo(f"unregistered at {link!r}: {unregister_node(link, public)} nodes had its key")


@contextmanager
def _mistakes() -> Iterator[None]:
    """What the user can mend, in one line; Flower has to be there."""
    try:
        require_flwr()
        with interrupts_raise():
            yield
    except KeyboardInterrupt:
        typer.echo("error: stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ImportError, ValueError, OSError) as error:
        raise _fail(error) from None


@contextmanager
def _key_folder(folder: Path) -> Iterator[KeyFolder]:
    """The keys in a folder; what the user can mend is said in one line."""
    with _mistakes():
        from isfed.flower.certificates import KeyFolder

        yield KeyFolder(folder)


def print_engines(*, rounds: int, seed: int) -> None:
    """One small setting on the kernel, the objects and Flower's simulation: do they agree?"""
    try:
        from isfed.flower.demo import compare_engines

        engines = compare_engines(rounds=rounds, seed=seed)
    except ImportError as error:
        raise _fail(error) from None
    typer.echo(f"12 agents of the paper's regression, 4 per round, {rounds} rounds, seed {seed}")
    for engine in engines:
        typer.echo(
            f"{engine.engine:8s} difference from the kernel {engine.difference:.1e} "
            f"({engine.seconds:.1f} s)"
        )
    if max(engine.difference for engine in engines) > LARGEST_DIFFERENCE:
        raise _fail(f"expected at most {LARGEST_DIFFERENCE:.0e}: the engines disagree")
