"""One rogue among 20, 100 and 1 000 agents: what it gains over whole runs, under every setting."""

import math

import numpy as np
import pytest
from rogue import ADJUSTED_QUORUM, METHODS, SAFETIES, active_of, pushes, settings

from isfed import ISFedAvg
from isfed.federation.safety import Safety

FAIR = 1.2
HIGH = [
    *((20, method, "default") for method in METHODS),
    *((20, "memory", safety) for safety in SAFETIES),
    (100, "memory", "default"), (100, "memory", "clip"), (100, "drift", "default"),
    (1000, "memory", "default"), (1000, "memory", "clip"), (1000, "drift", "default"),
]  # fmt: skip


def method_of(name, num_agents):
    return ISFedAvg(step_size=1.0, num_active=active_of(num_agents), **METHODS[name])


@pytest.mark.parametrize(("num_agents", "method", "safety"), HIGH)
def test_a_high_score_buys_no_push(num_agents, method, safety):
    """At most 1.2 times the fair push, once in expectation; 3, 8 and 48 times under an old clip."""
    rounds = 150 if num_agents == 1000 else 400
    algorithm = method_of(method, num_agents)
    found = pushes(algorithm, num_agents, SAFETIES[safety], rounds=rounds, seeds=2).mean()
    print(f"K={num_agents}, {method}, {safety}: {found:.2f} times its fair push")
    assert found <= FAIR


def test_a_high_score_buys_no_push_where_epsilon_is_stated():
    """Clips of equal privacy alone would let it push 1.4 times."""
    pytest.importorskip("dp_accounting")
    private = [each for each in settings(20) if each[1] == "clip and noise"]
    assert len(private) == 2
    for name, _, algorithm, safety in private:
        found = pushes(algorithm, 20, safety, rounds=400, seeds=2).mean()
        print(f"K=20, {name}: {found:.2f} times its fair push")
        assert 0.8 <= found <= FAIR


@pytest.mark.parametrize("lie", ["low", "high and low in turn"])
def test_a_low_score_buys_no_push_in_the_mean(lie):
    """Few turns with a large weight: the mean over runs is 1, with its standard error."""
    found = pushes(method_of("memory", 20), 20, Safety(), rounds=200, seeds=16, lie=lie)
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    print(f"{lie}: {np.mean(found):.2f} +- {error:.2f}")
    assert abs(np.mean(found) - 1.0) <= 3.0 * error


@pytest.mark.parametrize("num_agents", [20, 100])
@pytest.mark.parametrize("safety", [SAFETIES["adjusted"], ADJUSTED_QUORUM], ids=["all", "quorum"])
def test_turns_missed_on_purpose_buy_no_push(num_agents, safety):
    """1.5 and 1.9 times its fair push while an adjustment was not limited to what was missed."""
    method = method_of("memory", num_agents)
    found = pushes(method, num_agents, safety, rounds=1500, seeds=4, lie="spares its answers")
    print(f"K={num_agents}: {found.mean():.2f} times its fair push")
    assert found.mean() <= FAIR
