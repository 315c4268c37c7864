"""A federation of processes on this machine: started on loopback, and always stopped again."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isfed.flower.certificates import make_folder, make_keys

HOST = "127.0.0.1"
LINK = "isfed"  # the name of the connection in Flower's configuration
MARK = "ISFED_FEDERATION"  # an environment variable that all processes of a federation inherit
START_SECONDS = 300.0  # a limit, not a measurement: the machine may be busy
STOP_SECONDS = 10.0
NO_HEARTBEAT = "No heartbeat"  # so begins what Flower says of a run that it gave up
PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent dies


class FederationError(RuntimeError):
    """A federation that could not be started or did not do what was asked."""


def free_port() -> int:
    """A port that nobody listens on; asked of the system, so it is not asked for again soon."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting for its parent to notice its end."""
    try:
        if Path("/proc/self/stat").exists():
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return stat.rsplit(")", 1)[1].split()[0] != "Z"
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def marked(mark: str) -> list[int]:
    """The running processes of a federation, by what they inherited (Linux)."""
    pids, wanted = [], f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in entry.joinpath("environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue  # gone meanwhile, or another user's
    return [pid for pid in pids if is_running(pid)]


def end_marked(mark: str) -> None:
    """SIGKILL to every process of a federation."""
    while left := marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _end_with_parent() -> None:
    """Ask the system to end this process when the one that started it dies (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalFederation:
    """A SuperLink and SuperNodes with TLS and node authentication, as a context.

    Leaving the context ends every process that was started, and those that they started.

    Args:
        folder: holds keys, logs, the database and the agents' state.
        agents: K.
        address: where the SuperLink listens; other hosts cannot reach that of loopback.
    """

    def __init__(self, folder: Path, *, agents: int, address: str = HOST) -> None:
        self.folder, self.keys, self.address = folder, folder / "keys", address
        self.names = [f"agent{k}" for k in range(agents)]
        self.port = free_port()
        self.gate = self.port  # where nodes connect: another port if a proxy stands before the link
        self.mark = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen] = {}
        scripts = Path(sys.executable).parent
        self.env = {
            **os.environ,
            MARK: self.mark,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            # Several agents share this machine's cores: one thread each.
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> LocalFederation:
        make_folder(self.folder)
        for name in ("flwr", "logs", "keys"):
            make_folder(self.folder / name)
        hosts = dict.fromkeys(["localhost", HOST, self.address])
        make_keys(self.keys, hosts=list(hosts), agents=self.names)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
            f'address = "{self.address}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n',
            encoding="utf-8",
        )
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def log(self, name: str) -> str:
        """What a process has written."""
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def on_host(self, name: str) -> list[str]:
        """What to put before the command of a process that belongs on another host."""
        return []

    def spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen:
        """Start a process in a session of its own, so that Ctrl-C reaches us alone."""
        with open(self.folder / "logs" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*self.on_host(name), *command], env=self.env, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # kill -9 of us must not leave them behind
            )  # fmt: skip
        self.processes[name] = process
        return process

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        keys = self.keys
        self.spawn(
            "superlink",
            [
                "flower-superlink", "--host", self.address, "--port", str(self.port),
                "--ssl-ca-certfile", str(keys / "ca.crt"),
                "--ssl-certfile", str(keys / "server.pem"),
                "--ssl-keyfile", str(keys / "server.key"),
                "--enable-supernode-auth", "--database", str(self.folder / "superlink.db"),
                "--disable-runtime-dependency-installation",
            ],
        )  # fmt: skip
        until = time.monotonic() + START_SECONDS
        while not _listens(self.address, self.port):
            if self.processes["superlink"].poll() is not None or time.monotonic() > until:
                tail = "\n".join(self.log("superlink").splitlines()[-5:])
                raise FederationError(f"superlink did not start:\n{tail}")
            time.sleep(0.1)

    def start_node(
        self, index: int, *, name: str | None = None, options: Sequence[str] = ()
    ) -> str:
        """Start the SuperNode of an agent; `options` replace those for TLS and the key."""
        name = name or self.names[index]
        secure = [
            "--root-certificates", str(self.keys / "ca.crt"),
            "--auth-supernode-private-key", str(self.keys / self.names[index]),
        ]  # fmt: skip
        state = self.folder / "state" / self.names[index]
        config = f'partition-id={index} num-partitions={len(self.names)} isfed-state="{state}"'
        self.spawn(
            name,
            [
                "flower-supernode", *(options or secure), "--superlink",
                f"{self.address}:{self.gate}", "--host", HOST, "--port", str(free_port()),
                "--node-config", config,
            ],
        )  # fmt: skip
        return name

    def register(self) -> None:
        """Register the agents' public keys, so that their nodes are let in."""
        for name in self.names:
            self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), LINK, "--name", name)

    def start(self) -> None:
        """Start everything."""
        self.start_link()
        self.register()
        for index in range(len(self.names)):
            self.start_node(index)

    def flwr(self, *arguments: str, seconds: float = START_SECONDS) -> str:
        """Run Flower's command line and return what it printed."""
        try:
            done = subprocess.run(
                ["flwr", *arguments], env=self.env, capture_output=True, text=True,
                timeout=seconds, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise FederationError(
                f"flwr {arguments[0]} did not end within {seconds:g} seconds"
            ) from error
        if done.returncode:
            raise FederationError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}".strip())
        return done.stdout

    def submit(self, app: Path, config: dict[str, Any]) -> str:
        """Submit an app and return the id of its run."""
        pairs = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        printed = self.flwr("run", str(app), LINK, "--run-config", pairs, "--format", "json")
        answer = _read_json(printed)
        if not answer.get("run-id"):
            raise FederationError(f"{app} was not accepted: {answer.get('error-message')}")
        return str(answer["run-id"])

    def details(self, run: str) -> str:
        """Why a run ended, in Flower's words; empty while it runs, or if nobody can tell."""
        with contextlib.suppress(FederationError):  # a SuperLink that is gone tells nothing
            listed = _read_json(self.flwr("ls", LINK, "--run-id", run, "--format", "json"))
            return str(listed["runs"][0].get("status-details", "")).replace("N/A", "")
        return ""

    def is_lost(self, run: str) -> bool:
        """Whether Flower gave a run up, having heard nothing of its server app for a minute."""
        return self.details(run).startswith(NO_HEARTBEAT)

    def stop(self) -> None:
        """SIGTERM, then after a while SIGKILL, to all that was started; no signal stops this."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for process in self.processes.values():  # its session: children that did not follow it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_marked(self.mark)  # what went into a session of its own
        self.processes.clear()


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def _read_json(printed: str) -> Any:
    """The JSON in what Flower printed; it may print other lines before."""
    begin = printed.find("{")
    try:
        return json.JSONDecoder().raw_decode(printed[begin:])[0]
    except ValueError as error:
        raise FederationError(f"flwr printed no JSON: {printed.strip()[:300]}") from error
