"""Samplers and estimators that several methods share, put together in ways of one's own."""

import ast
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_federations import quadratics, regression

import isfed.methods
from isfed import (
    FOLB,
    PAPER,
    Add,
    ByScore,
    Clock,
    FedProx,
    MomentumSGD,
    PowerOfChoice,
    RestartedSGD,
    certify,
    simulate,
)  # fmt: skip
from isfed.base.random_streams import Purpose
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.response_rates import Responses
from isfed.federation.variate_updates import Correction
from isfed.methods import uniform_samplers
from isfed.methods.control_variates import ControlVariates
from isfed.methods.estimators import HorvitzThompson, InverseResponse, Mean, MeanOfAll, PlainMean
from isfed.methods.federated import Federated
from isfed.methods.local_sgd import MomentumMean
from isfed.methods.local_steps import LocalSteps
from isfed.methods.part_checks import WORDS
from isfed.methods.uniform_samplers import GIVES, AllAgents, ByWeight, UniformCohort
from isfed.sampling.designs import HartleyRao, Spread
from isfed.sampling.policies import Uniform

START = np.array([0.3, -0.2, 0.5])
STEP = 0.05


def agents_of(method, problem=None):
    problem = problem or regression()
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=1, repetition=0)


def made(sampler, estimator, how: Any = "uniform"):
    local = LocalSteps(STEP, 1, full_batch=True)
    return Federated(sampler, local, estimator, client_weights=how)


def moved(method, agents):
    return method.step(method.start(agents, START), agents, 0)[0].params - START


