"""ISFedAvg, Algorithm 1 of the paper, as a record of choices.

Agents are drawn by score, take E_k weighted steps over importance-sampled batches, and the cloud
adds the Horvitz-Thompson mean of what they changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from isfed.base.argument_types import check_argument, shown
from isfed.base.value_checks import check_whole, is_number
from isfed.federation.variate_updates import Correction
from isfed.methods.by_score import ByScore
from isfed.methods.control_variates import ControlVariates
from isfed.methods.estimators import HorvitzThompson, InverseResponse
from isfed.methods.federated import Add, Composed, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import ClientWeights
from isfed.methods.server_wrappers import Average
from isfed.sampling.designs import Design, Deville, HartleyRao, LocalPivotal, Spread
from isfed.sampling.policies import Memory, Policy, Uniform

Absent = Literal["drop", "adjusted"]  # what becomes of an upload that does not arrive


@dataclass(frozen=True, kw_only=True)
class ISFedAvg(Composed):
    """Federated averaging under importance sampling of agents and of examples.

    The policies for agents and for examples can be combined freely, and so can the designs.

    step_size: mu, the step size; "auto" chooses a stable one when the run begins.
    num_active: L, the number of agents per round.
    agents: the policy that gives agents their probabilities.
    examples: the policy that gives an agent's examples their probabilities.
    agent_design: how agents are drawn with these probabilities.
    example_design: how examples are drawn with theirs.
    divide_by_steps: whether a step is divided by E_k, as in eq. (8).
    drift: standard deviation of the true model's random walk, per round.
    correction: None is the paper's method; "difference" or "drift" let agents remember their
        gradients and estimate only what is new, see `Correction`.
    weighting: where 1/(K p_k) goes: into the agent's "step", as in eq. (8), or on the "change" that
        it sends. "step" unless there is a correction; "drift" needs "change".
    absences: how an upload that is lost (see `Clock`) counts: "drop" counts it as zero, "adjusted"
        divides what arrives by an estimate of how often its agent answers, of at least 1/5.
    costs: what a turn of each agent costs, in any unit; agents are then drawn with
        probabilities proportional to score / sqrt(cost).
    client_weights: c_k of the objective sum_k c_k P_k: "uniform", 1/K as in the paper, or by
        "size", N_k / sum N. The weight of a change is then c_k / p_k instead of 1 / (K p_k).
    full_batch: whether every local step uses all examples instead of B_k drawn ones, which is
        B_k = N_k without replacement; `examples` and `example_design` then say nothing.
    average: whether the model that is shown is the mean of those of the last half of the rounds,
        see `Average`; what the theory predicts is the error of the current model.
    label: the name in tables and figures; made from the choices unless given.

    >>> from isfed import Memory, Uniform
    >>> ISFedAvg(step_size=0.01, num_active=6, agents=Memory(floor=0.05), examples=Uniform()).name
    'ISFedAvg, memory agents, uniform examples'
    """

    step_size: float | Literal["auto"]
    num_active: int
    agents: Policy = field(default_factory=Memory)
    examples: Policy = field(default_factory=Memory)
    agent_design: Design = field(default_factory=Deville)
    example_design: Design = field(default_factory=Deville)
    divide_by_steps: bool = True
    drift: float = 0.0
    correction: Correction | Literal["difference", "drift"] | None = None
    weighting: Literal["step", "change"] | None = None
    absences: Absent = "drop"
    costs: Sequence[float] = ()
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False
    average: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        step: Any = self.step_size  # perhaps an array, which cannot be compared with a word
        if not (step == "auto" if isinstance(step, str) else is_number(step) and step > 0.0):
            raise ValueError(f"step_size={shown(step)} must be a positive number or 'auto'")
        check_whole(self.num_active, name="num_active", least=1)
        if not (is_number(self.drift) and self.drift >= 0.0):
            raise ValueError(f"drift={shown(self.drift)} must be a number >= 0")
        check_argument("divide_by_steps", self.divide_by_steps, bool)
        check_argument("full_batch", self.full_batch, bool)
        check_argument("average", self.average, bool)
        check_argument("label", self.label, str)
        check_argument("weighting", self.weighting, Literal["step", "change"] | None)
        check_argument("absences", self.absences, Absent)
        check_argument("client_weights", self.client_weights, ClientWeights)
        for name in ("agents", "examples"):
            if not isinstance(getattr(self, name), Policy):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a policy, e.g. Memory()")
        for name in ("agent_design", "example_design"):
            design = getattr(self, name)
            if not isinstance(design, Design) or isinstance(design, type):
                raise TypeError(f"{name}={design!r} must be a design, e.g. Deville()")
        if self.full_batch:  # nothing is drawn, so nothing is learned about examples
            object.__setattr__(self, "examples", Uniform())
            object.__setattr__(self, "example_design", HartleyRao())
        if isinstance(self.example_design, Spread | LocalPivotal):
            raise ValueError(
                f"example_design={type(self.example_design).__name__}() would need a sketch of "
                "every example, which nobody keeps; use it for agent_design"
            )
        if isinstance(self.correction, str):
            object.__setattr__(self, "correction", Correction(self.correction))
        if not isinstance(self.correction, Correction | None):
            raise TypeError(f"correction={self.correction!r} must be 'difference' or 'drift'")
        if step == "auto" and self.client_weights != "uniform":
            raise ValueError(
                f"step_size='auto' needs client_weights='uniform', not "
                f"{self.client_weights!r}; give a number"
            )
        object.__setattr__(self, "costs", self.federated.sampler.costs)

    def parts(self) -> Federated:
        """The paper's composition, with what was chosen beside it."""
        on = "change" if self.on_change else "step"
        estimator: Any = HorvitzThompson(on)
        if self.memory is not None:
            estimator = ControlVariates(self.memory, self.agents, self.example_design, on)
        return Federated(
            ByScore(self.num_active, self.agents, self.agent_design, self.costs),
            LocalSteps(
                self.step_size,
                divide_by_steps=self.divide_by_steps,
                full_batch=self.full_batch,
                examples=self.examples,
                example_design=self.example_design,
            ),
            InverseResponse(estimator) if self.absences == "adjusted" else estimator,
            Average() if self.average else Add(),
            client_weights=self.client_weights,
        )

    @property
    def memory(self) -> Correction | None:
        """The correction as a record."""
        return Correction(self.correction) if isinstance(self.correction, str) else self.correction

    @property
    def on_change(self) -> bool:
        """Whether 1/(K p_k) multiplies the change instead of the step."""
        return self.weighting == "change" or (
            self.correction is not None and self.weighting is None
        )

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        if self.label:
            return self.label
        name = "ISFedAvg" if self.memory is None else f"ISFedAvg, {self.memory.kind}"
        last = ", averaged" if self.average else ""
        if self.full_batch:
            return f"{name}, {self.agents.name} agents, full batches{last}"
        if self.agents.name == self.examples.name:
            return f"{name}, {self.agents.name}{last}"
        return f"{name}, {self.agents.name} agents, {self.examples.name} examples{last}"
