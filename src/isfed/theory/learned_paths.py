"""The ways that learn scores, with what it costs that these are young, and the noise of passes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.methods import ISFedAvg
from isfed.methods.passes_over_agents import SHARES, pass_variance
from isfed.problems import Problem
from isfed.sampling.designs.exact_variance import total_variance
from isfed.theory.agent_score_noise import AgentScores, Bounds, Innovations
from isfed.theory.budget_levels import NoisePath
from isfed.theory.composition_variance import VariateErrors, turns_of
from isfed.theory.learned_scores import LearnedScores
from isfed.theory.probabilities import Choices, all_choices_at, gradients_of_agents

MOST_FOLLOWED = 4096  # examples, whose scores are followed
MOST_SCORED = 1024  # agents, whose scores are followed
SHAKES = 4  # models around w^o whose scores are looked at, and their mirror images ...
LEVELS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)  # ... at these multiples of the noise of a tuned average


def learned(
    problem: Problem, pairs: dict[str, tuple[ISFedAvg, Choices]], paths: dict[str, NoisePath],
    basis: np.ndarray, errors: VariateErrors, rounds: int,
) -> dict[str, NoisePath]:  # fmt: skip
    """The ways that learn scores, with what it costs that these are those of other models."""
    own, (method, _) = paths["importance"], pairs["importance"]
    data, model, start = problem.data, problem.optimum, np.zeros(problem.num_params)
    sizes, count = data.num_examples, problem.num_agents
    every = -(-int(sizes.sum()) // MOST_FOLLOWED)
    rows = slice(every // 2, None, every)  # of many a part, which stands for all
    agent = np.repeat(np.arange(count), sizes)[rows]
    steps, batch = problem.local_steps[agent], problem.batch_size[agent]

    def inverse(at: np.ndarray) -> np.ndarray:
        return 1.0 / all_choices_at(problem, [method], at)[0].examples[rows]

    spread = own.spread_of(own.tuned("", rounds, averaged=True).step_size, rounds)
    towards = np.random.default_rng(2).standard_normal((SHAKES, len(basis)))
    towards = np.concatenate([towards, -towards]) * np.sqrt(spread) @ basis.T
    gradients = np.concatenate(list(gradients_of_agents(problem, model)))[rows] @ basis
    x, y = data.features[rows], data.targets[rows]
    one = np.ones((len(y), 1))
    common = {
        "squares": gradients**2,
        "growth": (x @ basis) ** 2 * np.abs(problem.loss.bends(0.0 * one, y, one)),
        "unseen": sizes[agent] / batch, "start": inverse(start), "settled": inverse(model),
        "around": np.array(
            [[inverse(model + math.sqrt(far) * away) for away in towards] for far in LEVELS]
        ),
        "risks": 0.5 * float(own.curvature @ spread) * np.array(LEVELS),
        "level": problem.risk(model),
    }  # fmt: skip
    agents = {}
    if count <= MOST_SCORED:
        agents = _agent_scores(problem, pairs, basis, errors, rounds)
    share = data.agent_weights**2 / (sizes**2 * problem.local_steps * float(count) ** 2)
    found = {}
    for name, (_, chosen) in pairs.items():
        parts = LearnedScores(
            turns=steps * chosen.agents[agent], weights=every * (share / chosen.agents)[agent],
            agents=agents.get(name), **common,
        )  # fmt: skip
        found[name] = replace(paths[name], scores=parts)
    return found


def _agent_scores(
    problem: Problem, pairs: dict[str, tuple[ISFedAvg, Choices]], basis: np.ndarray,
    errors: VariateErrors, rounds: int,
) -> dict[str, AgentScores]:  # fmt: skip
    """How the agents' scores follow from their turns, for each of the ways that learn them."""
    method, settled = pairs["importance"]
    model, start, count = problem.optimum, np.zeros(problem.num_params), problem.num_agents
    there, before = (turns_of(problem, method.parts(), at) for at in (model, start))
    moved = before.means - there.means
    work = problem.local_steps * problem.batch_size
    variation = 6.0 / work
    norms = [
        np.sqrt(np.maximum(t.scores**2 - (3.0 + variation) * (t.means**2).sum(axis=1), 0.0)
                / variation)
        for t in (there, before)
    ]  # fmt: skip
    squares = [(one * other).sum(axis=1) for one, other in (
        (there.means, there.means), (2.0 * there.means, moved), (moved, moved)
    )]  # fmt: skip
    bounds = Bounds(
        variation, work / problem.data.num_examples,
        np.array([norms[0], norms[1] - norms[0]]), np.array(squares),
    )  # fmt: skip
    innovations = Innovations(
        np.array([there.noise, before.noise - there.noise]),
        (errors.moved**2).sum(axis=2).mean(axis=0) + errors.unlearned, squares[2],
    )  # fmt: skip
    means, spreads = there.means @ basis / count, np.empty((count, basis.shape[1]))
    weights = problem.data.agent_weights**2 / (problem.local_steps * float(count) ** 2)
    for agent, gradients in enumerate(gradients_of_agents(problem, model)):
        each = gradients @ basis / len(gradients)
        chances = settled.of_agent(problem, agent)
        spreads[agent] = weights[agent] * total_variance(method.example_design, chances, each)

    def by_examples(chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(basis.shape[1]), (1.0 / chances) @ spreads

    def drawn(chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = chances * (1.0 - chances)
        centre = (1.0 - chances) @ means / max(float(left.sum()), 1e-300)
        apart = means / chances[:, None] - centre
        return left @ apart**2, by_examples(chances)[1]

    def in_passes(chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prob = pass_probabilities(chances / chances.sum(), method.num_active)
        noise = pass_noise(prob, [means, means], method.num_active)
        agents = noise["agents"][1] if noise else np.zeros(basis.shape[1])
        return agents, by_examples(method.num_active * prob)[1]

    common = {
        "heard": method.num_active / count, "floor": method.agents.floor, "rounds": rounds,
    }  # fmt: skip
    kinds: dict[str, Any] = {
        "importance": (bounds, drawn), "importance, passes": (bounds, in_passes),
        "control variates": (innovations, by_examples),
    }  # fmt: skip
    return {
        name: AgentScores(
            squares=kinds[name][0], variance=kinds[name][1], settled=chosen.agents,
            **common,
        )
        for name, (_, chosen) in pairs.items()
    }  # fmt: skip


def pass_probabilities(wanted: np.ndarray, num_active: int) -> np.ndarray:
    """p_k of a pass, shrunk to equal ones as `Passes` does."""
    places = -(-wanted.size // num_active) * num_active
    tried = [(1.0 - share) * wanted + share / wanted.size for share in SHARES]
    return min(tried, key=lambda prob: pass_variance(wanted, prob * places))


def pass_noise(prob: np.ndarray, values: list[np.ndarray], num_active: int) -> dict[str, Any]:
    """What agents contribute to a round of a pass, and what rounding leaves of the whole pass."""
    per_pass = -(-prob.size // num_active)
    if per_pass == 1 and np.ptp(prob) == 0.0:
        return {}
    places = per_pass * num_active
    expected = prob * places
    fraction = expected - np.floor(expected)
    uneven = (fraction * (1.0 - fraction) / expected**2)[:, None]
    spread = [
        (prob[:, None] * (v / prob[:, None] - v.sum(axis=0)) ** 2).sum(axis=0) for v in values
    ]
    agents = np.stack(spread) / num_active * (1.0 - 1.0 / per_pass) * places / max(places - 1, 1)
    centred = values[1] - prob[:, None] * values[1].sum(axis=0)
    return {
        "agents": agents, "per_pass": per_pass, "rounding": (uneven * centred**2).sum(axis=0),
    }  # fmt: skip
