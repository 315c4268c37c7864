"""ISFedAvg with a correction: against a literal version, its identities, its fixed point."""

from itertools import product

import numpy as np
import pytest
from corrected_cases import (
    CORRECTIONS,
    POLICIES,
    copied,
    make,
    reference_of,
    round_with,
    small_problem,
)

from isfed import (
    Deville,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Memory,
    Poisson,
    Problem,
    Score,
    Systematic,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.variate_updates import GAIN, Correction
from isfed.sampling.designs.outcomes import outcomes
from isfed.sampling.policies import Table


class Literal:
    """The estimator of docs/variance.md with lists and loops; draws and turns are the library's."""

    def __init__(self, problem, algorithm, agents):
        self.problem, self.algorithm, self.agents = problem, algorithm, agents
        self.w = np.zeros(problem.num_params)
        self.kind = algorithm.correction.kind if algorithm.correction else None
        self.own = {}  # c_k of those heard
        self.last = {}  # agent -> (c_k before its last turn, g_k of that turn)
        self.pairs = []  # of <g' - c, g - c> and |g - c|^2, oldest first
        self.squares, self.noises, self.turns = {}, {}, {}

    def centre(self):
        if self.kind is None or not self.own:
            return np.zeros_like(self.w)
        zero = self.algorithm.correction.unseen == "zero"
        return np.sum(list(self.own.values()), axis=0) / (
            self.problem.num_agents if zero else len(self.own)
        )

    def memory(self, k):
        if k in self.own or self.kind is None:
            return self.own.get(k, np.zeros_like(self.w))
        return 0 * self.w if self.algorithm.correction.unseen == "zero" else self.centre()

    def gain(self):
        if self.algorithm.correction.gain != "adaptive":
            return self.algorithm.correction.gain
        weights = 0.99 ** np.arange(len(self.pairs))[::-1]
        over, under = (weights @ np.array(self.pairs)) if self.pairs else (0.0, 0.0)
        ratio = over / under if under else 0.5
        return min(max((weights.sum() * ratio + 2.5) / (weights.sum() + 5), 0), 1)

    def round(self, selection, i):
        problem, algorithm = self.problem, self.algorithm
        K, L, mu = problem.num_agents, algorithm.num_active, algorithm.step_size
        c = self.centre()
        estimate, after, scores = c.copy(), {}, []
        for k, p, times in zip(*selection, strict=True):
            steps = int(problem.local_steps[k])
            whole = mu if algorithm.on_change else mu / (K * p)
            local = LocalOptions()
            if self.kind == "drift":
                local = LocalOptions(correction=(c - self.memory(k))[None])
            turns = TrainRequest(np.array([k]), self.w, np.array([whole / steps]))
            upload = self.agents.work(turns, i, local)
            g = -upload.changes[0] / whole
            if self.kind == "drift":
                g = g - c + self.memory(k)
            v = g - self.memory(k)
            estimate += times / L * v / (K * p)
            scores.append(upload.scores[0])
            if self.kind is not None:
                after[k], scores[-1] = self.learn(k, g, v, times / (K * p), scores[-1])
        self.own.update(after)
        self.w = self.w - mu * estimate
        return np.array(scores)

    def learn(self, k, g, v, weight, spread):
        if k in self.last:
            c_then, g_then = self.last[k]
            pair = np.array(
                [(g - c_then) @ (g_then - c_then), (g_then - c_then) @ (g_then - c_then)]
            )
            self.pairs.append(weight**2 * pair)
        self.last[k] = (self.memory(k), g)
        self.turns[k] = self.turns.get(k, 0) + 1
        gain, rate = self.gain(), max(self.algorithm.agents.rate, 1 / self.turns[k])
        for table, value in ((self.squares, v @ v), (self.noises, spread + v @ v - g @ g)):
            table[k] = (1 - rate) * table.get(k, 0.0) + rate * value
        E, B = int(self.problem.local_steps[k]), int(self.problem.batch_size[k])
        noise = (1 - B / self.problem.data.num_examples[k]) / (E * B)
        score = np.sqrt(noise * max(self.noises[k], 0) + gain * self.squares[k])
        if self.algorithm.agents.score == Score.SECOND_MOMENT:
            score = np.sqrt(self.squares[k])
        return self.memory(k) + gain * v, score


@pytest.mark.parametrize("policies", [name for name in POLICIES if name != "current"])
@pytest.mark.parametrize("choices", CORRECTIONS)
def test_equals_the_literal_version(choices, policies):
    problem = small_problem()
    algorithm = make(problem, CORRECTIONS[choices], POLICIES[policies], design=HartleyRao())
    rules = algorithm.rules(problem.num_agents)
    agents, twin = (ObjectAgents(problem, rules, seed=3, repetition=0) for _ in range(2))
    state, literal = algorithm.start(agents, np.zeros(3)), Literal(problem, algorithm, twin)
    for i in range(25):
        state, info = algorithm.federated.step(state, agents, i)
        drawn, scores = info.cohort, info.evidence.score
        expected = literal.round((drawn.agents, drawn.prob, drawn.times), i)
        np.testing.assert_allclose(state.params, literal.w, rtol=1e-11, atol=1e-13)
        if algorithm.agents.learns:
            np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-12)
    reference = reference_of(state)
    if reference is not None:
        np.testing.assert_allclose(reference.centre, literal.centre(), atol=1e-12)


