"""A real federation: one SuperLink and three SuperNodes, shared by the tests of this folder."""

import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from isfed.base.files import write_whole

WANTED = "ISFED_TEST_FEDERATION"  # set by `make test-federation`
SUPPORT = Path(__file__).parents[1] / "support"
LONGEST = 600.0  # seconds: for what takes a few on an idle machine

if find_spec("flwr") is None or not os.environ.get(WANTED):
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    """The file that takes longest begins: beside it there is time for all the others."""
    items.sort(key=lambda item: item.path.name != "test_faults.py")  # otherwise as they were


def pytest_terminal_summary(terminalreporter):
    """Say that something was left out."""
    if not os.environ.get(WANTED):
        terminalreporter.write_line(
            "tests/network was skipped: it takes minutes; run `make test-federation`"
        )


class Job:
    """One job on the shared federation: its app, its results, its planned faults."""

    def __init__(self, federation, folder: Path, faults=None, **config):
        from faulty_app import DEFAULTS as EXTRA

        from isfed.flower.demo import Watch
        from isfed.flower.demo_app import DEFAULTS, write_app

        self.federation, self.folder = federation, folder
        self.results = folder / "results"
        self.results.mkdir(parents=True)
        self.plan(faults or {})
        self.config = {
            **DEFAULTS,
            "time-limit": LONGEST,  # nobody is absent because the machine is busy
            "join-limit": LONGEST,
            "faults": str(folder / "faults.json"),
            "log": str(folder / "work.log"),
            "results": str(self.results),
            **config,
        }
        write_app(folder / "app", module="faulty_app", defaults=EXTRA)
        self.watch = Watch(self.results)

    def plan(self, faults) -> None:
        """Say which agent does what in which round; clients look at it while they wait."""
        write_whole(self.folder / "faults.json", json.dumps(faults).encode())

    def submit(self) -> str:
        """Start a run; it continues if an earlier one left a checkpoint."""
        for name in ("server.pid", "done"):
            (self.results / name).unlink(missing_ok=True)
        return self.federation.submit(self.folder / "app", self.config)

    def wait(self, ready, what: str, seconds: float = LONGEST):
        """Wait for a condition; a limit, not a measurement."""
        until = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > until:
                tail = self.federation.log("superlink")[-1500:]
                raise AssertionError(f"{what}: not within {seconds} s\n{tail}")
            time.sleep(0.1)
        return found

    def works(self, agent: int, number: int) -> bool:
        """Whether that agent has begun that round."""
        return f"{agent} {number}" in self.work()

    def work(self) -> list[str]:
        """The turns that have begun: "agent round", also those of a run that was killed."""
        log = self.folder / "work.log"
        return log.read_text().splitlines() if log.exists() else []


def give_support(federation) -> None:
    """Let its processes import the apps of tests/support."""
    inherited = os.environ.get("PYTHONPATH", "")
    federation.env["PYTHONPATH"] = f"{SUPPORT}{os.pathsep}{inherited}".rstrip(os.pathsep)


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Started once; every process is gone at the end, or the last test fails."""
    from isfed.flower.demo import in_process
    from isfed.flower.demo_app import DEFAULTS
    from isfed.flower.processes import LocalFederation, marked

    in_process(DEFAULTS)  # compiles once what every process then loads
    with LocalFederation(tmp_path_factory.mktemp("federation"), agents=3) as running:
        give_support(running)
        running.start()
        yield running
    assert marked(running.mark) == []


@pytest.fixture(scope="session")
def honest(federation, tmp_path_factory):
    """A job in which all is well, and its rounds."""
    job = Job(federation, tmp_path_factory.mktemp("honest"), rounds=3, active=2)
    job.submit()
    return job, list(job.watch.follow())


@pytest.fixture(scope="session")
def time_limit(honest):
    """For rounds in which somebody is too late: far beyond what the others need on this machine."""
    _, rounds = honest
    return max(60.0, 4.0 * max(second for line in rounds[1:] for second in line["seconds"]))


@pytest.fixture
def make_job(federation, tmp_path):
    """Jobs in the test's own folder."""

    def make(faults=None, **config) -> Job:
        return Job(federation, tmp_path / "job", faults, **config)

    return make


@pytest.fixture
def make_job_on(tmp_path):
    """The same on a federation of the test's own, which is about to be started."""

    def make(federation, **config) -> Job:
        give_support(federation)
        return Job(federation, tmp_path / "job", **config)

    return make
