"""A real federation: one SuperLink and three SuperNodes, shared by the tests of this folder."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

WANTED = "ISFED_TEST_FEDERATION"  # set by `make test-federation`
SUPPORT = Path(__file__).parents[1] / "support"

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


def give_support(federation) -> None:
    """Let its processes import the apps of tests/support."""
    inherited = os.environ.get("PYTHONPATH", "")
    federation.env["PYTHONPATH"] = f"{SUPPORT}{os.pathsep}{inherited}".rstrip(os.pathsep)


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Started once; every process is gone at the end, or the last test fails."""
    from isfed.flower.demo import in_process
    from isfed.flower.demo_app import DEFAULTS
    from isfed.flower.local_processes import LocalFederation, marked

    in_process(DEFAULTS)  # compiles once what every process then loads
    with LocalFederation(tmp_path_factory.mktemp("federation"), agents=3) as running:
        give_support(running)
        running.start()
        yield running
    assert marked(running.mark) == []


@pytest.fixture(scope="session")
def honest(federation, tmp_path_factory):
    """A job in which all is well, and its rounds."""
    from jobs import FaultyJob

    job = FaultyJob(federation, tmp_path_factory.mktemp("honest"), rounds=3, active=2)
    job.submit()
    return job, job.finish()


@pytest.fixture(scope="session")
def time_limit(honest):
    """For rounds in which somebody is too late: far beyond what the others need on this machine."""
    _, rounds = honest
    return max(60.0, 4.0 * max(second for line in rounds[1:] for second in line["seconds"]))


@pytest.fixture
def make_job(federation, tmp_path):
    """Jobs in the test's own folder."""
    from jobs import FaultyJob

    def make(faults=None, **config):
        return FaultyJob(federation, tmp_path / "job", faults, **config)

    return make


@pytest.fixture
def make_job_on(tmp_path):
    """The same on a federation of the test's own, which is about to be started."""
    from jobs import FaultyJob

    def make(federation, **config):
        give_support(federation)
        return FaultyJob(federation, tmp_path / "job", **config)

    return make