@pytest.mark.parametrize(
    ("choices", "policies"), [*product(CORRECTIONS, ["memory"]), *product(["drift"], POLICIES)]
)
def test_engines_are_one(choices, policies):
    problem = small_problem()
    for design in (Deville(), WithReplacement(), HartleyRao()):
        algorithm = make(problem, CORRECTIONS[choices], POLICIES[policies], design=design)
        runs = [
            simulate(problem, algorithm, rounds=30, repetitions=2, seed=1, engine=engine)
            for engine in ("kernel", "agents", "objects")
        ]
        for name in ("msd", "params", "agent_prob", "example_prob", "telemetry", "gradients"):
            for other in runs[1:]:
                assert np.array_equal(getattr(runs[0], name), getattr(other, name)), name


DESIGNS = [Systematic(), Deville(), HartleyRao(), WithReplacement()]


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("policies", ["uniform", "memory", "running"])
@pytest.mark.parametrize("choices", CORRECTIONS)
def test_given_the_past_a_round_is_a_gradient_step_in_the_mean(choices, policies, design):
    """With full batches and E_k = 1, over every set of agents that can be drawn."""
    problem = small_problem(full=True, steps=1)
    algorithm = make(problem, CORRECTIONS[choices], POLICIES[policies], design=design)
    agents = ObjectAgents(problem, algorithm.rules(5), seed=0, repetition=0)
    state = algorithm.start(agents, np.zeros(3))
    for i in range(8):
        state = algorithm.round(state, agents, i)
    table = Table.over(state.sampler.nodes, 5, algorithm.agents, design)
    mean = np.zeros(3)
    for units, chance in outcomes(design, table.inclusion(2)):
        mean += chance * round_with(algorithm, copied(state), agents, np.array(units)).params
    gradient = np.mean(agents.gradients(np.arange(5), state.params), axis=0)
    np.testing.assert_allclose(mean, state.params - 0.02 * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, [1, 2, 3, 4, 5]], ids=["one step", "several steps"])
@pytest.mark.parametrize("kind", ["difference", "drift"])
def test_a_frozen_memory_of_zero_is_the_plain_method(kind, steps):
    """With the weights on the changes, as corrections have them; in one step it is the paper's."""
    problem = small_problem(steps=steps)
    frozen = Correction(kind, gain=0.0, unseen="zero")
    # With rate=1 the last turn alone makes a score, in both.
    second = (Memory(score=Score.SECOND_MOMENT, rate=1.0), Memory())
    found = simulate(problem, make(problem, {"correction": frozen}, second), rounds=40).params
    plain = {} if steps == 1 else {"weighting": "change"}
    expected = simulate(problem, make(problem, plain, second), rounds=40).params
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    other = simulate(problem, make(problem, plain), rounds=40).params
    assert not np.allclose(found, other)


