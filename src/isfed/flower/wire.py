"""What crosses the network: down an order and a model, up a change and a score.

Flower's records are read as coming from someone who may be wrong or hostile: a `WireError` says
what was found and what was expected, and nothing else is raised.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from isfed.federation.agent import Rules, Upload
from isfed.federation.trust import ScoreRange
from isfed.sampling.designs import ALL_DESIGNS
from isfed.sampling.policies import Initial, Policy, Refresh, Score

MODEL, ORDER, TRAIN_CONFIG = "arrays", "isfed", "config"
CHANGE, METRICS = "change", "metrics"
_DESIGNS = {design.__name__: design for design in ALL_DESIGNS}


class WireError(ValueError):
    """A message that is not what the other side should have sent."""


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's arrays; the algorithm sees one flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a model; only real floating-point arrays can be trained."""
        layout = cls(
            tuple(arrays.keys()),
            tuple(tuple(array.shape) for array in arrays.values()),
            tuple(array.dtype for array in arrays.values()),
        )
        for name, dtype in zip(layout.names, layout.dtypes, strict=True):
            if dtype not in ("float16", "float32", "float64"):
                raise WireError(
                    f"array {name!r} has type {dtype}; a model's must be floating-point"
                )
        return layout

    def flatten(self, arrays: ArrayRecord) -> np.ndarray:
        """One vector of float64 from arrays of this layout."""
        given = Layout.of(arrays)
        if given != self:
            raise WireError(f"expected arrays {self.brief()}, got {given.brief()}")
        try:
            parts = [arrays[name].numpy().ravel() for name in self.names]
        except (ValueError, TypeError, EOFError) as error:
            raise WireError(f"arrays that cannot be read: {error}") from error
        for part, shape in zip(parts, self.shapes, strict=True):
            if part.size != math.prod(shape):  # the label and the content may disagree
                raise WireError(f"an array of {part.size} numbers is labelled {shape}")
        return np.concatenate(parts).astype(np.float64)

    def arrange(self, vector: np.ndarray) -> ArrayRecord:
        """The arrays of this layout from one vector."""
        record, first = {}, 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            last = first + math.prod(shape)
            # asarray: arithmetic on an array without dimensions gives a scalar
            record[name] = Array(np.asarray(vector[first:last].reshape(shape), dtype=dtype))
            first = last
        return ArrayRecord(record)

    def brief(self) -> str:
        """For an error; a hostile layout may be long."""
        shown = ", ".join(
            f"{name[:20]}{shape}:{dtype}"
            for name, shape, dtype in zip(self.names[:4], self.shapes, self.dtypes, strict=False)
        )
        return f"[{shown}{', ...' if len(self.names) > 4 else ''}]"


@dataclass(frozen=True)
class Order:
    """What the cloud tells an agent beside the model."""

    job: str
    round_index: int
    agent: int
    agent_prob: float
    key: int
    rules: Rules
    scores: ScoreRange


def pack_order(order: Order) -> ConfigRecord:
    """An order as flat, typed fields."""
    rules = order.rules
    fields: dict[str, Any] = {
        "job": order.job,
        "round": order.round_index,
        "agent": order.agent,
        "agent-prob": order.agent_prob,
        "key": f"{order.key:016x}",  # 64 bits without a sign; Flower's integers have one
        "num-agents": rules.num_agents,
        "step-size": rules.step_size,
        "divide-by-steps": rules.divide_by_steps,
        "example-design": type(rules.example_design).__name__,
        "score-low": order.scores.low,
        "score-high": order.scores.high,
    }
    for who, policy in (("examples", rules.examples), ("agents", rules.agents)):
        for name, value in asdict(policy).items():
            fields[f"{who}-{name}"] = int(value) if isinstance(value, int) else value
    return ConfigRecord(fields)


def _policy(fields: ConfigRecord, who: str) -> Policy:
    values: dict[str, Any] = {
        name: fields[f"{who}-{name}"]
        for name in ("name", "initial", "refresh", "floor", "score", "rate")
    }
    values["initial"] = Initial(values["initial"])
    values["refresh"] = Refresh(values["refresh"])
    values["score"] = Score(values["score"])
    return Policy(**values)


def unpack_order(content: RecordDict) -> Order:
    """The order in a message, checked by the agent: it need not trust the cloud either."""
    try:
        fields: Any = content[ORDER]
        rules = Rules(
            num_agents=int(fields["num-agents"]),
            step_size=float(fields["step-size"]),
            examples=_policy(fields, "examples"),
            example_design=_DESIGNS[fields["example-design"]](),
            agents=_policy(fields, "agents"),
            divide_by_steps=bool(fields["divide-by-steps"]),
        )
        order = Order(
            job=str(fields["job"]),
            round_index=int(fields["round"]),
            agent=int(fields["agent"]),
            agent_prob=float(fields["agent-prob"]),
            key=int(fields["key"], 16),
            rules=rules,
            scores=ScoreRange(fields["score-low"], fields["score-high"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise WireError(
            f"the message holds no order of isfed ({error!r}): is the strategy isfed.flower."
            "Strategy, and the same version on both sides?"
        ) from error
    if not (0.0 < order.agent_prob <= 1.0 and 0 <= order.agent < rules.num_agents):
        raise WireError(f"agent {order.agent} with p_k={order.agent_prob} is no agent and chance")
    if not (math.isfinite(rules.step_size) and rules.step_size > 0.0 and order.round_index >= 0):
        raise WireError(f"step_size={rules.step_size}, round={order.round_index} make no sense")
    return order


def pack_upload(upload: Upload, layout: Layout) -> RecordDict:
    """A change and one score; how many gradients it took stays with the agent."""
    return RecordDict(
        {CHANGE: layout.arrange(upload.change), METRICS: MetricRecord({"score": upload.score})}
    )


def unpack_upload(content: RecordDict, layout: Layout) -> Upload:
    """The upload in a reply; its numbers are judged by the coordinator."""
    change, metrics = content.get(CHANGE), content.get(METRICS)
    if not isinstance(change, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise WireError(f"expected records {CHANGE!r} and {METRICS!r}, got {sorted(content)[:6]}")
    score = metrics.get("score")
    if not isinstance(score, int | float):
        score = math.nan  # refused as a score; the change may still be good
    return Upload(layout.flatten(change), float(score), 0)
