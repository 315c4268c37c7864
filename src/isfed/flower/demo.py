"""A federation on this machine, of processes or in Flower's simulation, and the same in process."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.base.temporary_folders import HeldFolder, abandoned
from isfed.flower import require_flwr
from isfed.flower.local_processes import (
    NO_HEARTBEAT,
    FederationError,
    LocalFederation,
    end_marked,
    is_running,
)
from isfed.simulate import simulate
from isfed.simulate.kernel_run import num_cores

QUIET_SECONDS = 600.0  # no round ends for so long: give up
LOST = (
    "Flower heard nothing of it for a minute, as when the machine sleeps or its clock is set, and "
    "gave the run up; start the demo again"
)
PREFIX, MARK_FILE = "isfed-demo-", "mark"
Say = Callable[[str], None]


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that processes are stopped.

    Ctrl-C too: a shell that starts us in the background has it ignored otherwise.
    """

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_leftovers() -> list[Path]:
    """Remove the folders of demos that were killed, with their keys, and end their processes."""
    removed = []
    for folder in abandoned(PREFIX):
        mark = folder / MARK_FILE
        if mark.exists():
            end_marked(mark.read_text(encoding="utf-8"))
        removed.append(folder)
    return removed


def in_process(config: dict[str, Any]) -> np.ndarray:
    """The model after every round, from the agent and cloud objects in this process."""
    from isfed.flower.demo_app import demo_algorithm, demo_problem

    rounds, seed = config["rounds"], config["seed"]
    return simulate(
        demo_problem(config["agents"], seed), demo_algorithm(config), rounds=rounds, seed=seed,
        engine="objects", keep=range(1, rounds + 1),
    ).kept[0]  # fmt: skip


class DemoResults:
    """The folder of results: what the server app has written, and whether it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds written so far; the last line may be half a line."""
        path = self.folder / "rounds.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def server(self) -> int | None:
        """The id of the server app's process, dead or alive; None before it began."""
        try:
            return int((self.folder / "server.pid").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    @property
    def done(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "done").exists()

    def follow(self, seconds: float = QUIET_SECONDS) -> Iterator[dict[str, Any]]:
        """Every round as it ends, until the run is done; raises if it died or is stuck."""
        seen = 0
        until = time.monotonic() + seconds
        while True:
            server = self.server()  # seen or not while it lived: it may die between two looks
            died = server is not None and not is_running(server)
            done = self.done  # after the look at the process: it writes this, then it ends
            for line in self.rounds()[seen:]:
                seen += 1
                until = time.monotonic() + seconds
                yield line
            if done:
                return
            if died:
                raise FederationError("the server app ended before the last round")
            if time.monotonic() > until:
                raise FederationError(f"no round ended within {seconds:g} seconds")
            time.sleep(0.2)


def run_demo(*, agents: int, rounds: int, active: int, seed: int, say: Say) -> float:
    """Run the demo; returns the largest difference from the in-process simulation."""
    require_flwr()
    if not hasattr(os, "killpg"):
        raise FederationError(
            "the demo starts and stops processes in a way that Windows does not have; run it under "
            "the Windows Subsystem for Linux, on Linux or on macOS"
        )
    from isfed.flower.demo_app import DEFAULTS, write_app

    config = {**DEFAULTS, "agents": agents, "rounds": rounds, "active": active, "seed": seed}
    say("in process: the same agents and cloud, for comparison")
    expected = in_process(config)  # also compiles what every agent's process will load
    for left in remove_leftovers():
        say(f"removed {left}, which a demo that was killed had left behind")
    with terminable(), closing(HeldFolder(PREFIX)) as held:  # its lock shows that it is in use
        folder = held.path
        config["results"] = str(folder / "results")
        (folder / "results").mkdir()
        write_app(folder / "app")
        say(f"starting a SuperLink and {agents} SuperNodes on loopback, with TLS and node keys")
        with LocalFederation(folder, agents=agents) as federation:
            (folder / MARK_FILE).write_text(federation.mark, encoding="utf-8")
            federation.start()
            run = federation.submit(folder / "app", config)
            try:
                worst = _compare(DemoResults(folder / "results"), expected, say)
            except FederationError as error:
                if details := federation.details(run):
                    lost = details.startswith(NO_HEARTBEAT)
                    raise FederationError(f"{error}: {LOST if lost else details}") from error
                tail = "\n".join(federation.log("superlink").splitlines()[-8:])
                raise FederationError(f"{error}\n{tail}") from error
            say((folder / "results" / "done").read_text(encoding="utf-8"))
            say("stopping every process")
    return worst


def _compare(results: DemoResults, expected: np.ndarray, say: Say) -> float:
    worst, began = 0.0, time.monotonic()
    for line in results.follow():
        i = line["round_index"]
        difference = float(np.abs(np.array(line["params"]) - expected[i]).max())
        worst = max(worst, difference)
        say(
            f"round {i + 1} of {len(expected)}: {line['answered']} of {line['drawn']} agents "
            f"answered, length of the step {line['step']:.3e}, difference from in-process "
            f"{difference:.1e} ({time.monotonic() - began:.0f} s)"
        )
    return worst


class EngineResult(NamedTuple):
    """One engine's final model, how far it is from the kernel's, and the seconds it took."""

    engine: str
    params: np.ndarray
    difference: float
    seconds: float


def compare_engines(*, rounds: int = 20, seed: int = 0) -> list[EngineResult]:
    """The same small setting on the kernel, the objects, and Flower's simulation."""
    require_flwr()
    if find_spec("ray") is None:
        raise ImportError("Flower's simulation is not installed: pip install 'isfed[ray]'")
    # Before Flower and Ray are imported: no look-ups.
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ.update(quiet, RAY_USAGE_STATS_ENABLED="0")
    from isfed.flower.demo_app import DEFAULTS, demo_algorithm, demo_problem

    config = {**DEFAULTS, "agents": 12, "active": 4, "rounds": rounds, "seed": seed}
    config |= {"named": False, "time-limit": 600.0}
    problem, algorithm = demo_problem(config["agents"], seed), demo_algorithm(config)
    results: list[EngineResult] = []
    for engine in ("kernel", "objects", "flower"):
        began = time.perf_counter()
        if engine == "flower":
            params = simulate_flower(config)
        else:
            run = simulate(problem, algorithm, rounds=rounds, seed=seed, engine=engine)
            params = run.params[0]
        seconds = time.perf_counter() - began
        difference = float(np.abs(params - (results[0].params if results else params)).max())
        results.append(EngineResult(engine, params, difference, seconds))
    return results


def simulate_flower(config: dict[str, Any]) -> np.ndarray:
    """(M,) the model after the last round of the demo's app, run by Flower's simulation on Ray."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from isfed.flower import demo_app

    client, server = ClientApp(), ServerApp()
    client.query()(demo_app.tell_agent)

    @client.train()
    def train(message: Any, context: Any) -> Any:
        context.run_config, context.node_config["isfed-state"] = config, f"{folder}/state"
        return demo_app.demo_train(message, context)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        context.run_config = {**config, "results": folder}
        demo_app.demo_main(grid, context)

    with tempfile.TemporaryDirectory(prefix="isfed-") as folder:
        cores = {"num_cpus": num_cores(), "include_dashboard": False}
        resources = {"client_resources": {"num_cpus": 1}, "init_args": cores}
        run_simulation(server, client, num_supernodes=config["agents"], backend_config=resources)
        return np.array(DemoResults(Path(folder)).rounds()[-1]["params"])
