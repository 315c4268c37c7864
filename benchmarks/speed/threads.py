"""Two threads against one, on many repetitions."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import problems
from c_reference import kernel_run
from measure import CHUNK, Case, Report, by_turns

from isfed.simulate.kernel_run import KernelRun

REPETITIONS = 100
WARM_UP = 200


def _counting(run: KernelRun, spent: list[float]) -> Case:
    """The case, and beside it the CPU time of all its threads, per round."""

    def advance(rounds: int) -> None:
        before = time.process_time()
        run.advance(rounds)
        spent.append((time.process_time() - before) / rounds)

    return advance


def run(report: Report, _folder: Path) -> None:
    """FedAvg and memory policies on W1 and W2.

    By the clock on the wall, the only one that threads can beat; a machine that is busy with other
    things has no second core to give. The CPU time tells what the second thread costs: at 1.00 two
    idle cores would be twice as fast as one.
    """
    for problem in (problems.regression(), problems.ragged()):
        for label, algorithm in (
            ("FedAvg", problems.fedavg(problem)),
            ("memory", problems.memory(problem)),
        ):
            spent: dict[str, list[float]] = {"one": [], "two": []}
            cases = {}
            for threads, name in enumerate(spent, start=1):
                kernel = kernel_run(problem, algorithm, repetitions=REPETITIONS, threads=threads)
                kernel.advance(WARM_UP)
                cases[name] = _counting(kernel, spent[name])
            times = by_turns(cases, report, clock=time.perf_counter, seconds=CHUNK)
            tries = slice(-report.tries, None)
            ratios = zip(spent["two"][tries], spent["one"][tries], strict=True)
            cost = median(two / one for two, one in ratios)
            title = f"{problem.name} {label} x {REPETITIONS}: one thread"
            note = f"CPU time of two over one: {cost:.2f}"
            report.compare("threads", title, times["one"], "two threads", times["two"], note=note)
