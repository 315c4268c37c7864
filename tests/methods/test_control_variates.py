"""Control variates over a network: the cloud keeps every c_k, and can take one out again."""

from dataclasses import replace

import numpy as np
import pytest
from corrected_cases import CORRECTIONS, POLICIES, make, small_problem
from stepped import SteppedObjects

from isfed import FederatedData, ISFedAvg, LeastSquares, Memory, Problem
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Privacy, Safety
from isfed.federation.variate_updates import (
    BOOK,
    HEARD,
    LIMIT,
    TURNS,
    Correction,
    Reference,
    absorb,
    forget_variates,
    make_rule,
)  # fmt: skip
from isfed.methods.control_variates import MOST_MISSED
from isfed.methods.object_federation import Federation
from isfed.methods.over_network import over_network

REMEMBERING = {name: choices for name, choices in CORRECTIONS.items() if "correction" in choices}
ANYONE = Safety(most_inclusion=1.0, most_medians=np.inf)  # as in a simulation


class Apart(SteppedObjects):
    """A job over agents apart, stepped by hand; `spoil(agent, work)` may lose a turn."""

    def __init__(self, problem, algorithm, safety=ANYONE, seed=5):
        super().__init__(problem, algorithm, safety=safety, weighting=None, seed=seed)

    def answer(self, place, agent, sent, work, round_index):
        steer = work.local.correction
        self.steer = 0.0 if steer is None else float(work.step_size) * steer[place]
        return self.spoil(agent, lambda: self.turn(place, agent, sent, work, round_index))

    def step(self, spoil=lambda agent, work: work()):
        return super().step(spoil)

    @property
    def kept(self):
        return getattr(self.job.state.estimator, "inner", self.job.state.estimator)


def mean_of(kept, from_mean=True):
    """c from the definition: the mean of the c_k, of those heard or of all."""
    heard = kept.book[:, TURNS] > 0
    count = max(int(heard.sum()), 1) if from_mean else len(heard)
    return kept.own[heard].sum(axis=0) / count


@pytest.mark.parametrize("policies", ["uniform", "memory", "second moment", "running"])
@pytest.mark.parametrize("choices", REMEMBERING)
def test_agrees_with_the_run_in_one_process(choices, policies):
    problem = small_problem()
    algorithm = make(problem, REMEMBERING[choices], POLICIES[policies])
    apart = Apart(problem, algorithm)
    whole = Federation(problem, algorithm, seed=5, repetition=0, initial=np.zeros(3))
    for i in range(40):
        apart.step()
        whole.step(i)
    np.testing.assert_array_equal(apart.params, whole.params)
    np.testing.assert_array_equal(apart.table.nodes, whole.table.nodes)
    np.testing.assert_array_equal(apart.kept.own, whole.state.estimator.own)


@pytest.mark.parametrize("choices", REMEMBERING)
def test_c_stays_the_mean_of_the_c_k_whatever_is_lost_and_goes_back(choices):
    """Half is away, lost or refused; now and then the cloud goes back to an old checkpoint."""
    problem, rng = small_problem(), np.random.default_rng(0)
    safety = Safety(most_inclusion=1.0, largest_change=1e3, most_refusals=0)
    apart = Apart(problem, make(problem, REMEMBERING[choices]), safety=safety)
    from_mean = "zero" not in choices
    forgot, saved = 0, apart.job.checkpoint()

    def spoil(agent, work):
        what = rng.choice(3, p=[0.5, 0.4, 0.1])
        if what == 1:
            return None  # away, or lost after the work
        upload = work()
        if what == 2:
            upload.change[:] = np.nan  # refused
        return upload

    for i in range(300):
        if i % 50 == 7:
            saved = {name: np.array(v) for name, v in apart.job.checkpoint().items()}
        if i % 50 == 20:
            apart.job.restore(saved)
            assert apart.step().answered == 2  # agents know of no rounds, so that all of them work
        before = apart.kept.book[:, TURNS].copy()
        apart.step(spoil)
        forgot += int((apart.kept.book[:, TURNS] < before).sum())
        np.testing.assert_allclose(
            apart.kept.centre, mean_of(apart.kept, from_mean), rtol=0, atol=1e-12
        )
    assert forgot > 5
    assert np.abs(apart.kept.own).max() > 1e-3


