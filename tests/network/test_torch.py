"""examples/flower-torch over TLS, three agents, killed and continued: the model of one process."""

# pyright: reportMissingImports=false
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_app  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from jobs import Job  # noqa: E402
from local_grid import LocalGrid, give_identity  # noqa: E402

from isfed import Problem, simulate  # noqa: E402
from isfed.flower.demo_app import DEFAULTS, write_app  # noqa: E402


class HeldJob(Job):
    """The example with one loop, and a file that holds up round 1."""

    def __init__(self, federation, folder, loop):
        self.hold, self.worked = folder / "hold", folder / "worked-1"
        self.hold.write_text("1")
        files = {"results": str(folder / "results"), "hold": str(self.hold)}
        config = {**DEFAULTS, **torch_app.DEFAULTS, **files, "loop": loop}
        super().__init__(federation, folder / "app", config)
        write_app(self.app, module="torch_app", defaults=torch_app.DEFAULTS)

    def kill_and_submit(self):
        """In round 1, of which an agent has sent nothing yet."""
        assert len(self.watch.rounds()) == 1
        self.kill()
        self.hold.unlink()
        self.submit()

    def model(self):
        """After the last round."""
        assert [line["round_index"] for line in self.finish(torch_app.LONGEST)] == [0, 1, 2]
        return torch_app.network.params(torch.load(self.results / "model.pt", weights_only=True))


@pytest.fixture(scope="module")
def jobs(federation, tmp_path_factory):
    """All loops side by side, for most of a round is waiting; killed and submitted again."""
    jobs = {
        loop: HeldJob(federation, tmp_path_factory.mktemp(loop), loop) for loop in torch_app.LOOPS
    }
    for job in jobs.values():
        job.submit()
    waiting = list(jobs.values())
    until = time.monotonic() + torch_app.LONGEST
    while waiting:  # whoever comes first: its agents keep those of the others waiting
        assert time.monotonic() < until, "no agent works on round 1"
        for job in list(waiting):
            if job.worked.exists() and job.watch.server():
                job.kill_and_submit()
                waiting.remove(job)
            else:
                job.submit_if_lost()
        time.sleep(0.1)
    return jobs


@pytest.mark.parametrize("loop", ["isfed", "drift", "default"])
def test_killed_and_continued_it_is_the_model_of_simulate(jobs, loop):
    problem = Problem(torch_app.data(), torch_app.network, torch_app.STEPS, torch_app.BATCH)
    expected = simulate(problem, torch_app.LOOPS[loop], rounds=3, seed=7).params[0]
    found = jobs[loop].model()
    if loop != "drift":  # the same sums in the same order
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loop", list(torch_app.LOOPS))
def test_killed_and_continued_it_is_the_model_of_one_process(jobs, loop, tmp_path, monkeypatch):
    give_identity(monkeypatch)
    app = ClientApp()
    app.train()(torch_app.TURNS[loop])
    nodes = [{"partition-id": k, "isfed-state": str(tmp_path)} for k in range(torch_app.AGENTS)]
    expected = torch_app.run(LocalGrid(app, nodes), jobs[loop].config)
    np.testing.assert_array_equal(jobs[loop].model(), torch_app.network.params(expected))
