"""A federation over network namespaces: every agent on a host with an address of its own.

`make test-hosts` runs it. What is lost here is packets, a cable, a disk and a checkpoint.
"""

import contextlib
import os
import shutil
from importlib.util import find_spec

import methods_app
import numpy as np
import pytest
from hosts import LOSSY, HostsFederation, in_own_namespace
from jobs import LONGEST, FaultyJob, Job, kill_process

from isfed.flower.demo import in_process
from isfed.flower.demo_app import DEFAULTS, write_app
from isfed.flower.local_processes import FederationError, marked

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None or not os.environ.get("ISFED_TEST_HOSTS") or not in_own_namespace(),
    reason="needs network namespaces: run `make test-hosts`",
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Three agents' hosts and the cloud's."""
    in_process(DEFAULTS)  # compiles once what every process then loads
    folder = tmp_path_factory.mktemp("hosts")
    with HostsFederation(folder, agents=methods_app.AGENTS) as running:
        support = os.path.join(os.path.dirname(os.path.dirname(__file__)), "support")
        inherited = os.environ.get("PYTHONPATH", "")
        running.env["PYTHONPATH"] = f"{support}{os.pathsep}{inherited}".rstrip(os.pathsep)
        running.start()
        yield running
    assert marked(running.mark) == []


@pytest.fixture(scope="module")
def drift(hosts, tmp_path_factory):
    """A job with control variates after three rounds, whose agents remember a gradient each."""
    folder = tmp_path_factory.mktemp("drift")
    files = {"results": str(folder / "results"), "hold": str(folder / "hold")}
    config = {**DEFAULTS, **methods_app.DEFAULTS, **files, "method": "drift"}
    config |= {"agents": methods_app.AGENTS, "seed": methods_app.SEED}
    job = Job(hosts, folder / "app", config)
    write_app(job.app, module="methods_app", defaults=methods_app.DEFAULTS)
    job.submit()
    assert [line["answered"] for line in job.finish(methods_app.LONGEST)] == [2, 2, 2]
    return job


def more(job: Job, rounds: int) -> list[dict]:
    """Run so many more rounds, and return their reports."""
    before = len(job.watch.rounds())
    job.config["rounds"] += rounds
    job.submit()
    return job.finish(methods_app.LONGEST)[before:]


def test_a_host_that_loses_every_fifth_packet_changes_nothing(hosts, tmp_path):
    if shutil.which("nft") is None:
        pytest.skip("nft, which drops the packets, is not installed")
    hosts.there("agent1", "nft", "-f", "-", text=LOSSY)
    try:
        job = FaultyJob(hosts, tmp_path / "job", rounds=3, active=3)
        job.submit()
        lines = job.finish()
    finally:
        hosts.there("agent1", "nft", "delete", "table", "inet", "lossy")
    assert [line["answered"] for line in lines] == [3, 3, 3]
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_a_host_that_is_cut_off_is_absent_and_comes_back(hosts, tmp_path):
    """The rounds wait for each other and not for the clock: Flower says when a node has gone."""
    plan = {"1": {"1": "hold"}, "0": {"2": "hold"}}
    job = FaultyJob(hosts, tmp_path / "job", faults=plan, rounds=4, active=3)
    job.submit()
    job.wait(lambda: job.works(1, 1), "agent 1 works on round 1")
    hosts.cut("agent1", off=True)
    job.wait(lambda: job.works(0, 2), "the rounds went on without agent 1")
    assert [line["answered"] for line in job.watch.rounds()] == [3, 2]
    hosts.cut("agent1", off=False)
    kill_process(hosts, "agent1")  # its supervisor starts it again
    before = hosts.log("agent1").count("SuperNode ID")

    def back() -> bool:
        process = hosts.processes.get("agent1")
        if process is None or process.poll() is not None:
            hosts.start_node(1)
        return hosts.log("agent1").count("SuperNode ID") > before

    job.wait(back, "agent 1 is back")
    job.plan({})
    lines = job.finish(LONGEST)
    assert lines[3]["answered"] == 3


def test_a_cloud_that_was_killed_goes_on_with_the_same_draws(hosts, tmp_path):
    """SuperLink and server app are gone in the middle of a round; the agents' hosts stay up."""
    job = FaultyJob(hosts, tmp_path / "job", faults={"0": {"1": "hold"}}, rounds=3, active=3)
    job.submit()
    job.wait(lambda: job.works(0, 1), "agent 0 works on round 1")
    kill_process(hosts, "superlink")
    job.plan({})
    hosts.start_link()

    def again() -> bool:
        with contextlib.suppress(FederationError):  # while the link finds its feet
            job.submit()
            return True
        return False

    job.wait(again, "the run was accepted again")
    lines = job.finish(LONGEST)
    assert [line["round_index"] for line in lines] == [0, 1, 2]  # none lost, none twice
    assert [line["answered"] for line in lines] == [3, 3, 3]
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_a_cloud_that_was_rolled_back_is_answered(drift):
    """Its checkpoint is older than what the agents remember, as after a restored backup."""
    checkpoint = drift.results / "checkpoint.npz"
    backup = checkpoint.read_bytes()
    assert [line["answered"] for line in more(drift, 2)] == [2, 2]
    checkpoint.write_bytes(backup)
    lines = more(drift, 2)  # rounds 3 and 4 again, and then two more
    assert [line["round_index"] for line in lines] == [3, 4, 5, 6]
    assert [line["answered"] for line in lines] == [2, 2, 2, 2]


def test_an_agent_that_was_reinstalled_takes_part(hosts, drift):
    """It has lost its disk, and with it the gradient that the cloud counts on."""
    shutil.rmtree(hosts.folder / "state" / "agent1")
    lines = more(drift, 4)
    assert any(1 in line["agents"] for line in lines)
    assert [line["answered"] for line in lines] == [2, 2, 2, 2]
    assert np.isfinite(lines[-1]["params"]).all()