def full_update(agents, how):
    pieces = zip(agents.facts(how).share(), quadratics(regression()), strict=True)
    return -STEP * sum(c * (h @ START - b) for c, (h, b) in pieces)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_horvitz_thompson_is_unbiased_over_every_sampler_that_knows_its_chances(how, monkeypatch):
    method = made(UniformCohort(2), HorvitzThompson(), how)
    agents = agents_of(method)
    expected, found = full_update(agents, how), []
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        found.append(moved(method, agents))
    np.testing.assert_allclose(np.mean(found, axis=0), expected, rtol=1e-12)
    for estimator in (HorvitzThompson(), MeanOfAll()):
        np.testing.assert_allclose(
            moved(made(AllAgents(), estimator, how), agents), expected, rtol=1e-12
        )
    prob = agents.facts(how).share()
    for estimator in (HorvitzThompson(), PlainMean()):
        mean = np.zeros(3)
        for pair in itertools.product(range(4), repeat=2):
            drawn = np.unique(pair, return_counts=True)
            monkeypatch.setattr(uniform_samplers, "draw_with_replacement", lambda *_, d=drawn: d)
            mean += prob[pair[0]] * prob[pair[1]] * moved(made(ByWeight(2), estimator, how), agents)
        np.testing.assert_allclose(mean, expected, rtol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("mean", [Mean(), PlainMean()])
def test_a_mean_counts_what_stands_for_the_absent(mean, how, monkeypatch):
    """Agent 1 was absent once; when it answers, it counts for more than the others."""
    method = made(UniformCohort(3), InverseResponse(mean), how)
    agents = agents_of(method)
    agents.use_clock(Clock(drop=0.5))
    monkeypatch.setattr(uniform_samplers, "draw_uniformly", lambda *_, **__: np.arange(3))
    state = method.start(agents, START)
    for here in ((True, False, True), (True, True, True)):
        monkeypatch.setattr(agents, "answers", lambda *_, h=here: np.array(h))
        responses = Responses.over(state.estimator.responses.copy())
        state, _ = method.step(state._replace(params=START), agents, 0)
    factor = responses.adjustments(np.arange(3))
    assert factor[1] > factor[0] == factor[2]
    by_size = how == "size" and type(mean) is Mean
    counts = factor * (regression().data.num_examples[:3] if by_size else 1.0)
    steps = np.array([-STEP * (h @ START - b) for h, b in quadratics(regression())[:3]])
    np.testing.assert_allclose(state.params - START, counts @ steps / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("sampling", ["uniform", "weighted"])
def test_who_is_slow_is_drawn_before_it_is_known_who_answers(keep, sampling, monkeypatch):
    """Every answer of four agents: the slow ones are a share of the cohort, not of those here."""
    problem = regression(local_steps=[3, 4, 5, 6])
    method = FedProx(
        step_size=STEP, num_active=4, prox=0.7, stragglers=0.5, keep_stragglers=keep,
        sampling=sampling, full_batch=True, client_weights="size",
    )  # fmt: skip
    agents, sizes = agents_of(method, problem), problem.data.num_examples
    agents.use_clock(Clock(drop=0.5))
    if sampling == "uniform":
        drawn, times = uniform_samplers.draw_uniformly(agents, 4, 0), sizes[np.arange(4)]
    else:
        drawn, times = uniform_samplers.draw_with_replacement(agents, sizes / sizes.sum(), 4, 0)
    points = agents.stream(Purpose.STRAGGLERS, 0).uniforms(2 * drawn.size)
    ranks = np.argsort(np.argsort(points[: drawn.size]))
    ends = {}
    for i, k in enumerate(drawn.tolist()):
        slow = ranks[i] >= round(0.5 * drawn.size)
        if slow and not keep:
            continue
        steps = int(problem.local_steps[k])
        steps = 1 + int(points[drawn.size + i] * (steps - 1)) if slow else steps
        (h, b), x = quadratics(problem)[k], START.copy()
        for _ in range(steps):
            x = x - STEP * (h @ x - b + 0.7 * (x - START))
        count = sizes[k] if sampling == "uniform" else times[i]
        ends[k] = count, x - START
    for here in itertools.product((True, False), repeat=4):
        monkeypatch.setattr(agents, "answers", lambda w, _, h=here: np.array(h)[w])
        heard = [ends[k] for k in ends if here[k]]
        expected = sum((c * x for c, x in heard), np.zeros(3)) / max(1, sum(c for c, _ in heard))
        found = method.round(method.start(agents, START), agents, 0).params - START
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)


def test_parts_that_do_not_fit_are_told_what_to_use():
    variates = ControlVariates(Correction("difference"), Uniform(), HartleyRao())
    message = (
        "ControlVariates needs steps divided by E_k, which local LocalSteps does not give: c_k"
    )
    with pytest.raises(ValueError, match=message):
        made(UniformCohort(2), variates)
    with pytest.raises(ValueError, match="needs equal weights, which client_weights='size' does"):
        made(UniformCohort(2), variates, "size")
    with pytest.raises(ValueError, match="needs scores, which nothing gives: costs divide them"):
        made(ByScore(2, Uniform(), costs=[1.0, 2.0]), Mean())


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("buffer", ["average", "reset", "keep"])
def test_momentum_with_absences_by_the_letter(buffer, how):
    """An average of the momenta goes to all agents; else an absent one keeps its own."""
    problem = regression()
    method = MomentumSGD(
        step_size=0.02, steps=2, buffer=buffer, client_weights=how, full_batch=True
    )
    agents, pieces = agents_of(method), quadratics(problem)
    agents.use_clock(Clock(drop=0.4))
    counts = problem.data.num_examples if how == "size" else np.ones(4)
    state, model, velocity = method.start(agents, START), START, np.zeros((4, 3))
    for i in range(12):
        here = agents.answers(np.arange(4), i)
        state, ends, speeds = method.round(state, agents, i), {}, {}
        for k in np.flatnonzero(here):
            (h, b), x, v = pieces[k], model, velocity[k]
            for _ in range(2):
                v = 0.9 * v + h @ x - b
                x = x - 0.02 * v
            ends[k], speeds[k] = x, v
        if ends:
            share = {k: counts[k] / counts[here].sum() for k in ends}
            model = sum(share[k] * ends[k] for k in ends)
            for k in ends if buffer == "keep" else range(4):
                mean = sum(share[j] * speeds[j] for j in ends)
                velocity[k] = {"average": mean, "reset": 0.0, "keep": speeds.get(k)}[buffer]
        np.testing.assert_allclose(state.params, model, rtol=1e-11)
        np.testing.assert_allclose(state.estimator.velocity, velocity, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("buffer", ["average", "keep"])
def test_momenta_and_the_mean_of_all_fit_any_cohort(buffer):
    method = made(UniformCohort(2), MomentumMean(0.9, nesterov=False, buffer=buffer))
    agents, pieces = agents_of(method), quadratics(regression())
    state, velocity = method.start(agents, START), np.zeros((4, 3))
    for i in range(6):
        who, before = method.open(state, agents, i).cohort.agents, state.params.copy()
        for k in who:
            h, b = pieces[k]
            velocity[k] = 0.9 * velocity[k] + h @ before - b
        mean = velocity[who].mean(axis=0)
        velocity = velocity if buffer == "keep" else np.tile(mean, (4, 1))
        state = method.round(state, agents, i)
        np.testing.assert_allclose(state.params, before - STEP * mean, rtol=1e-11)
        np.testing.assert_allclose(state.estimator.velocity, velocity, rtol=1e-11, atol=1e-14)


def test_a_momentum_of_zero_runs_on_every_engine():
    one, other = (
        simulate(regression(), MomentumSGD(step_size=STEP, momentum=0.0), rounds=5, engine=engine)
        for engine in ("agents", "objects")
    )
    np.testing.assert_array_equal(one.params, other.params)


def test_candidates_that_are_not_asked_are_sent_the_model():
    """With L = K nobody's loss matters, and the model goes down with the work."""
    method = PowerOfChoice(step_size=STEP, num_active=4)
    ledger = simulate(regression(), method, rounds=3, engine="agents").ledger()
    assert (ledger.models_down, ledger.models_up, ledger.forwards) == (12, 12, 0)


def test_a_round_of_its_own_is_not_certified():
    pre = RestartedSGD(step_size=STEP, steps=2, average="pre")
    asks_twice = FOLB(step_size=STEP, num_active=2, penalty=0.1)
    for method in (pre, asks_twice):
        with pytest.raises(TypeError, match="a method with a round of its own"):
            certify(regression(), method)


def words_of(source):
    """The words in what the parts of a module need and give."""
    for node in ast.walk(ast.parse(source)):
        named = ast.unparse(getattr(node, "target", None) or ast.Name("")) in ("needs", "gives")
        written = isinstance(node, ast.FunctionDef) and node.name in ("needs", "gives")
        for part in ast.walk(node) if named or written else ():
            texts = part.keys if isinstance(part, ast.Dict) else getattr(part, "elts", ())
            texts = [part.slice] if isinstance(part, ast.Subscript) else texts  # words["one"] = ...
            yield from (ast.literal_eval(text) for text in texts if isinstance(text, ast.Constant))


def test_parts_need_and_give_eight_words_which_the_docs_list():
    folder = Path(isfed.methods.__file__).parent
    used = {word for path in folder.glob("*.py") for word in words_of(path.read_text())}
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    table = page.partition("| word | given by | needed by |")[2].partition("\n\n")[0]
    assert used | GIVES | {"equal weights"} == WORDS.keys()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == list(WORDS)
    assert len(WORDS) == 8


@pytest.mark.parametrize("step", [-0.1, 0.0, np.ones(2), "fast", None])
def test_a_step_size_that_is_none_is_named(step):
    with pytest.raises(ValueError, match=r"step_size=.* must be a positive number, or a function"):
        LocalSteps(step)


def test_a_spread_needs_an_estimator_that_gives_step_sizes():
    spread = ByScore(2, design=Spread())
    Federated(spread, LocalSteps(0.1), InverseResponse(HorvitzThompson("step")))
    for estimator in (Mean(), InverseResponse(Mean())):
        with pytest.raises(
            ValueError, match=r"ByScore needs step sizes, which estimator .*HorvitzThompson"
        ):
            Federated(spread, LocalSteps(0.1), estimator)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"needs": {"scores"}}, "needs is a dict from a word to what to use"),
        ({"gives": "inclusion probabilities"}, "gives is a set of words"),
        ({"reports": None}, "must say what agents report to it"),
        ({"learn": None}, "must have the methods init, draw, learn; it has no learn"),
    ],
)
def test_parts_that_say_it_in_another_form_are_told_the_form(changed, message):
    names = {"init", "draw", "learn", "reports"}
    own = {name: getattr(ByScore(2), name) for name in names} | changed
    sampler = type("Own", (), {k: staticmethod(v) if callable(v) else v for k, v in own.items()})()
    with pytest.raises(TypeError, match=message):
        Federated(sampler, LocalSteps(0.1), HorvitzThompson())


