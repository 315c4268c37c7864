"""The agent's side: a handler for Flower's train messages that wraps `Agent`."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from isfed.base.argument_types import checked, shown
from isfed.base.value_checks import check_whole
from isfed.federation.agent import Agent, Upload, local_step
from isfed.federation.privacy import Privacy
from isfed.federation.remote_variates import OwnMemory, corrected_turn, noise_share
from isfed.federation.score_bounds import check_noise, revealed_score
from isfed.flower import wire_format
from isfed.flower.agent_state import Discretion, Memory, private_folder
from isfed.flower.array_records import Layout

STATE_FOLDER = "isfed-state"  # key of --node-config
REPORTS_PER_DAY = 1000  # where noise is asked for and nothing is said
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
    secrecy = Secrecy(score_noise, privacy, reports_per_day)
    check_whole(local_steps, name="local_steps", least=1)
    check_whole(batch_size, name="batch_size", least=1)
    if not hasattr(loss, "gradient") or isinstance(loss, type):
        raise TypeError(f"loss={shown(loss)} must be a loss, e.g. LeastSquares()")

    def turn(message: Message, context: Context) -> Message:
        order = secrecy.order(message)
        features, targets = load(context)
        work = (local_steps, batch_size)
        agent = Agent(order.agent, (features, targets), loss, work, order.rules)
        agent.key = np.uint64(order.key)
        if order.ask:
            return tell(agent, order, message)
        upload, layout = answer(agent, order, message, context, secrecy)
        return Message(wire_format.pack_upload(upload, layout), reply_to=message)

    return turn


def answer(
    agent: Agent, order: wire_format.Order, message: Message, context: Context, secrecy: Secrecy
) -> tuple[Upload, Layout]:
    """A turn from the model in a message, as it leaves the agent, whose files then know of it."""
    model: Any = message.content[wire_format.MODEL]
    layout = Layout.of(model)
    params = layout.flatten(model)
    folder = private_folder(state_folder(context))
    memory = Memory(folder, agent, order, own_number(context))
    told = memory.recall()
    if memory.own is not None:
        memory.own.buffers = layout.places(order.buffers)
        upload = _corrected(agent, memory.own, order, params, layout)
    else:
        upload = _plain(agent, order, params)
    if wire_format.LOSS in order.also:
        upload = replace(upload, loss=agent.loss_at(params))
    if wire_format.GRADIENT in order.also:
        upload = replace(upload, gradient=agent.gradient_at(params))
    hidden = Hidden(folder, context, secrecy.limit)
    return secrecy.hide(upload, order, hidden, memory, told), layout


def _how(order: wire_format.Order, size: int) -> dict[str, Any]:
    """What an order says about the steps of a turn, for `take_turn`."""
    local, velocity = order.local, None
    if local.momentum != 0.0:
        velocity = np.zeros(size) if local.velocity is None else local.velocity[0].copy()
    return {"local": local, "steps": order.steps, "velocity": velocity}


def _plain(agent: Agent, order: wire_format.Order, params: np.ndarray) -> Upload:
    """A turn without a memory of gradients; the cloud may steer its steps."""
    steps = agent.local_steps if order.steps is None else order.steps
    step = local_step(order.rules, steps, order.agent_prob, scale=order.scale)
    steer, how = order.local.correction, _how(order, params.size)
    correction = None if steer is None else steer[0]
    upload = agent.take_turn(params, step, order.round_index, correction=correction, **how)
    return replace(upload, velocity=how["velocity"])  # take_turn leaves it as it is at the end


def tell(agent: Any, order: wire_format.Order, message: Message) -> Message:
    """The answer to a question about a model; asked again, the same."""
    model: Any = message.content[wire_format.MODEL]
    params = Layout.of(model).flatten(model)
    match order.ask:
        case wire_format.GRADIENT:
            found = agent.gradient_at(params)
        case wire_format.WORK:
            found = np.array([agent.local_steps, agent.batch_size], np.float64)
        case wire_format.SAMPLED_LOSS:
            found = agent.sampled_loss_at(params, order.round_index)
        case _:
            found = agent.loss_at(params)
    return Message(wire_format.pack_answer(found, order.ask), reply_to=message)


def _corrected(
    agent: Agent, own: OwnMemory, order: wire_format.Order, params: np.ndarray, layout: Layout
) -> Upload:
    """A turn under a correction; remembered is the change as the cloud will read it."""
    assert order.terms is not None
    if order.terms.centre.shape != params.shape:
        raise wire_format.WireError(f"c has the shape {order.terms.centre.shape}, w {params.shape}")
    how = _how(order, params.size)
    upload = corrected_turn(agent, own, order.terms, params, order.round_index, **how)
    upload = replace(upload, change=layout.flatten(layout.arrange(upload.change)))
    return own.take(upload, order.rules.step_size, noise_share(agent), order.round_index)


class Secrecy:
    """What an agent does to a turn before it tells the cloud; the options of `agent_turn`."""

    def __init__(
        self, score_noise: float, privacy: Privacy | None, reports_per_day: int | None
    ) -> None:
        if not (math.isfinite(score_noise) and score_noise >= 0.0):
            raise ValueError(f"score_noise={score_noise} must be a number >= 0")
        if reports_per_day is not None:
            check_whole(reports_per_day, name="reports_per_day", least=1)
        self.score_noise, self.privacy, self.limit = score_noise, privacy, reports_per_day
        if reports_per_day is None and (score_noise > 0.0 or privacy is not None):
            self.limit = REPORTS_PER_DAY

    def order(self, message: Message) -> wire_format.Order:
        """The order in a message, if this agent can follow it and hide what it must."""
        order = wire_format.unpack_order(message.content)
        check_noise(order.scores, self.score_noise)
        if order.terms is not None and self.privacy is not None:
            raise ValueError(
                "this agent hides its changes (privacy), and a correction would remember what is "
                "hidden: the cloud must leave correction out"
            )
        more = order.ask or order.also or order.local.momentum > 0.0
        if more and (self.limit is not None or self.score_noise > 0.0):
            raise ValueError(
                "this agent limits what it tells (privacy, score_noise or reports_per_day), and a "
                "loss, a gradient or a momentum would tell more: use a method that asks for none"
            )
        return order

    def hide(
        self,
        upload: Upload,
        order: wire_format.Order,
        hidden: Hidden,
        memory: Memory,
        told: float | None,
    ) -> Upload:
        """The upload as it leaves; the memory keeps what was `told`, now or before."""
        may_report = told is not None or hidden.may_report()
        if told is None:
            told = hidden.score(upload, order, memory.last_told, self.score_noise, fresh=may_report)
        if self.privacy is not None:
            if not may_report:
                raise ValueError(f"this agent has answered {self.limit} times today")
            upload = replace(upload, change=hidden.change(upload, self.privacy))
        memory.keep(told)
        return replace(upload, score=told)


class Hidden(Discretion):
    """The score and the change as they leave the agent."""

    def __init__(self, folder: Path, context: Context, reports_per_day: int | None) -> None:
        super().__init__(folder, reports_per_day=reports_per_day)
        self.node = own_number(context)

    def score(
        self,
        upload: Upload,
        order: wire_format.Order,
        last: float | None,
        noise: float,
        *,
        fresh: bool,
    ) -> float:
        """With noise of this agent and round, whatever the job is called."""
        scores = order.scores
        if not fresh:  # nothing new is told: the last score again, or the middle of the range
            return math.sqrt(scores.low * scores.high) if last is None else scores.clip(last)
        rng = self.rng("score", self.node, order.round_index)
        return revealed_score(upload.score, scores, noise=noise, rng=rng)

    def change(self, upload: Upload, privacy: Privacy) -> np.ndarray:
        """Clipped, with noise that belongs to this very change.

        The same answer again has the same noise, so that asking again does not help; another
        answer has noise of its own, or the difference of the two would show through.
        """
        rng = self.rng("change", self.node, upload.change.tobytes())
        return privacy.shorten(upload.change) + privacy.disturbance(upload.change.size, rng=rng)


def own_number(context: Context) -> Any:
    """What the agent itself says who it is, not the cloud; None if it says nothing."""
    return context.node_config.get("partition-id")


def tell_agent(message: Message, context: Context) -> Message:
    """A handler for `app.query()`: which agent this node is, for nodes without registered names.

    message: Flower's question.
    context: the node's context, whose `partition-id` is the answer.
    """
    index = own_number(context)
    if not isinstance(index, int):
        raise ValueError(
            f"partition-id={index!r} in --node-config must be this agent's number, 0 to K - 1"
        )
    return Message(
        RecordDict({wire_format.ORDER: ConfigRecord({"agent": index})}), reply_to=message
    )


def state_folder(context: Context) -> Path:
    """Where the agent's files are: --node-config 'isfed-state="/path"', or the user's folder."""
    given = context.node_config.get(STATE_FOLDER)
    if given:
        return Path(str(given))
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "isfed"
