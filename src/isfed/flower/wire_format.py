"""What crosses the network: down a request and a model, up a change and a score.

Flower's records are read as coming from someone who may be wrong or hostile: a `WireError` says
what came and what was expected, and nothing else is raised.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from isfed.federation.agent import AgentConfig, Upload
from isfed.federation.messages import NOISE_SHARE, PLAIN_LOCAL, LocalOptions
from isfed.federation.safety import ScoreRange
from isfed.flower.array_records import Layout, WireError, printable
from isfed.sampling.designs import ALL_DESIGNS
from isfed.sampling.policies import Initial, Policy, Refresh, Score, ScorePolicy

MODEL, REQUEST, TRAIN_CONFIG = "arrays", "isfed", "config"
STEER, VELOCITY = "steer", "velocity"  # vectors: added to every gradient, and of the momentum
CHANGE, METRICS = "change", "metrics"
LOSS, GRADIENT, SAMPLED_LOSS, WORK = "loss", "gradient", "sampled-loss", "work"
BATCH_LOSS, SCORE = "batch-loss", "score"
ASKS = (LOSS, GRADIENT, SAMPLED_LOSS, BATCH_LOSS, WORK, SCORE)
RISK = "isfed-risk"  # the metric in which an agent tells its loss
OWN_METRICS = ("score", NOISE_SHARE, RISK)  # those that are ours, not the app's
MOST_STEPS = 1_000_000  # of one turn; an agent does not work for ever
NOT_FLOWERS = (
    "Flower's differential privacy (LocalDpMod, fixedclipping_mod, adaptiveclipping_mod) takes it "
    "for a model: remove it, and use isfed's Privacy instead"
)
_DESIGNS = {design.__name__: design for design in ALL_DESIGNS}
_LOCAL = {  # by field of a request: the field of `LocalOptions` and its type
    "local-prox": ("prox", float), "local-momentum": ("momentum", float),
    "local-nesterov": ("nesterov", bool), "local-full-batch": ("full_batch", bool),
    "local-batch": ("batch", int),
}  # fmt: skip


@dataclass(frozen=True)
class AgentRequest:
    """What the cloud tells an agent beside the model."""

    job: str  # agents begin anew when it changes
    round_index: int
    agent: int
    agent_prob: float | None  # p_k; None where the cloud divides by K p_k itself
    key: int  # of the random numbers
    rules: AgentConfig
    scores: ScoreRange  # that are accepted
    buffers: tuple[str, ...] = ()  # names of the arrays that are not trained
    local: LocalOptions = PLAIN_LOCAL  # how it steps; its arrays have one row
    scale: float | None = None  # what every step is multiplied by
    also: tuple[str, ...] = ()  # LOSS, GRADIENT, NOISE_SHARE: in the same reply
    ask: str = ""  # one of ASKS, instead of a turn
    score_noise: float = 0.0  # of the score that is asked for
    own_steps: bool = False  # whether the agent must know the size of its steps itself

    @property
    def steps(self) -> int | None:
        """How many local steps; None for the agent's own E_k."""
        return None if self.local.steps is None else int(self.local.steps[0])

    def step(self, local_steps: int) -> float:
        """The size of a local step of an agent whose E_k is `local_steps`."""
        steps = local_steps if self.steps is None else self.steps
        return self.rules.local_step(steps, self.agent_prob, self.scale)


def pack_request(request: AgentRequest) -> dict[str, ConfigRecord | ArrayRecord]:
    """Flat, typed fields, and vectors; an agent that knows only plain steps refuses others."""
    rules, local = request.rules, request.local
    local_fields: dict[str, Any] = {} if request.steps is None else {"local-steps": request.steps}
    for field, (name, _) in _LOCAL.items():
        if (value := getattr(local, name)) != getattr(PLAIN_LOCAL, name):
            local_fields[field] = value
    vectors = {STEER: local.correction, VELOCITY: local.velocity}
    vectors = {name: rows[0] for name, rows in vectors.items() if rows is not None}
    more = request.scale is not None or request.also or request.ask
    plain = not (more or local_fields or vectors)
    fields: dict[str, Any] = {
        "job": request.job,
        "round": request.round_index,
        "agent": request.agent,
        "key": f"{request.key:016x}",  # 64 bits without a sign; Flower's integers have one
        "num-agents": rules.num_agents,
        "step-size" if plain else "step": rules.step_size,
        "divide-by-steps": rules.divide_by_steps,
        "example-design": type(rules.example_design).__name__,
        "score-low": request.scores.low,
        "score-high": request.scores.high,
    }
    if request.agent_prob is not None:
        fields["agent-prob"] = request.agent_prob
    if request.buffers:
        fields["buffers"] = list(request.buffers)
    if not plain:
        fields |= {**local_fields, "ask": request.ask, "also": list(request.also)}
        fields |= {} if request.scale is None else {"scale": request.scale}
        fields |= {"score-noise": request.score_noise} if request.ask == SCORE else {}
    if request.own_steps:
        fields["own-steps"] = True
    for who, policy in (("examples", rules.examples), ("agents", rules.agents)):
        for name, value in asdict(cast(ScorePolicy, policy)).items():
            fields[f"{who}-{name}"] = int(value) if isinstance(value, int) else value
    packed = {name: _pack_vector(vector, name) for name, vector in vectors.items()}
    return {REQUEST: ConfigRecord(fields), **packed}