MISTAKES: dict[str, Any] = {
    "draw returned Cohort.*, expected a Cohort and the state after": lambda c, s: c,
    "drew agents=\\[0, 1\\], expected an array of their numbers": lambda c, s: (
        c._replace(agents=[0, 1]), s
    ),
    "expected numbers from 0 to 4, each once": lambda c, s: (c._replace(agents=c.agents + 5), s),
    "`times` says how often": lambda c, s: (c._replace(agents=c.agents * 0), s),
    "gave times=1, expected one for each agent drawn": lambda c, s: (c._replace(times=1), s),
    "gave prob=.*, expected p_k above 0": lambda c, s: (c._replace(prob=0 * c.prob), s),
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_a_draw_that_is_none_is_named(message):
    @dataclass(frozen=True)
    class Own(ByScore):
        def draw(self, *given):
            return MISTAKES[message](*super().draw(*given))

    problem = PAPER.replace(num_agents=5, num_examples=4).make()
    with pytest.raises((TypeError, ValueError), match=f"^Own.*{message}"):
        simulate(problem, Federated(Own(2), LocalSteps(0.1), HorvitzThompson()), rounds=1)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"ask": lambda *_: None}, "Own.ask returned None, expected the Work"),
        ({"combine": lambda *_: np.zeros(2)}, "Own.combine returned .* expected a step of 2 numb"),
        ({"combine": lambda *_: (np.zeros((2, 2)), (), None)}, "the state after the round and an"),
    ],
)
def test_an_estimator_that_returns_something_else_is_named(made, message):
    own = type("Own", (Mean,), made)()
    problem = PAPER.replace(num_agents=5, num_examples=4).make()
    with pytest.raises(TypeError, match=message):
        simulate(problem, Federated(ByScore(2), LocalSteps(0.1), own), rounds=1)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"init": lambda *_: {"sum": 0.0}}, "Own.init gave the state .*, expected a NamedTuple of"),
        ({"init": lambda *_: (1.0, 2.0)}, "Own.init gave the state .*, expected a NamedTuple of"),
        ({"learn": lambda *_: None}, "Own.learn gave the state None, expected a NamedTuple of arr"),
    ],
)
def test_a_state_that_no_checkpoint_could_keep_is_refused(made, message):
    own = type("Own", (ByScore,), made)(2)
    problem = PAPER.replace(num_agents=5, num_examples=4).make()
    with pytest.raises(TypeError, match=message):
        simulate(problem, Federated(own, LocalSteps(0.1), Mean()), rounds=1)


