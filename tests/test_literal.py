"""Algorithm 1 and the probabilities of section IV, written out literally and slowly.

Nothing here but NumPy and loops over agents and examples. The draws are the library's, recorded as
they are made; everything else is computed again and compared after every round. Letters are the
paper's: K agents, L of them active, N_k examples, B_k of them in a batch, E_k steps, mu.
"""

from math import exp

import numpy as np
import pytest

from isfed import (
    Current,
    DynamicFedAvg,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Score,
    Uniform,
    WithReplacement,
)
from isfed.methods.object_federation import Federation
from isfed.sampling.policies import Table

ROUNDS = 12
E, B = [1, 3, 2, 4, 1, 2], [2, 1, 3, 2, 4, 1]


def one_gradient(loss, w, x, y):
    if isinstance(loss, LeastSquares):
        return -2.0 * x * (y - x @ w) + 2.0 * loss.ridge * w
    return -y * x / (1.0 + exp(y * (x @ w))) + 2.0 * loss.ridge * w


def norm(vector):
    return np.sqrt(np.sum(np.square(vector)))


def capped(p, n):
    """The p really used: n p must not exceed 1, so the surplus goes to the others, again and again.

    If fewer than n are positive, what is left goes equally to the others (ALGORITHMS.md, 0.4).
    """
    pi = np.zeros(len(p))
    free = list(range(len(p)))
    while True:
        rest = n - (len(p) - len(free))
        total = sum(p[i] for i in free)
        for i in free:
            pi[i] = rest * p[i] / total if total > 0 else rest / len(free)
        over = [i for i in free if pi[i] >= 1.0 - 1e-15]
        if not over:
            return pi / n
        pi[over] = 1.0
        free = [i for i in free if i not in over]
        if not free:
            return pi / n


def remembered(scores):
    """Memory: the last score of every unit, the mean of the seen for the unseen, normalised."""
    seen = [s for s in scores if s is not None]
    if not seen or sum(seen) == 0:
        return np.full(len(scores), 1 / len(scores))
    full = np.array([np.mean(seen) if s is None else s for s in scores])
    return full / full.sum()


def keep_mass(p, touched, scores):
    """Eq. approxPk and approxPn: the touched share what the others leave of 1."""
    if sum(scores) == 0:
        return
    left = 1.0 - sum(p[i] for i in range(len(p)) if i not in touched)
    for unit, score in zip(touched, scores, strict=True):
        p[unit] = score / sum(scores) * left


