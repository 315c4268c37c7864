"""The cloud's side: a Flower strategy whose rounds are those of any method of isfed."""

# pyright: reportMissingImports=false
from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from isfed.base.argument_checks import check_seed, checked
from isfed.base.random_streams import Purpose
from isfed.federation.guarded import Guarded, RoundReport
from isfed.federation.safety import Safety
from isfed.flower import evaluation, message_exchange, wire_format
from isfed.flower.agent_state import wait_for_lock
from isfed.flower.agents import FlowerAgents
from isfed.flower.array_records import Layout, printable
from isfed.flower.message_exchange import RoundMessages
from isfed.flower.node_directory import NodeDirectory
from isfed.methods.estimators import InverseResponse
from isfed.methods.federated import Opened
from isfed.methods.over_network import Weighting, check_weights, over_network, weighting_of
from isfed.methods.private import private_part
from isfed.methods.resumable_job import Job

# The metrics of the cloud, not of the agents.
OURS = {field.name for field in fields(RoundReport)} | {"epsilon", "progress"}
SILENT = (
    "nobody's answer could be used in {} rounds in a row, so the run ends; the checkpoint keeps "
    "what was learned before. Likely causes: the agents run an app without isfed's handler, such "
    "as that of another SuperLink at this address; their own training without own_turn; keys or "
    "versions that do not fit; no network. The log has the reason of every refusal. To wait "
    "longer: Safety(silent_rounds=...), 0 for ever"
)
CLIPPING = "clipping_norm"  # what Flower's differential privacy adds to the agents' configuration
AGGREGATED = "\t└──> Aggregated MetricRecord: %s"  # these lines are worded as in Flower's FedAvg
ALTERED = (
    "something around isfed's strategy changes the model between rounds, as Flower's differential "
    "privacy does: it takes a change for a model. Use isfed's strategy alone, with "
    "Safety(privacy=Privacy(...))"
)


