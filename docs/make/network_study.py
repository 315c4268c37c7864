"""What absences and noisy scores cost, in process: python docs/make/network_study.py

Steady-state msd over independent repetitions, and the bias of the model against the same
repetitions without absences, in standard errors of the mean difference.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from isfed import OUTLIERS, PAPER, FedAvg, ISFedAvg, Problem
from isfed.federation.agent import AgentConfig
from isfed.federation.guarded import Guarded
from isfed.federation.messages import Cohort, Updates, Work
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Safety, ScoreRange, revealed_score
from isfed.methods.over_network import over_network
from isfed.methods.resumable_job import Job
from isfed.simulate.kernel_run import num_cores

SCORES = ScoreRange(1e-3, 1e3)
# Small, because every repetition steps the objects one by one; the step is large to be quick.
AGENTS, ACTIVE, STEP_SIZE = 30, 4, 0.03


@dataclass(frozen=True)
class Setting:
    """One line of a table."""

    label: str
    problem: str = "paper"
    algorithm: ISFedAvg | None = None
    absent: str = "nobody"
    absences: Absences = Absences.DROP
    noise: float = 0.0
    rounds: int = 400
    seed: int = 1


@cache
def make_problem(name: str) -> Problem:
    """30 agents of the paper's regression; with outliers, three of them are 30 times as noisy."""
    small = {"num_agents": AGENTS, "local_steps": (1, 2), "batch_size": (1, 5)}
    if name == "paper":
        return PAPER.replace(**small).make(seed=7)
    return OUTLIERS.replace(**small, noisy_share=0.1, noise_ratio=30.0).make(seed=7)


@cache
def chance_of_absence(name: str) -> np.ndarray:
    """Per agent: from 0 to 0.6 in the order of the first coordinate of its own minimiser."""
    problem = make_problem(name)
    own = [problem.local_optimum(k)[0] for k in range(problem.num_agents)]
    chance = np.empty(problem.num_agents)
    chance[np.argsort(own)] = np.linspace(0.0, 0.6, problem.num_agents)
    return chance


def is_absent(setting: Setting, agent: int, change: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether the agent's answer is lost."""
    draw = rng.random()
    match setting.absent:
        case "nobody":
            return False
        case "anybody, 30%":
            return draw < 0.3
        case "some agents more, 30%":
            return draw < chance_of_absence(setting.problem)[agent]
        case "by the change":
            return draw < (0.6 if change[0] > 0.0 else 0.0)
    raise ValueError(setting.absent)


class Lossy(ObjectAgents):
    """Agents that tell noisy scores, and some of whose answers are lost."""

    def __init__(self, setting: Setting, rules: AgentConfig) -> None:
        super().__init__(make_problem(setting.problem), rules, seed=setting.seed, repetition=0)
        self.setting, self.rng = setting, np.random.default_rng((setting.seed, 99))

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        """What arrives of the turns of a cohort."""
        found, noise, kept = super().train(cohort, sent, work, round_index), self.setting.noise, []
        for place, agent in enumerate(cohort.agents):
            score = float(found.score[place])
            found.score[place] = revealed_score(score, SCORES, noise=noise, rng=self.rng)
            if not is_absent(self.setting, agent, found.change[place], self.rng):
                kept.append(place)
        rows = {name: getattr(found, name)[kept] for name in ("change", "score", "watch")}
        velocity = found.velocity[kept]
        return found._replace(place=np.array(kept, np.int64), velocity=velocity, **rows)


def run_repetition(setting: Setting) -> tuple[float, np.ndarray]:
    """The msd and the mean model over the last half of the rounds."""
    problem = make_problem(setting.problem)
    algorithm = setting.algorithm or ISFedAvg(step_size=STEP_SIZE, num_active=ACTIVE)
    start = np.zeros(problem.num_params)
    safety = Safety(absences=setting.absences, scores=SCORES)
    method = over_network(algorithm, num_agents=problem.num_agents, safety=safety, weighting="step")
    agents = Guarded(Lossy(setting, method.rules(problem.num_agents)), safety)
    cloud = Job(method, agents, start)
    msd, mean, half = 0.0, np.zeros_like(start), setting.rounds // 2
    for i in range(setting.rounds):
        cloud.step()
        if i >= half:
            error = cloud.params - problem.optimum
            msd += float(error @ error) / half
            mean += cloud.params / half
    return msd, mean


def run(setting: Setting, repetitions: int, pool: ProcessPoolExecutor):
    """All repetitions: msd (R,), mean models (R, M)."""
    tasks = [replace(setting, seed=1000 + r) for r in range(repetitions)]
    results = list(pool.map(run_repetition, tasks, chunksize=5))
    return np.array([m for m, _ in results]), np.array([p for _, p in results])


def decibel(msd: np.ndarray) -> float:
    """10 log10 of the mean."""
    return float(10 * np.log10(msd.mean()))


def absences(repetitions: int, rounds: int, pool: ProcessPoolExecutor) -> None:
    """The table of absences."""
    settings = [Setting("nobody is absent", rounds=rounds)]
    for absent in ("anybody, 30%", "some agents more, 30%", "by the change"):
        for mode in Absences:
            settings.append(
                Setting(f"{absent}, {mode.value}", absent=absent, absences=mode, rounds=rounds)
            )
    print(f"absences: {repetitions} repetitions of {rounds} rounds, {ACTIVE} of {AGENTS} agents")
    print(f"{'absent':34s} {'msd (dB)':>9s} {'bias':>10s} {'in standard errors':>20s}")
    reference = None
    for setting in settings:
        msd, params = run(setting, repetitions, pool)
        reference = params if reference is None else reference
        difference = params - reference
        error = difference.std(axis=0, ddof=1) / np.sqrt(repetitions)
        with np.errstate(invalid="ignore"):
            z = np.nan_to_num(np.abs(difference.mean(axis=0)) / error).max()
        bias = np.linalg.norm(difference.mean(axis=0))
        print(f"{setting.label:34s} {decibel(msd):9.2f} {bias:10.2e} {z:20.1f}", flush=True)


def noise(repetitions: int, rounds: int, pool: ProcessPoolExecutor) -> None:
    """The table of noisy scores: the gain over FedAvg with 1/E_k, at the same step size."""
    plain = FedAvg(step_size=STEP_SIZE, num_active=ACTIVE, divide_by_steps=True)
    base, _ = run(Setting("FedAvg", "outliers", plain, rounds=rounds), repetitions, pool)
    print(f"score noise: {repetitions} repetitions of {rounds} rounds, 3 of 30 agents are noisy")
    print(f"FedAvg with 1/E_k: {decibel(base):.2f} dB")
    print(f"{'score_noise':>11s} {'epsilon':>8s} {'msd (dB)':>9s} {'gain (dB)':>10s}")
    for scale in (0.0, 0.25, 0.5, 1.0, 2.0, 5.0):
        msd, _ = run(Setting("", "outliers", noise=scale, rounds=rounds), repetitions, pool)
        level, epsilon = decibel(msd), SCORES.epsilon(scale)
        print(f"{scale:11g} {epsilon:8.3g} {level:9.2f} {decibel(base) - level:10.2f}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--only", choices=["absences", "noise"])
    given = parser.parse_args()
    run_repetition(Setting("compile", rounds=2))  # once, before the workers would each
    with ProcessPoolExecutor(num_cores()) as pool:
        if given.only != "noise":
            absences(given.repetitions, given.rounds, pool)
        if given.only != "absences":
            noise(given.repetitions, given.rounds, pool)


if __name__ == "__main__":
    main()
