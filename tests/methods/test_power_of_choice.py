"""Power-of-Choice: who is chosen, against the rule written out, and its ends."""

import numpy as np
import pytest

from isfed import PAPER, PowerOfChoice, simulate
from isfed.base.random_streams import Purpose
from isfed.federation.compiled_agents import CompiledAgents

PROBLEM = PAPER.replace(num_agents=12).make()
PARAMS = np.ones(PROBLEM.num_params)


def agents_for(algorithm):
    return CompiledAgents(PROBLEM, algorithm.rules(12), seed=2, repetition=0)


def chosen(algorithm, agents, round_index):
    """Who is drawn at the model above."""
    method = algorithm.federated
    return method.sampler.draw((), method.facts(agents), agents, PARAMS, round_index)[0].agents


def test_the_largest_losses_of_the_candidates_work():
    algorithm = PowerOfChoice(step_size=0.01, num_active=3, candidates=6)
    agents = agents_for(algorithm)
    for i in range(20):
        # Successive draws by size: whoever has the shortest exponential time comes first.
        points = agents.stream(Purpose.AGENTS, i).uniforms(12)
        times = [-np.log(1 - u) / n for u, n in zip(points, agents.sizes, strict=True)]
        candidates = sorted(range(12), key=lambda k: times[k])[:6]
        losses = {k: agents.losses(np.array([k]), PARAMS)[0] for k in candidates}
        expected = sorted(sorted(candidates, key=lambda k: -losses[k])[:3])
        assert chosen(algorithm, agents, i).tolist() == expected


def test_all_candidates_are_the_worst_off_and_as_many_as_work_need_no_losses():
    everybody = PowerOfChoice(step_size=0.01, num_active=2, candidates=12)
    agents = agents_for(everybody)
    losses = agents.losses(np.arange(12), PARAMS)
    found = chosen(everybody, agents, 0)
    assert set(found) == set(np.argsort(-losses)[:2])
    before = agents.ledger.as_array()
    plain = PowerOfChoice(step_size=0.01, num_active=2, candidates=2)
    assert chosen(plain, agents, 0).size == 2
    np.testing.assert_array_equal(agents.ledger.as_array(), before)


def test_candidates_are_drawn_by_size():
    algorithm = PowerOfChoice(step_size=0.01, num_active=1, candidates=1)
    agents = agents_for(algorithm)
    agents.sizes = np.array([30] + [10] * 11)
    agents._facts.clear()
    hits = [chosen(algorithm, agents, i)[0] == 0 for i in range(4000)]
    share = 30 / 140
    assert abs(np.mean(hits) - share) < 4 * np.sqrt(share * (1 - share) / 4000)


def test_a_run_counts_the_models_that_candidates_get():
    ledger = simulate(PROBLEM, PowerOfChoice(step_size=0.01, num_active=2), rounds=3).ledger()
    assert ledger.models_down == 3 * 4  # the two that work have the model
    assert ledger.models_up == 3 * 2
    assert ledger.forwards == 3 * 4 * 100


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="candidates=2"):
        PowerOfChoice(step_size=0.1, num_active=3, candidates=2)
    with pytest.raises(ValueError, match="candidates_by='loss'"):
        PowerOfChoice(step_size=0.1, num_active=3, candidates_by="loss")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="13"):
        simulate(PROBLEM, PowerOfChoice(step_size=0.1, num_active=3, candidates=13), rounds=1)
