"""Equality with the objects, and faults, on real processes with TLS and node authentication."""

import contextlib
import os
import signal
import time

import numpy as np

from isfed.flower.demo import in_process
from isfed.flower.keys import write_agent_key
from isfed.flower.processes import FederationError


def test_equals_the_objects_to_the_last_bit(make_job):
    job = make_job(rounds=5, active=2)
    job.submit()
    lines = list(job.watch.follow())
    assert [line["answered"] for line in lines] == [2] * 5
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_misbehaving_agents_are_absent_or_refused_and_counted(make_job):
    limit = 40.0
    job = make_job(
        faults={
            "1": {"0": "raise", "1": "shape", "2": "infinite", "3": "huge"},
            "2": {"0": "nan", "1": "negative", "2": "enormous", "3": f"sleep {limit + 5}"},
        },
        rounds=5,
        active=3,
        **{"time-limit": limit},
    )
    job.submit()
    lines = list(job.watch.follow())
    counts = [(x["answered"], x["refused_changes"], x["refused_scores"]) for x in lines]
    assert counts == [
        (1, 1, 0),  # one raised, one sent NaN
        (2, 1, 1),  # a wrong shape, a negative score (its model is kept)
        (3, 0, 2),  # an infinite and an enormous score
        (1, 1, 0),  # 200 MB, and one too late
        (3, 0, 0),  # all well again
    ]
    assert np.isfinite([line["params"] for line in lines]).all()


def test_a_killed_server_app_continues_with_the_same_draws(make_job):
    # Round 1 lasts, so that the server can be killed within it; then once more between rounds.
    job = make_job(faults={"0": {"1": "sleep 4"}}, rounds=3, active=3)
    job.submit()
    job.wait(lambda: job.works(0, 1), "agent 0 works on round 1")
    os.kill(job.watch.server(), signal.SIGKILL)
    assert len(job.watch.rounds()) == 1
    job.submit()
    job.wait(lambda: len(job.watch.rounds()) == 2, "round 1 was done again")
    os.kill(job.watch.server(), signal.SIGKILL)
    job.submit()
    lines = list(job.watch.follow())
    assert [line["round_index"] for line in lines] == [0, 1, 2]  # none lost, none twice
    assert [line["answered"] for line in lines] == [3] * 3
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_a_killed_supernode_and_a_killed_superlink(make_job, federation):
    job = make_job(faults={"1": {"1": "sleep 30"}}, rounds=60, active=3, **{"time-limit": 20.0})
    job.submit()
    job.wait(lambda: job.works(1, 1), "agent 1 works on round 1")
    federation.kill("agent1")
    lines = job.wait(lambda: job.watch.rounds()[1:], "the round ended without agent 1")
    assert [line["answered"] for line in lines][:1] == [2]

    def back() -> bool:  # what a supervisor does: start it again until it is let in
        process = federation.processes.get("agent1")
        if process is None or process.poll() is not None:
            federation.start_node(1)
        return job.watch.rounds()[-1]["answered"] == 3

    job.wait(back, "agent 1 is back", seconds=180.0)

    federation.kill("superlink")
    done = len(job.watch.rounds())
    federation.start_link()
    job.config["rounds"] = done + 2

    def again() -> bool:
        with contextlib.suppress(FederationError):  # while the link finds its feet
            job.submit()
            return True
        return False

    job.wait(again, "the run was accepted again")
    lines = list(job.watch.follow())
    assert [line["round_index"] for line in lines] == list(range(len(lines)))  # no lost round
    assert len(lines) == done + 2
    assert lines[-1]["answered"] == 3


def test_strangers_are_not_let_in(federation):
    keys = federation.keys
    write_agent_key(keys / "stranger")
    trusted = ["--root-certificates", str(keys / "ca.crt")]
    once = ["--max-retries", "1"]
    before = federation.log("superlink").count("Activated node_id")
    attempts = {
        "unregistered": [*trusted, "--auth-supernode-private-key", str(keys / "stranger"), *once],
        "no-key": [*trusted, *once],
        "twice": [*trusted, "--auth-supernode-private-key", str(keys / "agent0"), *once],
        "plain-text": ["--insecure", *once],
    }
    for name, options in attempts.items():
        federation.start_node(0, name=name, options=options)
    until = time.monotonic() + 60.0
    left = set(attempts)
    while left and time.monotonic() < until:
        left = {name for name in left if federation.processes[name].poll() is None}
        time.sleep(0.2)
    logs = {name: federation.log(name) for name in attempts}
    for name in left:
        federation.kill(name)
    assert federation.log("superlink").count("Activated node_id") == before
    for name, log in logs.items():
        assert "SuperNode ID" not in log, f"{name} was let in"
