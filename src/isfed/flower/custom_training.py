"""A training function of one's own, unchanged: isfed draws, weights and remembers around it."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from functools import wraps
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord

from isfed.base.argument_types import checked
from isfed.base.portable_arithmetic import norm
from isfed.federation.agent import Upload
from isfed.flower import wire_format
from isfed.flower.agent_handler import Handler
from isfed.flower.array_records import Layout, shown


@checked
def own_turn(fit: Handler) -> Handler:
    """A handler for `app.train()` around the one that an app has already.

    fit: gets a message with the model in `content["arrays"]` and `train_config` in
        `content["config"]`, trains as it likes, and returns a reply with the trained model under
        the same names, and metrics.

        @app.train()
        @flower.own_turn
        def train(message, context): ...

    The cloud gets the change of the model and weights it by 1/(K p_k); the local steps are yours.
    The score by which agents are drawn is metrics["score"] if there is one, else the length of the
    change of the trained parameters, without buffers such as the running variances of batch norm.
    The other metrics go to Flower's `train_metrics_aggr_fn`.
    """

    name = getattr(fit, "__name__", type(fit).__name__)

    @wraps(fit)
    def turn(message: Message, context: Context) -> Message:
        order = wire_format.unpack_order(message.content)
        if order.agent_prob is not None:
            raise ValueError(
                "own_turn cannot divide the steps of a loop of your own by K p_k: use "
                "Strategy(weighting='change'), which is the default"
            )
        if order.terms is not None:
            raise ValueError(
                "own_turn cannot steer a loop of your own, nor remember its gradients: use "
                "agent_turn or torch_turn, or leave correction out"
            )
        local = order.local
        if order.ask or order.also or order.scale is not None:
            raise ValueError(
                "own_turn cannot tell the loss or the gradient of a loop of your own, nor scale "
                "its steps: use agent_turn or torch_turn, or a method that asks for neither"
            )
        if local.prox or local.momentum or local.correction is not None:
            raise ValueError(
                "own_turn cannot put prox, momentum or a correction into a loop of your own: use "
                "agent_turn or torch_turn, or a method with plain local steps"
            )
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
        trained, metrics = _read(reply)
        after = layout.flatten(trained)
        change = after - before
        if not np.isfinite(change).all():
            raise ValueError(f"{name} returned a model that is not finite")
        moved = change[~layout.places(order.buffers)]
        score = metrics.pop("score", norm(moved))
        if not isinstance(score, int | float) or not (math.isfinite(score) and score >= 0.0):
            raise ValueError(f"score={shown(score, 40)} must be a number >= 0")
        upload = Upload(change, order.scores.clip(float(score)), 0)
        return Message(wire_format.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


def _read(reply: Message) -> tuple[ArrayRecord, dict[str, Any]]:
    """The trained model and the metrics in a reply."""
    records = list(reply.content.values())
    arrays = [record for record in records if isinstance(record, ArrayRecord)]
    if len(arrays) != 1:
        raise ValueError(f"the reply must hold one trained model, got {len(arrays)}")
    metrics: dict[str, Any] = {}
    for record in records:
        if isinstance(record, MetricRecord):
            metrics.update(record)
    return arrays[0], metrics
