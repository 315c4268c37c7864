"""Theory against measurement: variances of a round, the bound, optimal probabilities.

    python docs/make/theory_study.py [--quick] [--only variance|bound|optimal]

Writes docs/make/results/theory.json, from which docs/make/theory_page.py makes docs/theory.md.
Predicted and measured gains are a study of the engine, theory.toml. The rest is not: variances are
of one round from a fixed model and fixed tables, and runs of the bound take up to five million
rounds, of which nothing is kept but a mean.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isfed import (
    Current,
    Deville,
    HartleyRao,
    ISFedAvg,
    Memory,
    Oracle,
    Poisson,
    Problem,
    Running,
    Sampford,
    Stream,
    Systematic,
    Uniform,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.simulate.kernel_run import KernelRun
from isfed.simulate.run_driver import chunks
from isfed.studies.dataset_config import NAMED
from isfed.theory import Constants, Rule, gradient_variance, predict
from isfed.theory.probabilities import Choices, choices_at, gradients_of_agents

RESULTS = Path(__file__).parent / "results" / "theory.json"
POLICIES = {
    "uniform": Uniform(),
    "oracle": Oracle(),
    "current": Current(),
    "running": Running(),
    "memory": Memory(),
}
DESIGNS = {
    "systematic": Systematic(),
    "deville": Deville(),
    "hartley-rao": HartleyRao(),
    "replacement": WithReplacement(),
    "sampford": Sampford(),
    "poisson": Poisson(),
}
TINY = 1e-9  # a step so small that every gradient of a round is taken at its start


def say(words: str) -> None:
    """Progress."""
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def make(name: str) -> tuple[Problem, int]:
    """A named problem, and how many agents a round."""
    return NAMED[name](None)


# ---------------------------------------------------------------- variances


def learned(problem: Problem, algorithm: ISFedAvg) -> KernelRun:
    """One repetition, trained until the policies have learned."""
    trained = replace(algorithm, step_size="auto")
    run = KernelRun(problem, trained, repetitions=1, seed=7, initial=np.zeros(problem.num_params))
    run.advance(3000)
    return run


def state_choices(problem: Problem, algorithm: ISFedAvg, run: KernelRun) -> Choices:
    """The inclusion probabilities that the tables of a run hold."""
    history = run.history(run.advance(0))
    active = algorithm.num_active
    repeats = isinstance(algorithm.agent_design, WithReplacement)

    def included(prob: np.ndarray, num: int) -> np.ndarray:
        return num * prob if repeats else inclusion_probabilities(prob, num)

    offsets = problem.data.offsets
    rows = history.example_prob[0]
    examples = [
        included(rows[offsets[k] : offsets[k + 1]], int(problem.batch_size[k]))
        for k in range(problem.num_agents)
    ]
    return Choices(included(history.agent_prob[0], active), np.concatenate(examples))


def kernel_squares(
    problem: Problem, algorithm: ISFedAvg, trained: KernelRun | None, draws: int, mean: np.ndarray
) -> np.ndarray:
    """|estimate - mean|^2 of many rounds, all from the same state."""
    start = problem.optimum if trained is None else trained.arrays.params[0]
    repetitions = 250
    run = KernelRun(
        problem,
        replace(algorithm, step_size=TINY),
        repetitions=repetitions,
        seed=11,
        initial=start,
    )
    if trained is not None:
        for name in ("agent_nodes", "example_nodes", "memory"):
            getattr(run.arrays, name)[:] = getattr(trained.arrays, name)[0]
    kept = {n: getattr(run.arrays, n).copy() for n in ("agent_nodes", "example_nodes", "memory")}
    squares = []
    while sum(map(len, squares)) < draws:
        run.arrays.params[:] = start
        if algorithm.agents.learns:
            for name, values in kept.items():
                getattr(run.arrays, name)[:] = values
        run.advance(1)
        estimate = (start - run.arrays.params) / TINY
        squares.append(np.sum((estimate - mean) ** 2, axis=1))
    return np.concatenate(squares)


def drawn_squares(
    problem: Problem, algorithm: ISFedAvg, chosen: Choices, draws: int, at: tuple
) -> np.ndarray:
    """The same for the designs that the kernel does not know, from the definition (eq. 14)."""
    params, mean = at
    gradients = list(gradients_of_agents(problem, params))
    inclusion = [chosen.of_agent(problem, k) for k in range(problem.num_agents)]
    weighted = [g / (len(g) * p[:, None]) for g, p in zip(gradients, inclusion, strict=True)]
    stream = Stream(13)
    squares = np.empty(draws)
    for i in range(draws):
        total = np.zeros(problem.num_params)
        for k in algorithm.agent_design.draw(chosen.agents, stream):
            steps = int(problem.local_steps[k])
            turn = np.zeros(problem.num_params)
            for _ in range(steps):
                units = algorithm.example_design.draw(inclusion[k], stream)
                turn += weighted[k][units].sum(axis=0) / steps
            total += turn / (problem.num_agents * chosen.agents[k])
        squares[i] = np.sum((total - mean) ** 2)
    return squares


def variances(quick: bool) -> Iterator[dict[str, Any]]:
    """Exact against Monte-Carlo variances, and the bounds, on both of the paper's problems."""
    draws = 10_000 if quick else 100_000
    for name in ("paper", "ijcnn1"):
        whole, active = make(name)
        for policy_name, policy in POLICIES.items():
            # A turn of several steps changes the tables of a policy that learns between them.
            problem = replace(whole, local_steps=1) if policy.learns else whole
            for design_name, design in DESIGNS.items():
                coded = hasattr(design, "code")
                algorithm = ISFedAvg(
                    step_size=TINY, num_active=active, agents=policy, examples=policy,
                    agent_design=design, example_design=design,
                )  # fmt: skip
                trained, chosen = None, choices_at(problem, algorithm)
                if policy.learns:  # a design that the kernel does not know learns with Deville
                    known = algorithm if coded else replace(
                        algorithm, agent_design=Deville(), example_design=Deville()
                    )  # fmt: skip
                    trained = learned(problem, known)
                    chosen = state_choices(problem, known, trained)
                params = problem.optimum if trained is None else trained.arrays.params[0]
                exact = gradient_variance(problem, algorithm, params=params, choices=chosen)
                if coded:
                    squares = kernel_squares(problem, algorithm, trained, draws, exact.mean)
                else:
                    squares = drawn_squares(problem, algorithm, chosen, draws, (params, exact.mean))
                found, stderr = squares.mean(), squares.std(ddof=1) / np.sqrt(len(squares))
                rule = Rule.REPLACEMENT if design_name == "replacement" else Rule.ANY_DESIGN
                bound = None
                if chosen.examples.min() > 0.0:
                    constants = Constants(problem, algorithm, chosen, rule)
                    distance = float(np.sum((params - problem.optimum) ** 2))
                    bound = constants.sigma_s2
                    bound += constants.beta_s2 * distance if distance > 0.0 else 0.0
                row = {
                    "problem": name,
                    "policy": policy_name,
                    "design": design_name,
                    "exact": exact.total,
                    "from_agents": exact.agents_share,
                    "measured": float(found),
                    "stderr": float(stderr),
                    "z": float((found - exact.total) / stderr),
                    "bound": bound,
                    "draws": len(squares),
                }
                say(f"{name} {policy_name} {design_name}: z = {row['z']:.2f}")
                yield row


