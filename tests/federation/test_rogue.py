"""One rogue among 20, 100 and 1 000 agents: what it gains over whole runs, under every setting."""

import math

import numpy as np
import pytest
from stepped import Stepped

from isfed import ISFedAvg, Memory, Uniform, Upload
from isfed.federation.messages import Timing
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Privacy, Safety

ROGUE, FAIR = 0, 1.2
METHODS = {
    "memory": {},
    "small floor": {"agents": Memory(floor=0.02)},
    "uniform": {"agents": Uniform()},
    "difference": {"correction": "difference"},
    "drift": {"correction": "drift"},
}
SAFETIES = {
    "default": Safety(),
    "clip": Safety(privacy=Privacy(clip=0.1)),
    "adjusted": Safety(absences=Absences.ADJUSTED),
    "quorum": Safety(enough=0.5, patience=0.25),
}
LIES = {  # what the rogue says of itself in round i
    "high": lambda i: 1e9,
    "low": lambda i: 0.0,
    "high and low in turn": lambda i: 1e9 if i % 2 else 1e-9,
}


def push(num_agents, lie, *, rounds, safety, seed=0, **choices):
    """What the rogue moves the model by, over what an agent that reports as the others do may.

    Honest agents send changes of length 1 along the second axis, the rogue along the first.
    """

    def answer(place, agent, sent, work, round_index):
        if agent == ROGUE and not cloud.border.waits_for_all(round_index):
            return None  # it is late, which in this round nobody waits for
        steer = work.local.correction
        change = np.array([0.0, 1.0]) if agent != ROGUE else np.array([1.0, 0.0])
        if steer is not None:  # the cloud takes out what it has added
            change = change - float(work.step_size) * steer[place]
        return Upload(change, lie(round_index) if agent == ROGUE else 1.0, 0, 0.5)

    active = max(6, num_agents // 16)
    method = ISFedAvg(step_size=1.0, num_active=active, **choices)
    cloud = Stepped(
        method, np.zeros(2), num_agents, answer, seed=seed, safety=safety, weighting="change"
    )
    length = min(1.0, safety.privacy.clip if safety.privacy else 1.0)
    for _ in range(rounds):
        timing = None
        if safety.enough < 1.0:  # the rogue is always late; the coin of patience is the cloud's
            drawn, patient = cloud.drawn(), cloud.border.waits_for_all(cloud.job.round_index)
            timing = Timing(np.full(drawn.size, 1.0), drawn == ROGUE, patient)
        cloud.step(timing)
    return cloud.params[0] / (rounds * length / num_agents)


HIGH = [
    *((20, method, "default") for method in METHODS),
    *((20, "memory", safety) for safety in SAFETIES),
    (100, "memory", "default"), (100, "memory", "clip"), (100, "drift", "default"),
    (1000, "memory", "default"), (1000, "memory", "clip"), (1000, "drift", "default"),
]  # fmt: skip


@pytest.mark.parametrize(("num_agents", "method", "safety"), HIGH)
def test_a_high_score_buys_no_push(num_agents, method, safety):
    """At most 1.2 times the fair push, once in expectation; 3, 8 and 48 times under an old clip."""
    rounds = 150 if num_agents == 1000 else 400
    options = {"rounds": rounds, "safety": SAFETIES[safety], **METHODS[method]}
    found = np.mean([push(num_agents, LIES["high"], seed=seed, **options) for seed in range(2)])
    print(f"K={num_agents}, {method}, {safety}: {found:.2f} times its fair push")
    assert found <= FAIR


@pytest.mark.parametrize("lie", ["low", "high and low in turn"])
def test_a_low_score_buys_no_push_in_the_mean(lie):
    """Few turns with a large weight: the mean over runs is 1, with its standard error."""
    found = [push(20, LIES[lie], rounds=200, safety=Safety(), seed=seed) for seed in range(16)]
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    print(f"{lie}: {np.mean(found):.2f} +- {error:.2f}")
    assert abs(np.mean(found) - 1.0) <= 3.0 * error
