"""Jobs on a real federation: submitted, killed, waited for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from faulty_app import DEFAULTS as FAULTY

from isfed.base.atomic_files import write_whole
from isfed.flower.demo import DemoResults
from isfed.flower.demo_app import DEFAULTS, write_app
from isfed.flower.local_processes import FederationError, LocalFederation, is_running

LONGEST = 600.0  # seconds: for what takes a few on an idle machine
MOST_LOST = 3  # runs that Flower may give up before we do


def kill_process(federation: LocalFederation, name: str) -> None:
    """kill -9 of one process of a federation and nothing else."""
    process = federation.processes.pop(name)
    process.kill()
    process.wait()


class Job:
    """An app with its configuration, and the folder in which its server app writes.

    A machine that stands still for a minute, or a clock that is set forward, makes Flower give up
    every run. The job is then submitted again, as an operator would: rounds are neither lost nor
    done twice, so that a test sees no difference.
    """

    def __init__(self, federation: LocalFederation, app: Path, config: dict[str, Any]) -> None:
        self.federation, self.app, self.config = federation, app, config
        self.results = Path(config["results"])
        self.results.mkdir(parents=True)
        self.watch = DemoResults(self.results)
        self.run: str | None = None
        self.lost = 0  # runs that Flower gave up

    def submit(self) -> None:
        """Start a run; it continues if an earlier one left a checkpoint."""
        self.run = None
        for name in ("server.pid", "done"):
            (self.results / name).unlink(missing_ok=True)
        self.run = self.federation.submit(self.app, self.config)

    def kill(self) -> None:
        """kill -9 of the server app."""
        server = self.watch.server()
        assert server is not None
        with contextlib.suppress(ProcessLookupError):  # Flower gave it up: it is dead already
            os.kill(server, signal.SIGKILL)

    def finish(self, seconds: float = LONGEST) -> list[dict[str, Any]]:
        """The rounds, once the last is over."""
        while True:
            try:
                return list(self.watch.follow(seconds))
            except FederationError as error:
                if not self.submit_if_lost():
                    tail = self.federation.log("superlink")[-1500:]
                    raise FederationError(f"{error}\n{tail}") from error

    def wait(self, ready, what: str, seconds: float = LONGEST):
        """Wait for a condition; a limit, not a measurement."""
        until = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > until:
                tail = self.federation.log("superlink")[-1500:]
                raise AssertionError(f"{what}: not within {seconds} s\n{tail}")
            self.submit_if_lost()
            time.sleep(0.1)
        return found

    def submit_if_lost(self) -> bool:
        """Submit it again if Flower gave up a run whose server app nobody killed."""
        server = self.watch.server()
        if self.run is None or server is None or is_running(server) or self.watch.done:
            return False
        if self.lost == MOST_LOST or not self.federation.is_lost(self.run):
            return False
        self.lost += 1
        self.submit()
        return True


class FaultyJob(Job):
    """The app of tests/support/faulty_app.py, with planned faults."""

    def __init__(self, federation, folder: Path, faults=None, **config):
        self.folder = folder
        config = {
            **DEFAULTS,
            "time-limit": LONGEST,  # nobody is absent because the machine is busy
            "join-limit": LONGEST,
            "faults": str(folder / "faults.json"),
            "log": str(folder / "work.log"),
            "results": str(folder / "results"),
            **config,
        }
        super().__init__(federation, folder / "app", config)
        self.plan(faults or {})
        write_app(self.app, module="faulty_app", defaults=FAULTY)

    def plan(self, faults) -> None:
        """Say which agent does what in which round; clients look at it while they wait."""
        write_whole(self.folder / "faults.json", json.dumps(faults).encode())

    def works(self, agent: int, number: int) -> bool:
        """Whether that agent has begun that round."""
        return f"{agent} {number}" in self.work()

    def work(self) -> list[str]:
        """The turns that have begun: "agent round", also those of a run that was killed."""
        log = self.folder / "work.log"
        return log.read_text().splitlines() if log.exists() else []
