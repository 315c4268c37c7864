"""The agent's side: handlers for Flower's train messages, by isfed's loop or by one's own."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from isfed.base.argument_checks import check_whole, checked, shown
from isfed.base.portable_arithmetic import norm
from isfed.federation.agent import Agent, Upload, local_step
from isfed.federation.remote_variates import corrected_turn
from isfed.federation.safety import Privacy
from isfed.flower import wire_format
from isfed.flower.agent_state import AgentStateFile, private_folder, state_folder
from isfed.flower.array_records import Layout, WireError, printable
from isfed.flower.disclosure import Disclosure
from isfed.flower.wire_format import AgentRequest

Handler = Callable[[Message, Context], Message]


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
    """
    if not hasattr(loss, "gradient") or isinstance(loss, type):
        raise TypeError(f"loss={shown(loss)} must be a loss, e.g. LeastSquares()")

    def make(request: AgentRequest, message: Message, context: Context) -> tuple[Any, Any]:
        features, targets = load(context)
        work = (local_steps, batch_size)
        agent = Agent(request.agent, (features, targets), loss, work, request.rules)
        agent.key = np.uint64(request.key)
        return agent, dict

    disclosure = Disclosure(score_noise, privacy, reports_per_day)
    return turn_handler(make, disclosure, local_steps=local_steps, batch_size=batch_size)


def turn_handler(
    make: Callable[[AgentRequest, Message, Context], tuple[Any, Callable[[], dict[str, Any]]]],
    disclosure: Disclosure, *, local_steps: int, batch_size: int,
) -> Handler:  # fmt: skip
    """A handler for agents that `make` makes, each with a function for its metrics after a turn."""
    check_whole(local_steps, name="local_steps", least=1)
    check_whole(batch_size, name="batch_size", least=1)

    def turn(message: Message, context: Context) -> Message:
        request = disclosure.request(message)
        agent, metrics = make(request, message, context)
        model: Any = message.content[wire_format.MODEL]
        layout = Layout.of(model)
        params = layout.flatten(model)
        if request.ask:
            answer = _answer(agent, request, params)
            return Message(wire_format.pack_answer(answer, request.ask), reply_to=message)
        folder, node = private_folder(state_folder(context)), own_number(context)
        state = AgentStateFile(folder, agent, request, node)
        told = state.recall()
        upload = _take_turn(agent, state, request, params, layout)
        if wire_format.LOSS in request.also:
            upload = replace(upload, loss=agent.loss_at(params))
        if wire_format.GRADIENT in request.also:
            upload = replace(upload, gradient=agent.gradient_at(params))
        upload = disclosure.hide(upload, request, state, told, node)
        return Message(wire_format.pack_upload(upload, layout, metrics()), reply_to=message)

    return turn


def _answer(agent: Any, request: AgentRequest, params: np.ndarray) -> float | np.ndarray:
    """The answer to a question about a model; asked again, the same."""
    match request.ask:
        case wire_format.GRADIENT:
            return agent.gradient_at(params)
        case wire_format.WORK:
            return np.array([agent.local_steps, agent.batch_size], np.float64)
        case wire_format.SAMPLED_LOSS:
            return agent.sampled_loss_at(params, request.round_index)
        case _:
            return agent.loss_at(params)


def _take_turn(
    agent: Any, state: AgentStateFile, request: AgentRequest, params: np.ndarray, layout: Layout
) -> Upload:
    """A turn from a model; the cloud may steer its steps, or the agent its own variates."""
    local, terms, index = request.local, request.terms, request.round_index
    velocity = None
    if local.momentum != 0.0:
        velocity = np.zeros(params.size) if local.velocity is None else local.velocity[0].copy()
    how: dict[str, Any] = {"local": local, "steps": request.steps, "velocity": velocity}
    if state.own is None or terms is None:
        steps = agent.local_steps if request.steps is None else request.steps
        step = local_step(request.rules, steps, request.agent_prob, scale=request.scale)
        steer = None if local.correction is None else local.correction[0]
        upload = agent.take_turn(params, step, index, correction=steer, **how)
        return replace(upload, velocity=velocity)  # take_turn leaves it as it is at the end
    if terms.centre.shape != params.shape:
        raise WireError(f"c has the shape {terms.centre.shape}, w {params.shape}")
    state.own.buffers = layout.mask(request.buffers)
    return corrected_turn(
        agent, state.own, terms, params, index,
        as_sent=lambda change: layout.flatten(layout.arrange(change)), **how,
    )  # fmt: skip


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
    record = ConfigRecord({"agent": index})
    return Message(RecordDict({wire_format.REQUEST: record}), reply_to=message)


@checked
def own_turn(fit: Handler) -> Handler:
    """A handler for `app.train()` around the one that an app has already.

        @app.train()
        @flower.own_turn
        def train(message, context): ...

    The cloud gets the change of the model and weights it by 1/(K p_k); the local steps are yours.
    The score by which agents are drawn is metrics["score"] if there is one, else the length of the
    change of the trained parameters, without buffers such as the running variances of batch norm.
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
        records = list(reply.content.values())
        arrays = [record for record in records if isinstance(record, ArrayRecord)]
        if len(arrays) != 1:
            raise ValueError(f"the reply must hold one trained model, got {len(arrays)}")
        metrics: dict[str, Any] = {}
        for record in records:
            metrics |= record if isinstance(record, MetricRecord) else {}
        change = layout.flatten(arrays[0]) - before
        if not np.isfinite(change).all():
            raise ValueError(f"{name} returned a model that is not finite")
        score = metrics.pop("score", norm(change[~layout.mask(request.buffers)]))
        if not isinstance(score, int | float) or not (math.isfinite(score) and score >= 0.0):
            raise ValueError(f"score={printable(score, 40)} must be a number >= 0")
        upload = Upload(change, request.scores.clip(float(score)), 0)
        return Message(wire_format.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


def _check_plain(request: AgentRequest) -> None:
    """Raise a ValueError for what a loop of the user's own cannot do."""
    local, use = request.local, "use agent_turn or torch_turn, or"
    more = request.ask or request.also or request.scale is not None
    steered = local.prox or local.momentum or local.correction is not None
    for refused, reason in (
        (request.agent_prob is not None, "divide the steps of a loop of your own by K p_k: use "
         "Strategy(weighting='change'), which is the default"),
        (request.terms is not None, "steer a loop of your own, nor remember its gradients: "
         f"{use} leave correction out"),
        (more, "tell the loss or the gradient of a loop of your own, nor scale its steps: "
         f"{use} a method that asks for neither"),
        (steered, "put prox, momentum or a correction into a loop of your own: "
         f"{use} a method with plain local steps"),
    ):  # fmt: skip
        if refused:
            raise ValueError(f"own_turn cannot {reason}")
