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
from isfed.federation.messages import PLAIN_LOCAL, Local
from isfed.federation.remote_variates import Terms
from isfed.federation.score_bounds import ScoreRange
from isfed.federation.variate_updates import CorrectionRule
from isfed.flower.array_records import Layout, WireError, shown
from isfed.sampling.designs import ALL_DESIGNS
from isfed.sampling.policies import Initial, Policy, Refresh, Score, ScorePolicy

MODEL, ORDER, TRAIN_CONFIG, CENTRE = "arrays", "isfed", "config", "centre"
STEER, VELOCITY = "steer", "velocity"  # vectors: added to every gradient, and of the momentum
CHANGE, METRICS = "change", "metrics"
LOSS, GRADIENT, SAMPLED_LOSS, WORK = "loss", "gradient", "sampled-loss", "work"
ASKS = (LOSS, GRADIENT, SAMPLED_LOSS, WORK)
RISK = "isfed-risk"  # the metric in which an agent tells its loss
OWN_METRICS = ("score", "agreement", RISK)  # those that are ours, not the app's
MOST_STEPS = 1_000_000  # of one turn; an agent does not work for ever
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
    local: Local = PLAIN_LOCAL  # how it steps; its arrays have one row
    scale: float | None = None  # what every step is multiplied by
    also: tuple[str, ...] = ()  # "loss", "gradient": of its risk at the model, in the same reply
    ask: str = ""  # one of ASKS, instead of a turn

    @property
    def steps(self) -> int | None:
        """How many local steps; None for the agent's own E_k."""
        return None if self.local.steps is None else int(self.local.steps[0])

    def is_plain(self) -> bool:
        """Whether nothing but the steps of Algorithm 1 is asked for."""
        rest = self.scale is None and not self.also and not self.ask
        return rest and not _local_fields(self.local) and not _local_vectors(self.local)


def _local_fields(local: Local) -> dict[str, Any]:
    """What differs from a plain step, as typed fields."""
    fields: dict[str, Any] = {} if local.steps is None else {"steps": int(local.steps[0])}
    for name in ("prox", "momentum", "nesterov", "full_batch", "batch"):
        value = getattr(local, name)
        if value != getattr(PLAIN_LOCAL, name):
            fields[name.replace("_", "-")] = value
    return fields


def _local_vectors(local: Local) -> dict[str, np.ndarray]:
    """What differs from a plain step, as vectors of the size of a model."""
    named = {STEER: local.correction, VELOCITY: local.velocity}
    return {name: rows[0] for name, rows in named.items() if rows is not None}


def pack_order(order: Order) -> ConfigRecord:
    """An order as flat, typed fields; an agent that knows only plain ones refuses another."""
    rules, plain = order.rules, order.is_plain()
    fields: dict[str, Any] = {
        "job": order.job,
        "round": order.round_index,
        "agent": order.agent,
        "key": f"{order.key:016x}",  # 64 bits without a sign; Flower's integers have one
        "num-agents": rules.num_agents,
        "step-size" if plain else "step": rules.step_size,
        "divide-by-steps": rules.divide_by_steps,
        "example-design": type(rules.example_design).__name__,
        "score-low": order.scores.low,
        "score-high": order.scores.high,
    }
    if order.agent_prob is not None:
        fields["agent-prob"] = order.agent_prob
    if order.buffers:
        fields["buffers"] = list(order.buffers)
    if not plain:
        fields |= {f"local-{name}": value for name, value in _local_fields(order.local).items()}
        fields |= {"ask": order.ask, "also": list(order.also)}
        fields |= {} if order.scale is None else {"scale": order.scale}
    if order.terms is not None:
        fields["accepted"], fields["accepted-gain"] = order.terms.accepted, order.terms.gain
        fields |= {"step-varies": True} if order.terms.varies else {}
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


def pack_vectors(order: Order) -> dict[str, ArrayRecord]:
    """What an order says in vectors beside the model."""
    vectors = _local_vectors(order.local)
    if order.terms is not None:
        vectors[CENTRE] = order.terms.centre
    return {name: pack_vector(vector, name) for name, vector in vectors.items()}


def pack_vector(vector: np.ndarray, name: str) -> ArrayRecord:
    """In full precision whatever the type of the model: both sides must use the same."""
    return ArrayRecord({name: Array(np.ascontiguousarray(vector, np.float64))})


def unpack_vector(content: RecordDict, name: str) -> np.ndarray:
    """A finite vector of a message."""
    arrays: Any = content[name]
    layout = Layout.of(arrays)
    if layout.names != (name,) or layout.dtypes != ("float64",):
        raise ValueError(f"no array {name!r} of float64")
    vector = layout.flatten(arrays)
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return vector


