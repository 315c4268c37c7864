"""The fused kernel between chunks: its arrays, its threads, its history."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from isfed.base.atomic_files import put
from isfed.base.random_streams import Purpose, stream_keys
from isfed.base.value_checks import check_whole
from isfed.federation.compiled_turn import Task
from isfed.federation.ledger import Ledger, first_entries
from isfed.federation.problem_arrays import (
    check_batches,
    example_tables,
    make_task,
    probabilities_of_examples,
    write_scores,
)
from isfed.federation.variate_updates import Reference, extra_messages, make_reference, make_rule
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.sampling import score_table as table
from isfed.sampling.policies import Initial, Refresh, initial_score, memory_size, take_scores
from isfed.sampling.telemetry import uniform_rows
from isfed.simulate.kernel import ControlPlan, Plan, State, run_rounds
from isfed.simulate.lowering import can_lower, lowered
from isfed.simulate.run_history import History, Measured
from isfed.simulate.run_protocol import Block
from isfed.theory.stable_step_size import with_step_size

MOST_PROBABILITIES = 20_000_000  # numbers of example probabilities kept in a history
PARTS_PER_THREAD = 4  # so that a thread that was held up does not keep the others waiting


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_keys(seed: int, repetitions: range) -> np.ndarray:
    """The keys of the random streams, (R, 3): agents, examples, drift."""
    purposes = (Purpose.AGENTS, Purpose.EXAMPLES, Purpose.DRIFT)
    columns = [stream_keys(seed, repetitions=repetitions, purpose=p) for p in purposes]
    return np.stack(columns, axis=1)


def make_state(
    problem: Problem,
    algorithm: ISFedAvg,
    plan: Plan,
    task: Task,
    repetitions: int,
    initial: np.ndarray,
) -> State:
    """The state before the first round."""
    # The oracle's tables never change, yet every repetition has its own: a draw sets the certain
    # units aside for a moment, and another thread must not see that.
    first, at = example_tables(task, algorithm.examples, plan.examples, lambda: problem.optimum)
    example_nodes = np.tile(first, (repetitions, 1))
    width = 0 if plan.agents.equal else table.table_size(problem.num_agents)
    agent_nodes = np.empty((repetitions, width))
    if width:
        table.fill_table(agent_nodes[0], 0, problem.num_agents, initial_score(algorithm.agents))
        if algorithm.agents.initial == Initial.OPTIMUM:
            scores = np.empty(problem.num_agents)
            write_scores(
                task, plan.examples, problem.optimum, np.empty(0), False, first, at, scores
            )
            agent_nodes[0, : scores.size] = scores
            take_scores(agent_nodes[0], 0, scores.size)
    agent_nodes[1:] = agent_nodes[0]
    reports = algorithm.rules(problem.num_agents).agents
    memory = memory_size(reports, problem.num_params) * problem.num_agents
    return State(
        params=np.tile(initial, (repetitions, 1)),
        shift=np.zeros((repetitions, problem.num_params if algorithm.drift > 0.0 else 0)),
        agent_nodes=agent_nodes,
        example_nodes=example_nodes,
        example_at=at,
        memory=np.full((repetitions, memory), -1.0),
        counts=np.zeros((repetitions, 2), np.int64),
    )


def make_references(control: ControlPlan, problem: Problem, repetitions: int) -> Reference:
    """What agents and cloud remember of gradients, a row for every repetition."""
    one = make_reference(control.rule, problem.num_agents, problem.num_params)
    return Reference(*(np.zeros((repetitions, *values.shape)) for values in one))


class KernelRun:
    """The kernel's state between chunks."""

    def __init__(
        self,
        problem: Problem,
        algorithm: ISFedAvg,
        *,
        repetitions: int | range,
        seed: int,
        initial: np.ndarray,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            check_whole(threads, name="threads", least=1)
        which = repetitions if isinstance(repetitions, range) else range(repetitions)
        self.threads = threads or num_cores()
        self.problem = problem
        self.algorithm = algorithm = with_step_size(problem, algorithm, initial=initial)
        if not can_lower(algorithm):
            raise ValueError("the kernel cannot run this design; use engine='objects'")
        self.plan, self.control = plan, control = lowered(algorithm)
        check_batches(problem, algorithm.example_design)
        known = problem.optimum if problem.has_optimum else None
        self.task: Task = make_task(problem, drift=algorithm.drift > 0.0, optimum=known)
        self.arrays: State = make_state(problem, algorithm, plan, self.task, len(which), initial)
        self.references = None
        if control is not None:
            self.references = make_references(control, problem, len(which))
        self.keys = make_keys(seed, which)
        self.round_index = 0
        self.diverged = False
        self.whole = True  # false while a chunk runs: then the state must not be saved

    @property
    def params(self) -> np.ndarray:
        """(R, M) the models as they stand."""
        return self.arrays.params

    @property
    def step_size(self) -> float:
        """The step size used."""
        return self.plan.step_size

    def compile(self) -> None:
        """Compile the kernel, or load it from the cache, without running a round."""
        nothing = np.empty((len(self.params), 0))
        self._run(nothing, self._watch(0), np.zeros(len(nothing), np.int64), 0, 0)

    def _watch(self, rounds: int) -> np.ndarray:
        """Room for the telemetry of so many rounds, filled in as if all chances were equal."""
        return uniform_rows((len(self.params), rounds), self.plan.num_active)

    def _run(self, msd, watched, done: np.ndarray, begin: int, end: int) -> None:
        run_rounds(
            self.task, self.plan, self.control, self.arrays, self.references, self.keys,
            self.round_index, msd, watched, done, begin, end,
        )  # fmt: skip

    def advance(self, num_rounds: int) -> Block:
        """Run the next rounds; fewer than asked for if a model diverged."""
        repetitions = len(self.params)
        msd = np.empty((repetitions, num_rounds))
        watched = self._watch(num_rounds)
        done = np.zeros(repetitions, np.int64)
        parts = min(repetitions, self.threads * PARTS_PER_THREAD if self.threads > 1 else 1)
        edges = np.linspace(0, repetitions, parts + 1).astype(int).tolist()
        self.whole = False
        if parts == 1:
            self._run(msd, watched, done, 0, repetitions)
        else:  # compiled code releases the interpreter's lock
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(partial(self._run, msd, watched, done), edges[:-1], edges[1:]))
        finite = int(done.min())
        self.diverged = finite < num_rounds
        self.round_index += finite
        self.whole = True
        return Block(msd[:, :finite], watched[:, :finite])

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        remembered = {} if self.references is None else self.references._asdict()
        return {**self.arrays._asdict(), **remembered}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
        for name, values in self.state().items():
            put(values, name, state)

    def _agent_prob(self) -> np.ndarray:
        """(R, K) p_k at the end."""
        num_agents, repetitions = self.problem.num_agents, len(self.params)
        out = np.full((repetitions, num_agents), 1.0 / num_agents)
        if self.arrays.agent_nodes.size:
            for rep in range(repetitions):
                nodes = self.arrays.agent_nodes[rep]
                floor = self.algorithm.agents.floor
                table.table_probabilities(nodes, 0, num_agents, floor, out[rep])
        return out

    def _example_prob(self) -> np.ndarray:
        """(R', rows) p_n at the end, of as many repetitions as fit in memory."""
        rows = len(self.problem.data.targets)
        arrays = self.arrays
        return np.array(
            [
                probabilities_of_examples(
                    self.task, self.algorithm.examples, self.plan.examples,
                    arrays.example_nodes[rep], arrays.example_at, arrays.params[rep],
                    arrays.shift[rep],
                )
                for rep in range(kept_repetitions(len(arrays.params), rows))
            ]
        )  # fmt: skip

    def ledgers(self) -> np.ndarray:
        """(R, entries) what every repetition cost."""
        asks_all = self.algorithm.agents.refresh == Refresh.ALL
        everybody = self.round_index * self.problem.num_agents if asks_all else 0
        reports = self.algorithm.rules(self.problem.num_agents).agents.learns
        first = first_entries(self.problem.num_agents)["scalars_up"]
        rule = make_rule(self.algorithm.memory, self.algorithm.agents)
        found = []
        for gradients, uploads in self.arrays.counts.tolist():
            ledger = Ledger(
                models_down=uploads + everybody,
                models_up=uploads,
                scalars_down=uploads,
                scalars_up=first + (uploads if reports else 0) + everybody,
                gradients=gradients,
                rounds=self.round_index,
            )
            for entry, more in extra_messages(rule, uploads).items():
                setattr(ledger, entry, getattr(ledger, entry) + more)
            found.append(ledger.as_array())
        return np.array(found)

    def history(self, block: Block, measured: Measured | None = None) -> History:
        """What happened, given the msd and telemetry of all rounds and what was measured."""
        return History(
            msd=block.msd,
            params=self.params.copy(),
            agent_prob=self._agent_prob(),
            example_prob=self._example_prob(),
            gradients=self.arrays.counts[:, 0].copy(),
            uploads=self.arrays.counts[:, 1].copy(),
            step_size=self.step_size,
            telemetry=block.watched,
            ledgers=self.ledgers(),
            no_msd=self.problem.no_optimum,
            **({} if measured is None else measured.fields()),
        )


def kept_repetitions(repetitions: int, rows: int) -> int:
    """Of how many repetitions a history keeps the probabilities of all examples."""
    return min(repetitions, max(1, MOST_PROBABILITIES // rows))
