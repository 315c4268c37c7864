"""The fused kernel between chunks: which methods it runs, its arrays and its threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from isfed.base.atomic_files import restore_array
from isfed.base.random_streams import Purpose, fill_at, stream_keys
from isfed.federation.compiled_turn import Task
from isfed.federation.ledger import Ledger, first_entries
from isfed.federation.messages import Facts
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
from isfed.methods.by_score import ScoreState
from isfed.methods.iterate_average import write_mean
from isfed.methods.passes_over_agents import PassState, first_pass, plan_size
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
from isfed.simulate.kernel import ControlPlan, KernelState, Plan, RoundParts, run_rounds
from isfed.simulate.run_driver import Block, Run

LEAST_TURNS = 2_000  # of agents: fewer are done before other threads have started
PARTS_PER_THREAD = 4  # so that a thread that was held up does not keep the others waiting


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_runs(problem: Problem, algorithm: Any) -> bool:
    """Whether the fused kernel knows the loss and all that a method does."""
    kind = type(algorithm)
    if not (isinstance(algorithm, ISFedAvg) and hasattr(problem.loss, "compiled")):
        return False
    if kind.parts is not ISFedAvg.parts or kind.round is not ISFedAvg.round:
        return False  # a subclass with a round of its own
    return (
        all(map(compiled_design, (algorithm.agent_design, algorithm.example_design)))
        and all(map(compiled_policy, (algorithm.agents, algorithm.examples)))
        and algorithm.absences == "drop"
        and algorithm.client_weights == "uniform"
        and not algorithm.costs
        and not (algorithm.passes and algorithm.agents.refresh == Refresh.ALL)
    )


def lowered(algorithm: ISFedAvg) -> tuple[Plan, ControlPlan | None]:
    """The method as numbers; the second is None without control variates."""
    design = algorithm.federated.sampler.design
    agents = make_sampling_rule(algorithm.agents, design)
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
        agents=make_sampling_rule(reports, design),
        scored=wants_norms(reports, algorithm.examples),
    )
    return plan, ControlPlan(turn, make_rule(algorithm.memory, algorithm.agents))


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
        super().__init__(problem, algorithm, repetitions, initial)
        self.threads, algorithm = threads or num_cores(), self.algorithm
        if not kernel_runs(problem, algorithm):
            raise ValueError("the kernel cannot run this design; use engine='objects'")
        self.plan, self.control = lowered(algorithm)
        check_batches(problem, algorithm.example_design)
        known = problem.optimum if problem.has_optimum else None
        self.task: Task = make_task(problem, drift=algorithm.drift > 0.0, optimum=known)
        count = len(self.repetitions)
        self.arrays = self._first_state(count, initial)
        server = self.algorithm.federated.server.init(initial, 1.0)
        sums = server.sums if algorithm.average else np.zeros((0, initial.size))
        self.sums = np.tile(sums, (count, 1, 1))
        self.passes = [self._first_pass(nodes) for nodes in self.arrays.agent_nodes]
        self.references = None
        if self.control is not None:
            one = make_reference(self.control.rule, problem.num_agents, problem.num_params)
            self.references = Reference(*(np.zeros((count, *values.shape)) for values in one))
        keys = (
            stream_keys(seed, repetitions=self.repetitions, purpose=purpose)
            for purpose in (Purpose.AGENTS, Purpose.EXAMPLES, Purpose.DRIFT)
        )
        self.keys = np.stack(list(keys), axis=1)

    def _first_state(self, repetitions: int, initial: np.ndarray) -> KernelState:
        problem, algorithm, plan, task = self.problem, self.algorithm, self.plan, self.task
        # The oracle's tables never change, yet every repetition has its own: a draw sets the
        # certain units aside for a moment, and another thread must not see that.
        first, at = example_tables(task, algorithm.examples, plan.examples, lambda: problem.optimum)
        width = 0 if plan.agents.equal else table.table_size(problem.num_agents)
        agent_nodes = np.empty(width)
        if width:
            table.fill_table(agent_nodes, 0, problem.num_agents, initial_score(algorithm.agents))
            if algorithm.agents.initial == Initial.OPTIMUM:
                scores = agent_nodes[: problem.num_agents]
                write_scores(
                    task, plan.examples, problem.optimum, np.empty(0), False, first, at, scores
                )
                take_scores(agent_nodes, 0, scores.size)
        reports = algorithm.rules(problem.num_agents).agents
        memory = memory_size(reports, problem.num_params) * problem.num_agents
        return KernelState(
            params=np.tile(initial, (repetitions, 1)),
            shift=np.zeros((repetitions, problem.num_params if algorithm.drift > 0.0 else 0)),
            agent_nodes=np.tile(agent_nodes, (repetitions, 1)),
            example_nodes=np.tile(first, (repetitions, 1)),
            example_at=at,
            memory=np.full((repetitions, memory), -1.0),
            counts=np.zeros((repetitions, 2), np.int64),
        )

    def _first_pass(self, nodes: np.ndarray) -> PassState:
        """The pass of a repetition, over the scores that the kernel keeps."""
        count = self.problem.num_agents
        scores = ScoreState(nodes, np.empty((0, 0)), *3 * [np.empty(0)])
        return first_pass(scores, np.full(count, 1.0 / count), self.plan.num_active)

    @property
    def params(self) -> np.ndarray:  # type: ignore[override]
        """(R, M) the models that are shown: as they stand, or averaged."""
        if not self.sums.size or not self.round_index:
            return self.arrays.params
        shown = self.arrays.params.copy()
        for sums, model in zip(self.sums, shown, strict=True):
            write_mean(sums, self.round_index, model)
        return shown

    @property
    def current(self) -> np.ndarray:
        return self.arrays.params

    def _parts(self, first: int, rounds: int) -> RoundParts:
        """What passes and averages need for the next rounds; fewer where a new pass must wait.

        A pass is planned here, when the scores of the rounds before are known: compiled, it would
        cost everybody a second at the first start.
        """
        algorithm, count = self.algorithm, len(self.passes)
        if not algorithm.passes:
            none = np.empty((count, 0, self.plan.num_active), np.int64)
            return RoundParts(none, np.empty((count, 0)), self.sums)
        size, num_agents = self.problem.num_params, self.problem.num_agents
        facts = Facts(num_agents, size, size, None, None, None, None)
        if not algorithm.agents.equal:
            rounds = min(rounds, int(self.passes[0].left[0]) or len(self.passes[0].cohorts))
        cohorts = np.empty((count, rounds, self.plan.num_active), np.int64)
        points = np.empty((count, plan_size(self.passes[0])))
        at = 0
        while at < rounds:  # all repetitions begin their passes together
            if not self.passes[0].left[0]:
                fill_at(self.keys[:, 0], first + at, points)
                algorithm.federated.sampler.plan(self.passes, facts, points)
            taken = min(int(self.passes[0].left[0]), rounds - at)
            for rep, state in enumerate(self.passes):
                begin = len(state.cohorts) - state.left[0]
                cohorts[rep, at : at + taken] = state.cohorts[begin : begin + taken]
                state.left[0] -= taken
            at += taken
        return RoundParts(cohorts, np.array([state.prob for state in self.passes]), self.sums)

    def compile(self) -> None:
        block, done = self._room(0), np.zeros(len(self.passes), np.int64)
        self._run(self._parts(0, 0), 0, block, done, 0, 0)

    def _room(self, rounds: int) -> Block:
        """For so many rounds, with the telemetry of equal chances."""
        shape = len(self.passes), rounds
        return Block(np.empty(shape), uniform_rows(shape, self.plan.num_active))

    def _run(
        self, parts: RoundParts, first: int, block: Block, done: np.ndarray, begin: int, end: int
    ) -> None:
        run_rounds(
            self.task, self.plan, self.control, self.arrays, self.references, parts, self.keys,
            first, *block, done, begin, end,
        )  # fmt: skip

    def _advance(self, num_rounds: int) -> tuple[Block, int]:
        blocks, finite = [], 0
        while not blocks or finite < num_rounds:
            first = self.round_index + finite
            parts = self._parts(first, num_rounds - finite)
            rounds = parts.cohorts.shape[1] or num_rounds
            block, ran = self._run_all(parts, first, rounds)
            blocks.append(block)
            finite += ran
            if ran < rounds:
                break
        joined = (np.concatenate(columns, axis=1) for columns in zip(*blocks, strict=True))
        return blocks[0] if len(blocks) == 1 else Block(*joined), finite

    def _run_all(self, parts: RoundParts, first: int, num_rounds: int) -> tuple[Block, int]:
        """The next rounds of all repetitions, and how many were finite in all of them."""
        repetitions = len(self.passes)
        block, done = self._room(num_rounds), np.zeros(repetitions, np.int64)
        pieces = min(repetitions, self.threads * PARTS_PER_THREAD if self.threads > 1 else 1)
        if num_rounds * repetitions * self.plan.num_active < LEAST_TURNS:
            pieces = 1
        edges = np.linspace(0, repetitions, pieces + 1).astype(int).tolist()
        run = partial(self._run, parts, first, block, done)
        if pieces == 1:
            run(0, repetitions)
        else:  # compiled code releases the interpreter's lock
            with ThreadPoolExecutor(self.threads) as executor:
                list(executor.map(run, edges[:-1], edges[1:]))
        return block, int(done.min())

    def state(self) -> dict[str, np.ndarray]:
        arrays = self.arrays._asdict()
        if self.references is not None:
            arrays |= self.references._asdict()
        if self.sums.size:
            arrays["sums"] = self.sums
        if self.algorithm.passes:
            for rep, state in enumerate(self.passes):
                own = {"cohorts": state.cohorts, "left": state.left, "prob": state.prob}
                arrays |= {f"{rep}.pass.{name}": values for name, values in own.items()}
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name, values in self.state().items():
            restore_array(values, name, state)

    def agent_prob(self, place: int) -> np.ndarray:
        num_agents = self.problem.num_agents
        if self.algorithm.passes:
            return self.passes[place].prob
        prob = np.full(num_agents, 1.0 / num_agents)
        if self.arrays.agent_nodes.size:
            nodes, floor = self.arrays.agent_nodes[place], self.algorithm.agents.floor
            table.table_probabilities(nodes, 0, num_agents, floor, prob)
        return prob

    def example_prob(self, place: int) -> np.ndarray:
        arrays = self.arrays
        return probabilities_of_examples(
            self.task, self.algorithm.examples, self.plan.examples, arrays.example_nodes[place],
            arrays.example_at, self.params[place], arrays.shift[place],
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