def _pack_vector(vector: np.ndarray, name: str) -> ArrayRecord:
    """In full precision whatever the type of the model: both sides must use the same."""
    return ArrayRecord({name: Array(np.ascontiguousarray(vector, np.float64))})


def _unpack_vector(content: RecordDict, name: str) -> np.ndarray:
    """A finite vector of a message."""
    arrays: Any = content[name]
    layout = Layout.of(arrays)
    if layout.names != (name,) or layout.dtypes != ("float64",):
        raise ValueError(f"no array {name!r} of float64")
    vector = layout.flatten(arrays)
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return vector


def _policy(fields: Any, who: str) -> Policy:
    names = ("name", "initial", "refresh", "floor", "score", "rate")
    values: dict[str, Any] = {name: fields[f"{who}-{name}"] for name in names}
    for name, kind in (("initial", Initial), ("refresh", Refresh), ("score", Score)):
        values[name] = kind(values[name])
    return ScorePolicy(**values)


def _local(content: RecordDict, fields: Any) -> LocalOptions:
    """How a request wants the agent to step."""
    given: dict[str, Any] = {n: kind(fields[f]) for f, (n, kind) in _LOCAL.items() if f in fields}
    for name, vector in (("correction", STEER), ("velocity", VELOCITY)):
        if vector in content:
            given[name] = _unpack_vector(content, vector)[None]
    if "local-steps" in fields:
        given["steps"] = np.array([int(fields["local-steps"])])
    return LocalOptions(**given)


