"""Many agents: K = 10^3 to 10^6 with L = 100 and ten examples each, memory policies.

Run as a script with one number it is the process in which memory is measured for that many agents.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

from c_reference import kernel_run
from measure import CHUNK, Report, Row, by_turns
from problems import STEP_SIZE

from isfed import ISFedAvg, Problem, Regression
from isfed.simulate.kernel_run import KernelRun

NUM_AGENTS = (10**3, 10**4, 10**5, 10**6)
NUM_ACTIVE = 100
NUM_EXAMPLES = 10
WORK = ((1, 1), (3, 5))  # (E, B)
WARM_UP = 5_000
ROUNDS = 100_000
MEGABYTE = 2.0**20
STATUS = Path("/proc/self/status")


def problem_of(num_agents: int, *, local_steps: int = 1, batch_size: int = 1) -> Problem:
    """The paper's regression with that many agents."""
    recipe = Regression(
        num_agents=num_agents,
        num_examples=NUM_EXAMPLES,
        local_steps=(local_steps, local_steps),
        batch_size=(batch_size, batch_size),
    )
    return recipe.make()


def start(problem: Problem) -> KernelRun:
    """The run before its first round."""
    return kernel_run(problem, ISFedAvg(step_size=STEP_SIZE, num_active=NUM_ACTIVE))


def measure_times(report: Report) -> None:
    """The time of a round, all sizes by turns."""
    for local_steps, batch_size in WORK:
        runs = {}
        for num_agents in NUM_AGENTS:
            run = start(problem_of(num_agents, local_steps=local_steps, batch_size=batch_size))
            run.advance(WARM_UP)
            runs[f"K={num_agents:.0e}"] = run.advance
        times = by_turns(runs, report, seconds=CHUNK)
        least = next(iter(runs))
        for name in list(runs)[1:]:
            title = f"round of {NUM_ACTIVE}, E={local_steps} B={batch_size}, {name}"
            report.compare("scale", title, times[name], least, times[least])


def status(key: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(key):
            return float(line.split()[1]) / 1024.0
    raise KeyError(key)


def measure_memory(num_agents: int, rounds: int) -> dict[str, float]:
    """In a process of its own: what the run takes beside what it must hold, in megabytes."""
    start(problem_of(NUM_ACTIVE)).advance(10)  # imports and compiled code are not counted
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to the present
    before = status("VmRSS")
    run = start(problem_of(num_agents))
    run.advance(1000)
    after = status("VmRSS")
    peak = status("VmHWM")
    greatest = after
    for _ in range(10):
        run.advance(rounds // 10)
        greatest = max(greatest, status("VmRSS"))
    data, state = run.problem.data, run.arrays
    arrays = (data.features, data.targets, state.agent_nodes, state.example_nodes, state.memory)
    return {
        "needed": sum(array.nbytes for array in arrays) / MEGABYTE,
        "peak": peak - before,
        "held": after - before,
        "growth": greatest - after,
        "traced": _traced(num_agents),
    }


def _traced(num_agents: int) -> float:
    """The peak of what NumPy asked for, exact also where it is less than a process's noise."""
    tracemalloc.start()
    start(problem_of(num_agents)).advance(1000)
    return tracemalloc.get_traced_memory()[1] / MEGABYTE


def run(report: Report, _folder: Path) -> None:
    """Times, then memory."""
    measure_times(report)
    if not STATUS.exists():
        print("scale: memory is skipped, for it is read from /proc")
        return
    rounds = ROUNDS // 10 if report.quick else ROUNDS
    for num_agents in NUM_AGENTS:
        command = [sys.executable, __file__, str(num_agents), str(rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        row = Row("scale", f"memory at the peak, K={num_agents:.0e}", against="data and tables")
        row.ratio = max(found["traced"], found["peak"]) / found["needed"]
        row.note = (
            f"{found['needed']:.1f} MB needed; asked for by NumPy {found['traced']:.1f}, resident "
            f"{found['peak']:.1f} at the peak, {found['held']:.1f} in the rounds, "
            f"{found['growth']:+.2f} over {rounds:.0e} rounds"
        )
        report.add(row)


if __name__ == "__main__":
    print(json.dumps(measure_memory(int(sys.argv[1]), int(sys.argv[2]))))