# ---------------------------------------------------------------- the bound


def level(problem: Problem, algorithm: ISFedAvg, rounds: int, repetitions: int) -> tuple:
    """The mean msd of the last half of the rounds, from w^o, and its standard error."""
    run = KernelRun(problem, algorithm, repetitions=repetitions, seed=3, initial=problem.optimum)
    total, count, begin = np.zeros(repetitions), 0, 0
    for block in chunks(run, rounds):
        late = block.msd[:, max(0, rounds // 2 - begin) :]
        total, count = total + late.sum(axis=1), count + late.shape[1]
        begin = run.round_index
    levels = total / count
    return float(levels.mean()), float(levels.std(ddof=1) / np.sqrt(repetitions))


# Problem, policy, design, time constants (of ijcnn1: step size x rounds), repetitions. Uniform
# sampling by Hartley-Rao is ten times faster than by any design that needs a table.
CASES = (
    ("paper", "uniform", HartleyRao(), 8.0, 64),
    ("paper", "memory", Deville(), 8.0, 8),
    ("ijcnn1", "memory", Deville(), 1.0, 64),
)


def bounds(quick: bool, cases: tuple = CASES) -> Iterator[dict[str, Any]]:
    """The msd at five step sizes below the limit, the theorem's limit and the prediction."""
    for name, policy_name, design, stretch, repetitions in cases:
        problem, active = make(name)
        policy = POLICIES[policy_name]
        algorithm = ISFedAvg(
            step_size=1.0, num_active=active, agents=policy, examples=policy,
            agent_design=design, example_design=design,
        )  # fmt: skip
        constants = Constants(problem, algorithm)
        slowest = float(predict(problem, algorithm).curvature[0])
        for share in (0.9, 0.6, 0.4, 0.27, 0.18):
            step = share * constants.limit
            now = replace(algorithm, step_size=step)
            prediction = predict(problem, now)
            # Several time constants where that can be run; else the same stretch of mu x rounds.
            rounds = int(stretch / (step * (slowest if name == "paper" else 1.0)))
            rounds = rounds // 20 if quick else rounds
            measured, stderr = level(problem, now, rounds, 4 if quick else repetitions)
            late = np.linspace(rounds // 2, rounds, 50).astype(int)
            bound = constants.bound(step)
            row = {
                "problem": name,
                "policy": policy_name,
                "repetitions": repetitions,
                "limit": constants.limit,
                "step_size": step,
                "rounds": rounds,
                "time_constants": rounds * step * slowest,
                "measured": measured,
                "stderr": stderr,
                "predicted": float(prediction.curve(late, problem.optimum).mean()),
                "steady": prediction.steady,
                "bound": bound.limit,
                "bound_data": bound.limit_parts[0],
                "bound_model": bound.limit_parts[1],
            }
            say(f"{name} {policy_name} mu={step:.2g}: {measured:.3g} < {bound.limit:.3g}")
            yield row


# ---------------------------------------------------------------- optimal probabilities


def optimal(quick: bool) -> Iterator[dict[str, Any]]:
    """Random perturbations of the optimal probabilities: the bound sigma_s^2 never falls."""
    problem, active = make("paper")
    problem = replace(problem, batch_size=1)  # without caps, which the optimum does not know
    algorithm = ISFedAvg(step_size=1.0, num_active=active, agents=Oracle(), examples=Oracle())
    best = choices_at(problem, algorithm)
    least = Constants(problem, algorithm, best, Rule.PAPER).sigma_s2
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.1, 1.0):
        ratios = []
        for _ in range(10 if quick else 100):
            agents = best.agents * np.exp(scale * rng.standard_normal(best.agents.size))
            examples = best.examples * np.exp(scale * rng.standard_normal(best.examples.size))
            sums = np.add.reduceat(examples, problem.data.offsets[:-1])
            examples /= np.repeat(sums, problem.data.num_examples)
            other = Choices(active * agents / agents.sum(), examples)
            ratios.append(Constants(problem, algorithm, other, Rule.PAPER).sigma_s2 / least)
        say(f"perturbed by {scale:g}: {min(ratios):.6f} to {max(ratios):.6f} times the least")
        yield {"scale": scale, "tries": len(ratios), "least": min(ratios), "most": max(ratios)}


PARTS = {"optimal": optimal, "bound": bounds, "variance": variances}


def main() -> None:
    """Run the parts asked for and keep the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer draws and rounds")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in [options.only] if options.only else PARTS:
        began = time.perf_counter()
        rows = list(PARTS[name](options.quick))
        found[name] = {
            "rows": rows,
            "seconds": time.perf_counter() - began,
            "load": os.getloadavg()[0],
            "quick": options.quick,
        }
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