def _local(content: RecordDict, fields: Any) -> Local:
    """How an order wants the agent to step."""
    vectors = {name: unpack_vector(content, name)[None] for name in (STEER, VELOCITY)
               if name in content}  # fmt: skip
    steps, batch = fields.get("local-steps"), fields.get("local-batch")
    local = Local(
        steps=None if steps is None else np.array([int(steps)]),
        prox=float(fields.get("local-prox", 0.0)),
        momentum=float(fields.get("local-momentum", 0.0)),
        nesterov=bool(fields.get("local-nesterov", False)),
        full_batch=bool(fields.get("local-full-batch", False)),
        batch=None if batch is None else int(batch),
        correction=vectors.get(STEER),
        velocity=vectors.get(VELOCITY),
    )
    if not (0.0 <= local.prox < math.inf and 0.0 <= local.momentum < 1.0):
        raise ValueError(f"prox={local.prox}, momentum={local.momentum} make no sense")
    if not (steps is None or 0 <= steps <= MOST_STEPS) or (batch is not None and batch < 1):
        raise ValueError(f"{steps} local steps with batches of {batch} make no sense")
    return local


def _terms(content: RecordDict, fields: Any) -> Terms | None:
    """What an order says about a correction; None if it has none."""
    if "accepted" not in fields:
        return None
    types = get_type_hints(CorrectionRule)
    rule = {name: kind(fields[f"correction-{name}"]) for name, kind in types.items()}
    centre, gain = unpack_vector(content, CENTRE), float(fields["accepted-gain"])
    if not 0.0 <= gain <= 1.0:
        raise ValueError(f"gain={gain} makes no sense")
    varies = bool(fields.get("step-varies", False))
    return Terms(CorrectionRule(**rule), centre, int(fields["accepted"]), gain, varies)


def unpack_order(content: RecordDict) -> Order:
    """The order in a message, checked by the agent: it need not trust the cloud either."""
    try:
        fields: Any = content[ORDER]
        rules = Rules(
            num_agents=int(fields["num-agents"]),
            step_size=float(fields["step-size"] if "step-size" in fields else fields["step"]),
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
            local=_local(content, fields),
            scale=float(fields["scale"]) if "scale" in fields else None,
            also=tuple(map(str, fields.get("also", ()))),
            ask=str(fields.get("ask", "")),
        )
        if not ({order.ask} <= {"", *ASKS} and {*order.also} <= {LOSS, GRADIENT}):
            raise ValueError(f"asked for {order.ask} and {order.also}")
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
    scale = 1.0 if order.scale is None else order.scale
    if not (math.isfinite(scale) and scale >= 0.0):
        raise WireError(f"scale={scale} makes no sense")
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
    if upload.loss is not None:
        told[RISK] = upload.loss
    content: dict[str, Any] = {
        CHANGE: change,
        METRICS: MetricRecord(told),
        ORDER: ConfigRecord({"digest": digest(change)}),
    }
    for name in (GRADIENT, VELOCITY):
        if (vector := getattr(upload, name)) is not None:
            content[name] = pack_vector(vector, name)
    return RecordDict(content)


def pack_answer(answer: float | np.ndarray, ask: str) -> RecordDict:
    """The answer to a question: a number, or a vector."""
    if isinstance(answer, np.ndarray):
        return RecordDict({ask: pack_vector(answer, ask)})
    return RecordDict({METRICS: MetricRecord({RISK: float(answer)})})


def unpack_answer(content: RecordDict, ask: str, size: int) -> float | np.ndarray:
    """The answer to a question: a number, or a vector of that size."""
    if ask not in (GRADIENT, WORK):
        metrics = content.get(METRICS)
        answer = metrics.get(RISK) if isinstance(metrics, MetricRecord) else None
        if not isinstance(answer, int | float):
            raise WireError(f"expected a number {RISK!r}, got {shown(answer, 40)}")
        return float(answer)
    vector = unpack_vector(content, ask)
    if vector.size != size:
        raise WireError(f"expected {size} numbers, got {vector.size}")
    return vector


def digest(change: ArrayRecord) -> str:
    """Of the bytes of all arrays."""
    found = hashlib.blake2b(digest_size=16)
    for array in change.values():
        found.update(array.data)
    return found.hexdigest()


def unpack_upload(content: RecordDict, layout: Layout) -> Upload:
    """The upload in a reply; its numbers are judged at the border."""
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
    loss = metrics.get(RISK)
    vectors = {
        name: unpack_vector(content, name) for name in (GRADIENT, VELOCITY) if name in content
    }
    if any(other.size != vector.size for other in vectors.values()):
        raise WireError("a vector of the reply has another size than the model")
    return Upload(
        vector, float(score), 0, float(agreement),
        loss=float(loss) if isinstance(loss, int | float) else None, **vectors,
    )  # fmt: skip
