"""What importance sampling costs: memory policies against the uniform round, same E and B."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import problems
from c_reference import WARM_UP, kernel_run
from measure import Report, by_turns

from isfed import Deville, Memory, Score, Systematic


def run(report: Report, _folder: Path) -> None:
    """W1 and W2, where a gradient is a handful of products, and W3, where it costs something."""
    for problem in (problems.regression(), problems.ragged(), problems.wide()):
        algorithms = {
            "uniform": problems.uniform(problem),
            "memory, Systematic": problems.memory(problem, Systematic()),
            "memory, Deville": problems.memory(problem, Deville()),
            "memory, Systematic, 2nd moment": replace(
                problems.memory(problem, Systematic()), agents=Memory(score=Score.SECOND_MOMENT)
            ),
        }
        cases = {}
        for name, algorithm in algorithms.items():
            kernel = kernel_run(problem, algorithm)
            kernel.advance(WARM_UP)
            cases[name] = kernel.advance
        times = by_turns(cases, report)
        for name in list(algorithms)[1:]:
            title = f"{problem.name} {name}"
            report.compare("cost", title, times[name], "uniform", times["uniform"])
