"""Agents whose model is an nn.Module: one module for all, one turn after the other."""

# pyright: reportMissingImports=false

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from isfed.base.random_streams import Purpose, Stream
from isfed.federation.agent import Rules, score_of_examples, score_of_turn
from isfed.federation.agents import PLAIN_LOCAL, AddressedAgents, Local, Turns, Uploads
from isfed.federation.problem_arrays import check_batches, wants_norms
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Initial, Refresh, Score, Table, memory_size
from isfed.sampling.telemetry import TurnWatch
from isfed.torch.module_turn import Order, Outcome, Sampled, take_turn
from isfed.torch.numpy_conversion import all_finite, numpy_type, one_thread, reseed
from isfed.torch.process_pool import Block, Pool, joined, part_of

MODULE = np.uint64(0x9E3779B97F4A7C15)  # turns the key of the examples into that of the module


class TorchAgents(AddressedAgents):
    """All agents of one repetition.

    They share one module, which a turn loads its model into, and one block of data. What an agent
    keeps to itself is its table of scores and the memory of the score it reports.
    """

    def __init__(
        self, problem: Problem, rules: Rules, *, seed: int, repetition: int, workers: int = 1
    ) -> None:
        """`workers` processes share the turns of a round; 1 is this process."""
        super().__init__(problem, seed=seed, repetition=repetition)
        check_batches(problem, rules.example_design)
        self.workers, self.pool = workers, None
        self.address = {"seed": seed, "repetition": repetition}
        self.network: Any = problem.loss
        self.rules = rules
        self.scored = wants_norms(rules.agents, rules.examples)
        if rules.agents.learns and rules.agents.score != Score.SECOND_MOMENT:
            self._check_room(memory_size(rules.agents, problem.num_params))
        self.first = 0  # the number of the first agent; an agent on its own machine has another
        self.x, self.y = self.network.tensors(problem.data.features, problem.data.targets)
        self.offsets = problem.data.offsets
        self.tables: dict[int, Table] = {}
        self.memory: dict[int, np.ndarray] = {}
        self.num_trained = self.network.worker.flat.trained  # the rest of a model are buffers
        self.type = numpy_type(self.network.worker.flat.dtype)  # of the model
        self.told: dict[int, float] = {}  # the mean training loss of the last turn, by agent
        self.trouble = ""  # the first turn that ended in a model that is not finite
        if rules.examples.initial == Initial.OPTIMUM:
            for k in range(self.num_agents):
                self.table(k).replace(self._norms(problem.optimum, k)[0])  # eq. (44)

    def _check_room(self, width: int) -> None:
        """Averaged gradients of all agents must fit in memory."""
        gigabytes = 8e-9 * width * self.num_agents
        if gigabytes > 8.0:
            raise ValueError(
                f"agents that report an averaged gradient remember {width} numbers each, "
                f"{gigabytes:.0f} GB for {self.num_agents} agents; use "
                "Memory(score=Score.SECOND_MOMENT)"
            )

    def table(self, agent: int) -> Table:
        """The scores of an agent's examples; agents of one size share one where all are equal."""
        count = int(self.sizes[agent])
        place = -count if self.rules.examples.equal else agent
        if place not in self.tables:
            self.tables[place] = Table(count, self.rules.examples, self.rules.example_design)
        return self.tables[place]

    def data(self, agent: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The examples of one agent."""
        rows = slice(int(self.offsets[agent]), int(self.offsets[agent + 1]))
        return self.x[rows], self.y[rows]

    def work(self, turns: Turns, round_index: int, local: Local = PLAIN_LOCAL) -> Uploads:
        """One turn of every agent named."""
        if self.shift.size:
            raise ValueError("drift is supported for linear losses only; use drift=0")
        apart = self.workers > 1 and turns.agents.size > 1
        take = self._apart if apart else self.take_turns
        uploads = take(turns, round_index, local, np.empty((turns.agents.size, self.num_params)))
        gradients = int(uploads.gradients.sum())
        scored = self.rules.agents.learns
        self.charge_turns(turns.agents.size, gradients, scored=scored, local=local)
        self.tick(turns.agents, uploads.gradients, round_index, local)
        return uploads

    def _apart(self, turns: Turns, round_index: int, local: Local, changes: np.ndarray) -> Uploads:
        """The turns in several processes, of which this is one.

        What the agents remember goes to the others with their turns, and comes back.
        """
        if self.pool is None:
            self.pool = Pool(self.problem, self.rules, self.workers - 1, self.address)
        turns = turns._replace(params=np.asarray(turns.params, self.type))
        edges = np.linspace(0, turns.agents.size, self.workers + 1).astype(int).tolist()
        # This process also joins the parts, so that its own is the smallest: the first.
        rows = [slice(begin, end) for begin, end in pairwise(edges) if end > begin]
        blocks = [self._block(turns, local, round_index, some) for some in rows]
        try:
            started = self.pool.start(blocks[1:], self.type)
            try:
                with one_thread():
                    mine = blocks[0]
                    own = self.take_turns(mine.turns, round_index, mine.local, changes[rows[0]])
            finally:
                done = self.pool.finish(started)
        except (RuntimeError, KeyboardInterrupt):
            self.pool = None  # the next round begins with new processes, and hears no old replies
            raise
        for part, some in zip(done, rows[1:], strict=True):
            changes[some] = part.uploads.changes
            for k, nodes in part.nodes.items():
                self.table(k).nodes[:] = nodes
            self.memory.update(part.memory)
            self.told.update(part.told)
            self.trouble = self.trouble or part.trouble
        return joined([own, *(part.uploads for part in done)], changes)

    def _block(self, turns: Turns, local: Local, round_index: int, rows: slice) -> Block:
        """Some of the turns of a round, with all that they need."""
        some, how = part_of(turns, local, rows)
        which = some.agents.tolist()
        kept = [] if self.rules.examples.equal else which
        nodes = {k: self.table(k).nodes for k in kept}
        memory = {k: self.memory[k] for k in which if k in self.memory}
        return Block(some, round_index, how, nodes, memory)

    def take_turns(
        self, turns: Turns, round_index: int, local: Local, changes: np.ndarray
    ) -> Uploads:
        """The turns one after the other in this process; fills `changes`, (n, M)."""
        count, size = turns.agents.size, self.num_params
        scores = np.empty(count)
        gradients, watch = np.empty(count, np.int64), np.empty((count, telemetry.TURN))
        velocity = np.zeros((count, size if local.momentum != 0.0 else 0))
        if local.velocity is not None:
            velocity[...] = local.velocity
        flat = self.network.worker.flat
        # As the module can hold them.
        models = torch.from_numpy(np.ascontiguousarray(turns.params)).to(flat.flat)
        rows, change = torch.from_numpy(changes), torch.empty_like(flat.flat)
        with torch.random.fork_rng():
            for i, k in enumerate(turns.agents.tolist()):
                order = Order(
                    agent=k,
                    steps=int(self.local_steps[k] if local.steps is None else local.steps[i]),
                    batch_size=int(self.batch_size[k] if local.batch is None else local.batch),
                    step=float(turns.step[i]),
                    correction=None if local.correction is None else local.correction[i],
                    velocity=velocity[i],
                )
                place = i if models.dim() == 2 else slice(None)
                outcome, watch[i] = self._turn(order, models[place], round_index, local)
                # In the model's type, as it would cross.
                torch.sub(flat.collect(), models[place], out=change)
                rows[i].copy_(change)
                self.told[k] = outcome.loss
                scores[i] = self._score(order, changes[i, : flat.trained], outcome)
                gradients[i] = outcome.gradients
                if not self.trouble and not all_finite(change):
                    self.trouble = self._trouble(k, models[place], round_index)
        return Uploads(changes, scores, gradients, watch, velocity)

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

    def _turn(
        self, order: Order, start: torch.Tensor, round_index: int, local: Local
    ) -> tuple[Outcome, np.ndarray]:
        """Train the module from `start`; returns what was found and the telemetry."""
        worker, rules = self.network.worker, self.rules
        agent = order.agent
        number = self.first + agent
        stream = self.stream(Purpose.EXAMPLES, round_index, number)
        self._reseed(round_index, agent)
        capped = not isinstance(rules.example_design, WithReplacement)
        watch = TurnWatch(int(self.sizes[agent]), rules.examples.floor, capped=capped)
        worker.flat.load(start)
        try:
            outcome = take_turn(
                worker,
                self.data(agent),
                order,
                Sampled(rules.examples, self.table(agent), stream, watch),
                local=local,
                scored=self.scored,
                optimizer=self.network.optimizer,
            )
        except (IndexError, RuntimeError, ValueError) as error:  # the module's, or the loss's
            where = f"agent {number} cannot do its turn of round {round_index}"
            raise ValueError(f"{where}: {error}") from error
        return outcome, watch.turn

    def _reseed(self, round_index: int, agent: int) -> None:
        """Dropout and whatever else a module draws, from the one key that an agent is told."""
        key = self.key(Purpose.EXAMPLES) ^ MODULE
        seeds = Stream.at(key, round_index=round_index, agent=self.first + agent)
        reseed(int(seeds.state[0] >> np.uint64(1)), self.network.worker.flat.device)

    def _score(self, order: Order, change: np.ndarray, outcome: Outcome) -> float:
        """What the cloud's policy asks the agent to report."""
        rules = self.rules
        if not rules.agents.learns:
            return 0.0
        first, second = outcome.moments
        spread = second if rules.examples.equal else first * first
        stored = -1.0
        if rules.examples.refresh == Refresh.TOUCHED and rules.agents.score != Score.BOUND:
            stored = self.table(order.agent).mean_seen() ** 2
        if order.agent not in self.memory:
            self.memory[order.agent] = np.full(memory_size(rules.agents, change.size), -1.0)
        gradient = change.astype(np.float64) / (-order.step * order.steps)
        return score_of_turn(
            int(rules.agents.score), rules.agents.rate, order.steps, order.batch_size,
            spread, stored, gradient, self.memory[order.agent],
        )  # fmt: skip

    def losses(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n,) the risk of each of these agents at a model."""
        which = np.asarray(which, np.int64)
        models = np.broadcast_to(params, (which.size, self.num_params))
        self.charge_asked(which, self.sizes[which], gradients=False, sent=sent, kept=kept)
        data = self.problem.data
        return np.array(
            [self.network.values(models[i], *data.agent(k)).mean() for i, k in enumerate(which)]
        )

    def gradients(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n, M) the gradients of their risks."""
        which = np.asarray(which, np.int64)
        models = np.broadcast_to(params, (which.size, self.num_params))
        self.charge_asked(which, self.sizes[which], gradients=True, sent=sent, kept=kept)
        found = [self._norms(models[i], k)[1] for i, k in enumerate(which)]
        return np.array(found).reshape(-1, self.num_params)

    def _norms(self, params: np.ndarray, agent: int) -> tuple[np.ndarray, np.ndarray]:
        """The score of every example of an agent, and the gradient of its risk."""
        x, y = self.problem.data.agent(agent)
        with torch.random.fork_rng():
            # The model stands for the round, which whoever asks does not say.
            self._reseed(zlib.crc32(np.ascontiguousarray(params)), agent)
            gradient, norms = self.network.gradient(params, x, y, np.ones(len(y)))
        return norms, gradient

    def scores_at(self, params: np.ndarray, *, charge: bool = True) -> np.ndarray:
        """(K,) every agent's score of eq. (48) at a model, from all its data."""
        if charge:
            self.charge_everybody()
        examples = self.rules.examples
        found = np.empty(self.num_agents)
        for k in range(self.num_agents):
            norms, gradient = self._norms(params, k)
            found[k] = score_of_examples(
                norms, gradient, int(self.local_steps[k]), int(self.batch_size[k]),
                examples.floor, examples.equal,
            )  # fmt: skip
        return found

    def example_prob(self, params: np.ndarray) -> np.ndarray:
        """(rows,) p_n of every example, agent by agent."""
        if self.rules.examples.refresh == Refresh.ALL:  # between turns they hold the last turn's
            for k in range(self.num_agents):
                self.table(k).replace(self._norms(params, k)[0])
        return np.concatenate([self.table(k).probabilities() for k in range(self.num_agents)])

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs; agents that never worked have nothing to keep."""
        kept = {} if self.rules.examples.equal else self.tables
        shape = (len(self.memory), memory_size(self.rules.agents, self.num_trained))
        return {
            "table_agents": np.array(sorted(kept), np.int64),
            "tables": np.concatenate([np.empty(0), *(kept[k].nodes for k in sorted(kept))]),
            "memory_agents": np.array(sorted(self.memory), np.int64),
            "memory": np.array([self.memory[k] for k in sorted(self.memory)]).reshape(shape),
            "ledger": self.ledger.as_array(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
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
