"""Methods of several kinds over TLS, killed and continued: the models of one process."""

import time

import methods_app
import numpy as np
import pytest
from jobs import Job

from isfed.flower.demo_app import DEFAULTS, write_app


class HeldJob(Job):
    """The demo's problem with one method, and a file that holds up round 1."""

    def __init__(self, federation, folder, method):
        self.hold, self.worked = folder / "hold", folder / "worked-1"
        self.hold.write_text("1")
        files = {"results": str(folder / "results"), "hold": str(self.hold)}
        config = {**DEFAULTS, **methods_app.DEFAULTS, **files, "method": method}
        config |= {"agents": methods_app.AGENTS, "seed": methods_app.SEED}
        super().__init__(federation, folder / "app", config)
        write_app(self.app, module="methods_app", defaults=methods_app.DEFAULTS)


@pytest.fixture(scope="module")
def jobs(federation, tmp_path_factory):
    """All methods side by side, for most of a round is waiting; killed and submitted again."""
    jobs = {
        name: HeldJob(federation, tmp_path_factory.mktemp(name), name)
        for name in methods_app.METHODS
    }
    for job in jobs.values():
        job.submit()
    waiting, until = list(jobs.values()), time.monotonic() + methods_app.LONGEST
    while waiting:  # whoever comes first: its agents keep those of the others waiting
        assert time.monotonic() < until, "no agent works on round 1"
        for job in list(waiting):
            if job.worked.exists() and job.watch.server():
                assert len(job.watch.rounds()) == 1
                job.kill()
                job.hold.unlink()
                job.submit()
                waiting.remove(job)
            else:
                job.submit_if_lost()
        time.sleep(0.1)
    return jobs


@pytest.mark.parametrize("name", methods_app.METHODS)
def test_killed_and_continued_it_has_the_models_of_one_process(jobs, name):
    lines = jobs[name].finish(methods_app.LONGEST)
    assert [line["round_index"] for line in lines] == [0, 1, 2]  # none lost, none twice
    found, expected = np.array([line["params"] for line in lines]), methods_app.in_process(name)
    if name == "drift":  # every agent keeps its own c_k: other sums
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    else:
        np.testing.assert_array_equal(found, expected)
