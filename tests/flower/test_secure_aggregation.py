"""What docs/threats.md says of Flower's secure aggregation, by a short run of its benchmark."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "make"
# In a process of its own: it gives Flower an identity for good.
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import secure_aggregation
options = {"agents": 4, "active": 3, "rounds": 3, **json.loads(sys.argv[2])}
print(json.dumps(secure_aggregation.run(**options)))
"""


def run(**options):
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(FOLDER), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("clip", [8.0, 0.5])
def test_the_sum_is_exact_up_to_its_quantisation(clip):
    found = run(clip=clip, absent=0.0)
    assert found["rounds"] == 3
    assert found["largest error"] < clip / 2**20  # Flower's default range of whole numbers is 2^22


def test_a_range_that_is_too_small_clips():
    found = run(clip=1e-3, absent=0.0)
    assert found["largest error"] > 0.1 * found["median step"]


def test_one_absent_agent_and_the_round_is_lost():
    found = run(clip=8.0, absent=0.2, rounds=6)
    absent = np.random.default_rng(0).random((6, 3)) < 0.2  # as the benchmark draws them
    assert 0 < found["halted"] == absent.any(axis=1).sum() < 6
    assert absent[absent.any(axis=1)].sum(axis=1).min() == 1  # one is enough
