"""examples/flower-torch over TLS, three agents, killed and continued: the model of `simulate`."""

# pyright: reportMissingImports=false
import os
import signal
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isfed import Problem, simulate  # noqa: E402
from isfed.flower.demo import Watch  # noqa: E402
from isfed.flower.demo_app import DEFAULTS, write_app  # noqa: E402


def wait(ready, what):
    from torch_app import LONGEST

    until = time.monotonic() + LONGEST
    while not ready():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def test_killed_and_continued_it_is_the_model_of_the_process(federation, tmp_path):
    import torch_app

    results, hold = tmp_path / "results", tmp_path / "hold"
    results.mkdir()
    hold.write_text("1")  # whoever works on round 1 waits
    config = {**DEFAULTS, **torch_app.DEFAULTS, "results": str(results), "hold": str(hold)}
    write_app(tmp_path / "app", module="torch_app", defaults=torch_app.DEFAULTS)
    federation.submit(tmp_path / "app", config)
    wait(lambda: (tmp_path / "worked-1").exists(), "an agent works on round 1")
    watch = Watch(results)
    assert len(watch.rounds()) == 1
    os.kill(watch.server(), signal.SIGKILL)
    hold.unlink()
    (results / "server.pid").unlink()
    federation.submit(tmp_path / "app", config)
    assert [line["round_index"] for line in watch.follow(torch_app.LONGEST)] == [0, 1, 2]
    network = torch_app.network
    problem = Problem(torch_app.data(), network, torch_app.STEPS, torch_app.BATCH)
    expected = simulate(problem, torch_app.ALGORITHM, rounds=3, seed=7).params[0]
    found = network.params(torch.load(results / "model.pt", weights_only=True))
    np.testing.assert_array_equal(found, expected.astype(np.float32))
