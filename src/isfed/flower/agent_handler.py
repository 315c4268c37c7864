"""The agent's side: handlers for Flower's train messages, by isfed's loop or by one's own."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import log

from isfed.base.argument_checks import check_whole, checked, is_number, shown
from isfed.base.portable_arithmetic import norm
from isfed.federation.agent import Agent, Upload
from isfed.federation.messages import NOISE_SHARE
from isfed.federation.safety import Privacy, ScoreRange, check_noise, revealed_score
from isfed.federation.variate_updates import noise_share
from isfed.flower import wire_format
from isfed.flower.agent_state import AgentStateFile, PrivacyFiles, private_folder, state_folder
from isfed.flower.array_records import Layout, printable
from isfed.flower.wire_format import AgentRequest

Handler = Callable[[Message, Context], Message]
TINY = 1e-300  # the least noise of a score that is asked for by itself
REPORTS_PER_DAY = 1000  # where an agent adds noise and names no limit


@checked
def agent_turn(
    load: Callable[[Context], tuple[np.ndarray, np.ndarray]],
    *,
    loss: Any,
    local_steps: int = 1,
    batch_size: int = 1,
    score_noise: float = 0.0,
    privacy: Privacy | None = None,
    reports_per_day: int | None = None,
    scores: ScoreRange | None = None,
) -> Handler:
    """A handler for `app.train()` that does an agent's turn.

    Args:
        load: a function from the context to this agent's features and targets.
        loss: one of isfed's, or an object of your own with `gradient(params, x, y, weight)` and
            `num_params(num_features)`.
        local_steps: E_k.
        batch_size: B_k.
        score_noise: the scale of Laplace noise on the logarithm of the score.
        privacy: if given, the change is clipped to `privacy.clip` and sent with Gaussian noise.
        reports_per_day: after so many reports the agent repeats its last score, and with `privacy`
            refuses to work; None means no limit, or 1000 where there is noise.
        scores: the agent's own range of scores. With `score_noise` it fixes the epsilon of a
            report, and requests that name a wider range are refused; None: the cloud's range.
    """
    if not hasattr(loss, "gradient") or isinstance(loss, type):
        raise TypeError(f"loss={shown(loss)} must be a loss, e.g. LeastSquares()")

    def make(request: AgentRequest, message: Message, context: Context) -> Agent:
        features, targets = load(context)
        work = (local_steps, batch_size)
        agent = _RequestedAgent(request.agent, (features, targets), loss, work, request.rules)
        agent.key = np.uint64(request.key)
        return agent

    disclosure = Disclosure(score_noise, privacy, reports_per_day, scores)
    return turn_handler(make, disclosure, local_steps=local_steps, batch_size=batch_size)


class _RequestedAgent(Agent):
    """An agent that takes the turn that a request describes."""

    def turn(self, request: AgentRequest, params: np.ndarray) -> Upload:
        """The turn that the cloud asks for, from a model."""
        local, velocity = request.local, None
        if local.momentum != 0.0:
            velocity = np.zeros(params.size) if local.velocity is None else local.velocity[0].copy()
        upload = self.take_turn(
            params, request.step(self.local_steps), request.round_index, local=local,
            steps=request.steps, velocity=velocity,
            correction=None if local.correction is None else local.correction[0],
        )  # fmt: skip
        return replace(upload, velocity=velocity)  # take_turn leaves it as it is at the end


@dataclass(frozen=True)
class Disclosure:
    """What an agent does to a turn before the cloud sees it; the options of `agent_turn`."""

    score_noise: float
    privacy: Privacy | None
    reports_per_day: int | None
    scores: ScoreRange | None

    def __post_init__(self) -> None:
        if not (is_number(self.score_noise) and self.score_noise >= 0.0):
            raise ValueError(f"score_noise={self.score_noise} must be a number >= 0")
        if self.scores is not None:
            check_noise(self.scores, self.score_noise)
        if self.reports_per_day is not None:
            check_whole(self.reports_per_day, name="reports_per_day", least=1)

    @property
    def limit(self) -> int | None:
        """The reports of a day, of which there is an end wherever there is noise."""
        noisy = self.score_noise > 0.0 or self.privacy is not None
        return REPORTS_PER_DAY if noisy and self.reports_per_day is None else self.reports_per_day

    def _noise(self, request: AgentRequest) -> float:
        """The scale of the noise on the score, 0 for a turn that reports none."""
        tells = request.ask == wire_format.SCORE or request.rules.agents.learns
        return self.score_noise if tells else 0.0

    def request(self, message: Message) -> AgentRequest:
        """The request in a message, if this agent can follow it and hide what it must."""
        request = wire_format.unpack_request(message.content)
        own, asked, noise = self.scores, request.scores, self._noise(request)
        check_noise(asked, noise)
        if own is not None and noise > 0.0 and not own.contains(asked):
            raise ValueError(
                f"the cloud names scores from {asked.low:g} to {asked.high:g}, and this agent "
                f"reports from {own.low:g} to {own.high:g} only: the cloud needs "
                "Safety(scores=...) within that range"
            )
        # How many examples there are is not told by an agent that limits what it tells.
        also = {*request.also} - {NOISE_SHARE}
        question = request.ask and request.ask != wire_format.SCORE
        more = question or also or request.local.momentum > 0.0
        if more and self.limit is not None:
            raise ValueError(
                "this agent limits what it tells (privacy, score_noise or reports_per_day), and a "
                "loss, a gradient or a momentum would tell more: use a method that asks for none"
            )
        return request

    def release(
        self, agent: Any, request: AgentRequest, params: np.ndarray, context: Context
    ) -> float:
        """The score at a model with the noise that is asked for, if this agent wants no more.

        The same score in the same range has the same noise, in whatever job or round.
        """
        if request.score_noise < max(self.score_noise, TINY):
            raise ValueError(
                f"the cloud asks for a score with noise {request.score_noise:g}, and this agent "
                f"adds {self.score_noise:g}, or some: the cloud needs ReleasedScores(noise=...) "
                "of at least that"
            )
        check_noise(request.scores, request.score_noise)
        files, score = PrivacyFiles(private_folder(state_folder(context))), agent.score_at(params)
        limit = self.limit or REPORTS_PER_DAY
        if not files.may_report(limit):
            raise ValueError(f"this agent has answered {limit} times today")
        about = request.scores.low, request.scores.high, request.score_noise, score
        rng = files.rng("release", own_number(context), *about)
        log_budget(files, request.scores, request.score_noise, limit)
        return revealed_score(score, request.scores, noise=request.score_noise, rng=rng)

    def hide(
        self, upload: Upload, request: AgentRequest, state: AgentStateFile, score: float | None
    ) -> Upload:
        """The upload as it leaves; `score` is the one of this turn that was reported before."""
        files = PrivacyFiles(state.path.parent)
        may_report = score is not None or self.limit is None or files.may_report(self.limit)
        if score is None and may_report:
            # The noise belongs to what is reported: the same under whatever name of the job, and
            # independent for another turn or range, so that differences cancel nothing.
            own = self.scores or request.scores
            turn = state.node, request.round_index, upload.score, upload.change.tobytes()
            rng = files.rng("score", own.low, own.high, *turn)
            noise = self._noise(request)
            noisy = revealed_score(upload.score, own, noise=noise, rng=rng)
            score = request.scores.clip(noisy)
            if noise > 0.0:
                log_budget(files, own, noise, self.limit)
        elif score is None:  # nothing new: the last score again, or the middle of the range
            low, high, last = request.scores.low, request.scores.high, state.last_score
            score = math.sqrt(low * high) if last is None else request.scores.clip(last)
        if self.privacy is not None:
            if not may_report:
                raise ValueError(f"this agent has answered {self.limit} times today")
            # The same answer again has the same noise, so that asking again does not help; another
            # has noise of its own, or the difference of the two would show through.
            rng = files.rng("change", state.node, upload.change.tobytes())
            noise = self.privacy.disturbance(upload.change.size, rng=rng)
            upload = replace(upload, change=self.privacy.shorten(upload.change) + noise)
        state.keep(score)
        return replace(upload, score=score)


def log_budget(files: PrivacyFiles, scores: ScoreRange, noise: float, limit: int | None) -> None:
    """Show the agent's operator what its scores have cost so far."""
    each, (today, total) = scores.epsilon(noise), files.reports()
    log(INFO, "score with noise %g: epsilon %.3g; %s of %s reports today, %s in all, whose "
        "epsilons add up to at most %.3g",
        noise, each, today, limit, total, each * total)  # fmt: skip


