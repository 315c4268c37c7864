"""One rogue among many: what it gains over whole runs, and how many a robust mean bears.

`python tests/support/rogue.py` prints both tables; it takes about two hours of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from stepped import Stepped

from isfed import (
    ByScore,
    Federated,
    HorvitzThompson,
    ISFedAvg,
    LocalSteps,
    Memory,
    Poisson,
    Uniform,
    Upload,
)
from isfed.federation.messages import Cohort, Facts, Timing, Updates, Work
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Privacy, Safety
from isfed.methods.federated import Opened
from isfed.methods.private import ReleasedScores
from isfed.methods.robust_means import GeometricMedian, NormClippedMean, TrimmedMean

ROGUE = 0
CLIP = 0.1
NOISE = Privacy(clip=CLIP, noise=1e-3, rounds=400)  # little noise, so that the push can be seen
METHODS = {
    "memory": {},
    "small floor": {"agents": Memory(floor=0.02)},
    "uniform": {"agents": Uniform()},
    "difference": {"correction": "difference"},
    "drift": {"correction": "drift"},
}
SAFETIES = {
    "default": Safety(),
    "clip": Safety(privacy=Privacy(clip=CLIP)),
    "adjusted": Safety(absences=Absences.ADJUSTED),
    "quorum": Safety(enough=0.5, patience=0.25),
    "all of these": Safety(
        absences=Absences.ADJUSTED, enough=0.5, patience=0.25, privacy=Privacy(clip=CLIP)
    ),
}
ROBUST = {
    "norm-clipped mean": NormClippedMean(),
    "trimmed mean": TrimmedMean(share=0.2),
    "geometric median": GeometricMedian(),
}
HIGH = 1e9
ADJUSTED_QUORUM = Safety(absences=Absences.ADJUSTED, enough=0.5, patience=0.25)
MOST_RUNS = 1000


class Sparing:
    """A rogue that misses cheap turns on purpose, to be paid back when its turns weigh much.

    It reports the highest score and answers one turn in five. When 80 turns have shown how rarely
    it answers, it reports a low score and answers 16 times in a row, in turns of a large weight.
    """

    def __init__(self, low: float = 0.5) -> None:
        self.low, self.turns, self.saving = low, 0, True

    def __call__(self, round_index: int) -> float | None:
        self.turns += 1
        if self.saving and self.turns % 5:
            return None
        if self.turns >= (80 if self.saving else 16):
            self.turns, self.saving = 0, not self.saving
        return HIGH if self.saving else self.low


LIES = {  # what the rogue reports, turn by turn; None: it does not answer
    "high": lambda: lambda i: HIGH,
    "low": lambda: lambda i: 0.0,
    "high and low in turn": lambda: lambda i: HIGH if i % 2 else 1e-9,
    "spares its answers": Sparing,
}


class Released(ReleasedScores):
    """Scores that were released: the rogue's is the highest that the range allows."""

    def _release(self, agents, params, round_index):
        scores = np.ones(agents.num_agents)
        scores[ROGUE] = self.scores.high
        return scores


def methods(active: int) -> dict[str, object]:
    """Every method of the table, by name, with the settings of `Safety` that it can have."""
    compositions: dict[str, object] = {name: ISFedAvg(step_size=1.0, num_active=active, **choices)
                    for name, choices in METHODS.items()}  # fmt: skip
    local = LocalSteps(1.0)
    for name, part in ROBUST.items():
        compositions[name] = Federated(ByScore(active), local, part)
    return compositions


def push(algorithm, num_agents, lie, *, rounds, safety, seed=0) -> float:
    """What the rogue moves the model by, over what an agent that reports as the others do may.

    Honest agents send changes of length 1 along the second axis, the rogue along the first.
    """

    def answer(place, agent, sent, work, round_index):
        if agent == ROGUE and not cloud.border.waits_for_all(round_index):
            return None  # it is late, which in this round nobody waits for
        score = lie(round_index) if agent == ROGUE else 1.0
        if score is None:
            return None
        steer = work.local.correction
        change = np.array([0.0, 1.0]) if agent != ROGUE else np.array([1.0, 0.0])
        if steer is not None:  # the cloud takes out what it has added
            change = change - float(work.step_size) * steer[place]
        return Upload(change, score, 0, 0.5)

    cloud = Stepped(
        algorithm, np.zeros(2), num_agents, answer, seed=seed, safety=safety, weighting="change"
    )
    cloud.border.rng = np.random.default_rng(seed)  # the coin of patience, to be repeatable here
    length = min(1.0, safety.privacy.clip if safety.privacy else 1.0)
    for _ in range(rounds):
        timing = None
        if safety.enough < 1.0:  # the rogue is always late; the coin of patience is the cloud's
            drawn, patient = cloud.drawn(), cloud.border.waits_for_all(cloud.job.round_index)
            timing = Timing(np.full(drawn.size, 1.0), drawn == ROGUE, patient)
        cloud.job._epsilons = list  # not what is measured here, and slow
        cloud.step(timing)
    return cloud.params[0] / (rounds * length / num_agents)


