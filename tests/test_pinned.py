"""A few short histories pinned by hash: a change of structure must not change a bit.

Only least squares and numbers that do not depend on w^o, so that no linear algebra library enters;
the data and the drift take a logarithm and a cosine from the system's mathematical library. The
hashes were recorded before the interfaces existed.
"""

import hashlib

import numpy as np
import pytest

from isfed import (
    PAPER,
    Current,
    Deville,
    DynamicFedAvg,
    FedAvg,
    HartleyRao,
    ISFedAvg,
    Memory,
    Running,
    Score,
    Systematic,
    Uniform,
    WithReplacement,
    simulate,
)

PROBLEM = PAPER.replace(num_agents=20, num_examples=15).make(seed=3)
COMMON = {"step_size": 0.01, "num_active": 4}
PINNED = {
    "FedAvg": (FedAvg(**COMMON), "1a466dcef3f6eb91"),
    "FedAvg with 1/E_k": (FedAvg(**COMMON, divide_by_steps=True), "25e9ca9799028a88"),
    "Dynamic FedAvg": (DynamicFedAvg(**COMMON, drift=0.01), "041e0edb1b09decf"),
    "memory": (ISFedAvg(**COMMON), "f548928442897de3"),
    "memory, systematic": (
        ISFedAvg(**COMMON, agent_design=Systematic(), example_design=HartleyRao()),
        "bc12e1addb96053e",
    ),
    "second moment": (
        ISFedAvg(**COMMON, agents=Memory(score=Score.SECOND_MOMENT), examples=Uniform()),
        "d2bc6e969571bfde",
    ),
    "running": (
        ISFedAvg(
            **COMMON, agents=Running(), examples=Running(), agent_design=WithReplacement(),
            example_design=Deville(),
        ),
        "ac70abcb73b5b978",
    ),
    "current": (ISFedAvg(**COMMON, agents=Current(), examples=Current()), "297590c763ef0fa1"),
}  # fmt: skip


def fingerprint(history):
    digest = hashlib.sha256()
    for name in ("params", "agent_prob", "example_prob", "gradients", "uploads"):
        digest.update(np.ascontiguousarray(getattr(history, name)).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
@pytest.mark.parametrize("name", PINNED)
def test_the_numbers_are_those_of_before(name, engine):
    algorithm, expected = PINNED[name]
    history = simulate(PROBLEM, algorithm, rounds=25, repetitions=2, seed=5, engine=engine)
    assert fingerprint(history) == expected
