"""A small experiment that every test of this folder can run in a moment."""

from __future__ import annotations

import copy
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 60,
    "repetitions": 3,
    "seed": 5,
    "problem": {"preset": "paper", "num_agents": 20, "num_examples": 12, "batch_size": [1, 4]},
    "algorithm": [
        {"kind": "FedAvg", "step_size": 0.01, "num_active": 3},
        {"kind": "ISFedAvg", "step_size": 0.01, "num_active": 3},
    ],
}


@pytest.fixture
def small() -> dict[str, Any]:
    """The tables of a small experiment, to change at will."""
    return copy.deepcopy(SMALL)
