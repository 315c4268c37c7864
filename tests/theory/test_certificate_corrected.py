"""Unbiased given the past, by listing all outcomes: every correction, weighting, design, policy."""

import numpy as np
import pytest

from isfed import (
    Current,
    Deville,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    LocalPivotal,
    Memory,
    Oracle,
    Poisson,
    Problem,
    Running,
    Sampford,
    Spread,
    Systematic,
    Uniform,
    WithReplacement,
    certify,
)
from isfed.federation import variate_updates
from isfed.federation.variate_updates import Correction

CHOICES = {
    "plain": {},
    "weights on changes": {"weighting": "change"},
    "difference": {"correction": "difference"},
    "difference, weights on steps": {"correction": "difference", "weighting": "step"},
    "drift": {"correction": "drift"},
    "drift, fixed gain, from zero": {"correction": Correction("drift", gain=0.7, unseen="zero")},
    "drift, costs": {"correction": "drift", "costs": (1.0, 2.0, 0.5, 4.0, 1.0)},
}
PLACES = np.random.default_rng(1).normal(size=(5, 2))
DESIGNS = {
    **{type(design).__name__: design for design in (
        Systematic(), Deville(), HartleyRao(), Sampford(), WithReplacement(), LocalPivotal(PLACES)
    )},
    "Spread": Spread(every=3),
    "Spread(Systematic)": Spread(Systematic(), every=3),
    "Spread(LocalPivotal)": Spread(LocalPivotal(), every=3),
}  # fmt: skip
POLICIES = [Uniform(), Memory(), Running(), Current(), Oracle(floor=0.1)]


def ragged():
    rng = np.random.default_rng(4)
    sizes = (4, 3, 5, 2, 4)
    agents = [(rng.normal(size=(n, 2)) * 2, 3 * rng.normal(size=n)) for n in sizes]
    data = FederatedData.from_agents(agents)
    return Problem(
        data, LeastSquares(0.01), local_steps=[1, 2, 3, 1, 2], batch_size=[2, 1, 2, 1, 3]
    )


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("choices", CHOICES)
def test_every_choice_is_unbiased_given_the_past(choices, design):
    """Over the sets of agents and over their batches, to 1e-12 of the gradients' length."""
    for policy in POLICIES:
        if policy.equal and "costs" in CHOICES[choices]:
            continue
        inside = Deville() if isinstance(design, Spread | LocalPivotal) else design
        algorithm = ISFedAvg(
            step_size=0.02, num_active=2, agents=policy, examples=policy, agent_design=design,
            example_design=inside, **CHOICES[choices],
        )  # fmt: skip
        found = certify(ragged(), algorithm, rounds=7)
        assert found.exact
        assert found.largest < 1e-12, policy.name


@pytest.mark.parametrize("kind", ["difference", "drift"])
def test_a_random_number_of_examples(kind):
    """An empty batch is a step of zero, and under "drift" one of the correction alone."""
    algorithm = ISFedAvg(step_size=0.02, num_active=2, example_design=Poisson(), correction=kind)
    assert certify(ragged(), algorithm, rounds=7).largest < 1e-12


def test_a_wrong_mean_of_the_memories_is_seen(monkeypatch):
    """If the cloud's c were not the mean of the c_k, the certificate would say so."""
    algorithm = ISFedAvg(step_size=0.02, num_active=2, correction="difference")
    make = variate_updates.make_reference

    def wrong(*given):
        reference = make(*given)
        reference.centre[:] = 0.1
        reference.pool[variate_updates.HEARD] = 1.0
        return reference

    monkeypatch.setattr("isfed.methods.control_variates.make_reference", wrong)
    found = certify(ragged(), algorithm, rounds=7)
    assert found.exact
    assert not found.unbiased


def test_many_agents_are_sampled():
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(9, 2)), rng.normal(size=9)) for _ in range(20)]
    problem = Problem(FederatedData.from_agents(agents), LeastSquares(0.01), 2, 3)
    algorithm = ISFedAvg(
        step_size=0.02, num_active=5, correction="drift", agent_design=HartleyRao()
    )
    found = certify(problem, algorithm, rounds=10, samples=60)
    assert not found.exact
    assert found.unbiased