def active_of(num_agents: int) -> int:
    """L."""
    return max(6, num_agents // 16)


def pushes(
    algorithm, num_agents: int, safety: Safety, *, rounds: int, seeds: range | int,
    lie: str = "high",
) -> np.ndarray:  # fmt: skip
    """The push of a rogue in several runs."""
    options = {"rounds": rounds, "safety": safety}
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    runs = [push(algorithm, num_agents, LIES[lie](), seed=s, **options) for s in seeds]
    return np.array(runs)


def measured(
    algorithm, num_agents: int, safety: Safety, *, rounds: int, error: float, lie: str = "high"
) -> np.ndarray:
    """The pushes of as many runs as bring their standard error to `error`: at least 16.

    The first 16 say how many that takes, by their spread; they do not say when to stop.
    """
    first = pushes(algorithm, num_agents, safety, rounds=rounds, seeds=16, lie=lie)
    needed = min(math.ceil((first.std(ddof=1) / error) ** 2), MOST_RUNS)
    more = range(16, max(16, needed))
    rest = pushes(algorithm, num_agents, safety, rounds=rounds, seeds=more, lie=lie)
    return np.concatenate([first, rest])


def settings(num_agents: int):
    """Every method under every setting that it allows: names, method, safety."""
    active = active_of(num_agents)
    for name, method in methods(active).items():
        for called, safety in SAFETIES.items():
            if name in ("difference", "drift") and safety.privacy is not None:
                continue  # refused: a correction has no weights that are known before the work
            yield name, called, method, safety
    for name, sampler in (
        ("uniform, Poisson", ByScore(active, Uniform(), Poisson())),
        ("released scores", Released(active)),
    ):
        method = Federated(sampler, LocalSteps(1.0), HorvitzThompson())
        yield name, "clip and noise", method, Safety(privacy=NOISE, silent_rounds=0)


def breakdown(estimator, *, count: int = 20, length: float = 1e9) -> int:
    """The largest number of hostile changes with which the step stays near the honest ones.

    Near: within 3 times the longest honest change, whatever the rogues agree upon.
    """
    rng = np.random.default_rng(0)
    honest = np.array([1.0, 0.0, 0.0]) + 0.3 * rng.normal(size=(count, 3))
    cohort = Cohort(np.arange(count), count, np.ones(count), np.full(count, 1.0 / count))
    facts = Facts(count, 3, 3, None, None, None, None)
    opened = Opened(cohort, np.zeros(3), Work(0.1), None)
    bound = 3.0 * np.linalg.norm(honest, axis=1).max()
    for rogues in range(1, count):
        for towards in (np.array([-1.0, 0.0, 0.0]), np.ones(3) / np.sqrt(3.0)):
            rows = honest.copy()
            rows[:rogues] = length * towards
            updates = Updates(
                np.arange(count), rows, np.ones(count), np.zeros((count, 4)), np.zeros((count, 0)),
                factor=np.ones(count),
            )  # fmt: skip
            step, _, _ = estimator.combine(None, opened, updates, facts)
            if not np.linalg.norm(step) <= bound:
                return rogues - 1
    return count - 1


def line_of(runs: np.ndarray, *names: str) -> str:
    """A line of a table: the mean push with its standard error."""
    error = runs.std(ddof=1) / np.sqrt(len(runs))
    mark = "" if runs.mean() <= 1.2 else "  above 1.2"
    words = " ".join(f"{name:20}" for name in names)
    return f"{words} {runs.mean():5.2f} +- {error:.3f}, {len(runs):4} runs{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="*", default=[20, 100, 1000])
    parser.add_argument("--error", type=float, default=0.025, help="the standard error wanted")
    parser.add_argument("--method", help="only this row, e.g. uniform")
    parser.add_argument("--lies", action="store_true", help="only the table of what it reports")
    args = parser.parse_args()
    print("push of one rogue with the highest score over its fair push: mean +- standard error")
    for num_agents in [] if args.lies else args.agents:
        rounds = 150 if num_agents >= 1000 else 400
        for name, called, method, safety in settings(num_agents):
            if args.method not in (None, name):
                continue
            runs = measured(method, num_agents, safety, rounds=rounds, error=args.error)
            print(line_of(runs, f"K={num_agents}", name, called), flush=True)
    print("\nthe same by what it reports, drawn by scores, 2000 rounds")
    for num_agents in args.agents:
        method = ISFedAvg(step_size=1.0, num_active=active_of(num_agents))
        for lie in LIES:
            for called in ("default", "adjusted", "quorum", "adjusted, quorum"):
                safety = SAFETIES.get(called, ADJUSTED_QUORUM)
                runs = measured(method, num_agents, safety, rounds=2000, error=args.error, lie=lie)
                print(line_of(runs, f"K={num_agents}", lie, called), flush=True)
    print("\nhostile changes of 20 that each combination bears")
    for name, part in {"mean (Horvitz-Thompson)": HorvitzThompson(), **ROBUST}.items():
        print(f"{name:25} {breakdown(part):2} of 20")


if __name__ == "__main__":
    main()