@pytest.mark.parametrize("choices", CORRECTIONS)
def test_everybody_with_all_data_is_gradient_descent(choices):
    problem = small_problem(full=True, steps=1)
    algorithm = make(
        problem, CORRECTIONS[choices], (Uniform(), Uniform()), num_active=5, step_size=0.05
    )
    w = np.zeros(3)
    for _ in range(20):
        every = [problem.loss.gradient(w, *problem.data.agent(k), np.ones(n))[0] for k, n in
                 enumerate(problem.data.num_examples)]  # fmt: skip
        w = w - 0.05 * np.mean(every, axis=0)
    found = simulate(problem, algorithm, rounds=20).params[0]
    np.testing.assert_allclose(found, w, rtol=1e-11)


@pytest.mark.parametrize("policies", ["uniform", "memory"])
def test_the_fixed_point_of_drift_is_the_optimum(policies):
    """Unequal E_k = 1..5 and full batches: FedAvg settles elsewhere."""
    problem = small_problem(full=True, steps=[1, 2, 3, 4, 5])
    corrected = make(problem, {"correction": "drift"}, POLICIES[policies], step_size=0.05)
    history = simulate(problem, corrected, rounds=6000)
    assert history.msd[0, -1] < 1e-18
    everybody = make(problem, {}, (Uniform(), Uniform()), num_active=5, step_size=0.05)
    assert simulate(problem, everybody, rounds=6000).msd[0, -1] > 1e-6


def test_the_gain_tells_noise_from_disagreement():
    """From its start at 1/2 it falls where it is all noise, and rises where there is none."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40 * 50, 4))
    truths = rng.standard_normal((40, 4)).repeat(50, axis=0)
    alike, apart = x @ truths[0] + rng.standard_normal(len(x)), np.einsum("nm,nm->n", x, truths)
    gains = []
    for targets, batch_size in ((alike, 5), (apart, 50)):
        data = FederatedData(x, targets, np.arange(41) * 50)
        problem = Problem(data, LeastSquares(0.0), local_steps=2, batch_size=batch_size)
        choices = {"correction": "difference", "agent_design": Systematic()}
        algorithm = ISFedAvg(step_size=0.001, num_active=20, agents=Uniform(), **choices)
        agents = ObjectAgents(problem, algorithm.rules(40), seed=0, repetition=0)
        state = algorithm.start(agents, problem.optimum)
        for i in range(40):
            state = algorithm.round(state, agents, i)
        gains.append(float(reference_of(state).book[:, GAIN].mean()))
    assert gains[0] < 0.2
    assert gains[1] > 0.9


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"correction": "drift", "weighting": "step"}, "leave weighting out"),
        ({"correction": "scaffold"}, "'difference' or 'drift'"),
        ({"weighting": "both"}, "must be 'step' or 'change'"),
        ({"correction": "drift", "divide_by_steps": False}, "divide_by_steps=True"),
        ({"correction": "drift", "agent_design": Poisson()}, "fixed size.*Deville"),
        ({"correction": "difference", "agent_design": Poisson()}, "fixed size.*Deville"),
    ],
)
def test_what_does_not_fit_is_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        ISFedAvg(step_size=0.1, num_active=2, **choices)


class FirstOnes:
    """A design of one's own that draws one agent too few, and does not say so."""

    def draw(self, inclusion, rng):
        return np.arange(round(np.sum(inclusion)) - 1)


@pytest.mark.parametrize("kind", ["difference", "drift"])
def test_the_number_drawn_is_checked(kind):
    problem = small_problem()
    algorithm = make(problem, {"correction": kind}, design=FirstOnes(), num_active=3)
    message = r"the design drew 2 agents where num_active=3; .* e.g. Deville\(\)"
    with pytest.raises(ValueError, match=message):
        simulate(problem, algorithm, rounds=1)
    plain = make(problem, {"weighting": "change"}, design=FirstOnes(), num_active=3)
    assert simulate(problem, plain, rounds=1).params.shape == (1, 3)


def test_bad_corrections_are_refused():
    with pytest.raises(ValueError, match="gain=2"):
        Correction("drift", gain=2)
    with pytest.raises(ValueError, match="unseen"):
        Correction("drift", unseen="one")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be 'difference' or 'drift'"):
        ISFedAvg(step_size=0.1, num_active=2, correction=3)  # type: ignore[arg-type]
