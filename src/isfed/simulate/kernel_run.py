"""The fused kernel between chunks: which methods it runs, its arrays and its threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.base.atomic_files import restore_array
from isfed.base.random_streams import Purpose, stream_keys
from isfed.federation.compiled_turn import Task
from isfed.federation.ledger import Ledger, first_entries
from isfed.federation.problem_arrays import (
    check_batches,
    compiled_design,
    example_tables,
    make_sampling_rule,
    make_task,
    probabilities_of_examples,
    wants_norms,
    write_scores,
)
from isfed.federation.variate_updates import Reference, extra_messages, make_reference, make_rule
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.sampling import score_table as table
from isfed.sampling.policies import (
    Initial,
    Refresh,
    compiled_policy,
    initial_score,
    memory_size,
    take_scores,
)
from isfed.sampling.telemetry import uniform_rows
from isfed.simulate.kernel import ControlPlan, KernelState, Plan, run_rounds
from isfed.simulate.run_base import Block, Run

PARTS_PER_THREAD = 4  # so that a thread that was held up does not keep the others waiting


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_lower(algorithm: Any) -> bool:
    """Whether the kernel does all that a method does; not so if a subclass has its own round."""
    kind = type(algorithm)
    if not isinstance(algorithm, ISFedAvg):
        return False
    if kind.parts is not ISFedAvg.parts or kind.round is not ISFedAvg.round:
        return False
    known = (
        compiled_design(algorithm.agent_design)
        and compiled_design(algorithm.example_design)
        and compiled_policy(algorithm.agents)
        and compiled_policy(algorithm.examples)
    )
    plain = algorithm.absences == "drop" and algorithm.client_weights == "uniform"
    return known and plain and not algorithm.costs and not algorithm.average


def lowered(algorithm: ISFedAvg) -> tuple[Plan, ControlPlan | None]:
    """A method that `can_lower` accepts as numbers; the second is None without control variates."""
    agents = make_sampling_rule(algorithm.agents, algorithm.agent_design)
    examples = make_sampling_rule(algorithm.examples, algorithm.example_design)
    plan = Plan(
        step_size=float(algorithm.step_size),
        num_active=int(algorithm.num_active),
        divide_by_steps=algorithm.divide_by_steps,
        drift=float(algorithm.drift),
        agents=agents,
        examples=examples,
        scored=wants_norms(algorithm.agents, algorithm.examples),
        watched=not (agents.uniform and examples.uniform),
        on_change=algorithm.on_change,
        full=algorithm.full_batch,
    )
    if algorithm.memory is None:
        return plan, None
    reports = algorithm.federated.reports
    turn = plan._replace(
        agents=make_sampling_rule(reports, algorithm.agent_design),
        scored=wants_norms(reports, algorithm.examples),
    )
    return plan, ControlPlan(turn, make_rule(algorithm.memory, algorithm.agents))


def make_state(
    problem: Problem,
    algorithm: ISFedAvg,
    plan: Plan,
    task: Task,
    repetitions: int,
    initial: np.ndarray,
) -> KernelState:
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
    return KernelState(
        params=np.tile(initial, (repetitions, 1)),
        shift=np.zeros((repetitions, problem.num_params if algorithm.drift > 0.0 else 0)),
        agent_nodes=agent_nodes,
        example_nodes=example_nodes,
        example_at=at,
        memory=np.full((repetitions, memory), -1.0),
        counts=np.zeros((repetitions, 2), np.int64),
    )


class KernelRun(Run):
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
        super().__init__(problem, algorithm, repetitions, initial)
        self.threads, algorithm = threads or num_cores(), self.algorithm
        if not can_lower(algorithm):
            raise ValueError("the kernel cannot run this design; use engine='objects'")
        self.plan, self.control = lowered(algorithm)
        check_batches(problem, algorithm.example_design)
        known = problem.optimum if problem.has_optimum else None
        self.task: Task = make_task(problem, drift=algorithm.drift > 0.0, optimum=known)
        count = len(self.repetitions)
        self.arrays = make_state(problem, algorithm, self.plan, self.task, count, initial)
        self.params = self.arrays.params
        self.references = None
        if self.control is not None:
            one = make_reference(self.control.rule, problem.num_agents, problem.num_params)
            self.references = Reference(*(np.zeros((count, *values.shape)) for values in one))
        keys = (
            stream_keys(seed, repetitions=self.repetitions, purpose=purpose)
            for purpose in (Purpose.AGENTS, Purpose.EXAMPLES, Purpose.DRIFT)
        )
        self.keys = np.stack(list(keys), axis=1)

    def compile(self) -> None:
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
        remembered = {} if self.references is None else self.references._asdict()
        return {**self.arrays._asdict(), **remembered}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name, values in self.state().items():
            restore_array(values, name, state)

    def agent_prob(self, place: int) -> np.ndarray:
        num_agents = self.problem.num_agents
        prob = np.full(num_agents, 1.0 / num_agents)
        if self.arrays.agent_nodes.size:
            nodes, floor = self.arrays.agent_nodes[place], self.algorithm.agents.floor
            table.table_probabilities(nodes, 0, num_agents, floor, prob)
        return prob

    def example_prob(self, place: int) -> np.ndarray:
        arrays = self.arrays
        return probabilities_of_examples(
            self.task, self.algorithm.examples, self.plan.examples, arrays.example_nodes[place],
            arrays.example_at, arrays.params[place], arrays.shift[place],
        )  # fmt: skip

    def ledgers(self) -> np.ndarray:
        asks_all = self.algorithm.agents.refresh == Refresh.ALL
        everybody = self.round_index * self.problem.num_agents if asks_all else 0
        reports = self.algorithm.rules(self.problem.num_agents).agents.learns
        first = first_entries(self.problem.num_agents)["scalars_up"]
        rule = make_rule(self.algorithm.memory, self.algorithm.agents)
        rows = []
        for gradients, uploads in self.arrays.counts.tolist():
            ledger = Ledger(
                models_down=uploads + everybody,
                models_up=uploads,
                scalars_down=uploads,
                scalars_up=first + (uploads if reports else 0) + everybody,
                gradients=gradients,
                rounds=self.round_index,
            )
            ledger.charge(**extra_messages(rule, uploads))
            rows.append(ledger.as_array())
        return np.array(rows)