class Literal:
    """ISFedAvg on recorded draws."""

    def __init__(self, problem, algorithm, w):
        self.problem, self.algorithm, self.w = problem, algorithm, w
        self.K, self.L, self.mu = problem.num_agents, algorithm.num_active, algorithm.step_size
        self.N = [int(n) for n in problem.data.num_examples]
        self.p = np.full(self.K, 1 / self.K)  # without the floor
        self.q = [np.full(n, 1 / n) for n in self.N]
        self.agent_scores = [None] * self.K  # what memory remembers
        self.example_scores = [[None] * n for n in self.N]
        self.averages = [None] * self.K
        if algorithm.examples.name == "oracle":
            self.q = [self.optimal_q(k, problem.optimum) for k in range(self.K)]
        if algorithm.agents.name == "oracle":
            self.p = self.optimal_p(problem.optimum)

    def gradient(self, k, n, w):
        x, y = self.problem.data.agent(k)
        return one_gradient(self.problem.loss, w, x[n], y[n])

    def norms(self, k, w):
        return np.array([norm(self.gradient(k, n, w)) for n in range(self.N[k])])

    def floored(self, policy, p):
        return (1 - policy.floor) * p + policy.floor / len(p)

    def optimal_q(self, k, w):
        """Eq. dataOptP and approxPn1."""
        norms = self.norms(k, w)
        return norms / norms.sum()

    def optimal_p(self, w):
        """Eq. agentOptP and approxPk1, with sigma^2_{s,k} of eq. locCstSig."""
        scores = []
        for k in range(self.K):
            norms = self.norms(k, w)
            p_n = np.full(self.N[k], 1 / self.N[k])
            if self.algorithm.examples.name != "uniform":
                p_n = self.floored(self.algorithm.examples, norms / norms.sum())
            sigma2 = 6 / (E[k] * B[k] * self.N[k] ** 2) * np.sum(norms**2 / p_n)
            mean = sum(self.gradient(k, n, w) for n in range(self.N[k])) / self.N[k]
            scores.append(self.bound(k, sigma2, mean))
        return np.array(scores) / sum(scores)

    def bound(self, k, sigma2, gradient):
        alpha = 3 + 6 / (E[k] * B[k])
        return np.sqrt(sigma2 + alpha * norm(gradient) ** 2)

    def used(self, policy, design, p, n):
        p = self.floored(policy, p)
        return p if isinstance(design, WithReplacement) else capped(p, n)

    def round(self, draws):
        algorithm = self.algorithm
        if algorithm.agents.name == "current":
            self.p = self.optimal_p(self.w)
        drawn, prob = next(draws)
        p = self.used(algorithm.agents, algorithm.agent_design, self.p, self.L)
        np.testing.assert_allclose(prob, p[drawn], rtol=1e-12)
        active = list(dict.fromkeys(drawn.tolist()))  # one drawn twice works once ...
        turns = {k: self.turn(k, p[k], draws) for k in active}
        self.w = sum(turns[k][0] for k in drawn.tolist()) / self.L  # ... and counts twice
        scores = [turns[k][1] for k in active]
        if algorithm.agents.name == "running":
            keep_mass(self.p, active, scores)
        if algorithm.agents.name == "memory":
            for k, score in zip(active, scores, strict=True):
                self.agent_scores[k] = score
            self.p = remembered(self.agent_scores)
        return active

    def turn(self, k, p_k, draws):
        algorithm = self.algorithm
        examples = algorithm.examples
        if examples.name == "current":
            self.q[k] = self.optimal_q(k, self.w)
        steps = E[k] if algorithm.divide_by_steps else 1
        w_k = self.w.copy()
        weighted_norms = []
        for _ in range(E[k]):
            batch, prob = next(draws)
            p_n = self.used(examples, algorithm.example_design, self.q[k], B[k])
            np.testing.assert_allclose(prob, p_n[batch], rtol=1e-12)
            each = {b: self.gradient(k, b, w_k) for b in batch.tolist()}
            g = sum(each[b] / (self.N[k] * p_n[b]) for b in batch.tolist()) / B[k]
            w_k = w_k - self.mu / (steps * self.K * p_k) * g
            weighted_norms += [norm(each[b]) / (self.N[k] * p_n[b]) for b in batch.tolist()]
            self.refresh_examples(k, {b: norm(gradient) for b, gradient in each.items()})
        # The agent's own gradient, from the model that it uploads.
        estimate = self.K * p_k * (self.w - w_k) / self.mu * (steps / E[k])
        return w_k, self.reported(k, np.array(weighted_norms), estimate)

    def refresh_examples(self, k, norms):
        if self.algorithm.examples.name == "running":
            keep_mass(self.q[k], list(norms), list(norms.values()))
        if self.algorithm.examples.name == "memory":
            for unit, value in norms.items():
                self.example_scores[k][unit] = value
            self.q[k] = remembered(self.example_scores[k])

    def reported(self, k, weighted_norms, estimate):
        """The score of agent k for the cloud."""
        examples, agents = self.algorithm.examples, self.algorithm.agents
        # An estimate of 1/N^2 sum |g_n|^2 / p_n: with p_n near its optimum, the squared mean norm.
        spread = np.mean(weighted_norms) ** 2
        if examples.name == "uniform":
            spread = np.mean(weighted_norms**2)
        if agents.name != "memory":
            return self.bound(k, 6 / (E[k] * B[k]) * spread, estimate)
        new = (spread, estimate, norm(estimate) ** 2)
        if self.averages[k] is None:
            self.averages[k] = new
        else:
            pairs = zip(self.averages[k], new, strict=True)
            self.averages[k] = tuple((1 - agents.rate) * a + agents.rate * b for a, b in pairs)
        spread, gradient, square = self.averages[k]
        if agents.score == Score.SECOND_MOMENT:
            return np.sqrt(square)
        if examples.name == "memory":  # it remembers the norms themselves
            spread = np.mean([s for s in self.example_scores[k] if s is not None]) ** 2
        return self.bound(k, 6 / (E[k] * B[k]) * spread, gradient)


