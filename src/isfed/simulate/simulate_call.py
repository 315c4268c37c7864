"""`simulate`: an algorithm on a problem, in process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from isfed.base.argument_checks import check_active, check_seed, check_vector, check_whole, shown
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.problem_arrays import check_batches, compiled_design
from isfed.federation.virtual_clock import Clock
from isfed.methods.method_protocol import Algorithm, objective_of
from isfed.problems import Problem
from isfed.sampling.policies import compiled_policy
from isfed.simulate.kernel_run import KernelRun, kernel_runs
from isfed.simulate.rounds_run import RoundsRun
from isfed.simulate.run_driver import Recording, Run, drive
from isfed.simulate.run_history import History, Measure, check_keep
from isfed.theory.stable_step_size import with_step_size

Engine = Literal["auto", "kernel", "agents", "objects"]
ENGINES = ("auto", "kernel", "agents", "objects")
METHOD = ("rules", "start", "round", "model")  # what an algorithm can do


class NoMsdWarning(UserWarning):
    """A run whose problem has no known minimiser, and that therefore has no msd."""


def check_run(problem: Problem, algorithm: Algorithm, rounds: int, repetitions: int) -> None:
    """Raise a ValueError for what cannot be run."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={shown(problem)} must be a Problem")
    lacks = [name for name in METHOD if not callable(getattr(algorithm, name, None))]
    if lacks or isinstance(algorithm, type):
        raise TypeError(f"algorithm={shown(algorithm)} must be a method, e.g. FedAvg(...)")
    num_active = getattr(algorithm, "num_active", None)
    if num_active is not None:
        check_active(num_active, problem.num_agents)
    design = getattr(algorithm, "example_design", None)
    if design is not None:
        check_batches(problem.batched_for(algorithm), design)
    check_whole(rounds, name="rounds", least=1)
    check_whole(repetitions, name="repetitions", least=1)
    check_rounds = getattr(algorithm, "check_rounds", None)  # of a schedule
    if check_rounds is not None:
        check_rounds(rounds)


def choose_engine(problem: Problem, algorithm: Any, engine: Engine = "auto") -> Engine:
    """The fastest engine that can run it, or the one given if it can."""
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ValueError(f"engine={shown(engine)} must be one of {', '.join(map(repr, ENGINES))}")
    kernel = kernel_runs(problem, algorithm)
    if engine == "kernel" and not kernel:
        raise ValueError(
            "the kernel cannot run this loss, design or algorithm; use engine='objects'"
        )
    design, policy = (getattr(algorithm, name, None) for name in ("example_design", "examples"))
    compiled = (
        hasattr(problem.loss, "compiled")
        and (design is None or compiled_design(design))
        and (policy is None or compiled_policy(policy))
    )
    own = hasattr(problem.loss, "make_agents")
    if engine == "agents" and not (compiled or own):
        raise ValueError(
            "compiled agents cannot run this loss or this design of examples; use engine='objects'"
        )
    if engine != "auto":
        return engine
    if kernel and not own:  # a loss may bring agents of its own
        return "kernel"
    return "agents" if compiled or own else "objects"