def unpack_request(content: RecordDict) -> AgentRequest:
    """The request in a message, checked by the agent: it need not trust the cloud either."""
    try:
        fields: Any = content[REQUEST]
        rules = AgentConfig(
            num_agents=int(fields["num-agents"]),
            step_size=float(fields["step-size"] if "step-size" in fields else fields["step"]),
            examples=_policy(fields, "examples"),
            example_design=_DESIGNS[fields["example-design"]](),
            agents=_policy(fields, "agents"),
            divide_by_steps=bool(fields["divide-by-steps"]),
        )
        request = AgentRequest(
            job=str(fields["job"]),
            round_index=int(fields["round"]),
            agent=int(fields["agent"]),
            agent_prob=float(fields["agent-prob"]) if "agent-prob" in fields else None,
            key=int(fields["key"], 16),
            rules=rules,
            scores=ScoreRange(fields["score-low"], fields["score-high"]),
            buffers=tuple(map(str, fields.get("buffers", ()))),
            local=_local(content, fields),
            scale=float(fields["scale"]) if "scale" in fields else None,
            also=tuple(map(str, fields.get("also", ()))),
            ask=str(fields.get("ask", "")),
            score_noise=float(fields.get("score-noise", 0.0)),
            own_steps=bool(fields.get("own-steps", False)),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise WireError(
            f"the message holds no request of isfed ({printable(repr(error))}): is the strategy "
            "isfed.flower.Strategy, and the same version on both sides?"
        ) from error
    _check_request(request)
    return request


def _check_request(request: AgentRequest) -> None:
    """Raise a WireError for values that no cloud of isfed sends; NaN is in no range."""
    rules, local, prob, scale = request.rules, request.local, request.agent_prob, request.scale
    for name, value, makes_sense in (
        ("round", request.round_index, 0 <= request.round_index < 2**63),
        ("agent", request.agent, 0 <= request.agent < rules.num_agents),
        ("p_k", prob, prob is None or 0.0 < prob <= 1.0),
        ("key", request.key, 0 <= request.key < 2**64),
        ("step_size", rules.step_size, 0.0 < rules.step_size < math.inf),
        ("scale", scale, scale is None or 0.0 <= scale < math.inf),
        ("prox", local.prox, 0.0 <= local.prox < math.inf),
        ("momentum", local.momentum, 0.0 <= local.momentum < 1.0),
        ("local steps", request.steps, 0 <= (request.steps or 0) <= MOST_STEPS),
        ("batch", local.batch, local.batch is None or local.batch >= 1),
        ("ask", request.ask, request.ask in ("", *ASKS)),
        ("score noise", request.score_noise, 0.0 <= request.score_noise < math.inf),
        ("also", request.also, {*request.also} <= {LOSS, GRADIENT, NOISE_SHARE}),
    ):
        if not makes_sense:
            raise WireError(f"a request with {name}={printable(value, 40)} makes no sense")


def pack_upload(upload: Upload, layout: Layout, metrics: dict[str, Any]) -> RecordDict:
    """A change, one score and what else the agent says; how many gradients it took stays with it.

    The digest shows whether something between `agent_turn` and the strategy took the change for a
    model and altered it, as Flower's differential privacy does. It is no protection against an
    agent, which can send the digest of anything.
    """
    change = layout.arrange(upload.change)
    reported = {**metrics, "score": upload.score}
    if upload.noise_share is not None:
        reported[NOISE_SHARE] = upload.noise_share
    if upload.loss is not None:
        reported[RISK] = upload.loss
    content: dict[str, Any] = {
        CHANGE: change,
        METRICS: MetricRecord(reported),
        REQUEST: ConfigRecord({"digest": digest(change)}),
    }
    for name in (GRADIENT, VELOCITY):
        if (vector := getattr(upload, name)) is not None:
            content[name] = _pack_vector(vector, name)
    return RecordDict(content)


def digest(change: ArrayRecord) -> str:
    """Of the bytes of all arrays."""
    bytes_hash = hashlib.blake2b(digest_size=16)
    for array in change.values():
        bytes_hash.update(array.data)
    return bytes_hash.hexdigest()


def _number(metrics: MetricRecord, name: str, default: Any) -> Any:
    value = metrics.get(name)
    return float(value) if isinstance(value, int | float) else default


def unpack_upload(content: RecordDict, layout: Layout) -> Upload:
    """The upload in a reply; its numbers are judged at the border."""
    change, metrics, sent = content.get(CHANGE), content.get(METRICS), content.get(REQUEST)
    if not isinstance(change, ArrayRecord) or not isinstance(metrics, MetricRecord):
        given = printable(", ".join(printable(name, 20) for name in list(content)[:6]))
        raise WireError(f"expected records {CHANGE!r} and {METRICS!r}, got {given}")
    vector = layout.flatten(change)
    if not isinstance(sent, ConfigRecord) or sent.get("digest") != digest(change):
        raise WireError(f"the change was altered after agent_turn made it. {NOT_FLOWERS}")
    vectors = {n: _unpack_vector(content, n) for n in (GRADIENT, VELOCITY) if n in content}
    if any(other.size != vector.size for other in vectors.values()):
        raise WireError("a vector of the reply has another size than the model")
    # A score that is no number is refused as a score; the change may still be good.
    score, share = _number(metrics, "score", math.nan), _number(metrics, NOISE_SHARE, None)
    return Upload(vector, score, 0, share, loss=_number(metrics, RISK, None), **vectors)


def pack_answer(answer: float | np.ndarray, ask: str) -> RecordDict:
    """The answer to a question: a number, or a vector."""
    if isinstance(answer, np.ndarray):
        return RecordDict({ask: _pack_vector(answer, ask)})
    return RecordDict({METRICS: MetricRecord({RISK: float(answer)})})


def unpack_answer(content: RecordDict, ask: str, size: int) -> float | np.ndarray:
    """The answer to a question: a number, or a vector of that size."""
    if ask not in (GRADIENT, WORK):
        metrics = content.get(METRICS)
        answer = _number(metrics, RISK, None) if isinstance(metrics, MetricRecord) else None
        if answer is None:
            raise WireError(f"expected a number {RISK!r}, got {printable(metrics, 40)}")
        return answer
    vector = _unpack_vector(content, ask)
    if vector.size != size:
        raise WireError(f"expected {size} numbers, got {vector.size}")
    return vector
