"""The cloud's side: a Flower strategy that draws, reweights and remembers as `Coordinator` does."""

# pyright: reportMissingImports=false
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from isfed.algorithms import ISFedAvg
from isfed.base import files
from isfed.base.arguments import check_argument, checked
from isfed.base.checks import check_seed
from isfed.federation.absences import Absences
from isfed.federation.coordinator import (
    Coordinator,
    Weighting,
    check_for_network,
    check_not_around,
    check_weights,
)
from isfed.federation.reports import RoundReport
from isfed.federation.safety import Safety
from isfed.flower import evaluation, exchange, wire
from isfed.flower.arrays import Layout, shown
from isfed.flower.roll import Roll
from isfed.flower.turns import Turns

OURS = {field.name for field in fields(RoundReport)}  # metrics of the cloud, not of the agents
CLIPPING = "clipping_norm"  # what Flower's differential privacy adds to the agents' configuration
AGGREGATED = "\t└──> Aggregated MetricRecord: %s"  # these lines are worded as in Flower's FedAvg
ALTERED = (
    "something around isfed's strategy changes the model between rounds, as Flower's differential "
    "privacy does: it takes a change for a model. Use isfed's strategy alone, with "
    "Safety(privacy=Privacy(...))"
)


class Strategy(FedAvg):
    """ISFedAvg in place of Flower's FedAvg; evaluation and its keys are those of FedAvg.

    As FedAvg does, it logs the metrics of every round: the agents' training metrics, their
    evaluation, and the cloud's own evaluation.

    algorithm: an `ISFedAvg`, e.g. `importance(...)`; it says how agents and examples are drawn.
        Methods around it, `Scheduled` and `Served`, are for simulations.
    num_agents: K.
    seed: the seed of all random draws.
    safety: how absent, slow, wrong and hostile agents are treated.
    weighting: "change": the cloud divides what an agent returns by K p_k, so that an agent has no
        say in its weight; "step": the agent divides its step, as in the paper's eq. (8).
    agent_weights: what every agent counts in the objective, for instance its number of examples;
        all the same unless given.
    buffers: names of the model's arrays that are not trained; unless given, those that end in
        running_mean or running_var, as PyTorch's batch norm calls them. The cloud takes a mean of
        what the agents send, and no correction remembers them.
    time_limit: the longest that a round may take, in seconds.
    join_limit: how long to wait for agents at the start, in seconds.
    checkpoint: a file that is written after every round; a run started again continues from it.
    names: those under which the nodes of agents 0 to K - 1 are registered; without them every node
        is asked for its number, and believed.
    readmit: agents that an earlier run of this job left out, and that have been mended.
    on_round: called after every round with its report and the model.
    flower: arguments of Flower's FedAvg about evaluation.
    """

    @checked
    def __init__(
        self,
        algorithm: Any,  # checked below, where more can be said
        *,
        num_agents: int,
        seed: int = 0,
        safety: Safety | None = None,
        weighting: Weighting = "change",
        agent_weights: Sequence[float] | None = None,
        buffers: Sequence[str] | None = None,
        time_limit: float = 600.0,
        join_limit: float = 120.0,
        checkpoint: str | Path | None = None,
        names: Sequence[str] | None = None,
        readmit: Sequence[int] = (),
        on_round: Callable[[RoundReport, np.ndarray], None] | None = None,
        **flower: Any,
    ) -> None:
        check_not_around(algorithm)
        check_argument("algorithm", algorithm, ISFedAvg)
        check_for_network(algorithm, num_agents)
        check_seed(seed)
        if not join_limit >= 0.0:
            raise ValueError(f"join_limit={join_limit} must be a number of seconds >= 0")
        if not time_limit > 0.0:
            raise ValueError(f"time_limit={time_limit} must be a positive number of seconds")
        if not all(0 <= agent < num_agents for agent in readmit):
            raise ValueError(f"readmit={list(readmit)} must be agents 0 to {num_agents - 1}")
        super().__init__(**flower)
        self.algorithm: ISFedAvg = algorithm
        self.num_agents, self.seed, self.safety = num_agents, seed, safety
        self.weighting: Weighting = weighting
        self.agent_weights = check_weights(agent_weights, num_agents, weighting)
        self.buffers = buffers
        self.time_limit, self.join_limit = time_limit, join_limit
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.roll = Roll(num_agents, names, patience=join_limit)
        self.readmit, self.on_round = list(readmit), on_round
        self.coordinator: Coordinator | None = None
        self._layout: Layout | None = None
        self._turns: Turns | None = None  # of the round that is under way
        self._returned: str | None = None  # the digest of the model that Flower was given
        self._clocks: set[int] = set()  # agents whose clock has been reported

    # -- what Flower calls ---------------------------------------------------------------------

    def summary(self) -> None:
        """Log what will run."""
        algorithm = self.algorithm
        log(
            INFO,
            "\t├──> %s, %s of %s agents",
            algorithm.name,
            algorithm.num_active,
            self.num_agents,
        )
        log(INFO, "\t└──> %s seconds per round, checkpoint %s", self.time_limit, self.checkpoint)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the agents of the round; a list, because Flower goes through it twice."""
        coordinator, layout = self._prepared(arrays)
        if CLIPPING in config or self._returned not in (None, wire.digest(arrays)):
            raise ValueError(ALTERED)
        config["server-round"] = server_round
        model = layout.model(coordinator.params)
        online = self.roll.online(grid)
        selection = coordinator.select()
        self._turns = turns = Turns(
            selection, layout, time_limit=self.time_limit, clocks=self._clocks
        )
        told = coordinator.told_prob(selection)
        for place, (agent, prob) in enumerate(zip(selection.active, told, strict=True)):
            if coordinator.standing.excluded[agent]:
                continue
            node = online.get(int(agent))
            if node is None:
                log(WARNING, "agent %s was drawn and is offline", agent)
                continue
            order = self._order(coordinator, int(agent), prob)
            content = {wire.MODEL: model, wire.TRAIN_CONFIG: config, wire.ORDER: order}
            if coordinator.memory is not None:
                content[wire.CENTRE] = wire.pack_centre(coordinator.memory.reference.centre)
            message = Message(
                RecordDict(content),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=self.time_limit,  # an agent must not work off rounds that are over
            )
            turns.ask(place, message)
        return turns.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round with what came back."""
        assert self.coordinator
        assert self._layout
        assert self._turns
        self._turns.take(replies)
        standing = self.coordinator.standing
        before = standing.excluded.copy()
        timing = self._turns.timing(patient=self.coordinator.waits_for_all())
        model = self.coordinator.params
        report = self.coordinator.close(self._turns.selection, self._turns.uploads(), timing)
        if not self._layout.holds(self.coordinator.params):
            # Agents could do nothing with infinities, and would be left out for their answers.
            log(WARNING, "the step of round %s, of length %.3g, would overflow the model's type, "
                "and is left out", server_round, report.step)  # fmt: skip
            self.coordinator.cloud.params = model
        if self.checkpoint is not None:
            files.save_arrays(self.checkpoint, self.coordinator.state())
        log(INFO, "%s", report.line())
        for agent in np.flatnonzero(standing.excluded & ~before):
            log(WARNING, "agent %s is left out from now on: %s of its models in a row were "
                "refused", agent, standing.in_a_row[agent])  # fmt: skip
        if standing.excluded.all():
            raise ValueError("every agent was left out, because of models that were refused; the "
                             "reasons are in the log")  # fmt: skip
        if self.on_round is not None:
            self.on_round(report, self.coordinator.params)
        ours = {name: value for name, value in vars(report).items() if name != "round_index"}
        metrics = {**self._train_metrics(server_round), **ours}  # agents do not overwrite it
        arrays = self._layout.model(self.coordinator.params)
        self._returned = wire.digest(arrays)
        return arrays, MetricRecord(metrics)

    def _train_metrics(self, server_round: int) -> dict[str, Any]:
        """What the agents say of their training, by Flower's `train_metrics_aggr_fn`."""
        assert self._turns
        key = self.weighted_by_key
        found = evaluation.judged(self._turns.metrics, key)
        if not found:
            return {}
        try:
            return dict(self.train_metrics_aggr_fn(evaluation.limited(found, key), key))
        except Exception as error:  # a function of the user's own may meet what it does not expect
            log(WARNING, "metrics of round %s left out: %s", server_round, shown(repr(error)))
            return {}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """FedAvg's sample, of agents that are there and were not left out; it waits for nobody."""
        if self.fraction_evaluate == 0.0:
            return []
        excluded = self._prepared(arrays)[0].standing.excluded
        nodes = [n for agent, n in self.roll.online(grid).items() if not excluded[agent]]
        count = max(int(len(nodes) * self.fraction_evaluate), self.min_evaluate_nodes)
        if len(nodes) < max(count, self.min_available_nodes):
            return []
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [
            Message(
                content, dst_node_id=node, message_type=MessageType.EVALUATE, ttl=self.time_limit
            )
            for node in random.sample(nodes, count)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """FedAvg's mean over the replies that are good, and the median of every number."""
        replies = list(replies)
        found = evaluation.readable(replies, self.weighted_by_key)
        log(INFO, "aggregate_evaluate: Received %s results and %s failures",
            len(found), len(replies) - len(found))  # fmt: skip
        if not found:
            return None
        try:
            contents = evaluation.limited(found, self.weighted_by_key)
            metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        except Exception as error:  # a function of the user's own may meet what it does not expect
            log(WARNING, "evaluation of round %s left out: %s", server_round, shown(repr(error)))
            return None
        medians = evaluation.medians(found, self.weighted_by_key)
        told = dict(metrics)
        return MetricRecord({**told, **medians, **told})  # FedAvg's come first, and win

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are done, those before a restart included."""
        self.time_limit = timeout or self.time_limit
        coordinator, layout = self._prepared(initial_arrays)
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.summary()
        result = Result()
        result.arrays = layout.model(coordinator.params)
        if evaluate_fn is not None and coordinator.round_index == 0:
            self._evaluate_here(evaluate_fn, 0, result)
        if coordinator.round_index < num_rounds:
            self.roll.wait(grid, seconds=self.join_limit)
        while coordinator.round_index < num_rounds:
            number = coordinator.round_index + 1  # Flower counts from 1
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            self.configure_train(number, result.arrays, train_config, grid)
            assert self._turns
            self._turns.exchange(
                grid, enough=coordinator.safety.enough, patient=coordinator.waits_for_all()
            )
            arrays, metrics = self.aggregate_train(number, ())
            assert arrays is not None
            assert metrics is not None
            result.arrays = arrays
            result.train_metrics_clientapp[number] = metrics
            theirs = {name: value for name, value in metrics.items() if name not in OURS}
            evaluation.log_metrics(AGGREGATED, theirs)
            self._evaluate_there(grid, number, evaluate_config, result)
            if evaluate_fn is not None:
                self._evaluate_here(evaluate_fn, number, result)
        for line in self.report():
            log(INFO, "%s", line)
        return result

    def report(self) -> list[str]:
        """What became of the agents so far: absences, refusals, response times."""
        assert self.coordinator
        safety = self.coordinator.safety
        adjusts = safety.absences is Absences.ADJUSTED
        most = safety.largest_adjustment if adjusts else None
        absences = self.coordinator.responses.bias_report(largest_adjustment=most)
        return [f"absences: {absences}", *self.coordinator.standing.lines()]

    # -- parts of a round ----------------------------------------------------------------------

    def _prepared(self, arrays: ArrayRecord) -> tuple[Coordinator, Layout]:
        """The coordinator, made from the first model, or from the checkpoint if there is one."""
        if self.coordinator is None or self._layout is None:
            self._layout = layout = Layout.of(arrays)
            self.coordinator = Coordinator(
                self.algorithm,
                self._layout.flatten(arrays),
                num_agents=self.num_agents,
                seed=self.seed,
                safety=self.safety,
                weighting=self.weighting,
                agent_weights=self.agent_weights,
                buffers=layout.places(layout.buffers(self.buffers)),
            )
            self._lock = None if self.checkpoint is None else self._hold(self.checkpoint)
            if self.checkpoint is not None and self.checkpoint.exists():
                self.coordinator.restore(files.load_arrays(self.checkpoint))
                done = self.coordinator.round_index
                log(INFO, "the checkpoint has %s rounds: continuing with round %s", done, done + 1)
            elif self.checkpoint is not None:  # a cloud killed in round 1 finds its job again
                files.save_arrays(self.checkpoint, self.coordinator.state())
            self.coordinator.standing.readmit(np.array(self.readmit, dtype=np.int64))
        return self.coordinator, self._layout

    def _hold(self, checkpoint: Path) -> TextIO:
        """Nobody else may go on from this checkpoint; a run that was cut off may take a while."""
        until = time.monotonic() + self.join_limit
        while True:
            try:
                return files.hold(checkpoint.with_name(f"{checkpoint.name}.lock"))
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ValueError(
                        f"another run is using {checkpoint}; stop it, or give another path"
                    ) from None
                time.sleep(exchange.POLL_SECONDS)

    def _order(self, coordinator: Coordinator, agent: int, prob: float | None) -> ConfigRecord:
        assert self._layout
        return wire.pack_order(
            wire.Order(
                job=coordinator.job,
                round_index=coordinator.round_index,
                agent=agent,
                agent_prob=prob,
                key=int(coordinator.examples_key),
                rules=self.algorithm.rules(self.num_agents),
                scores=coordinator.safety.scores,
                terms=coordinator.terms(agent),
                buffers=self._layout.buffers(self.buffers),
            )
        )

    def _evaluate_here(self, evaluate_fn: Any, number: int, result: Result) -> None:
        metrics = evaluate_fn(number, result.arrays)
        if metrics is None:
            return
        result.evaluate_metrics_serverapp[number] = metrics
        if number == 0:
            evaluation.log_metrics("Initial global evaluation results: %s", metrics)
        else:
            log(INFO, "Global evaluation")
            evaluation.log_metrics("\t└──> MetricRecord: %s", metrics)

    def _evaluate_there(
        self, grid: Grid, number: int, config: ConfigRecord, result: Result
    ) -> None:
        messages = self.configure_evaluate(number, result.arrays, config, grid)
        if messages:
            until = time.monotonic() + self.time_limit
            answers = exchange.exchange(grid, messages, until=until)
            metrics = self.aggregate_evaluate(number, answers.replies.values())
            evaluation.log_metrics(AGGREGATED, metrics)
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