@pytest.fixture
def draws(monkeypatch):
    """The (units, probabilities) of every draw, in the order in which they are made."""
    record = []
    draw = Table.draw

    def spy(self, num, stream):
        record.append(draw(self, num, stream))
        return record[-1]

    monkeypatch.setattr(Table, "draw", spy)
    return record


@pytest.fixture(scope="module")
def problems():
    """Six agents of 3 to 9 examples; one agent and some examples dominate, so that caps bind."""
    rng = np.random.default_rng(8)
    agents = []
    for k, n in enumerate([3, 7, 5, 9, 4, 6]):
        x = rng.standard_normal((n, 3)) * (4.0 if k == 2 else 1.0)
        x[0] *= 4.0
        agents.append(
            (x, x @ [1.0, -0.5, 0.2] + (30.0 if k == 2 else 1.0) * rng.standard_normal(n))
        )
    signs = [(x / 4.0, np.sign(y)) for x, y in agents]
    return {
        "least squares": Problem(FederatedData.from_agents(agents), LeastSquares(0.01), E, B),
        "logistic": Problem(FederatedData.from_agents(signs), Logistic(0.02), E, B),
    }


PAIRS = {
    "uniform": (Uniform(), Uniform()),
    "oracle": (Oracle(), Oracle()),
    "oracle, floors": (Oracle(floor=0.1), Oracle(floor=0.3)),
    "current": (Current(), Current()),
    "running": (Running(), Running()),
    "running, no floor": (Running(floor=0.0), Running(floor=0.0)),
    "memory": (Memory(), Memory()),
    "memory, second moment": (Memory(score=Score.SECOND_MOMENT), Memory(floor=0.05)),
    "memory, uniform": (Memory(rate=0.5), Uniform()),
    "memory, running": (Memory(rate=0.3), Running()),
    "running, uniform": (Running(), Uniform()),
    "running, memory": (Running(), Memory()),
    "oracle, uniform": (Oracle(), Uniform()),
    "current, uniform": (Current(), Uniform()),
    "uniform, memory": (Uniform(), Memory()),
}


def compare(problem, algorithm, draws):
    """Step the library and the literal algorithm side by side."""
    library = Federation(problem, algorithm, seed=3, repetition=0, initial=np.array([0.1, 0, 0.2]))
    literal = Literal(problem, algorithm, library.params.copy())
    for i in range(ROUNDS):
        draws.clear()
        library.step(i)
        replay = iter(draws)
        active = literal.round(replay)
        assert next(replay, None) is None
        np.testing.assert_allclose(library.params, literal.w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            library.table.probabilities(),
            literal.floored(algorithm.agents, literal.p),
            rtol=0,
            atol=1e-12,
        )
        stale = algorithm.examples.name == "current"  # an agent looks again at its next turn
        for k in active if stale else range(problem.num_agents):
            np.testing.assert_allclose(
                library.agents[k].table.probabilities(),
                literal.floored(algorithm.examples, literal.q[k]),
                rtol=0,
                atol=1e-12,
            )


@pytest.mark.parametrize("design", [HartleyRao(), WithReplacement()], ids=["without", "with"])
@pytest.mark.parametrize("name", ["least squares", "logistic"])
@pytest.mark.parametrize(("agents", "examples"), PAIRS.values(), ids=PAIRS.keys())
def test_isfedavg_is_algorithm_1(problems, draws, name, agents, examples, design):
    algorithm = ISFedAvg(
        step_size=0.005,
        num_active=3,
        agents=agents,
        examples=examples,
        agent_design=design,
        example_design=design,
    )
    compare(problems[name], algorithm, draws)


@pytest.mark.parametrize("name", ["least squares", "logistic"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(step_size=0.002, num_active=3),
        FedAvg(step_size=0.005, num_active=3, divide_by_steps=True),
        DynamicFedAvg(step_size=0.005, num_active=3),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_the_baselines_are_uniform_choices_of_it(problems, draws, name, algorithm):
    compare(problems[name], algorithm, draws)


def test_the_caps_do_bind(problems):
    """Otherwise the comparisons above would not show what becomes of L p_k > 1 and B_k p_n > 1."""
    problem = problems["least squares"]
    literal = Literal(problem, ISFedAvg(step_size=1.0, num_active=3, agents=Oracle()), None)
    assert max(3 * literal.optimal_p(problem.optimum)) > 1
    assert max(B[4] * literal.optimal_q(4, problem.optimum)) > 1
