"""What crosses the network: down an order and a model, up a change and a score.

Flower's records are read as coming from someone who may be wrong or hostile: a `WireError` says
what was found and what was expected, and nothing else is raised.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any, cast, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from isfed.federation.agent import Rules, Upload
from isfed.federation.apart import Terms
from isfed.federation.correction import CorrectionRule
from isfed.federation.trust import ScoreRange
from isfed.flower.arrays import Layout, WireError, shown
from isfed.sampling.designs import ALL_DESIGNS
from isfed.sampling.policies import Initial, Policy, Refresh, Score, ScorePolicy

MODEL, ORDER, TRAIN_CONFIG, CENTRE = "arrays", "isfed", "config", "centre"
CHANGE, METRICS = "change", "metrics"
NOT_FLOWERS = (
    "Flower's differential privacy (LocalDpMod, fixedclipping_mod, adaptiveclipping_mod) takes it "
    "for a model: remove it, and use isfed's Privacy instead"
)
_DESIGNS = {design.__name__: design for design in ALL_DESIGNS}


@dataclass(frozen=True)
class Order:
    """What the cloud tells an agent beside the model."""

    job: str
    round_index: int
    agent: int
    agent_prob: float | None  # None: the cloud divides by K p_k itself
    key: int
    rules: Rules
    scores: ScoreRange
    terms: Terms | None = None  # of a correction
    buffers: tuple[str, ...] = ()  # arrays that are not trained


def pack_order(order: Order) -> ConfigRecord:
    """An order as flat, typed fields."""
    rules = order.rules
    fields: dict[str, Any] = {
        "job": order.job,
        "round": order.round_index,
        "agent": order.agent,
        "key": f"{order.key:016x}",  # 64 bits without a sign; Flower's integers have one
        "num-agents": rules.num_agents,
        "step-size": rules.step_size,
        "divide-by-steps": rules.divide_by_steps,
        "example-design": type(rules.example_design).__name__,
        "score-low": order.scores.low,
        "score-high": order.scores.high,
    }
    if order.agent_prob is not None:
        fields["agent-prob"] = order.agent_prob
    if order.buffers:
        fields["buffers"] = list(order.buffers)
    if order.terms is not None:
        fields["accepted"], fields["accepted-gain"] = order.terms.accepted, order.terms.gain
        for name, value in order.terms.rule._asdict().items():
            fields[f"correction-{name}"] = value
    for who, policy in (("examples", rules.examples), ("agents", rules.agents)):
        for name, value in asdict(cast(ScorePolicy, policy)).items():
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
    return ScorePolicy(**values)


def pack_centre(centre: np.ndarray) -> ArrayRecord:
    """c, in full precision whatever the type of the model: both sides must use the same."""
    return ArrayRecord({CENTRE: Array(np.ascontiguousarray(centre, np.float64))})


def _terms(content: RecordDict, fields: Any) -> Terms | None:
    """What an order says about a correction; None if it has none."""
    if "accepted" not in fields:
        return None
    types = get_type_hints(CorrectionRule)
    rule = {name: kind(fields[f"correction-{name}"]) for name, kind in types.items()}
    arrays: Any = content[CENTRE]
    layout = Layout.of(arrays)
    if layout.names != (CENTRE,) or layout.dtypes != ("float64",):
        raise ValueError(f"no array {CENTRE!r} of float64")
    centre, gain = layout.flatten(arrays), float(fields["accepted-gain"])
    if not (np.isfinite(centre).all() and 0.0 <= gain <= 1.0):
        raise ValueError(f"gain={gain}, or the mean of the memories, makes no sense")
    return Terms(CorrectionRule(**rule), centre, int(fields["accepted"]), gain)


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
            agent_prob=float(fields["agent-prob"]) if "agent-prob" in fields else None,
            key=int(fields["key"], 16),
            rules=rules,
            scores=ScoreRange(fields["score-low"], fields["score-high"]),
            terms=_terms(content, fields),
            buffers=tuple(map(str, fields.get("buffers", ()))),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise WireError(
            f"the message holds no order of isfed ({shown(repr(error))}): is the strategy "
            "isfed.flower.Strategy, and the same version on both sides?"
        ) from error
    chance = 1.0 if order.agent_prob is None else order.agent_prob
    if not (0.0 < chance <= 1.0 and 0 <= order.agent < rules.num_agents):
        raise WireError(f"agent {order.agent} with p_k={order.agent_prob} is no agent and chance")
    if not (0 <= order.key < 2**64 and order.round_index < 2**63):
        raise WireError(f"key={order.key:x}, round={order.round_index} are too large or too small")
    if not (math.isfinite(rules.step_size) and rules.step_size > 0.0 and order.round_index >= 0):
        raise WireError(f"step_size={rules.step_size}, round={order.round_index} make no sense")
    return order


def pack_upload(
    upload: Upload, layout: Layout, metrics: dict[str, Any] | None = None
) -> RecordDict:
    """A change, one score and what else the agent says; how many gradients it took stays with it.

    The digest shows whether something between `agent_turn` and the strategy took the change for a
    model and altered it, as Flower's differential privacy does. It is no protection against an
    agent, which can send the digest of anything.
    """
    change = layout.arrange(upload.change)
    told = {**(metrics or {}), "score": upload.score}
    if upload.agreement != 0.0:
        told["agreement"] = upload.agreement
    return RecordDict(
        {
            CHANGE: change,
            METRICS: MetricRecord(told),
            ORDER: ConfigRecord({"digest": digest(change)}),
        }
    )


def digest(change: ArrayRecord) -> str:
    """Of the bytes of all arrays."""
    found = hashlib.blake2b(digest_size=16)
    for array in change.values():
        found.update(array.data)
    return found.hexdigest()


def unpack_upload(content: RecordDict, layout: Layout) -> Upload:
    """The upload in a reply; its numbers are judged by the coordinator."""
    change, metrics, told = content.get(CHANGE), content.get(METRICS), content.get(ORDER)
    if not isinstance(change, ArrayRecord) or not isinstance(metrics, MetricRecord):
        given = shown(", ".join(shown(name, 20) for name in list(content)[:6]))
        raise WireError(f"expected records {CHANGE!r} and {METRICS!r}, got {given}")
    score = metrics.get("score")
    if not isinstance(score, int | float):
        score = math.nan  # refused as a score; the change may still be good
    agreement = metrics.get("agreement", 0.0)
    if not isinstance(agreement, int | float):
        agreement = 0.0
    vector = layout.flatten(change)
    if not isinstance(told, ConfigRecord) or told.get("digest") != digest(change):
        raise WireError(f"the change was altered after agent_turn made it. {NOT_FLOWERS}")
    return Upload(vector, float(score), 0, float(agreement))
