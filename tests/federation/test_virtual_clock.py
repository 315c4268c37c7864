"""The virtual clock: speeds and delays by address, and what the ledger makes of them."""

import numpy as np
import pytest
from small_federations import regression

from isfed import Clock, FedAvg, FedProx, LocalSGD, simulate
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.uniform_samplers import draw_uniformly

SOME = {"step_size": 0.02, "num_active": 2}


def agents_of(clock=None, *, repetition=0):
    problem = regression()
    rules = FedAvg(**SOME).rules(problem.num_agents)
    agents = ObjectAgents(problem, rules, seed=1, repetition=repetition)
    if clock is not None:
        agents.use_clock(clock)
    return agents


def test_speeds_are_in_their_ranges_and_by_address():
    clock = Clock(rate=(2.0, 8.0), upload=(10.0, 10.0))
    one, other = agents_of(clock), agents_of(clock)
    np.testing.assert_array_equal(one.speeds.rate, other.speeds.rate)
    assert (one.speeds.rate >= 2.0).all()
    assert (one.speeds.rate <= 8.0).all()
    np.testing.assert_allclose(one.speeds.upload, 10.0)
    assert (agents_of(clock, repetition=1).speeds.rate != one.speeds.rate).any()


def test_a_turn_takes_what_its_parts_take():
    clock = Clock(rate=(5.0, 5.0), upload=(100.0, 100.0), download=(200.0, 200.0), latency=0.5)
    times = agents_of(clock).times(np.array([0, 1]), np.array([10, 20]), 0)
    message = 4 * 3
    np.testing.assert_allclose(times.download, message / 200.0 + 0.5)
    np.testing.assert_allclose(times.compute, [2.0, 4.0])
    np.testing.assert_allclose(times.upload, message / 100.0 + 0.5)
    np.testing.assert_allclose(times.total, times.compute + times.download + times.upload)


def test_a_round_lasts_as_long_as_its_slowest_turn():
    clock = Clock(rate=(1.0, 10.0), jitter=0.4)
    problem, rounds = regression(), 12
    found = simulate(problem, FedAvg(**SOME), rounds=rounds, seed=1, clock=clock)
    agents, expected = agents_of(clock), 0.0
    for round_index in range(rounds):
        active = draw_uniformly(agents, 2, round_index)
        expected += agents.times(active, np.full(2, 4), round_index).total.max()
    np.testing.assert_allclose(found.ledger().seconds, expected, rtol=1e-12)


def test_two_methods_meet_the_same_delays():
    clock = Clock(jitter=0.5, drop=0.3)
    everybody, some = np.arange(4), np.array([2, 0])
    one, other = agents_of(clock), agents_of(clock)
    all_times = one.times(everybody, np.full(4, 10), 7)
    times = other.times(some, np.full(2, 10), 7)
    np.testing.assert_array_equal(times.compute, all_times.compute[some])
    np.testing.assert_array_equal(other.answers(some, 7), one.answers(everybody, 7)[some])


def test_jitter_and_drops_have_their_sizes():
    agents, rounds = agents_of(Clock(jitter=0.5, drop=0.3)), 3000
    expected = agents.times(np.arange(4), np.full(4, 10), None).compute
    logs, answers = [], []
    for round_index in range(rounds):
        times = agents.times(np.arange(4), np.full(4, 10), round_index)
        logs.append(np.log(times.compute / expected))
        answers.append(agents.answers(np.arange(4), round_index))
    count = 4 * rounds
    assert abs(np.mean(logs)) < 4 * 0.5 / np.sqrt(count)
    assert abs(np.std(logs) - 0.5) < 4 * 0.5 / np.sqrt(2 * count)
    assert abs(np.mean(answers) - 0.7) < 4 * np.sqrt(0.21 / count)


def test_agents_that_do_not_answer_are_not_averaged():
    problem = regression()
    clock = Clock(drop=0.5)
    ledger = simulate(problem, FedProx(**SOME), rounds=400, clock=clock).ledger()
    assert abs(ledger.models_up / 800 - 0.5) < 4 * np.sqrt(0.25 / 800)


def test_without_a_clock_no_time_passes_and_numbers_are_the_same():
    problem = regression()
    timed, plain = (
        simulate(problem, LocalSGD(step_size=0.01, steps=2), rounds=10, clock=clock)
        for clock in (Clock(jitter=0.2), None)
    )
    np.testing.assert_array_equal(timed.params, plain.params)
    assert timed.ledger().seconds > 0.0 == plain.ledger().seconds


def test_the_kernel_keeps_no_time():
    with pytest.raises(ValueError, match="does not count virtual time"):
        simulate(regression(), FedAvg(**SOME), rounds=1, clock=Clock(), engine="kernel")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": (0.0, 1.0)}, "rate"),
        ({"upload": (2.0, 1.0)}, "upload"),
        ({"latency": -1.0}, "latency=-1.0"),
        ({"drop": 1.0}, "drop=1.0"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        Clock(**options)