class Strategy(FedAvg):
    """Any method of isfed in place of Flower's FedAvg; evaluation and its keys are FedAvg's.

    As FedAvg does, it logs the metrics of every round: the agents' training metrics, their
    evaluation, and the cloud's own evaluation.

    Args:
        algorithm: a method, e.g. `importance(...)`, or a composition, `Federated(...)`. A method
            with a round of its own needs `start`, and cannot run in Flower's own loop.
        num_agents: K.
        seed: the seed of all random draws.
        safety: how absent, slow, wrong and hostile agents are treated.
        weighting: "change": the cloud divides what an agent returns by K p_k, so that an agent has
            no say in its weight. "step": the agent divides its step, as in the paper's eq. (8).
            Unless given, as the method says; "change" if it says nothing.
        agent_weights: what every agent counts in the objective, e.g. its number of examples; all
            the same unless given.
        buffers: names of the model's arrays that are not trained; unless given, those that end in
            running_mean or running_var, as PyTorch's batch norm calls them. The cloud takes a mean
            of what the agents send, and no correction remembers them.
        time_limit: the longest that a round may take, in seconds.
        join_limit: how long to wait for agents at the start, in seconds.
        checkpoint: a file that is written after every round; a run started again continues from it.
        names: those under which the nodes of agents 0 to K - 1 are registered; without them every
            node is asked for its number, and believed.
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
        weighting: Weighting | None = None,
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
        self.agent_weights = check_weights(agent_weights, num_agents)
        self.method: Any = over_network(
            algorithm, num_agents=num_agents, safety=safety, weighting=weighting,
            agent_weights=self.agent_weights,
        )  # fmt: skip
        self.weighting: Weighting = weighting_of(algorithm, weighting)
        check_seed(seed)
        if not join_limit >= 0.0:
            raise ValueError(f"join_limit={join_limit} must be a number of seconds >= 0")
        if not time_limit > 0.0:
            raise ValueError(f"time_limit={time_limit} must be a positive number of seconds")
        if not all(0 <= agent < num_agents for agent in readmit):
            raise ValueError(f"readmit={list(readmit)} must be agents 0 to {num_agents - 1}")
        super().__init__(**flower)
        self.algorithm = algorithm
        self.num_agents, self.seed, self.safety = num_agents, seed, safety
        self.buffers = buffers
        self.time_limit, self.join_limit = time_limit, join_limit
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.nodes = NodeDirectory(num_agents, names, patience=join_limit)
        self.readmit, self.on_round = list(readmit), on_round
        self.job: Job | None = None
        self._opened: tuple[Opened, RoundMessages] | None = None  # the round that is under way
        self._before: tuple[np.ndarray | None, np.ndarray] = (None, np.empty(0))  # as it began
        self._metrics: dict[int, MetricRecord] = {}  # what agents say of their training
        self._silent = 0  # rounds in a row in which no answer could be used
        self._returned: str | None = None  # the digest of the model that Flower was given

    def summary(self) -> None:
        """Log what will run."""
        name = getattr(self.algorithm, "name", type(self.algorithm).__name__)
        sampler = getattr(self.method, "sampler", self.method)
        active = getattr(sampler, "num_active", "some")
        log(INFO, "\t├──> %s, %s of %s agents", name, active, self.num_agents)
        private = private_part(getattr(self.method, "estimator", None))
        if private is not None:
            log(INFO, "\t├──> %s", private.statement(sampler))
        log(INFO, "\t└──> %s seconds per round, checkpoint %s", self.time_limit, self.checkpoint)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the agents of the round; a list, because Flower goes through it twice."""
        job = self._prepared(arrays)
        if not job.is_composed:
            raise ValueError(
                f"{type(self.algorithm).__name__} has a round of its own, which Flower's loop "
                "cannot run: call Strategy.start(grid, ...)"
            )
        if CLIPPING in config or self._returned not in (None, wire_format.digest(arrays)):
            raise ValueError(ALTERED)
        self._begin(job, server_round, config, grid)
        opened = job.open()
        cohort, work = job.agents.narrow(opened.cohort, opened.work)
        turns = job.agents.pack(cohort, opened.sent, work, job.round_index)
        self._opened = opened, turns
        return list(turns.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Close the round with what came back."""
        assert self.job
        assert self._opened
        opened, turns = self._opened
        turns.take(replies)
        self._metrics = turns.metrics
        report = self.job.close(opened, self.job.agents.unpack(turns, opened.work))
        return self._closed(self.job, server_round, report)

    def _begin(self, job: Job, server_round: int, config: ConfigRecord, grid: Grid) -> None:
        """Make the agents ready for a round, and remember how it began."""
        config["server-round"] = server_round
        agents: FlowerAgents = job.agents.agents
        agents.grid, agents.config, agents.time_limit = grid, config, self.time_limit
        agents.job, agents.round_index = job.name, job.round_index
        params = getattr(job.state, "params", None)
        self._before = copy(params), job.agents.records.excluded.copy()

    def _closed(
        self, job: Job, server_round: int, report: RoundReport
    ) -> tuple[ArrayRecord, MetricRecord]:
        """What is written, logged and returned after a round."""
        agents, records = job.agents, job.agents.records
        before, excluded = self._before
        if not agents.layout.holds(agents.outward(job.params)):
            # Agents could do nothing with infinities, and would be left out for their answers.
            log(WARNING, "the step of round %s, of length %.3g, would overflow the model's type, "
                "and is left out", server_round, report.step)  # fmt: skip
            if before is None:
                raise ValueError("the model left the range of its type; try a smaller step_size")
            job.state = job.state._replace(params=before)
        if self.checkpoint is not None:
            job.save(self.checkpoint)
        for reason in agents.reasons:
            log(WARNING, "%s", reason)
        agents.reasons.clear()
        log(INFO, "%s", report.line())
        for agent in np.flatnonzero(records.excluded & ~excluded):
            log(WARNING, "agent %s is left out from now on: %s of its models in a row were "
                "refused", agent, records.in_a_row[agent])  # fmt: skip
        self._silent = 0 if report.answered or not report.drawn else self._silent + 1
        if self._silent == agents.safety.silent_rounds > 0:
            raise RuntimeError(SILENT.format(self._silent))
        if records.excluded.all():
            raise ValueError("every agent was left out, because of models that were refused; the "
                             "reasons are in the log")  # fmt: skip
        if self.on_round is not None:
            self.on_round(report, agents.outward(job.params))
        ours = {name: value for name, value in vars(report).items() if name != "round_index"}
        ours["epsilon"] = report.epsilon
        reported = evaluation.training_metrics(self._metrics, self.weighted_by_key)
        what = f"metrics of round {server_round}"
        theirs = self._aggregated(self.train_metrics_aggr_fn, reported, what)
        arrays = agents.arrays(job.params)
        self._returned = wire_format.digest(arrays)
        return arrays, MetricRecord({**(theirs or {}), **ours})  # agents do not overwrite ours

    def _aggregated(
        self, function: Callable[..., Any], metrics: list[dict[str, Any]], what: str
    ) -> dict[str, Any] | None:
        """What Flower's function, or the user's own, makes of metrics that can be averaged."""
        if not metrics:
            return None
        contents = evaluation.limited(metrics, self.weighted_by_key)
        try:
            return dict(function(contents, self.weighted_by_key))
        except Exception as error:  # a function of the user's own may meet what it does not expect
            log(WARNING, "%s left out: %s", what, printable(repr(error)))
            return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """FedAvg's sample, of agents that are there and were not left out; it waits for nobody."""
        if self.fraction_evaluate == 0.0:
            return []
        excluded = self._prepared(arrays).agents.records.excluded
        nodes = [n for agent, n in self.nodes.online(grid).items() if not excluded[agent]]
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
        good = evaluation.evaluation_metrics(replies, self.weighted_by_key)
        log(INFO, "aggregate_evaluate: Received %s results and %s failures",
            len(good), len(replies) - len(good))  # fmt: skip
        what = f"evaluation of round {server_round}"
        mean = self._aggregated(self.evaluate_metrics_aggr_fn, good, what)
        if mean is None:
            return None
        medians = evaluation.medians(good, self.weighted_by_key)
        return MetricRecord({**mean, **medians, **mean})  # FedAvg's come first, and win

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
        job = self._prepared(initial_arrays)
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self.summary()
        result = Result(arrays=job.agents.arrays(job.params))
        if evaluate_fn is not None and job.round_index == 0:
            self._evaluate_here(evaluate_fn, 0, result)
        if job.round_index < num_rounds:
            self.nodes.wait(grid, seconds=self.join_limit)
        while job.round_index < num_rounds:
            number = job.round_index + 1  # Flower counts from 1
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            result.arrays, metrics = self._round(job, number, result.arrays, train_config, grid)
            metrics["progress"] = number / num_rounds
            result.train_metrics_clientapp[number] = metrics
            theirs = {name: value for name, value in metrics.items() if name not in OURS}
            evaluation.log_metrics(AGGREGATED, theirs)
            messages = self.configure_evaluate(number, result.arrays, evaluate_config, grid)
            if messages:
                until = time.monotonic() + self.time_limit
                answers = message_exchange.exchange(grid, dict(enumerate(messages)), until=until)
                metrics = self.aggregate_evaluate(number, answers.replies.values())
                evaluation.log_metrics(AGGREGATED, metrics)
                if metrics is not None:
                    result.evaluate_metrics_clientapp[number] = metrics
            if evaluate_fn is not None:
                self._evaluate_here(evaluate_fn, number, result)
        for line in self.report():
            log(INFO, "%s", line)
        return result

    def report(self) -> list[str]:
        """What became of the agents so far: absences, refusals, response times."""
        assert self.job
        estimator, border = getattr(self.method, "estimator", None), self.job.agents
        most = estimator.most if isinstance(estimator, InverseResponse) else None
        absences = border.responses.bias_report(largest_adjustment=most)
        return [f"absences: {absences}", *border.records.lines()]

    def _round(
        self, job: Job, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord, MetricRecord]:
        """One round of our own loop: it ends when enough agents have answered."""
        agents, enough = job.agents.agents, job.agents.safety.enough
        agents.enough, agents.patient = enough, job.agents.waits_for_all(job.round_index)
        if not job.is_composed:
            self._begin(job, number, config, grid)
            return self._closed(job, number, job.step())
        self.configure_train(number, arrays, config, grid)
        assert self._opened
        self._opened[1].exchange(grid, enough=enough, patient=agents.patient)
        return self.aggregate_train(number, ())

    def _prepared(self, arrays: ArrayRecord) -> Job:
        """The job, made from the first model, or from the checkpoint if there is one."""
        if self.job is None:
            self.job = self._new_job(arrays)
            if self.checkpoint is not None:
                self._resume(self.job, self.checkpoint)
            self.job.agents.records.readmit(np.array(self.readmit, dtype=np.int64))
        return self.job

    def _resume(self, job: Job, checkpoint: Path) -> None:
        """Lock the checkpoint, and go on from it or write the first."""
        try:  # a run that was cut off may take a while to end
            lock = checkpoint.with_name(f"{checkpoint.name}.lock")
            self._lock = wait_for_lock(lock, self.join_limit)
        except BlockingIOError:
            raise ValueError(
                f"another run is using {checkpoint}; stop it, or give another path"
            ) from None
        if checkpoint.exists():
            for change in job.load(checkpoint):
                log(WARNING, "this job goes on with a tighter Safety: %s", change)
            done = job.round_index
            log(INFO, "the checkpoint has %s rounds: continuing with round %s", done, done + 1)
        else:  # a cloud killed in round 1 finds its job again
            job.save(checkpoint)

    def _new_job(self, arrays: ArrayRecord) -> Job:
        """A job at its beginning, with its agents behind their border."""
        layout, safety = Layout.of(arrays), self.safety or Safety()
        first, names = layout.flatten(arrays), layout.buffers(self.buffers)
        if names and safety.privacy is not None:
            raise ValueError(
                "privacy changes the whole model, and a running variance could become "
                "negative: use a module without buffers, e.g. with group norm instead of batch norm"
            )
        agents = FlowerAgents(
            layout, self.method.rules(self.num_agents), self.nodes, seed=self.seed, buffers=names,
            weights=self.agent_weights, scores=safety.scores, time_limit=self.time_limit,
        )  # fmt: skip
        if safety.hides:  # agents know the seed, and must not know who else is drawn
            agents.keys[Purpose.AGENTS] = np.uint64(secrets.randbits(64))
        about = self.algorithm, self.num_agents, self.seed, safety, self.weighting, first.shape
        if self.agent_weights is not None:
            about = (*about, self.agent_weights.tolist())
        if names:
            about = (*about, np.flatnonzero(layout.mask(names)).tolist())
        return Job(self.method, Guarded(agents, safety), agents.inward(first), about=about)

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
