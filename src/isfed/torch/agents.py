"""Agents whose model is an nn.Module: one module for all, one turn after the other."""

from __future__ import annotations

import math
import zlib
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from isfed.base.random_streams import Purpose, Stream
from isfed.federation.agent import AgentConfig, score_of_examples, score_of_turn
from isfed.federation.agents import (
    PLAIN_LOCAL,
    AddressedAgents,
    LocalOptions,
    TrainRequest,
    Uploads,
)
from isfed.federation.problem_arrays import check_batches, wants_norms
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Initial, Refresh, Score, Table, memory_size
from isfed.sampling.telemetry import TurnWatch
from isfed.torch.cohort_pass import AHEAD, CohortPass, alike
from isfed.torch.flat_module import as_tensor
from isfed.torch.module_worker import Turn, TurnResult, TurnTask, train_module
from isfed.torch.process_pool import Pool, TurnBlock

MODULE = np.uint64(0x9E3779B97F4A7C15)  # turns the key of the examples into that of the module


class TorchAgents(AddressedAgents):
    """All agents of one repetition.

    They share one module, which a turn loads its model into, and one block of data. What an agent
    keeps to itself is its table of scores and the memory of the score it reports.

    Args:
        problem: its loss is a `Network`.
        rules: how the agents draw and what they report.
        seed: of all random draws.
        repetition: which independent run.
        workers: processes that share the turns of a round; 1 is this process.
    """

    def __init__(
        self, problem: Problem, rules: AgentConfig, *, seed: int, repetition: int, workers: int = 1
    ) -> None:
        super().__init__(problem, seed=seed, repetition=repetition)
        check_batches(problem, rules.example_design)
        self.workers = workers
        self.address = {"seed": seed, "repetition": repetition}
        self.make_pool: Any = partial(Pool, problem, rules, workers - 1, self.address)
        self.pool: Any = None  # from the first round on
        self.network: Any = problem.loss
        self.rules = rules
        self.scored = wants_norms(rules.agents, rules.examples)
        width = memory_size(rules.agents, problem.num_params)
        gigabytes = 8e-9 * width * self.num_agents
        if gigabytes > 8.0:
            raise ValueError(
                f"agents that report an averaged gradient remember {width} numbers each, "
                f"{gigabytes:.0f} GB for {self.num_agents} agents; use "
                "Memory(score=Score.SECOND_MOMENT)"
            )
        self.first = 0  # the number of the first agent; an agent on its own machine has another
        self.x, self.y = self.network.tensors(problem.data.features, problem.data.targets)
        self.offsets = problem.data.offsets
        self.tables: dict[int, Table] = {}
        self.memory: dict[int, np.ndarray] = {}
        self.num_trained = self.network.worker.flat.trained  # the rest of a model are buffers
        self.turn_losses: dict[int, float] = {}  # the mean training loss of the last turn
        self.trouble = ""  # the first turn that ended in a model that is not finite
        # How many turns are taken at once, 0 for one by one; None where the first cohort decides.
        self.group: int | None
        self.compare_speed(fixed=True)
        if rules.examples.initial == Initial.OPTIMUM:
            for k in range(self.num_agents):
                self.table(k).replace(self._norms(problem.optimum, k)[0])  # eq. (44)

    def table(self, agent: int) -> Table:
        """The scores of an agent's examples; agents of one size share one where all are equal."""
        count = int(self.sizes[agent])
        place = -count if self.rules.examples.equal else agent
        if place not in self.tables:
            self.tables[place] = Table(count, self.rules.examples, self.rules.example_design)
        return self.tables[place]

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        if self.shift.size:
            raise ValueError("drift is supported for linear losses only; use drift=0")
        several = self.pool is not None or (self.workers > 1 and turns.agents.size > 1)
        if self.group is None and turns.agents.size > 1 and not local.full_batch:
            self._choose(turns, round_index, local)
        take = self._take_turns_elsewhere if several else self.take_turns
        uploads = take(turns, round_index, local, np.empty((turns.agents.size, self.num_params)))
        gradients = int(uploads.gradients.sum())
        scored = self.rules.agents.learns
        self.charge_turns(turns.agents.size, gradients, scored=scored, local=local)
        self.advance_clock(turns.agents, uploads.gradients, round_index, local)
        return uploads

    def use_ray(self, workers: int | None) -> None:
        """Let Ray's actors take the turns, one by one: so many, or one per processor."""
        from isfed.torch.ray_pool import RayPool

        self.make_pool = partial(RayPool, self.problem, self.rules, workers, self.address)
        self.pool = self.make_pool()
        self.workers, self.group, self.fixed = self.pool.count, 0, True
        self.how = f"agent by agent, by {self.workers} actors of Ray"

    def close(self) -> None:
        """End the processes that take turns."""
        if self.pool is not None:
            self.pool.close()
        self.pool = None

    def _take_turns_elsewhere(
        self, turns: TrainRequest, round_index: int, local: LocalOptions, changes: np.ndarray
    ) -> Uploads:
        """The turns in several processes.

        What the agents remember goes to the others with their turns, and comes back.
        """
        if self.pool is None:
            self.pool = self.make_pool()
        params = np.asarray(turns.params, self.network.worker.flat.numpy_type)
        which, turns = turns.agents.tolist(), turns._replace(params=params)
        nodes = {} if self.rules.examples.equal else {k: self.table(k).nodes for k in which}
        memory = {k: self.memory[k] for k in which if k in self.memory}
        block = TurnBlock(turns, round_index, local, nodes, memory, self.group)
        try:
            parts = self.pool.take(block, changes, self.take_turns)
        except (RuntimeError, KeyboardInterrupt):
            self.pool = None  # the next round begins with new processes, and reads no old replies
            raise
        some, count = parts[0][1].uploads, turns.agents.size
        joint = [np.empty((count, *part.shape[1:]), part.dtype) for part in some[1:]]
        for rows, part in parts:
            for all_rows, own in zip(joint, part.uploads[1:], strict=True):
                all_rows[rows] = own
            for k, nodes in part.nodes.items():
                self.table(k).nodes[:] = nodes
            self.memory.update({k: kept.copy() for k, kept in part.memory.items()})
            self.turn_losses.update(part.turn_losses)
            self.trouble = self.trouble or part.trouble
        return Uploads(changes, *joint)

    def take_turns(
        self, turns: TrainRequest, round_index: int, local: LocalOptions, changes: np.ndarray
    ) -> Uploads:
        """The turns in this process, `group` at once or one by one; fills `changes`, (n, M)."""
        count, size = turns.agents.size, self.num_params
        scores = np.empty(count)
        gradients, watch = np.empty(count, np.int64), np.empty((count, telemetry.TURN))
        velocity = np.zeros((count, size if local.momentum != 0.0 else 0))
        if local.velocity is not None:
            velocity[...] = local.velocity
        flat = self.network.worker.flat
        # As the module can hold them.
        models = as_tensor(np.ascontiguousarray(turns.params)).to(flat.flat)
        models = models.expand(count, size)
        rows, change = torch.from_numpy(changes), torch.empty_like(flat.flat)
        every = [self._turn(turns, i, round_index, local, velocity) for i in range(count)]
        with torch.random.fork_rng():
            for places in alike(every, 0 if local.full_batch else self.group):
                some = [every[i] for i in places]
                if len(places) > 1:
                    ended, results = self._train_together(some, places, models, local, velocity)
                else:
                    ended, results = self._train(some[0], models[places[0]], round_index)
                for i, model, result in zip(places, ended, results, strict=True):
                    k = every[i].task.agent
                    watch[i] = every[i].task.watch.turn
                    # In the model's type, as it would cross.
                    torch.sub(model, models[i], out=change)
                    rows[i].copy_(change)
                    self.turn_losses[k] = result.loss
                    scores[i] = self._score(every[i].task, changes[i, : flat.trained], result)
                    gradients[i] = result.gradients
                    # A finite sum of squares says that all are finite, in one fast pass.
                    finite = math.isfinite(torch.dot(change, change)) or change.isfinite().all()
                    if not finite and not self.trouble:
                        self.trouble = self._trouble(k, models[i], round_index)
        return Uploads(changes, scores, gradients, watch, velocity)

    def _turn(
        self, turns: TrainRequest, i: int, round_index: int, local: LocalOptions, velocity: Any
    ) -> Turn:
        """The turn in place `i`."""
        k = int(turns.agents[i])
        capped = not isinstance(self.rules.example_design, WithReplacement)
        task = TurnTask(
            agent=k,
            steps=int(self.local_steps[k] if local.steps is None else local.steps[i]),
            batch_size=int(self.batch_size[k] if local.batch is None else local.batch),
            step=float(turns.step[i]),
            correction=None if local.correction is None else local.correction[i],
            velocity=velocity[i],
            local=local,
            table=self.table(k),
            stream=self.stream(Purpose.EXAMPLES, round_index, self.first + k),
            watch=TurnWatch(int(self.sizes[k]), self.rules.examples.floor, capped=capped),
        )
        return Turn(task, slice(*self.offsets[k : k + 2].tolist()))

    def compare_speed(self, *, fixed: bool = False) -> None:
        """Let the first cohort decide by its time whether turns are taken at once, unless fixed."""
        on_device = self.network.worker.flat.device.type != "cpu"
        self.group = 0 if fixed and not on_device else None
        self.fixed, self.how = fixed, "agent by agent"  # the choice in words

    def _choose(self, turns: TrainRequest, round_index: int, local: LocalOptions) -> None:
        """Decide it from the first cohort, or from the part of it that a process gets."""
        share = slice(0, -(-turns.agents.size // self.workers))
        asked, models = turns._replace(agents=turns.agents[share]), as_tensor(turns.params)
        models = models.to(self.network.worker.flat.flat).expand(turns.agents.size, -1)
        velocity = np.zeros((asked.agents.size, self.num_params if local.momentum != 0.0 else 0))
        every = [
            self._turn(asked, i, round_index, local, velocity) for i in range(asked.agents.size)
        ]
        places = alike(every, len(every))[0][: self.cohort.most()]
        with torch.random.fork_rng():
            joint = self._joint(every[places[0]].task, places, local, velocity)
            some = [every[i] for i in places]
            speed, why = self.cohort.compare(
                (self.x, self.y), some, models[places], joint, self.rules, self.network.optimizer,
                scored=self.scored,
            )  # fmt: skip
        pays = speed >= AHEAD or (self.fixed and speed > 0.0)
        self.group = len(places) if pays else 0
        self.how = f"{self.group} agents at once: {why}" if pays else f"agent by agent: {why}"

    @cached_property
    def cohort(self) -> CohortPass:
        """What trains several models at once."""
        return CohortPass(self.network.worker)

    def _joint(
        self, one: TurnTask, places: list[int], local: LocalOptions, velocity: np.ndarray
    ) -> TurnTask:
        """What some turns have in common, with a row of corrections and velocities for each."""
        correction = None if local.correction is None else local.correction[places]
        return one._replace(correction=correction, velocity=velocity[places])

    def _train_together(
        self, turns: list[Turn], places: list[int], models: torch.Tensor, local: LocalOptions,
        velocity: np.ndarray,
    ) -> tuple[torch.Tensor, list[TurnResult]]:  # fmt: skip
        """The models that turns end with, and what else they give."""
        joint, ended = self._joint(turns[0].task, places, local, velocity), models[places]
        found = self.cohort.train((self.x, self.y), turns, ended, joint, scored=self.scored)
        velocity[places] = joint.velocity
        return ended, found

    def _trouble(self, agent: int, start: torch.Tensor, round_index: int) -> str:
        """Why a turn ended in a model that is not finite: its steps, or what it began with."""
        number = self.first + agent
        losses = self.network.values(start, *self.problem.data.agent(agent))
        bad = int((~np.isfinite(losses)).sum())
        if bad and round_index == 0:
            raise ValueError(
                f"the loss of {bad} of the {len(losses)} examples of agent {number} is not finite "
                "at the first model: look at these examples, and at what the module makes of them"
            )
        where = f"agent {number} ended its turn of round {round_index}"
        return f"{where} with a model that is not finite"

    def _train(
        self, turn: Turn, start: torch.Tensor, round_index: int
    ) -> tuple[list[torch.Tensor], list[TurnResult]]:
        """The same of one turn, in the module."""
        agent, worker = turn.task.agent, self.network.worker
        self._reseed(round_index, agent)
        worker.flat.load(start)
        rows = slice(turn.begin, turn.begin + turn.count)
        try:
            result = train_module(
                worker, (self.x[rows], self.y[rows]), turn,
                scored=self.scored, optimizer=self.network.optimizer,
            )  # fmt: skip
        except (IndexError, RuntimeError, ValueError) as error:  # the module's, or the loss's
            where = f"agent {self.first + agent} cannot do its turn of round {round_index}"
            raise ValueError(f"{where}: {error}") from error
        return [worker.flat.collect()], [result]

    def _reseed(self, round_index: int, agent: int) -> None:
        """Dropout and whatever else a module draws, from the key of its examples."""
        key = self.key(Purpose.EXAMPLES) ^ MODULE
        seeds = Stream.at(key, round_index=round_index, agent=self.first + agent)
        seed, device = int(seeds.state[0] >> np.uint64(1)), self.network.worker.flat.device.type
        # `torch.manual_seed` is for all devices, and takes a fifth of a millisecond.
        torch.default_generator.manual_seed(seed)
        if device != "cpu":
            (torch.cuda if device == "cuda" else torch.mps).manual_seed(seed)

    def _score(self, task: TurnTask, change: np.ndarray, result: TurnResult) -> float:
        """What the cloud's policy asks the agent to report."""
        policy, examples = self.rules.agents, self.rules.examples
        if not policy.learns:
            return 0.0
        first, second = result.moments
        spread = second if examples.equal else first * first
        seen = examples.refresh == Refresh.TOUCHED and policy.score != Score.BOUND
        stored = task.table.mean_seen() ** 2 if seen else -1.0
        if task.agent not in self.memory:
            self.memory[task.agent] = np.full(memory_size(policy, change.size), -1.0)
        gradient = change.astype(np.float64) / (-task.step * task.steps)
        return score_of_turn(
            int(policy.score), policy.rate, task.steps, task.batch_size, spread, stored, gradient,
            self.memory[task.agent],
        )  # fmt: skip

    def _gradients_at(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        models = np.broadcast_to(params, (which.size, self.num_params))
        rows = [self._norms(model, k)[1] for k, model in zip(which, models, strict=True)]
        return np.array(rows).reshape(models.shape)

    def _norms(self, params: np.ndarray, agent: int) -> tuple[np.ndarray, np.ndarray]:
        """The score of every example of an agent, and the gradient of its risk."""
        x, y = self.problem.data.agent(agent)
        with torch.random.fork_rng():
            # A question names no round: the model itself addresses the random numbers.
            self._reseed(zlib.crc32(np.ascontiguousarray(params).data), agent)
            gradient, norms = self.network.gradient(params, x, y, np.ones(len(y)))
        return norms, gradient

    def _scores_at(self, params: np.ndarray) -> np.ndarray:
        examples = self.rules.examples
        return np.array([
            score_of_examples(
                *self._norms(params, k), int(self.local_steps[k]), int(self.batch_size[k]),
                examples.floor, examples.equal,
            )
            for k in range(self.num_agents)
        ])  # fmt: skip

    def example_prob(self, params: np.ndarray) -> np.ndarray:
        if self.rules.examples.refresh == Refresh.ALL:  # between turns they hold the last turn's
            for k in range(self.num_agents):
                self.table(k).replace(self._norms(params, k)[0])
        return np.concatenate([self.table(k).probabilities() for k in range(self.num_agents)])

    def state(self) -> dict[str, np.ndarray]:
        kept = {} if self.rules.examples.equal else self.tables
        shape = (len(self.memory), memory_size(self.rules.agents, self.num_trained))
        return {
            "table_agents": np.array(sorted(kept), np.int64),
            "tables": np.concatenate([np.empty(0), *(kept[k].nodes for k in sorted(kept))]),
            "memory_agents": np.array(sorted(self.memory), np.int64),
            "memory": np.array([self.memory[k] for k in sorted(self.memory)]).reshape(shape),
            "ledger": self.ledger.as_array(),
            **({} if self.fixed else {"group": np.array(-1 if self.group is None else self.group)}),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.tables.clear()
        at = 0
        for k in state["table_agents"].tolist():
            nodes = self.table(k).nodes
            nodes[:] = state["tables"][at : at + nodes.size]
            at += nodes.size
        if at != state["tables"].size:
            raise ValueError("its tables have other sizes")
        agents = state["memory_agents"].tolist()
        self.memory = {k: row.copy() for k, row in zip(agents, state["memory"], strict=True)}
        self.ledger = type(self.ledger).from_array(state["ledger"])
        group = int(state.get("group", -1))
        if group >= 0:  # the choice of the first cohort stays, or the numbers would round otherwise
            self.group = group
            at_once = f"{group} agents at once" if group else "agent by agent"
            self.how = f"{at_once}, as before the checkpoint"