@pytest.mark.parametrize("unseen", ["mean", "zero"])
def test_what_leaves_c_is_as_if_it_had_never_been_there(unseen):
    """Against a cloud that was never told: the same c, and the same c_k of the others."""
    rule = make_rule(Correction("difference", gain=0.5, unseen=unseen), Memory())
    rng, told, untold = (
        np.random.default_rng(2),
        *(
            Reference(
                np.zeros(3), np.zeros((4, 3)), np.zeros((0, 3)), np.zeros((4, BOOK)), np.zeros(5)
            )
            for _ in range(2)
        ),
    )
    for reference, who in ((told, [3, 0, 1]), (untold, [0, 1])):
        for agent in who:
            rng = np.random.default_rng(agent)
            v = rng.standard_normal((1, 3)) * (1e6 if agent == 3 else 1.0)
            if unseen == "mean":  # the first turn starts from c, which agent 3 has moved
                v -= reference.centre * (reference is told)
            one = np.ones(1)
            absorb(rule, reference, 0.1, 1, 1.0, np.zeros(3), np.array([agent]), one, v, (one, one))
    forget_variates(rule, told, np.array([3, 2]))
    assert told.pool[HEARD] == (2 if unseen == "mean" else told.pool[HEARD])
    if unseen == "zero":
        np.testing.assert_array_equal(told.own, untold.own)
        np.testing.assert_allclose(told.centre, untold.centre, rtol=1e-15)
    np.testing.assert_allclose(told.centre, mean_of(told, unseen == "mean"), rtol=1e-15)
    assert not told.own[3].any()
    assert not told.book[3].any()


def test_an_innovation_moves_c_k_by_no_more_than_some_medians_and_the_step_by_all_of_it():
    rule = make_rule(Correction("difference", gain=1.0, unseen="zero"), Memory())
    steps, moved = [], []
    for limit in (0.0, 4.0):  # of |v|^2
        reference = Reference(
            np.zeros(2), np.zeros((2, 2)), np.zeros((0, 2)), np.zeros((2, BOOK)), np.zeros(5)
        )
        reference.pool[LIMIT] = limit
        step, v = np.zeros(2), np.array([[6.0, 8.0], [1.0, 0.0]])
        both = np.arange(2)
        absorb(rule, reference, 0.1, 2, 1.0, step, both, np.ones(2), v, (np.ones(2), np.ones(2)))
        steps.append(step)
        moved.append(np.linalg.norm(reference.own, axis=1))
    np.testing.assert_array_equal(*steps)
    np.testing.assert_allclose(moved, [[10.0, 1.0], [2.0, 1.0]])


@pytest.mark.parametrize("silent", [MOST_MISSED - 1, MOST_MISSED])
def test_an_agent_that_misses_its_turns_leaves_c(silent):
    problem = small_problem()
    apart = Apart(problem, make(problem, {"correction": "drift"}, num_active=5))
    for _ in range(4):
        apart.step()
    for _ in range(silent):
        apart.step(lambda agent, work: None if agent == 2 else work())
    assert (apart.kept.book[2, TURNS] == 0.0) == (silent == MOST_MISSED)
    apart.step()  # it is back
    assert apart.kept.book[2, TURNS] == (1.0 if silent == MOST_MISSED else 5.0)
    np.testing.assert_allclose(apart.kept.centre, mean_of(apart.kept), rtol=0, atol=1e-13)


def noisy_agents(num_agents=20, seed=0):
    """Agents that disagree, with gradients that are noisy."""
    rng = np.random.default_rng(seed)
    data = []
    for _ in range(num_agents):
        x = rng.standard_normal((20, 2))
        data.append((x, x @ rng.standard_normal(2) + rng.standard_normal(20)))
    return Problem(FederatedData.from_agents(data), LeastSquares(0.01), 2, 2)