def turn_handler(
    make: Callable[[AgentRequest, Message, Context], Any], disclosure: Disclosure, *,
    local_steps: int, batch_size: int,
) -> Handler:  # fmt: skip
    """A handler for agents that `make` makes; their `metrics`, if any, go along with a turn."""
    check_whole(local_steps, name="local_steps", least=1)
    check_whole(batch_size, name="batch_size", least=1)

    def turn(message: Message, context: Context) -> Message:
        request = disclosure.request(message)
        if request.own_steps:
            raise ValueError(
                "the cloud names no step size, which is for agents that train by a loop of their "
                "own (own_turn): the method needs step_size=..., a positive number"
            )
        agent = make(request, message, context)
        model: Any = message.content[wire_format.MODEL]
        layout = Layout.of(model)
        params = layout.flatten(model)
        if request.ask:
            if request.ask == wire_format.SCORE:
                answer = disclosure.release(agent, request, params, context)
            else:
                answer = _answer(agent, request, params)
            return Message(wire_format.pack_answer(answer, request.ask), reply_to=message)
        folder = private_folder(state_folder(context))
        state = AgentStateFile(folder, agent, request, own_number(context))
        score = state.recall()
        upload = agent.turn(request, params)
        asked = {*request.also} - {NOISE_SHARE}
        also = {name: getattr(agent, f"{name}_at")(params) for name in asked}
        if NOISE_SHARE in request.also and disclosure.limit is None:
            design = request.rules.example_design
            work = len(agent.targets), agent.batch_size, agent.local_steps
            also["noise_share"] = noise_share(*work, design)
        upload = disclosure.hide(replace(upload, **also), request, state, score)
        metrics = getattr(agent, "metrics", dict)()
        return Message(wire_format.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


def _answer(agent: Any, request: AgentRequest, params: np.ndarray) -> float | np.ndarray:
    """The answer to a question about a model; asked again, the same."""
    if request.ask == wire_format.WORK:
        return np.array([agent.local_steps, agent.batch_size], np.float64)
    if request.ask == wire_format.SAMPLED_LOSS:
        return agent.sampled_loss_at(params, request.round_index)
    if request.ask == wire_format.BATCH_LOSS:
        return agent.sampled_loss_at(params, request.round_index, count=int(agent.batch_size))
    return getattr(agent, f"{request.ask}_at")(params)  # a loss or a gradient


def own_number(context: Context) -> Any:
    """What the agent itself says who it is, not the cloud; None if it says nothing."""
    return context.node_config.get("partition-id")


def tell_agent(message: Message, context: Context) -> Message:
    """A handler for `app.query()`: which agent this node is, for nodes without registered names.

    Args:
        message: Flower's question.
        context: the node's context, whose `partition-id` is the answer.
    """
    index = own_number(context)
    if not isinstance(index, int):
        raise ValueError(
            f"partition-id={index!r} in --node-config must be this agent's number, 0 to K - 1"
        )
    content = RecordDict({wire_format.REQUEST: ConfigRecord({"agent": index})})
    return Message(content, reply_to=message)


@checked
def tell_examples(count: Callable[[Context], int]) -> Handler:
    """A handler for `app.query()`: which agent this node is, and how many examples it has.

    Args:
        count: a function from the context to this agent's number of examples.
    """

    def tell(message: Message, context: Context) -> Message:
        reply = tell_agent(message, context)
        reply.content[wire_format.REQUEST]["examples"] = int(count(context))  # type: ignore[index]
        return reply

    return tell


@checked
def own_turn(fit: Handler) -> Handler:
    """A handler for `app.train()` around the one that an app has already.

        @app.train()
        @flower.own_turn
        def train(message, context): ...

    The cloud gets the change of the model and weights it by 1/(K p_k); the local steps are yours.
    Agents are drawn by metrics["score"] if there is one, else by the length of the change of the
    trained parameters. Buffers, such as the running variances of batch norm, do not count in it.
    The other metrics go to Flower's `train_metrics_aggr_fn`.

    Args:
        fit: gets a message with the model in `content["arrays"]` and `train_config` in
            `content["config"]`, trains as it likes, and returns a reply with the trained model
            under the same names, and metrics.
    """
    name = getattr(fit, "__name__", type(fit).__name__)

    @wraps(fit)
    def turn(message: Message, context: Context) -> Message:
        request = wire_format.unpack_request(message.content)
        _check_plain(request)
        model: Any = message.content[wire_format.MODEL]
        layout = Layout.of(model)
        before = layout.flatten(model)
        reply = fit(message, context)
        if not isinstance(reply, Message):
            raise TypeError(
                f"{name} returned {type(reply).__name__}; expected the reply, a Message with the "
                "trained model"
            )
        if reply.has_error():
            return reply
        arrays = list(reply.content.array_records.values())
        if len(arrays) != 1:
            raise ValueError(f"the reply must hold one trained model, got {len(arrays)}")
        metrics: dict[str, Any] = {}
        for record in reply.content.metric_records.values():
            metrics |= record
        change = layout.flatten(arrays[0]) - before
        if not np.isfinite(change).all():
            raise ValueError(f"{name} returned a model that is not finite")
        score = metrics.pop("score", norm(change[~layout.mask(request.buffers)]))
        if not (is_number(score) and score >= 0.0):
            raise ValueError(f"score={printable(score, 40)} must be a number >= 0")
        upload = Upload(change, request.scores.clip(float(score)), 0)
        return Message(wire_format.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


def _check_plain(request: AgentRequest) -> None:
    """Raise a ValueError for what a loop of the user's own cannot do."""
    local, use = request.local, "use agent_turn or torch_turn, or"
    more = request.ask or {*request.also} - {NOISE_SHARE} or request.scale is not None
    steered = local.prox or local.momentum or local.correction is not None
    for refused, reason in (
        (request.agent_prob is not None, "divide the steps of a loop of your own by K p_k: use "
         "Strategy(weighting='change'), which is the default"),
        (more, "tell the loss or the gradient of a loop of your own, nor scale its steps: "
         f"{use} a method that asks for neither"),
        (steered, "put prox, momentum or a correction into a loop of your own: "
         f"{use} a method with plain local steps"),
    ):  # fmt: skip
        if refused:
            raise ValueError(f"own_turn cannot {reason}")