def test_a_class_in_place_of_a_part_is_said_to_be_one():
    with pytest.raises(TypeError, match=r"sampler=ByScore is a class; .*: ByScore\(...\)"):
        Federated(ByScore, LocalSteps(0.1), Mean())  # type: ignore[arg-type]


def test_a_server_that_returns_something_else_is_named():
    own = type("Own", (Add,), {"move": lambda self, state, params, step: params + step})()
    method = Federated(ByScore(2), LocalSteps(0.1), Mean(), own)
    with pytest.raises(TypeError, match=r"Own.move returned .*, expected a model of 2 numbers and"):
        simulate(PAPER.replace(num_agents=5, num_examples=4).make(), method, rounds=1)


@pytest.mark.parametrize(
    ("prob", "message"),
    [(None, "gives inclusion probabilities, but its Cohort has no prob"),
     (np.ones(5), "drew 2 agents, but prob has 5 entries")],
)  # fmt: skip
def test_a_cohort_has_a_probability_for_each_agent_drawn(prob, message):
    @dataclass(frozen=True)
    class Own(ByScore):
        def draw(self, *given):
            cohort, state = super().draw(*given)
            return cohort._replace(prob=prob), state

    problem = PAPER.replace(num_agents=5, num_examples=4).make()
    with pytest.raises(ValueError, match=message):
        simulate(problem, Federated(Own(2), LocalSteps(0.1), HorvitzThompson()), rounds=1)
