"""What telemetry costs: the same kernel with and without it, by turns."""

from __future__ import annotations

from pathlib import Path

import problems
from c_reference import WARM_UP, kernel_run
from measure import Report, by_turns

from isfed import Deville, Systematic


def run(report: Report, _folder: Path) -> None:
    """W1, W2 and W3; of uniform sampling there is nothing to watch."""
    for problem in (problems.regression(), problems.ragged(), problems.wide()):
        for design in (Systematic(), Deville()):
            cases = {}
            for name, watched in (("with", True), ("without", False)):
                kernel = kernel_run(problem, problems.memory(problem, design))
                kernel.plan = kernel.plan._replace(watched=watched)
                kernel.advance(WARM_UP)
                cases[name] = kernel.advance
            times = by_turns(cases, report)
            title = f"{problem.name} memory, {type(design).__name__}"
            report.compare("telemetry", title, times["with"], "without", times["without"])
