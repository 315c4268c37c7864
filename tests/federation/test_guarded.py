"""A job whose agents are absent, wrong or hostile, without a network."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stepped import Stepped, SteppedObjects

from isfed import (
    PAPER,
    Current,
    HierFAVG,
    ISFedAvg,
    Memory,
    Mocha,
    Oracle,
    Running,
    Upload,
)
from isfed.base.random_streams import Purpose
from isfed.federation.guarded import Guarded
from isfed.federation.messages import Timing
from isfed.federation.response_rates import Absences, Responses
from isfed.federation.safety import Privacy, Safety
from isfed.methods.estimators import HorvitzThompson, Mean
from isfed.methods.federated import Federated
from isfed.methods.object_federation import Federation
from isfed.methods.over_network import Weighting, check_for_network, over_network, weighting_of

ALGORITHM = ISFedAvg(step_size=0.01, num_active=3)
PROBLEM = PAPER.replace(num_agents=8).make(seed=3)


class Apart(SteppedObjects):
    """The agents of the problem behind a border."""

    def __init__(self, algorithm=ALGORITHM, weighting: Weighting = "step", **safety):
        super().__init__(PROBLEM, algorithm, weighting=weighting, safety=Safety(**safety))


def of_changes(algorithm, num_agents, answer, size=2, **options):
    """Agents that are functions of their number."""
    start, by_agent = np.zeros(size), lambda place, agent, *_: answer(agent)
    return Stepped(algorithm, start, num_agents, by_agent, **options)


def in_process(algorithm, rounds, seed=5):
    run = Federation(
        PROBLEM, algorithm, seed=seed, repetition=0, initial=np.zeros(PROBLEM.num_params)
    )
    for i in range(rounds):
        run.step(i)
    return run


@pytest.mark.parametrize("absences", list(Absences))
@pytest.mark.parametrize("policy", [Memory(), Running()])
def test_without_absences_it_is_the_cloud_bit_for_bit(absences, policy):
    algorithm = ISFedAvg(step_size=0.01, num_active=3, agents=policy, examples=policy)
    apart = Apart(algorithm, absences=absences, most_inclusion=1.0)  # as in process
    for _ in range(30):
        apart.step()
    cloud = in_process(algorithm, 30)
    assert (apart.params == cloud.params).all()
    assert (apart.table.nodes == cloud.table.nodes).all()


def test_agents_are_drawn_by_score_times_weight():
    algorithm = ISFedAvg(step_size=0.01, num_active=8, agents=Memory(floor=0.0))
    weights = np.arange(1.0, 9.0)
    cloud = of_changes(
        algorithm, 8, lambda k: Upload(np.ones(2), 1.0 + k % 3, 0), agent_weights=weights
    )
    cloud.step()
    expected = weights * (1.0 + np.arange(8) % 3)
    found = cloud.table.probabilities()
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-14)
    np.testing.assert_allclose(cloud.params, np.ones(2), rtol=1e-14)


def test_drop_leaves_the_share_of_the_missing_at_the_previous_model():
    apart = Apart()
    kept = []

    def spoil(place, upload):
        if place == 1:
            return None
        kept.append(upload.change)
        return upload

    report = apart.step(spoil)
    assert (report.drawn, report.answered) == (3, 2)
    assert apart.params == pytest.approx(sum(kept) / 3, rel=1e-15)


def test_adjusted_divides_by_the_response_probability():
    apart = Apart(absences=Absences.ADJUSTED)
    responses = Responses.over(apart.job.state.estimator.responses)
    for turn in range(200):  # everybody answers every second time
        responses.record(np.arange(8), np.full(8, turn % 2 == 0))
    apart.job.state.estimator.owed[:] = 100.0
    changes = []

    def spoil(_, upload):
        changes.append(upload.change)
        return upload

    apart.step(spoil)
    assert apart.params == pytest.approx(sum(changes) / 3 * 2.0, rel=1e-12)


@pytest.mark.parametrize("absences", list(Absences))
def test_a_round_without_answers_changes_nothing_and_says_so(absences):
    apart = Apart(absences=absences)
    apart.step()
    drawn = apart.drawn()  # which lowers what is above the cap
    before = apart.params.copy(), apart.table.scores.copy()
    report = apart.step(lambda *_: None)
    assert report.answered == 0
    assert "nobody: the model stays as it is" in report.line()
    assert (apart.params == before[0]).all()
    assert (apart.table.scores <= before[1]).all()  # silence lowers scores
    others = np.setdiff1d(np.arange(8), drawn)
    assert (apart.table.scores[others] == before[1][others]).all()
    assert apart.job.round_index == 2


@pytest.mark.parametrize(
    "change",
    [np.full(2, math.nan), np.array([math.inf, 0.0]), np.zeros(3), np.empty(0), np.full(2, 1e300)],
)
def test_a_model_that_cannot_be_added_is_refused_and_counted(change):
    apart = Apart()
    report = apart.step(lambda p, u: Upload(change, 1.0, 0) if p == 0 else u)
    assert (report.answered, report.refused_changes) == (2, 1)
    assert np.isfinite(apart.params).all()
    assert apart.border.records.refused.sum() == 1


@pytest.mark.parametrize("score", [math.nan, math.inf, -1.0, 1e10])
def test_a_score_that_is_absurd_is_refused_and_its_model_kept(score):
    honest, hostile = Apart(), Apart()
    honest.step()
    report = hostile.step(lambda p, u: Upload(u.change, score, 0) if p == 0 else u)
    assert (report.answered, report.refused_scores) == (3, 1)
    assert (honest.params == hostile.params).all()
    scores = hostile.table.scores
    assert (scores >= 0.0).sum() == 2  # the two others; his stays unseen


def test_an_agent_that_always_claims_the_most_stays_below_the_cap():
    apart = Apart(ISFedAvg(step_size=0.01, num_active=2), most_inclusion=0.4)
    drawn = limited = 0
    for _ in range(300):
        places = np.flatnonzero(apart.drawn() == 2)
        drawn += places.size
        report = apart.step(lambda p, u, at=places: Upload(u.change, 1e9, 0) if p in at else u)
        limited += report.limited_scores
        assert apart.table.inclusion(2).max() <= 1.0
    assert limited > 0
    error = math.sqrt(300 * 0.4 * 0.6)
    assert drawn <= 300 * 0.4 + 4 * error


def test_agents_that_went_away_with_high_scores_do_not_keep_their_turns():
    """K=20, L=6, and six that report 1e6 until all have been heard, then nothing."""
    heard, gone = set(), False

    def answer(agent):
        if agent < 6 and gone:
            return None
        heard.add(agent)
        return Upload(np.zeros(2), 1e6 if agent < 6 else 1.0 + agent / 20, 0)

    cloud = of_changes(ISFedAvg(step_size=0.01, num_active=6), 20, answer)
    while len(heard) < 20:
        cloud.step()
    gone = True
    answers = [cloud.step().answered for _ in range(200)]
    print(f"mean answers of 6: {np.mean(answers):.2f}, last 100: {np.mean(answers[100:]):.2f}")
    assert np.mean(answers) >= 3.8  # 0.64 while silence kept its turns; 4.2 by uniform draws
    gone = False
    while 0 not in cloud.drawn():
        cloud.step()
    cloud.step()
    assert cloud.table.scores[0] == 1e6  # a report after the return counts again


def test_silence_raises_no_score_and_counts_where_a_round_waits_for_all():
    cloud = of_changes(
        ISFedAvg(step_size=0.01, num_active=4), 4, lambda k: Upload(np.zeros(2), 1.0 + k, 0)
    )
    cloud.step()
    before = cloud.table.scores.copy()
    cloud.border.agents.answer = lambda place, agent, *_: None
    cloud.step(Timing.unknown(4)._replace(patient=False))
    assert (cloud.table.scores == before).all()
    cloud.border.agents.answer = lambda place, agent, *_: (
        None if agent in (0, 3) else Upload(np.zeros(2), 1.0 + agent, 0)
    )
    cloud.step()
    np.testing.assert_allclose(cloud.table.scores, [1.0, 2.0, 3.0, 3.25])


@pytest.mark.parametrize(
    ("num_active", "most"), [(2, 0.5), (6, 0.9), (7, 0.9), (17, 0.9), (19, 0.975), (20, 1.0)]
)
def test_the_cap_stays_below_1_where_there_is_room(num_active, most):
    algorithm = ISFedAvg(step_size=0.01, num_active=num_active)
    sampler = over_network(algorithm, num_agents=20).sampler
    assert sampler.most_inclusion == pytest.approx(most)
    assert "forget" not in repr(sampler)  # a checkpoint of the version before is read


@pytest.mark.parametrize(
    ("absences", "floor", "most"),
    [(a, f, m) for a in Absences for f, m in ((0.1, 10.0), (0.05, 20.0), (0.5, 10.0))],
)
@pytest.mark.parametrize("weighting", ["step", "change"])
def test_a_low_score_a_late_answer_and_an_adjustment_do_not_multiply(
    absences, floor, most, weighting
):
    """Agent 0 reports nearly nothing, answers one time in ten, and late; its weight is capped."""
    algorithm = ISFedAvg(step_size=0.01, num_active=4, agents=Memory(floor=floor))
    safety = Safety(absences=absences, enough=0.5, patience=0.25)
    turns, largest, capped = 0, 0.0, 0

    def answer(agent):
        nonlocal turns
        turns += agent == 0
        if agent == 0 and turns % 10:
            return None
        return Upload(np.full(2, float(agent == 0)), 1.0 if agent else 1e-9, 0)

    cloud = of_changes(algorithm, 8, answer, safety=safety, weighting=weighting)
    for _ in range(1500):
        cohort, before = cloud.job.open().cohort, cloud.params.copy()
        timing = Timing.unknown(4)._replace(late=cohort.agents == 0)
        report = cloud.step(timing)
        weight = 4 * (cloud.params - before)[0]
        if weighting == "step" and 0 in cohort.agents:  # the agent divides its own step
            weight /= 8 * cohort.prob[cohort.agents == 0][0]
        largest, capped = max(largest, weight), capped + report.capped_weights
    print(f"{absences.value}, floor {floor}: largest weight {largest:.3f}, capped {capped} times")
    assert largest <= most * (1 + 1e-9)
    assert capped > 0 or (floor == 0.5 and absences is Absences.DROP)  # 2 times 4 is below 10


def test_a_floor_of_0_caps_no_weight():
    algorithm = ISFedAvg(step_size=0.01, num_active=8, agents=Memory(floor=0.0))
    cloud = of_changes(
        algorithm, 8, lambda k: Upload(np.ones(2), 1.0, 0), safety=Safety(enough=0.5, patience=0.01)
    )
    report = cloud.step(Timing.unknown(8)._replace(late=np.ones(8, bool)))
    assert report.capped_weights == 0
    assert cloud.params == pytest.approx(np.full(2, 100.0))


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_restored_job_makes_the_same_draws(stop):
    spoil = lambda p, u: None if p == 1 else u  # noqa: E731
    one = Apart(absences=Absences.ADJUSTED)
    for _ in range(stop):
        one.step(spoil)
    state = {name: values.copy() for name, values in one.job.checkpoint().items()}
    two = Apart(absences=Absences.ADJUSTED)
    two.job.restore(state)
    assert two.job.name == one.job.name
    ahead, again = one.job.open().cohort, two.job.open().cohort
    assert (ahead.agents == again.agents).all()
    assert (ahead.prob == again.prob).all()
    assert (ahead.times == again.times).all()


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("round_index", (), -5, "holds round -5; expected one of at least 0"),
        ("method.sampler.nodes", 3, -7.0, "the score -7 of agent 3.*damaged"),
        ("method.sampler.nodes", 3, -2.0, "the score -2 of agent 3"),
    ],
)
def test_a_checkpoint_that_no_run_can_write_is_refused(name, place, value, message):
    apart = Apart()
    apart.step()
    state = {n: values.copy() for n, values in apart.job.checkpoint().items()}
    state[name][place] = value
    with pytest.raises(ValueError, match=message):
        Apart().job.restore(state)


def test_limits_become_tighter_during_a_job_and_not_looser():
    apart = Apart()
    apart.step()
    state = {n: values.copy() for n, values in apart.job.checkpoint().items()}
    assert Apart().job.restore(state) == []
    tighter = Apart(largest_ratio=100.0, most_refusals=1)
    assert tighter.job.restore(state) == [
        "largest_ratio from 1000 to 100", "most_refusals from 3 to 1",
    ]  # fmt: skip
    for name, value in (("largest_ratio", 2000.0), ("most_refusals", 0), ("most_medians", 50.0)):
        looser: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=f"{name}=.*can only become tighter"):
            Apart(**looser).job.restore(state)
    with pytest.raises(ValueError, match="model or Safety"):
        Apart(absences=Absences.ADJUSTED).job.restore(state)


def test_a_checkpoint_of_another_job_is_refused():
    other = SteppedObjects(PROBLEM, ALGORITHM, seed=6)
    with pytest.raises(ValueError, match="belongs to another algorithm, seed"):
        Apart().job.restore(other.job.checkpoint())


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ISFedAvg(step_size=0.1, num_active=9), "num_active=9 exceeds num_agents=8"),
        (ISFedAvg(step_size=0.1, num_active=1, agents=Oracle()), "oracle needs the solution"),
        (ISFedAvg(step_size=0.1, num_active=1, agents=Current()), "agents=current asks every"),
        (ISFedAvg(step_size=0.1, num_active=1, drift=0.1), r"drift=0\.1 moves the true model"),
    ],
)
def test_what_cannot_run_apart_is_refused(algorithm, message):
    with pytest.raises(ValueError, match=message):
        over_network(algorithm, num_agents=8)


def literal_change_weighting(rounds, algorithm=ALGORITHM, seed=5):
    """Agents step with mu / E_k; the cloud adds 1/L sum of change / (K p_k)."""
    run = Federation(
        PROBLEM, algorithm, seed=seed, repetition=0, initial=np.zeros(PROBLEM.num_params)
    )
    table, params = run.table, run.params
    for i in range(rounds):
        active, prob = table.draw(3, run.objects.stream(Purpose.AGENTS, i))
        total, scores = np.zeros_like(params), []
        for k, p in zip(active, prob, strict=True):
            agent = run.agents[k]
            upload = agent.take_turn(params, algorithm.step_size / agent.local_steps, i)
            total += 1.0 / (8 * p) * upload.change
            scores.append(upload.score)
        params = params + total / algorithm.num_active
        table.refresh(active, np.array(scores))
    return params, table


@pytest.mark.parametrize("policy", [Memory(), Running()])
def test_weight_in_the_clouds_hands_bit_for_bit(policy):
    algorithm = ISFedAvg(step_size=0.01, num_active=3, agents=policy)
    apart = Apart(algorithm, weighting="change", most_inclusion=1.0)
    for _ in range(30):
        apart.step()
    params, table = literal_change_weighting(30, algorithm)
    assert (apart.params == params).all()
    assert (apart.table.nodes == table.nodes).all()


def test_a_high_score_buys_turns_and_not_weight():
    """The mean contribution of an agent that ignores what it is told, over many rounds.

    Agent 2 claims the largest score and returns the same change in every turn. With "change" its
    mean contribution stays what it is with an honest score; with "step" it grows with its turns.
    """

    def contribution(weighting, score):
        algorithm = ISFedAvg(step_size=0.01, num_active=2, agents=Memory(floor=0.2))
        cloud = of_changes(
            algorithm, 8,
            lambda k: Upload(np.ones(1), score, 0) if k == 2 else Upload(np.zeros(1), 1.0, 0),
            size=1, seed=1, weighting=weighting,
            safety=Safety(most_inclusion=1.0, largest_ratio=math.inf),
        )  # fmt: skip
        moved = []
        for _ in range(1000):
            before = cloud.params
            cloud.step()
            moved.append(cloud.params[0] - before[0])
        return float(np.mean(moved)), float(np.std(moved)) / math.sqrt(len(moved))

    honest, error = contribution("change", 1.0)
    greedy, other = contribution("change", 1e6)
    assert honest == pytest.approx(1 / 8, abs=4 * error)
    assert greedy == pytest.approx(1 / 8, abs=4 * max(other, 1e-3))
    assert contribution("step", 1e6)[0] > 3 * contribution("step", 1.0)[0]


def test_adjusted_never_gives_more_than_the_stated_weight():
    apart = Apart(absences=Absences.ADJUSTED, largest_adjustment=4.0)
    kept = apart.job.state.estimator.responses
    for turn in range(400):  # everybody answers once in 25 turns
        for responses in (apart.border.responses, Responses.over(kept)):
            responses.record(np.arange(8), np.full(8, turn % 25 == 0))
    apart.job.state.estimator.owed[:] = 100.0
    changes = []
    apart.step(lambda _, upload: changes.append(upload.change) or upload)
    assert apart.params == pytest.approx(sum(changes) / 3 * 4.0, rel=1e-12)
    said = apart.border.responses.bias_report(largest_adjustment=4.0)
    assert "answered less than once in 4 turns: they count less than 1" in said


@pytest.mark.parametrize("weighting", ["step", "change"])
def test_a_change_out_of_proportion_is_refused_whatever_its_weight(weighting):
    apart = Apart(weighting=weighting)
    for _ in range(10):
        assert apart.step().refused_changes == 0
    report = apart.step(lambda p, u: Upload(1e5 * u.change, u.score, 0) if p == 0 else u)
    assert (report.answered, report.refused_changes) == (2, 1)


@pytest.mark.parametrize(
    ("buffer", "refused"), [(1e6, 0), (1e13, 1), (math.inf, 1), (-math.inf, 1), (math.nan, 1)]
)
@pytest.mark.parametrize("largest", [0.5, math.inf])
def test_buffers_do_not_make_a_change_longer_but_must_be_finite(buffer, refused, largest):
    change = np.array([0.1, 0.1, 1.0])  # longer than 0.5 with its buffer
    other = np.array([0.1, 0.1, buffer])
    cloud = of_changes(
        ISFedAvg(step_size=0.01, num_active=4), 4,
        lambda k: Upload(other if k == 3 else change, 1.0, 0),
        size=3, buffers=1, safety=Safety(largest_change=largest), weighting="step",
    )  # fmt: skip
    report = cloud.step()
    assert (report.answered, report.refused_changes) == (4 - refused, refused)
    assert np.isfinite(cloud.params).all()
    assert report.step == pytest.approx(np.linalg.norm(cloud.params[:2]))


def test_an_infinite_change_is_refused_whatever_the_limit():
    apart = Apart(largest_change=math.inf)
    endless = Upload(np.array([math.inf, 0.0]), 1.0, 0)
    report = apart.step(lambda p, u: endless if p == 0 else u)
    assert (report.answered, report.refused_changes) == (2, 1)


def test_an_excluded_agent_is_not_heard_and_drawn_less_often():
    apart = Apart(ISFedAvg(step_size=0.01, num_active=3, agents=Memory(floor=0.05)))
    bad = Upload(np.full(2, math.nan), 1.0, 0)
    drawn = []
    for _ in range(120):
        places = np.flatnonzero(apart.drawn() == 5)
        drawn.append(places.size > 0)
        apart.step(lambda p, u, at=places: bad if p in at else u)
    turns = np.flatnonzero(drawn)
    assert apart.border.records.excluded.tolist() == [k == 5 for k in range(8)]
    assert apart.border.records.refused[5] == 3
    after = np.mean(drawn[turns[2] + 1 :])
    assert after < 0.1  # 3 / 8 before; the floor's share remains
    assert apart.border.responses.turns[5] == 3  # its absence is nobody's response rate


def test_late_answers_make_up_for_the_rounds_that_did_not_wait():
    """Unbiased though the slow agents are those with the larger change."""
    algorithm = ISFedAvg(step_size=0.01, num_active=4)
    safety = Safety(enough=0.5, patience=0.25, largest_ratio=math.inf)
    waiting = {"patient": True}

    def answer(agent):
        late = agent >= 2
        return None if late and not waiting["patient"] else Upload(np.array([1 + 9.0 * late]), 1, 0)

    cloud = of_changes(algorithm, 4, answer, size=1, safety=safety, weighting="step")
    cloud.border.rng = np.random.default_rng(7)
    steps, waited = [], 0
    for i in range(1500):
        before = cloud.params
        waiting["patient"] = patient = cloud.border.waits_for_all(i)
        assert patient == cloud.border.waits_for_all(i)  # asked twice, the same
        waited += patient
        report = cloud.step(Timing(np.ones(4), (cloud.drawn() >= 2) & patient, patient))
        assert report.late == 2 * patient
        steps.append(cloud.params[0] - before[0])
    error = float(np.std(steps)) / math.sqrt(len(steps))
    assert np.mean(steps) == pytest.approx((1 + 1 + 10 + 10) / 4, abs=4 * error)
    assert waited / 1500 == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 1500))
    assert cloud.border.responses.turns.sum() == 4 * waited  # who is unheard may have answered
    assert (cloud.border.responses.turns == cloud.border.responses.answers).all()


def test_the_coin_of_patience_does_not_follow_from_the_seed():
    safety = Safety(enough=0.5, patience=0.5)
    coins = []
    for _ in range(2):
        border = of_changes(ALGORITHM, 8, lambda _: None, seed=3, safety=safety).border
        coins.append([border.waits_for_all(i) for i in range(64)])
    assert coins[0] != coins[1]


@pytest.mark.parametrize(
    "name",
    ["method.params", "method.sampler.nodes", "records.turns", "records.lengths",
     "records.excluded", "round_index"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["shape", "type", "missing", "not finite"])
def test_a_checkpoint_of_another_form_is_refused(name, damage):
    state = {name: np.array(values) for name, values in Apart().job.checkpoint().items()}
    match damage:
        case "shape":
            state[name] = np.stack([state[name]] * 2)
        case "type":
            state[name] = state[name].astype(np.float32)
        case "missing":
            del state[name]
        case "not finite":
            if state[name].dtype.kind != "f":
                pytest.skip("integers are finite")
            state[name] = np.full_like(state[name], np.nan)
    with pytest.raises(ValueError, match=f"the checkpoint .*{name}"):
        Apart().job.restore(state)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"enough": 0.0}, "enough=0.0 must be above 0 and at most 1"),
        ({"patience": 1.5}, "patience=1.5 must be"),
        ({"largest_ratio": 0.5}, "largest_ratio=0.5 must be a number of at least 1"),
        ({"largest_adjustment": math.nan}, "largest_adjustment=nan must be"),
        ({"most_refusals": -1}, "most_refusals=-1 must be"),
    ],
)
def test_mistakes_in_safety_are_named(choice, message):
    with pytest.raises(ValueError, match=message):
        Safety(**choice)


def test_weighting_is_one_of_two():
    with pytest.raises(ValueError, match="weighting='both' must be 'step' or 'change'"):
        over_network(ALGORITHM, num_agents=8, weighting="both")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("given", [None, "step", "change"])
@pytest.mark.parametrize("own", [None, "step", "change"])
def test_what_is_said_twice_about_the_weights_must_agree(own, given):
    algorithm = ISFedAvg(step_size=0.1, num_active=3, weighting=own)
    if given and own and given != own:
        with pytest.raises(ValueError, match=f"weighting='{given}'.* says '{own}'"):
            weighting_of(algorithm, given)
        return
    expected = given or own or "change"
    assert weighting_of(algorithm, given) == expected
    method = over_network(algorithm, num_agents=8, weighting=given)
    assert method.estimator == HorvitzThompson(expected)


def test_a_composition_says_where_its_weights_go_too():
    parts = ALGORITHM.federated
    with pytest.raises(ValueError, match=r"weighting='change'.* says 'step'"):
        weighting_of(parts, "change")
    assert over_network(parts, num_agents=8).estimator.on == "step"
    plain = Federated(parts.sampler, parts.local, Mean())
    with pytest.raises(ValueError, match="Mean has no such weights: leave weighting out"):
        over_network(plain, num_agents=8, weighting="step")
    assert over_network(plain, num_agents=8, weighting="change").estimator == Mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "step"}, "HierFAVG has no weights"),
        ({"safety": Safety(privacy=Privacy(clip=1.0))}, r"Safety\(privacy\) changes an estimator"),
        ({"safety": Safety(absences=Absences.ADJUSTED)}, r"Absences\.ADJUSTED\) changes an"),
    ],
)
def test_a_method_with_its_own_round_has_no_parts_to_change(options, message):
    algorithm = HierFAVG(edges=2, edge_rounds=2, step_size=0.1)
    assert over_network(algorithm, num_agents=8) is algorithm
    with pytest.raises(ValueError, match=message):
        over_network(algorithm, num_agents=8, **options)


def test_what_reads_the_problem_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="Mocha works in simulations only: its agents solve"):
        check_for_network(Mocha(), 8)
    with pytest.raises(ValueError, match=r"client_weights='size' needs the sizes.*agent_weights"):
        check_for_network(ISFedAvg(step_size=0.1, num_active=3, client_weights="size"), 8)


@pytest.mark.parametrize("ask", ["losses", "gradients", "sampled_losses"])
def test_who_is_left_out_is_not_asked_and_no_answer_is_not_a_number(ask):
    asked = []

    def answers(which, params, *_):
        asked.extend(which)
        found = np.ones((which.size, 2)) if ask == "gradients" else np.ones(which.size)
        found[which == 2] = math.inf
        return found

    border = Guarded(SimpleNamespace(num_agents=5, **{ask: answers}))
    border.records.excluded[3] = True
    more = (0,) if ask == "sampled_losses" else ()
    found = getattr(border, ask)(np.array([1, 2, 3, 4]), np.zeros(2), *more)
    assert asked == [1, 2, 4]
    assert np.isnan(found).reshape(4, -1).all(axis=1).tolist() == [False, True, True, False]
    assert (found[[0, 3]] == 1.0).all()


def test_what_is_refused_or_shortened_is_named_with_its_limit():
    """The agent, what it sent, the limit, and what the operator can do."""
    lengths, scores = {0: 5e4, 1: 20.0}, {2: -1.0, 3: math.inf}
    cloud = Stepped(
        ISFedAvg(step_size=0.1, num_active=6), np.zeros(1), 6,
        lambda place, agent, *_: Upload(
            np.array([lengths.get(agent, 1.0)]), scores.get(agent, 1.0), 0
        ),
    )  # fmt: skip
    cloud.step()
    reasons = "\n".join(cloud.border.reasons)
    assert "agent 0: a change of length 50000 is refused" in reasons
    assert "more than largest_ratio=1000 times the median agent's; look at that agent" in reasons
    assert "agent 1: a change of length 20 is shortened to 10" in reasons
    assert "raise Safety(most_medians=10)" in reasons
    assert "agent 2: the score -1 is refused, for it is not between 0 and 1e+09" in reasons
    assert "agent 3: the score inf is refused" in reasons
    assert len(cloud.border.reasons) == 4
