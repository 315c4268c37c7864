"""Score tables: initial scores, floors, refresh rules, and the score an agent reports."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed import (
    Current,
    Deville,
    HartleyRao,
    Memory,
    Oracle,
    Running,
    Score,
    Stream,
    Systematic,
    Uniform,
    WithReplacement,
)
from isfed.sampling.designs.design_protocol import compiled_code
from isfed.sampling.policies import Initial, Refresh, Table, agent_score, spread_of_norms

POLICIES = [Uniform(), Oracle(), Current(), Running(), Memory()]
DESIGNS = [Systematic(), Deville(), HartleyRao(), WithReplacement()]
SCORES = np.array([0.5, 4.0, 0.0, 1.5, 2.0])

positive_scores = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=40).map(np.array)


def table_of(scores, policy, design=None):
    table = Table(len(scores), policy, design or Deville())
    table.replace(np.asarray(scores, dtype=float))
    return table


each_policy = pytest.mark.parametrize("policy", POLICIES, ids=[p.name for p in POLICIES])
each_design = pytest.mark.parametrize("design", DESIGNS, ids=[type(d).__name__ for d in DESIGNS])


@each_policy
@each_design
def test_every_table_begins_uniform(policy, design):
    """The oracle too, until its scores are written."""
    np.testing.assert_array_equal(Table(5, policy, design).probabilities(), np.full(5, 0.2))


@given(scores=positive_scores, floor=st.floats(0.0, 1.0))
def test_probabilities_are_the_scores_normalised_and_floored(scores, floor):
    table = table_of(scores, Oracle(floor=floor))
    literal = (1.0 - floor) * scores / scores.sum() + floor / scores.size
    np.testing.assert_allclose(table.probabilities(), literal, rtol=1e-12)


def test_an_unseen_unit_counts_as_the_mean_of_the_seen():
    table = Table(6, Memory(floor=0.1), Deville())
    table.refresh(np.array([1, 4]), np.array([3.0, 1.0]))
    score = np.array([2.0, 3.0, 2.0, 2.0, 1.0, 2.0])
    np.testing.assert_allclose(
        table.probabilities(), 0.9 * score / score.sum() + 0.1 / 6, rtol=1e-14
    )
    assert table.mean_seen() == 2.0
    assert table.scores.tolist() == [-1.0, 3.0, -1.0, -1.0, 1.0, -1.0]


def test_memory_keeps_the_last_score_of_every_unit():
    table = Table(3, Memory(floor=0.0), Deville())
    for units, scores in [([0, 1], [5.0, 1.0]), ([2], [2.0]), ([0], [1.0])]:
        table.refresh(np.array(units), np.array(scores))
    np.testing.assert_allclose(table.probabilities(), [0.25, 0.25, 0.5], rtol=1e-15)


def test_running_divides_the_mass_of_the_touched_by_their_scores():
    """Eq. approxPk: p_k = a_k / sum over the touched a_l * (1 - sum over the others p_l)."""
    table = Table(5, Running(floor=0.0), Deville())
    p = np.full(5, 0.2)
    for units, scores in [([0, 3], [3.0, 1.0]), ([3, 4, 1], [1.0, 1.0, 2.0]), ([2], [9.0])]:
        touched = np.array(units)
        rest = 1.0 - np.delete(p, touched).sum()
        p[touched] = np.array(scores) / np.sum(scores) * rest
        table.refresh(touched, np.array(scores))
        np.testing.assert_allclose(table.probabilities(), p, rtol=1e-14)


@given(
    scores=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=20).map(np.array),
    seed=st.integers(0, 1000),
)
def test_running_with_frozen_scores_never_moves_away_from_them(scores, seed):
    """KL(a / sum a || p) never increases and p keeps its sum."""
    goal = scores / scores.sum()
    table, stream = Table(scores.size, Running(floor=0.0), Deville()), Stream(seed)
    before = np.inf
    for _ in range(15):
        p = table.probabilities()
        assert table.scores.sum() == pytest.approx(scores.size, rel=1e-12)
        distance = np.sum(goal * np.log(goal / p))
        assert distance <= before + 1e-12
        before = distance
        units, _ = table.draw(min(3, scores.size - 1), stream)
        table.refresh(units, scores[units])


@each_design
def test_a_draw_of_one_changes_memory_but_not_running(design):
    running, memory = Table(5, Running(floor=0.0), design), Table(5, Memory(), design)
    for table in (running, memory):
        for round_index in range(8):
            units, _ = table.draw(1, Stream(round_index))
            table.refresh(units, SCORES[units] + 1.0)
    np.testing.assert_array_equal(running.probabilities(), np.full(5, 0.2))
    assert np.ptp(memory.probabilities()) > 0.01


@pytest.mark.parametrize("policy", [Uniform(), Oracle(), Current()], ids=lambda p: p.name)
def test_the_others_do_not_change_by_what_is_touched(policy):
    table = table_of([1.0, 2.0, 3.0], policy)
    before = table.nodes.copy()
    table.refresh(np.array([0]), np.array([9.0]))
    np.testing.assert_array_equal(table.nodes, before)


@pytest.mark.parametrize("policy", [Running(), Memory()], ids=lambda p: p.name)
def test_of_a_unit_drawn_twice_the_last_score_counts_once(policy):
    twice, once = (Table(5, policy, WithReplacement()) for _ in range(2))
    twice.refresh(np.array([2, 0, 2, 2]), np.array([7.0, 1.0, 8.0, 3.0]))
    once.refresh(np.array([2, 0]), np.array([3.0, 1.0]))
    np.testing.assert_array_equal(twice.nodes, once.nodes)


@each_policy
def test_scores_that_are_all_zero_give_uniform_probabilities(policy):
    table = table_of(np.zeros(4), policy)
    np.testing.assert_array_equal(table.probabilities(), np.full(4, 0.25))
    units, prob = table.draw(2, Stream(0))
    assert len(set(units)) == 2
    np.testing.assert_array_equal(prob, [0.25, 0.25])


def test_running_keeps_its_probabilities_where_nothing_touched_has_a_gradient():
    table = table_of([1.0, 2.0, 5.0], Running(floor=0.0))
    table.refresh(np.array([0, 2]), np.zeros(2))
    np.testing.assert_allclose(table.probabilities(), [1 / 8, 2 / 8, 5 / 8])


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
@pytest.mark.parametrize("policy", [Running(), Memory()], ids=lambda p: p.name)
def test_touched_scores_of_a_diverging_model_are_not_written(policy, bad):
    """An infinite score would make every later draw from the table impossible."""
    table = table_of([1.0, 2.0, 5.0], policy)
    before = table.nodes.copy()
    table.refresh(np.array([0, 2]), np.array([1.0, bad]))
    np.testing.assert_array_equal(table.nodes, before)


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
def test_a_table_of_a_diverging_model_is_uniform(bad):
    table = table_of([1.0, bad, 5.0], Current(floor=0.0))
    np.testing.assert_array_equal(table.probabilities(), np.full(3, 1 / 3))
    assert len(set(table.draw(2, Stream(0))[0])) == 2


@each_design
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_a_draw_gives_the_inclusion_probability_over_its_size(design, floor):
    scores = np.array([0.3, 20.0, 0.0, 1.5, 2.0])  # unit 1 is certain unless drawn with repeats
    table = table_of(scores, Oracle(floor=floor), design)
    before = table.nodes.copy()
    expected = table.inclusion(2) / 2
    if isinstance(design, WithReplacement):
        np.testing.assert_allclose(expected, table.probabilities(), rtol=1e-15)
    else:
        assert expected[1] == 0.5
    for seed in range(20):
        units, prob = table.draw(2, Stream(seed))
        np.testing.assert_allclose(prob, expected[units], rtol=1e-14)
    np.testing.assert_array_equal(
        table.nodes, before
    )  # what was set aside is put back, bit for bit


@given(scores=positive_scores, seed=st.integers(0, 2**32 - 1))
def test_the_oracles_probabilities_minimise_the_bound(scores, seed):
    """sum |g|^2 / p >= (sum |g|)^2, with equality at p proportional to |g| (Lemma optPD)."""
    best = table_of(scores, Oracle()).probabilities()
    least = scores.sum() ** 2
    assert np.sum(scores**2 / best) == pytest.approx(least, rel=1e-12)
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 0.1, 3.0):
        other = best * np.exp(scale * rng.standard_normal(best.size))
        assert np.sum(scores**2 / (other / other.sum())) >= least * (1 - 1e-12)


@given(norms=positive_scores, floor=st.floats(0.0, 1.0))
def test_spread_is_that_of_the_probabilities_in_use(norms, floor):
    """1/N^2 sum |g_n|^2 / p_n, as in sigma^2_{s,k} of eq. locCstSig."""
    table = table_of(norms, Oracle(floor=floor))
    literal = np.sum(norms**2 / table.probabilities()) / norms.size**2
    assert spread_of_norms(norms, norms.size, floor, False) == pytest.approx(literal, rel=1e-10)
    uniform = np.mean(norms**2)
    assert spread_of_norms(norms, norms.size, floor, True) == pytest.approx(uniform, rel=1e-12)


def test_the_spread_of_zeros_is_zero():
    assert spread_of_norms(np.zeros(3), 3, 0.0, False) == 0.0


def reported(score, *, rate, turns, stored=-1.0):
    """What `agent_score` reports over several turns of (spread, gradient), E_k = 2, B_k = 3."""
    size = {Score.BOUND: 0, Score.SECOND_MOMENT: 1, Score.AVERAGED_BOUND: 3}[score]
    memory = np.full(size, -1.0)
    return [
        agent_score(int(score), rate, 2, 3, spread, stored, np.array(gradient), memory, 0)
        for spread, gradient in turns
    ]


TURNS = [(4.0, [1.0, 0.0]), (1.0, [0.0, 2.0]), (9.0, [-3.0, 1.0])]


def test_bound_is_the_papers_from_this_round_alone():
    """sqrt(sigma^2 + alpha |g|^2), sigma^2 = 6 spread / (E B), alpha = 3 + 6 / (E B)."""
    literal = [np.sqrt(6 / 6 * s + (3 + 6 / 6) * np.dot(g, g)) for s, g in TURNS]
    np.testing.assert_allclose(reported(Score.BOUND, rate=1.0, turns=TURNS), literal, rtol=1e-14)


def test_second_moment_is_the_root_of_a_moving_average():
    first, second, third = (np.dot(g, g) for _, g in TURNS)
    average = 0.75 * first + 0.25 * second
    literal = [first, average, 0.75 * average + 0.25 * third]
    got = reported(Score.SECOND_MOMENT, rate=0.25, turns=TURNS)
    np.testing.assert_allclose(got, np.sqrt(literal), rtol=1e-14)


@pytest.mark.parametrize("stored", [-1.0, 0.0, 5.0])
def test_averaged_bound_averages_the_gradient_and_the_spread_unless_norms_are_stored(stored):
    spread, gradient, literal = TURNS[0][0], np.array(TURNS[0][1]), []
    for turn, (s, g) in enumerate(TURNS):
        if turn > 0:
            spread, gradient = 0.75 * spread + 0.25 * s, 0.75 * gradient + 0.25 * np.array(g)
        used = spread if stored < 0 else stored
        literal.append(np.sqrt(6 / 6 * used + (3 + 6 / 6) * (gradient @ gradient)))
    got = reported(Score.AVERAGED_BOUND, rate=0.25, turns=TURNS, stored=stored)
    np.testing.assert_allclose(got, literal, rtol=1e-14)


def test_the_five_policies_are_the_documented_ones():
    rules = {p.name: (p.initial, p.refresh, p.equal, p.learns) for p in POLICIES}
    assert rules == {
        "uniform": (Initial.EQUAL, Refresh.NEVER, True, False),
        "oracle": (Initial.OPTIMUM, Refresh.NEVER, False, False),
        "current": (Initial.EQUAL, Refresh.ALL, False, False),
        "running": (Initial.EQUAL, Refresh.TOUCHED_KEEP_MASS, False, True),
        "memory": (Initial.UNSEEN, Refresh.TOUCHED, False, True),
    }


@pytest.mark.parametrize("make", [Oracle, Current, Running, Memory])
@pytest.mark.parametrize("floor", [-0.01, 1.01, np.nan, np.inf])
def test_a_floor_outside_its_range_is_named(make, floor):
    with pytest.raises(ValueError, match=f"floor of policy .*={floor} must be between 0 and 1"):
        make(floor=floor)


@pytest.mark.parametrize("floor", [0, 1, 0.0, 1.0])
def test_the_ends_of_the_range_are_allowed(floor):
    table = table_of([1.0, 3.0], Memory(floor=floor))
    np.testing.assert_allclose(table.probabilities(), [[0.25, 0.75], [0.5, 0.5]][int(floor)])


def test_whole_numbers_become_floats():
    """Of another type they would compile every draw anew, which takes many seconds."""
    policy = Memory(floor=0, rate=1)
    assert (type(policy.floor), type(policy.rate)) == (float, float)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, np.nan])
def test_a_bad_rate_is_named(rate):
    with pytest.raises(ValueError, match=rf"rate of policy memory={rate} must be in \(0, 1\]"):
        Memory(rate=rate)


def test_memory_needs_a_score_with_memory():
    with pytest.raises(ValueError, match="a memory needs score=AVERAGED_BOUND"):
        Memory(score=Score.BOUND)


def test_a_subclass_that_draws_in_its_own_way_is_heard():
    class First(Deville):
        def draw(self, inclusion, rng):
            assert super().draw(inclusion, rng).size == 2
            return np.array([0, 1])

    units, prob = Table(5, Uniform(), First()).draw(2, Stream(0))
    np.testing.assert_array_equal(units, [0, 1])
    np.testing.assert_allclose(prob, 0.2)
    assert compiled_code(Deville) == Deville.code
    assert compiled_code(First) is None
