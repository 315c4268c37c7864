"""Tests of the adapter are skipped without Flower, except where it was installed for them."""

import os
from importlib.util import find_spec

import pytest

WANTED = "ISFED_TEST_FEDERATION"  # set by `make test-federation`
MISSING = find_spec("flwr") is None

if MISSING:
    if os.environ.get(WANTED):
        raise RuntimeError("make test-federation needs Flower: pip install 'isfed[flower]'")
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    """Say that something was left out."""
    if MISSING:
        terminalreporter.write_line(
            "tests/flower was skipped: Flower is not installed; `make test-federation` installs it"
        )


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """The identity that Flower gives to a process before it runs an app, and no waiting."""
    from local_grid import give_identity

    give_identity(monkeypatch)
    monkeypatch.setattr("isfed.flower.message_exchange.POLL_SECONDS", 0.01)
    monkeypatch.setattr("isfed.flower.node_directory.RETRY_SECONDS", 0.05)