def make_run(
    problem: Problem,
    algorithm: Any,
    *,
    repetitions: int | range = 1,
    seed: int = 0,
    initial: np.ndarray | None = None,
    engine: Engine = "auto",
    threads: int | None = None,
    clock: Clock | None = None,
) -> Run:
    """A run before its first round.

    Args:
        problem: what is learned.
        algorithm: how; any `Algorithm`.
        repetitions: how many, or which: a repetition is the same in any company.
        seed: the seed of all random draws.
        initial: w_0, (M,); zero unless given.
        engine: "kernel" (fused), "agents" (compiled agents, or those that the loss brings),
            "objects" (anything), or "auto".
        threads: see `simulate`.
        clock: see `simulate`.
    """
    check_seed(seed)
    if threads is not None:
        check_whole(threads, name="threads", least=1)
    if clock is not None and not isinstance(clock, Clock):
        raise TypeError(f"clock={shown(clock)} must be a Clock")
    problem = problem.batched_for(algorithm)
    if initial is not None:
        params = check_vector(initial, name="initial", size=problem.num_params)
    else:  # zero, unless the loss has something better, as a network has
        start = getattr(problem.loss, "initial", None)
        params = np.zeros(problem.num_params) if start is None else start()
    which = choose_engine(problem, algorithm, engine)
    if clock is not None and which == "kernel":  # it keeps no time
        if engine == "kernel":
            raise ValueError(
                "the kernel does not count virtual time; leave out the clock or the engine"
            )
        which = "agents"
    algorithm = with_step_size(problem, algorithm, initial=params)
    weighable = which == "kernel" and algorithm.correction is None and not algorithm.on_change
    if problem.data.weights is not None and not weighable:
        raise ValueError(
            "data with agent weights can be used by FedAvg and by ISFedAvg without a correction, "
            f"on the kernel, but not by {type(algorithm).__name__} with engine={which!r}; to let "
            "agents count by their numbers of examples, leave the weights out and give the method "
            "client_weights='size'"
        )
    common: dict[str, Any] = {"repetitions": repetitions, "seed": seed, "initial": params}
    if which == "kernel":
        return KernelRun(problem, algorithm, threads=threads, **common)
    own: Any = getattr(problem.loss, "make_agents", None)
    if own is not None and threads is not None and threads > 1:
        own = partial(own, workers=threads)
    make_agents: Any = own or CompiledAgents if which == "agents" else ObjectAgents
    return RoundsRun(problem, algorithm, make_agents, clock=clock, **common)


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int,
    repetitions: int = 1,
    seed: int = 0,
    initial: np.ndarray | None = None,
    engine: Engine = "auto",
    threads: int | None = None,
    clock: Clock | None = None,
    measure: Measure | None = None,
    keep: Sequence[int] = (),
    progress: Callable[[int], None] | None = None,
) -> History:
    """Run an algorithm on a problem and return what happened.

    Args:
        problem: what is learned.
        algorithm: how; any `Algorithm`.
        rounds: the number of rounds of every repetition.
        repetitions: independent runs on the same problem.
        seed: the seed of all random draws.
        initial: w_0, (M,); zero unless given.
        engine: all give the same numbers. "kernel" is the fastest, "agents" runs any algorithm with
            a compiled loss, "objects" also losses and designs of your own; "auto" takes the first
            that can.
        threads: cores for the kernel, all unless given; processes for the agents of a network, one
            unless given.
        clock: how fast the agents are; the ledger then counts virtual seconds.
        measure: evaluated every so many rounds, see `Measure`.
        keep: the rounds whose models are kept, e.g. [0, 10, 100] or range(101); 0 is the start.
            They are `History.kept`, (repetitions, kept, M).
        progress: called with the number of rounds (times repetitions) just done.

    Examples:
        >>> from isfed import PAPER, FedAvg
        >>> history = simulate(PAPER.make(), FedAvg(step_size=0.01, num_active=6), rounds=20)
        >>> history.msd.shape
        (1, 20)
    """
    from isfed.simulate.pilot_runs import with_best_step_size  # which makes runs itself

    check_run(problem, algorithm, rounds, repetitions)
    rounds, repetitions = int(rounds), int(repetitions)  # NumPy's may have few bits
    if progress is not None and not callable(progress):
        raise TypeError(f"progress={shown(progress)} must be a function")
    if measure is not None:
        named = isinstance(getattr(measure, "names", None), tuple | list)
        if not callable(measure) or isinstance(measure, type) or not named:
            raise TypeError(f"measure={shown(measure)} must have every, names and be callable")
        check_whole(getattr(measure, "every", None), name="every", least=1)
    kept = check_keep(keep, rounds)
    algorithm = with_best_step_size(
        problem, algorithm, rounds=rounds, initial=initial, threads=threads
    )
    run = make_run(
        problem, algorithm, repetitions=repetitions, seed=seed, initial=initial, engine=engine,
        threads=threads, clock=clock,
    )  # fmt: skip
    aim = objective_of(problem, algorithm)
    if aim.no_optimum is not None and not aim.without_optimum:
        warnings.warn(f"this run has no msd: {aim.no_optimum}", NoMsdWarning, stacklevel=2)
    in_all = None if progress is None else lambda done: progress(done * repetitions)
    return drive(run, Recording(run, rounds, measure, kept), progress=in_all)
