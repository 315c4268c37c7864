"""The cloud's side: a Flower strategy that draws, reweights and remembers as `Coordinator` does."""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
from isfed.federation.agent import Upload
from isfed.federation.cloud import Selection
from isfed.federation.coordinator import Coordinator, RoundReport, Safety, check_for_network
from isfed.flower import wire
from isfed.flower.roll import POLL_SECONDS, Roll, exchange

REFUSED = Upload(np.empty(0), 0.0, 0)  # stands for a reply that cannot be read: of no model's shape


class Strategy(FedAvg):
    """ISFedAvg in place of Flower's FedAvg; evaluation and its keys are those of FedAvg.

    `time_limit` bounds a round in seconds; `join_limit` how long to wait for agents at the start.
    With `checkpoint` every round is written there, and a run started again continues. `names` are
    the names under which the nodes of agents 0 to K - 1 are registered; without them every node is
    asked for its number.
    """

    def __init__(
        self,
        algorithm: ISFedAvg,
        *,
        num_agents: int,
        seed: int = 0,
        safety: Safety | None = None,
        time_limit: float = 600.0,
        join_limit: float = 120.0,
        checkpoint: str | Path | None = None,
        names: Sequence[str] | None = None,
        on_round: Callable[[RoundReport, np.ndarray], None] | None = None,
        **evaluation: Any,
    ) -> None:
        check_for_network(algorithm, num_agents)
        if not time_limit > 0.0:
            raise ValueError(f"time_limit={time_limit} must be a positive number of seconds")
        super().__init__(**evaluation)
        self.algorithm = algorithm
        self.num_agents, self.seed, self.safety = num_agents, seed, safety
        self.time_limit, self.join_limit = time_limit, join_limit
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.roll = Roll(num_agents, names)
        self.on_round = on_round
        self.coordinator: Coordinator | None = None
        self._layout: wire.Layout | None = None
        self._selection: Selection | None = None
        self._asked: list[tuple[int, Message]] = []  # position in the selection, message
        self._until = 0.0

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
        config["server-round"] = server_round
        model = layout.arrange(coordinator.params)
        self._until = time.monotonic() + self.time_limit
        online = self.roll.online(grid, until=self._until)
        self._selection = coordinator.select()
        self._asked = []
        for place, (agent, prob) in enumerate(zip(*self._selection[:2], strict=True)):
            node = online.get(int(agent))
            if node is None:
                log(WARNING, "agent %s was drawn and is offline", agent)
                continue
            order = self._order(coordinator, int(agent), float(prob))
            content = {wire.MODEL: model, wire.TRAIN_CONFIG: config, wire.ORDER: order}
            message = Message(
                RecordDict(content),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=self.time_limit,  # an agent must not work off rounds that are over
            )
            self._asked.append((place, message))
        return [message for _, message in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round with what came back."""
        assert self.coordinator
        assert self._layout
        assert self._selection
        uploads: list[Upload | None] = [None] * len(self._selection.active)
        for place, reply in self._placed(replies):
            uploads[place] = self._read(int(self._selection.active[place]), reply)
        report = self.coordinator.close(self._selection, uploads)
        if self.checkpoint is not None:
            files.save_arrays(self.checkpoint, self.coordinator.state())
        log(INFO, "%s", report.line())
        if self.on_round is not None:
            self.on_round(report, self.coordinator.params)
        metrics = {name: value for name, value in vars(report).items() if name != "round_index"}
        return self._layout.arrange(self.coordinator.params), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """FedAvg's evaluation; its way of waiting for ever for missing nodes is not taken over."""
        online = len(self.roll.online(grid, until=time.monotonic() + self.time_limit))
        if self.fraction_evaluate == 0.0 or online < self.min_available_nodes:
            return []
        return list(super().configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """FedAvg's, which raises on a malformed reply: one agent must not end the run."""
        try:
            return super().aggregate_evaluate(server_round, replies)
        except Exception as error:  # Flower's checks raise several unrelated types
            log(WARNING, "the evaluation of round %s is left out: %s", server_round, error)
            return None

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
        result.arrays = layout.arrange(coordinator.params)
        if evaluate_fn is not None and coordinator.round_index == 0:
            self._evaluate_here(evaluate_fn, 0, result)
        if coordinator.round_index < num_rounds:
            self.roll.wait(grid, seconds=self.join_limit)
        while coordinator.round_index < num_rounds:
            number = coordinator.round_index + 1  # Flower counts from 1
            messages = self.configure_train(number, result.arrays, train_config, grid)
            replies = exchange(grid, messages, until=self._until)
            arrays, metrics = self.aggregate_train(number, replies.values())
            assert arrays is not None
            assert metrics is not None
            result.arrays = arrays
            result.train_metrics_clientapp[number] = metrics
            self._evaluate_there(grid, number, evaluate_config, result)
            if evaluate_fn is not None:
                self._evaluate_here(evaluate_fn, number, result)
        log(INFO, "absences: %s", coordinator.responses.bias_report())
        return result

    # -- parts of a round ----------------------------------------------------------------------

    def _prepared(self, arrays: ArrayRecord) -> tuple[Coordinator, wire.Layout]:
        """The coordinator, made from the first model, or from the checkpoint if there is one."""
        if self.coordinator is None or self._layout is None:
            self._layout = wire.Layout.of(arrays)
            self.coordinator = Coordinator(
                self.algorithm,
                self._layout.flatten(arrays),
                num_agents=self.num_agents,
                seed=self.seed,
                safety=self.safety,
            )
            self._lock = None if self.checkpoint is None else self._hold(self.checkpoint)
            if self.checkpoint is not None and self.checkpoint.exists():
                self.coordinator.restore(files.load_arrays(self.checkpoint))
                log(INFO, "continuing at round %s", self.coordinator.round_index + 1)
            elif self.checkpoint is not None:  # a cloud killed in round 1 finds its job again
                files.save_arrays(self.checkpoint, self.coordinator.state())
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
                time.sleep(POLL_SECONDS)

    def _order(self, coordinator: Coordinator, agent: int, prob: float) -> ConfigRecord:
        return wire.pack_order(
            wire.Order(
                job=coordinator.job,
                round_index=coordinator.round_index,
                agent=agent,
                agent_prob=prob,
                key=int(coordinator.examples_key),
                rules=self.algorithm.rules(self.num_agents),
                scores=coordinator.safety.scores,
            )
        )

    def _placed(self, replies: Iterable[Message]) -> Iterable[tuple[int, Message]]:
        """Every reply with the position of its agent in the selection."""
        # Only now: a message gets its id when it is sent.
        places = {message.metadata.message_id: place for place, message in self._asked}
        for reply in replies:
            place = places.get(reply.metadata.reply_to_message_id)
            if place is not None:
                yield place, reply

    def _read(self, agent: int, reply: Message) -> Upload | None:
        """What an agent sent; None if it failed, REFUSED if it cannot be read."""
        assert self._layout
        if reply.has_error():
            reason = (str(reply.error.reason).strip().splitlines() or [""])[-1]
            log(WARNING, "agent %s failed: error %s, %s", agent, reply.error.code, reason)
            return None
        try:
            return wire.unpack_upload(reply.content, self._layout)
        except wire.WireError as error:
            log(WARNING, "agent %s: %s", agent, error)
            return REFUSED

    def _evaluate_here(self, evaluate_fn: Any, number: int, result: Result) -> None:
        metrics = evaluate_fn(number, result.arrays)
        if metrics is not None:
            result.evaluate_metrics_serverapp[number] = metrics

    def _evaluate_there(
        self, grid: Grid, number: int, config: ConfigRecord, result: Result
    ) -> None:
        messages = self.configure_evaluate(number, result.arrays, config, grid)
        if messages:
            replies = exchange(grid, messages, until=time.monotonic() + self.time_limit)
            metrics = self.aggregate_evaluate(number, replies.values())
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
