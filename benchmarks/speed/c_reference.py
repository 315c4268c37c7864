"""The kernel against the same work in C: first that it is the same work, then the ratio."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import problems
from measure import Case, Report, by_turns

from isfed import Deville, ISFedAvg, Logistic, Memory, Problem, Score, Systematic
from isfed.base.random_streams import Purpose, stream_key
from isfed.sampling.policies import Refresh
from isfed.simulate.kernel_run import KernelRun

SOURCE = Path(__file__).with_name("reference.c")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
CHECKED_ROUNDS = 200
TOLERANCE = 1e-9  # the compiler may fuse a product and a sum, which changes last digits
WARM_UP = 20_000  # rounds, so that the tables are as full as in the long run

_POINTERS = ("features", "targets", "offsets", "local_steps", "batch_size", "optimum")
_NUMBERS = ("num_agents", "num_params", "num_active", "logistic", "memory", "deville")
_FLAGS = ("second_moment", "divide_by_steps")
_REALS = ("ridge", "step_size", "agent_floor", "example_floor", "rate")


class _Task(ctypes.Structure):
    """task_t of reference.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS + _FLAGS),
        *((name, ctypes.c_double) for name in _REALS),
    ]


def is_memory(algorithm: ISFedAvg) -> bool:
    """Whether it is the memory policy on both sides, the other thing that the C loop knows."""
    return algorithm.agents.refresh == Refresh.TOUCHED == algorithm.examples.refresh


def compile_c(folder: Path, constants: dict[str, int]) -> ctypes.CDLL:
    """Compile the C loop, with these values known to the compiler."""
    defines = [f"-D{name}={value}" for name, value in constants.items()]
    target = folder / ("_".join(["reference", *(d[2:].replace("=", "") for d in defines)]) + ".so")
    if not target.exists():
        subprocess.run(["cc", *FLAGS, *defines, "-o", target, SOURCE, "-lm"], check=True)
    library = ctypes.CDLL(str(target))
    library.make.restype = ctypes.c_void_p
    library.make.argtypes = [ctypes.c_void_p]
    library.discard.argtypes = [ctypes.c_void_p]
    library.discard.restype = None
    word, number = ctypes.c_uint64, ctypes.c_int64
    library.run.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, word, word, number, number, ctypes.c_void_p,
        ctypes.c_void_p,
    ]  # fmt: skip
    library.run.restype = None
    return library


def constants_of(problem: Problem, algorithm: ISFedAvg) -> dict[str, int]:
    """What a programmer would fix to make the loop fast on this one problem."""
    return {
        "M": problem.num_params,
        "B": int(problem.batch_size[0]),
        "E": int(problem.local_steps[0]),
        "L": algorithm.num_active,
        "LOGISTIC": int(isinstance(problem.loss, Logistic)),
        "MEMORY": int(is_memory(algorithm)),
        "DEVILLE": int(isinstance(algorithm.agent_design, Deville)),
    }


class CRun:
    """One repetition in C, from params zero."""

    def __init__(
        self, problem: Problem, algorithm: ISFedAvg, folder: Path, *, fixed: bool, seed: int = 0
    ) -> None:
        constants = constants_of(problem, algorithm)
        self.library = compile_c(folder, constants if fixed else {})
        data = problem.data
        arrays = (data.features, data.targets, data.offsets, problem.local_steps)
        self.arrays = (*arrays, problem.batch_size, problem.optimum)  # kept alive for the pointers
        numbers = (problem.num_agents, problem.num_params, algorithm.num_active)
        choices = (constants["LOGISTIC"], constants["MEMORY"], constants["DEVILLE"])
        second = int(algorithm.agents.score == Score.SECOND_MOMENT)
        self.task = _Task(
            *(array.ctypes.data for array in self.arrays),
            *numbers, *choices, second, int(algorithm.divide_by_steps),
            problem.loss.ridge, algorithm.step_size, algorithm.agents.floor,
            algorithm.examples.floor, algorithm.agents.rate,
        )  # fmt: skip
        self.state = self.library.make(ctypes.byref(self.task))
        self.keys = [
            int(stream_key(seed, repetition=0, purpose=purpose))
            for purpose in (Purpose.AGENTS, Purpose.EXAMPLES)
        ]
        self.params = np.zeros(problem.num_params)
        self.round_index = 0

    def advance(self, rounds: int) -> np.ndarray:
        """Run the next rounds; returns their msd."""
        msd = np.empty(rounds)
        self.library.run(
            ctypes.byref(self.task), self.state, *self.keys, self.round_index, rounds,
            self.params.ctypes.data, msd.ctypes.data,
        )  # fmt: skip
        self.round_index += rounds
        return msd

    def __del__(self) -> None:
        self.library.discard(self.state)


def kernel_run(
    problem: Problem, algorithm: ISFedAvg, *, repetitions: int = 1, threads: int = 1
) -> KernelRun:
    """The kernel, compiled, before its first round."""
    run = KernelRun(
        problem, algorithm, repetitions=repetitions, seed=0, initial=np.zeros(problem.num_params),
        threads=threads,
    )  # fmt: skip
    run.compile()
    return run


def check_same_work(problem: Problem, algorithm: ISFedAvg, folder: Path) -> None:
    """Fail unless kernel and C agree after some rounds."""
    kernel = kernel_run(problem, algorithm)
    kernel.advance(CHECKED_ROUNDS)
    expected = kernel.params[0]
    for fixed in (False, True):
        c = CRun(problem, algorithm, folder, fixed=fixed)
        c.advance(CHECKED_ROUNDS)
        error = float(np.abs(c.params - expected).max() / np.abs(expected).max())
        if not error < TOLERANCE:
            raise SystemExit(
                f"{problem.name}, {algorithm.name}: the C loop and the kernel differ by {error:.1e}"
                f" after {CHECKED_ROUNDS} rounds, so they do not do the same work"
            )


def cases_of(problem: Problem, algorithm: ISFedAvg, folder: Path) -> dict[str, Case]:
    """The kernel and the C loop, generic and specialised, on one problem."""
    runs = {
        "kernel": kernel_run(problem, algorithm),
        "C": CRun(problem, algorithm, folder, fixed=False),
        "C specialised": CRun(problem, algorithm, folder, fixed=True),
    }
    for run in runs.values():
        run.advance(WARM_UP)
    return {name: run.advance for name, run in runs.items()}


def run(report: Report, folder: Path) -> None:
    """FedAvg and memory policies on W1 and W2."""
    if shutil.which("cc") is None:
        print("c: skipped, for there is no C compiler called cc")
        return
    for problem in (problems.regression(), problems.ragged()):
        algorithms = {
            "FedAvg": problems.fedavg(problem),
            "memory, Systematic": problems.memory(problem, Systematic()),
            "memory, Deville": problems.memory(problem, Deville()),
        }
        second = replace(algorithms["memory, Deville"], agents=Memory(score=Score.SECOND_MOMENT))
        check_same_work(problem, second, folder)
        for label, algorithm in algorithms.items():
            check_same_work(problem, algorithm, folder)
            cases = cases_of(problem, algorithm, folder)
            title = f"{problem.name} {label}"
            times = by_turns(cases, report)
            for name in ("C", "C specialised"):
                report.compare("C", f"{title}: kernel", times["kernel"], name, times[name])
