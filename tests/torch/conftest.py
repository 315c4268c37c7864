"""Tests of networks are skipped without PyTorch, except where it was installed for them."""

# pyright: reportMissingImports=false

import os
from importlib.util import find_spec

import pytest

WANTED = "ISFED_TEST_TORCH"  # set by `make test-torch`
MISSING = find_spec("torch") is None

if MISSING:
    if os.environ.get(WANTED):
        raise RuntimeError("make test-torch needs PyTorch: pip install 'isfed[torch]'")
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    """Say that something was left out."""
    if MISSING:
        terminalreporter.write_line(
            "tests/torch was skipped: PyTorch is not installed; `make test-torch` installs it"
        )


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The machine may be shared, and the networks are small."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_stopwatch(monkeypatch):
    """No test depends on how fast the machine is: a comparison of two times decides nothing."""
    monkeypatch.setattr("isfed.torch.agents.AHEAD", float("inf"))