def distance_after_exclusion(kind, length, seed):
    """Root mean square distance to the honest optimum, 119 to 219 rounds after the exclusion.

    The last of 20 agents pushes for 60 rounds with `length` medians, then sends what is refused;
    with length 0 it never answers.
    """
    problem, rogue = noisy_agents(), 19
    honest = FederatedData.from_agents([problem.data.agent(k) for k in range(rogue)])
    optimum = Problem(honest, problem.loss, 2, 2).optimum
    algorithm = ISFedAvg(step_size=0.05, num_active=6, correction=kind)
    apart = Apart(problem, algorithm, safety=Safety(most_refusals=1), seed=seed)
    lengths = apart.border.records.lengths

    def answer(agent, work):
        if agent != rogue:
            return work()
        if not length:
            return None
        upload, known = work(), lengths[lengths > 0.0]
        median = np.median(known) if known.size else 0.1
        upload.change[:] = np.sqrt(0.5) * length * median - apart.steer  # what the border sees
        if apart.job.round_index >= 60:
            upload.change[:] = np.nan
        return replace(upload, score=0.0)

    for _ in range(60):
        apart.step(answer)
    while length and not apart.border.records.excluded[rogue]:
        apart.step(answer)
    assert not length or apart.kept.book[rogue, TURNS] == 0.0
    squares = []
    for i in range(219):
        apart.step(answer)
        squares += [np.sum((apart.params - optimum) ** 2)] if i >= 119 else []
    return np.mean(squares)


@pytest.mark.parametrize("kind", ["difference", "drift"])
def test_after_exclusion_the_model_returns_to_the_honest_optimum(kind):
    """Where c could not forget, one change of length 20 was felt for ever: 9.2 against 0.03."""
    seeds = range(3)
    undisturbed = np.sqrt(np.mean([distance_after_exclusion(kind, 0.0, s) for s in seeds]))
    for length in (1.0, 9.0):
        attacked = np.sqrt(np.mean([distance_after_exclusion(kind, length, s) for s in seeds]))
        print(f"{kind}, {length:g} medians: {attacked / undisturbed:.2f} times undisturbed")
        assert attacked <= 1.5 * undisturbed


@pytest.mark.parametrize("absences", Absences)
def test_a_round_without_answers_follows_c_only_if_absences_are_adjusted(absences):
    problem = small_problem()
    safety = replace(ANYONE, absences=absences)
    apart = Apart(problem, make(problem, {"correction": "drift"}), safety=safety)
    for _ in range(5):
        apart.step()
    before, centre = apart.params, apart.kept.centre.copy()
    apart.step(lambda agent, work: None)
    part = 1.0 if absences is Absences.ADJUSTED else 0.0
    np.testing.assert_allclose(apart.params, before - part * 0.02 * centre)
    np.testing.assert_array_equal(apart.kept.centre, centre)


def test_lies_about_spread_and_noise_change_no_c_k_and_no_step():
    """They move scores alone, and those are capped."""
    problem = small_problem()
    kept = []
    for lie in (None, np.nan, np.inf, -1e300, 1e300):
        apart = Apart(problem, make(problem, {"correction": "drift"}, num_active=5))
        for _ in range(10):
            apart.step(
                lambda agent, work: work() if lie is None  # noqa: B023
                else replace(work(), noise_share=lie, score=lie)  # noqa: B023
            )  # fmt: skip
        assert np.isfinite(apart.kept.book).all()
        kept.append(apart.kept.own.copy())
    for own in kept[1:]:
        np.testing.assert_allclose(own, kept[0], rtol=1e-12)  # all five are drawn in every round


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "step"}, "weighting='change'"),
        ({"agent_weights": [1, 2, 3, 4, 5]}, "leave agent_weights out"),
        ({"safety": Safety(privacy=Privacy(clip=1.0, noise=1.0))}, "privacy"),
    ],
)
def test_what_does_not_fit_a_network_is_refused(options, message):
    algorithm = ISFedAvg(step_size=0.1, num_active=2, correction="drift")
    with pytest.raises(ValueError, match=message):
        over_network(algorithm, num_agents=5, **options)
