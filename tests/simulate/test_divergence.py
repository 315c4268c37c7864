"""A step size that is too large ends the run with an error, in both engines alike."""

import re
import warnings

import numpy as np
import pytest

from isfed import (
    Current,
    Deville,
    DivergenceError,
    FedAvg,
    HartleyRao,
    ISFedAvg,
    Memory,
    Oracle,
    Regression,
    Running,
    Systematic,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.theory.stable_step_size import GrowthWarning

PROBLEM = Regression(
    num_agents=5, num_examples=7, local_steps=(1, 4), batch_size=(1, 3), ridge=0.01
).make()
POLICIES = [
    Uniform(),
    Oracle(),
    Current(),
    Running(),
    Running(floor=0.0),
    Memory(),
    Memory(floor=0),
]
DESIGNS = [Systematic(), Deville(), HartleyRao(), WithReplacement()]


def diverge(algorithm, *, engine, repetitions=1, rounds=2000):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error says it all
        with pytest.raises(DivergenceError) as caught:
            simulate(PROBLEM, algorithm, rounds=rounds, repetitions=repetitions, engine=engine)
    return caught.value


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}-{p.floor}")
@pytest.mark.parametrize("step_size", [20.0, 1e40])
def test_both_engines_say_the_same_round_and_keep_what_is_finite(policy, step_size):
    algorithm = ISFedAvg(step_size=step_size, num_active=2, agents=policy, examples=policy)
    kernel, objects = (diverge(algorithm, engine=e, repetitions=3) for e in ("kernel", "objects"))
    assert kernel.round_index == objects.round_index
    assert str(kernel) == str(objects)
    for error in (kernel, objects):
        assert error.history.msd.shape == (3, error.round_index)
        assert np.isfinite(error.history.msd).all()
        expected = f"the model diverged in round {error.round_index}: step_size={step_size:g} "
        assert re.match(re.escape(expected), str(error))
    np.testing.assert_array_equal(kernel.history.msd, objects.history.msd)
    if step_size == 20.0:
        assert kernel.round_index > 2
        assert (kernel.history.msd[:, -1] > 1e3 * kernel.history.msd[:, 0]).any()


def test_of_a_single_repetition_all_is_equal():
    algorithm = FedAvg(step_size=20.0, num_active=2)
    kernel, objects = (diverge(algorithm, engine=e).history for e in ("kernel", "objects"))
    for name in ("msd", "params", "agent_prob", "example_prob", "gradients", "uploads"):
        np.testing.assert_array_equal(getattr(kernel, name), getattr(objects, name), name)


@pytest.mark.parametrize("engine", ["kernel", "objects"])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}-{p.floor}")
def test_a_model_that_overflows_within_a_turn_ends_the_run(policy, design, engine):
    """The scores overflow before the model is looked at; no table may be left undrawable."""
    algorithm = ISFedAvg(
        step_size=1e100,
        num_active=2,
        agents=policy,
        examples=policy,
        agent_design=design,
        example_design=design,
    )
    error = diverge(algorithm, engine=engine, rounds=5)
    assert error.history.rounds == error.round_index <= 1


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_a_run_that_does_not_reach_the_bound_is_no_error_but_warned_of(engine):
    algorithm = FedAvg(step_size=20.0, num_active=2)
    last = diverge(algorithm, engine=engine).round_index
    with pytest.warns(GrowthWarning, match="the model is diverging"):
        history = simulate(PROBLEM, algorithm, rounds=last, engine=engine)
    assert history.rounds == last
    assert np.isfinite(history.msd).all()
