"""Equality with the objects, and faults, on real processes with TLS and node authentication."""

import contextlib
import re

import numpy as np
from jobs import LONGEST, kill_process
from typer.testing import CliRunner

from isfed.cli.federation import app
from isfed.flower.certificates import write_agent_key
from isfed.flower.demo import in_process
from isfed.flower.local_processes import LINK, FederationError


def test_equals_the_objects_to_the_last_bit(honest):
    job, lines = honest
    assert [line["answered"] for line in lines] == [2] * 3
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_misbehaving_agents_are_absent_or_refused_and_counted(make_job, time_limit):
    job = make_job(
        faults={
            "0": {"0": "raise", "1": "an archive", "2": "an infinite score"},
            "1": {
                "0": "values that are not numbers",
                "1": "a shape of 10^15",
                "2": "a list of scores",
            },
            "2": {"0": "undecodable", "1": "an error of ten megabytes", "2": "hold"},
        },
        rounds=3,
        active=3,
        **{"time-limit": time_limit, "most-refusals": 0},
    )
    job.submit()
    assert len(job.finish()) == 3
    job.plan({"0": {"3": "huge"}})  # whoever was too late goes on now
    job.config.update({"rounds": 4, "time-limit": LONGEST})  # as long as 200 MB need
    job.submit()
    lines = job.finish()
    counts = [(x["answered"], x["refused_changes"], x["refused_scores"]) for x in lines]
    assert counts == [
        (0, 2, 0),  # one raised, one sent NaN, and one what Flower itself cannot decode
        (0, 2, 0),  # one failed
        (2, 0, 2),  # an infinite score, and several: their models are kept; one was too late
        (2, 1, 0),  # 200 MB; the others are well again
    ]
    assert np.isfinite([line["params"] for line in lines]).all()
    assert max(len(line) for line in job.federation.log("superlink").splitlines()) < 10_000


def test_a_killed_server_app_continues_with_the_same_draws(make_job):
    # A round lasts until it is released, so that the server can be killed within it.
    def held(number):
        return {str(agent): {str(number): "hold"} for agent in range(3)}

    def begun(number):
        return any(turn.endswith(f" {number}") for turn in job.work())

    job = make_job(faults=held(1), rounds=3, active=2)
    job.submit()
    job.wait(lambda: begun(1), "somebody works on round 1")
    job.kill()
    assert len(job.watch.rounds()) == 1
    job.plan(held(2))
    job.submit()
    job.wait(lambda: begun(2), "somebody works on round 2")
    job.kill()
    assert len(job.watch.rounds()) == 2  # round 1 was done again
    job.plan({})
    job.submit()
    lines = job.finish()
    assert [line["round_index"] for line in lines] == [0, 1, 2]  # none lost, none twice
    assert [line["answered"] for line in lines] == [2] * 3
    assert [line["params"] for line in lines] == in_process(job.config).tolist()


def test_a_killed_supernode_and_a_killed_superlink(make_job, federation):
    # The rounds wait for each other, not for the clock: Flower says when a node has gone, agent 0
    # stays in round 2 until agent 1 is back, and in the last until the SuperLink is killed.
    job = make_job(faults={"1": {"1": "hold"}, "0": {"2": "hold"}}, rounds=5, active=3)
    job.submit()
    job.wait(lambda: job.works(1, 1), "agent 1 works on round 1")
    kill_process(federation, "agent1")
    job.wait(lambda: job.works(0, 2), "the rounds went on without agent 1")
    assert [line["answered"] for line in job.watch.rounds()] == [3, 2]
    before = federation.log("agent1").count("SuperNode ID")

    def back() -> bool:  # what a supervisor does: start it again until it is let in
        process = federation.processes.get("agent1")
        if process is None or process.poll() is not None:
            federation.start_node(1)
        return federation.log("agent1").count("SuperNode ID") > before

    job.wait(back, "agent 1 is back")
    job.plan({"0": {"4": "hold"}})
    job.wait(lambda: job.works(0, 4), "the last round has begun")
    assert job.watch.rounds()[3]["answered"] == 3

    kill_process(federation, "superlink")
    done = len(job.watch.rounds())
    job.plan({})
    federation.start_link()

    def again() -> bool:
        with contextlib.suppress(FederationError):  # while the link finds its feet
            job.submit()
            return True
        return False

    job.wait(again, "the run was accepted again")
    lines = job.finish()
    assert [line["round_index"] for line in lines] == list(range(len(lines)))  # no lost round
    assert len(lines) == done + 1 == 5


def activated(federation) -> set[str]:
    """The ids of the nodes that were ever let in."""
    return set(re.findall(r"Activated node_id=(\d+)", federation.log("superlink")))


def test_strangers_are_not_let_in(federation, make_job):
    keys = federation.keys
    write_agent_key(keys / "stranger")
    trusted = ["--root-certificates", str(keys / "ca.crt")]
    once = ["--max-retries", "1"]
    own = ["--auth-supernode-private-key", str(keys / "agent0")]
    before = activated(federation)
    attempts = {
        "unregistered": [*trusted, "--auth-supernode-private-key", str(keys / "stranger"), *once],
        "no-key": [*trusted, *once],
        "twice": [*trusted, *own, *once],
        "plain-text": ["--insecure", *once],
    }
    for name, options in attempts.items():
        federation.start_node(0, name=name, options=options)
    make_job().wait(
        lambda: all(federation.processes[name].poll() is not None for name in attempts),
        "every stranger gave up",
    )
    # By their ids, for one of ours may come back from the test before at any moment.
    assert activated(federation) == before
    for name in attempts:
        assert "SuperNode ID" not in federation.log(name), f"{name} was let in"


def test_an_agent_is_revoked_and_let_in_again_with_a_new_key(federation, make_job, tmp_path):
    """The last test of this file: for a while the federation has an agent less."""
    wait, command = make_job().wait, CliRunner(env=federation.env).invoke
    stolen = tmp_path / "stolen"
    stolen.write_bytes((federation.keys / "agent2").read_bytes())
    stolen.chmod(0o600)
    options = ["agent2", "--folder", str(federation.keys), "--link", LINK]
    said = command(app, ["keys", "revoke", *options])
    assert said.exit_code == 0, said.output
    assert "1 nodes had its key" in said.output
    kill_process(federation, "agent2")
    trusted = ["--root-certificates", str(federation.keys / "ca.crt"), "--max-retries", "1"]
    thief = ["--auth-supernode-private-key", str(stolen), *trusted]
    federation.start_node(2, name="thief", options=thief)
    wait(lambda: federation.processes["thief"].poll() is not None, "the thief gave up")
    assert "SuperNode ID" not in federation.log("thief")
    said = command(app, ["keys", "add", *options])
    assert said.exit_code == 0, said.output
    before = federation.log("agent2").count("SuperNode ID")
    federation.start_node(2)
    wait(
        lambda: federation.log("agent2").count("SuperNode ID") > before,
        "agent 2 is let in with its new key",
    )
