"""A server app that Flower heard nothing of for a minute, as when a machine sleeps."""

import os
import signal
import time

from isfed.flower.demo import in_process


def test_a_run_that_flower_gave_up_continues_with_the_same_draws(make_job):
    everybody_waits = {str(agent): {"1": "hold"} for agent in range(3)}
    job = make_job(faults=everybody_waits, rounds=3, active=2)
    job.submit()
    job.wait(lambda: any(turn.endswith(" 1") for turn in job.work()), "somebody works on round 1")
    asleep, server = job.run, job.watch.server()

    def given_up() -> bool:
        time.sleep(8.0)  # Flower's command takes over a second of CPU time, which others need
        return job.federation.is_lost(asleep)

    assert not job.federation.is_lost(asleep)
    os.kill(server, signal.SIGSTOP)
    try:
        job.wait(given_up, "Flower gives the run up")
    finally:
        os.kill(server, signal.SIGCONT)
    job.plan({})
    lines = job.finish()
    assert job.run != asleep
    assert job.lost == 1
    assert [line["round_index"] for line in lines] == [0, 1, 2]
    assert [line["params"] for line in lines] == in_process(job.config).tolist()
