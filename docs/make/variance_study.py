"""Size, direction and drift: every way to sample, on every problem.

    python docs/make/variance_study.py run [--seeds 10] [--minutes 15] [--only TEXT] [--pixels 7]
                                            [--missing]
    python docs/make/variance_study.py tables     # prints the tables of docs/appendix/variance.md
    python docs/make/variance_study.py figures    # writes docs/figures/variance-*.png
    python docs/make/variance_study.py page       # both, the tables into docs/appendix/variance.md
    python docs/make/variance_study.py keep       # means and errors into docs/make/variance.json

A cell is a problem, E, L and whether 30% of the uploads are lost. In a cell every method is tuned
over four step sizes with seeds of their own, and then run with `--seeds` others. Where a turn is
one step and nothing is lost, the two best step sizes are told apart with three more tuning seeds:
there the noise of a single run is larger than what lies between them.

One file for every cell and method in docs/make/results/variance: what is there is not run again.
What is not there is taken from docs/make/variance.json, so that tables and page can be made
without running anything; with `--missing` only what is in neither is run.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import variance_problems
from variance_problems import LABELLED, PRESETS, largest_step, make_problem

from isfed import (
    SCAFFOLD,
    Clock,
    ClusteredSampling,
    Correction,
    DivergenceError,
    FedVARP,
    HartleyRao,
    ISFedAvg,
    LocalPivotal,
    Problem,
    Spread,
    Uniform,
)
from isfed.base.atomic_files import write_json
from isfed.simulate.simulate_call import Engine, make_run

RESULTS = Path(__file__).parent / "results" / "variance"
TUNING_SEEDS, FIRST_SEED = (1000, 1001, 1002, 1003), 0
ABSENT = 0.3
UNIFORM, MEMORY = {"agents": Uniform(), "examples": Uniform()}, {"examples": Uniform()}
METHODS: dict[str, Any] = {
    # Agents of one class have numbers in a row, so that Deville's draw, the default, takes some of
    # every class; along a random order it does not, and that is what FedAvg does.
    "uniform, random order": lambda o: ISFedAvg(**UNIFORM, agent_design=HartleyRao(), **o),
    "uniform": lambda o: ISFedAvg(**UNIFORM, **o),
    "importance": lambda o: ISFedAvg(**MEMORY, **o),
    "importance, weights on changes": lambda o: ISFedAvg(**MEMORY, weighting="change", **o),
    "spread": lambda o: ISFedAvg(**UNIFORM, agent_design=Spread(), **o),
    "spread, local pivotal": lambda o: ISFedAvg(
        **UNIFORM, agent_design=Spread(LocalPivotal()), **o
    ),
    "spread, importance": lambda o: ISFedAvg(**MEMORY, agent_design=Spread(), **o),
    "difference": lambda o: ISFedAvg(**UNIFORM, correction="difference", **o),
    "difference, importance": lambda o: ISFedAvg(**MEMORY, correction="difference", **o),
    "drift": lambda o: ISFedAvg(**UNIFORM, correction="drift", **o),
    "drift, importance": lambda o: ISFedAvg(**MEMORY, correction="drift", **o),
    "drift, importance, spread": lambda o: ISFedAvg(
        **MEMORY, correction="drift", agent_design=Spread(), **o
    ),
    "drift, importance, gain 1": lambda o: ISFedAvg(
        **MEMORY, correction=Correction("drift", gain=1.0), **o
    ),
    "drift, importance, gain 0.1": lambda o: ISFedAvg(
        **MEMORY, correction=Correction("drift", gain=0.1), **o
    ),
    "FedVARP": lambda o: FedVARP(divide_by_steps=True, **o),
    "SCAFFOLD": lambda o: SCAFFOLD(divide_by_steps=True, **o),
    "clustered sampling": lambda o: ClusteredSampling(divide_by_steps=True, **o),
}


# Run first in every cell, so that a study that is stopped early has no empty cells.
FIRST = (
    "uniform", "importance", "spread", "spread, importance", "difference, importance", "drift",
    "drift, importance", "FedVARP", "SCAFFOLD",
)  # fmt: skip


class Cell(NamedTuple):
    """One column of a table."""

    problem: str
    steps: int  # E of the labelled problems; the presets have their own E_k
    active: int  # L
    absent: bool

    @property
    def name(self) -> str:
        """For a file."""
        text = f"{self.problem} E{self.steps} L{self.active}{' absent' if self.absent else ''}"
        return "".join(c if c.isalnum() else "-" for c in text)

    @property
    def rounds(self) -> int:
        """Long enough to settle: the presets have two features and cost little."""
        return 3000 if self.problem in PRESETS else 400


def cells() -> list[Cell]:
    """The most telling first."""
    found = [Cell(name, 1, 10, False) for name in LABELLED]
    found += [Cell(name, 1, 6, False) for name in PRESETS]
    found += [Cell(name, 10, 10, False) for name in LABELLED]
    found += [Cell(name, 1, 6, True) for name in PRESETS]
    found += [Cell(name, 1, active, False) for name in PRESETS for active in (2, 30)]
    found += [Cell(name, 1, 10, True) for name in LABELLED]
    found += [Cell(name, 1, active, False) for active in (2, 30) for name in LABELLED]
    found += [Cell(name, 10, 10, True) for name in LABELLED]
    found += [Cell(name, 10, active, False) for active in (2, 30) for name in LABELLED]
    return found


def risk(problem: Problem, params: np.ndarray) -> float:
    """The risk at a model."""
    data = problem.data
    values = problem.loss.values(params, data.features, data.targets)
    return float(np.add.reduceat(values, data.offsets[:-1]) @ (1.0 / data.num_examples)) / len(
        data.num_examples
    )


def errors(
    cell: Cell, method: str, step: float, seeds: range | tuple[int, ...], engine: Engine = "auto"
) -> list[float]:
    """Of every seed: msd over the second half (presets), or excess risk near the end."""
    problem = make_problem(cell.problem, cell.steps)
    algorithm = METHODS[method]({"step_size": step, "num_active": cell.active})
    clock = Clock(drop=ABSENT) if cell.absent else None
    found = []
    for seed in seeds:
        run = make_run(problem, algorithm, repetitions=1, seed=seed, clock=clock, engine=engine)
        try:
            if cell.problem in PRESETS:
                msd = run.advance(cell.rounds).msd
                found.append(float(msd[:, cell.rounds // 2 :].mean()))
            else:
                run.advance(cell.rounds - 30)
                excess = []
                for _ in range(4):
                    excess.append(risk(problem, run.params[0]) - risk_at_optimum(problem))
                    run.advance(10)
                found.append(float(np.mean(excess)))
        except DivergenceError:
            found.append(math.inf)
        if run.diverged or not np.isfinite(found[-1]):
            found[-1] = math.inf
    return found


_LEAST: dict[int, float] = {}


def risk_at_optimum(problem: Problem) -> float:
    """The least risk, found once."""
    if id(problem) not in _LEAST:
        _LEAST[id(problem)] = risk(problem, problem.optimum)
    return _LEAST[id(problem)]


def tune(cell: Cell, method: str, top: float) -> dict[float, float]:
    """The mean error at four step sizes by one tuning seed, or of the best two by all of them."""
    steps = (top, top / 2, top / 4, top / 8)
    tried = {step: errors(cell, method, step, TUNING_SEEDS[:1]) for step in steps}
    if cell.steps == 1 and not cell.absent:
        close = sorted(tried, key=lambda step: tried[step])[:2]
        tried = {s: tried[s] + errors(cell, method, s, TUNING_SEEDS[1:]) for s in close}
    return {step: float(np.mean(found)) for step, found in tried.items()}


def study(cell: Cell, method: str, num_seeds: int) -> dict[str, Any]:
    """Tune, then measure; the presets run at the paper's step size and are not tuned."""
    begun, top = time.perf_counter(), largest_step(cell.problem)
    tried = {} if cell.problem in PRESETS else tune(cell, method, top)
    best = min(tried, key=lambda step: tried[step]) if tried else top
    found = errors(cell, method, best, range(FIRST_SEED, FIRST_SEED + num_seeds))
    return {
        **cell._asdict(), "method": method, "step": best, "tuning": list(tried.items()),
        "errors": found, "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def path_of(cell: Cell, method: str) -> Path:
    """Where a result is kept."""
    name = "".join(c if c.isalnum() else "-" for c in method)
    return RESULTS / str(variance_problems.PIXELS) / cell.name / f"{name}.json"


def run(num_seeds: int, minutes: float, only: str, *, missing: bool = False) -> None:
    """All that is missing in the folder, or nowhere to be found, until the time is up."""
    from variance_kept import measured

    end = time.monotonic() + 60.0 * minutes
    later = [method for method in METHODS if method not in FIRST]
    for cell, method in [(c, m) for methods in (FIRST, later) for c in cells() for m in methods]:
        place = path_of(cell, method)
        if place.exists() or only not in f"{cell.name} {method}":
            continue
        if missing and measured(cell, method) is not None:
            continue
        if time.monotonic() > end:
            return
        found = study(cell, method, num_seeds)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, found)
        mean = np.mean(found["errors"])
        print(
            f"{cell.name:40s} {method:32s} step {found['step']:<6g} {mean:.3g} "
            f"({found['seconds']:.1f} s)",
            flush=True,
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "tables", "page", "figures", "keep"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only", default="")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--pixels", type=int, default=14, choices=(7, 14))
    given = parser.parse_args()
    variance_problems.PIXELS = given.pixels
    if given.command == "run":
        run(given.seeds, given.minutes, given.only, missing=given.missing)
        return
    import variance_kept
    import variance_page

    print(
        variance_kept.keep() if given.command == "keep" else getattr(variance_page, given.command)()
    )


if __name__ == "__main__":
    main()
