"""ISFedAvg, Algorithm 1 of the paper, as a record of choices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from isfed.federation.agent import Rules
from isfed.sampling.designs import Design, Deville
from isfed.sampling.policies import Memory, Policy


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class ISFedAvg:
    """Federated averaging under importance sampling of agents and of examples.

    The policies for agents and for examples can be combined freely, and so can the designs.

    >>> from isfed import Memory, Uniform
    >>> ISFedAvg(step_size=0.01, num_active=6, agents=Memory(floor=0.05), examples=Uniform()).name
    'ISFedAvg, memory agents, uniform examples'
    """

    step_size: float | Literal["auto"]  # mu; "auto": a stable one, chosen when the run begins
    num_active: int  # L
    agents: Policy = field(default_factory=Memory)
    examples: Policy = field(default_factory=Memory)
    agent_design: Design = field(default_factory=Deville)
    example_design: Design = field(default_factory=Deville)
    divide_by_steps: bool = True  # the 1/E_k of eq. (8)
    drift: float = 0.0  # standard deviation of the true model's random walk, per round
    label: str = ""

    def __post_init__(self) -> None:
        if self.step_size != "auto" and not (_is_number(self.step_size) and self.step_size > 0.0):
            raise ValueError(f"step_size={self.step_size!r} must be a positive number or 'auto'")
        if isinstance(self.num_active, bool) or not isinstance(self.num_active, Integral):
            raise ValueError(f"num_active={self.num_active} must be a whole number")
        if self.num_active < 1:
            raise ValueError(f"num_active={self.num_active} must be at least 1")
        if not (_is_number(self.drift) and self.drift >= 0.0):
            raise ValueError(f"drift={self.drift!r} must be a number >= 0")
        if not isinstance(self.divide_by_steps, bool):
            raise ValueError(f"divide_by_steps={self.divide_by_steps!r} must be true or false")
        for name in ("agents", "examples"):
            if not isinstance(getattr(self, name), Policy):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a policy, e.g. Memory()")
        for name in ("agent_design", "example_design"):
            if not isinstance(getattr(self, name), Design):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a design, e.g. Deville()")

    @property
    def name(self) -> str:
        """How tables and figures call it."""
        if self.label:
            return self.label
        if self.agents.name == self.examples.name:
            return f"ISFedAvg, {self.agents.name}"
        return f"ISFedAvg, {self.agents.name} agents, {self.examples.name} examples"

    def rules(self, num_agents: int) -> Rules:
        """What the cloud tells every agent."""
        if self.step_size == "auto":
            raise ValueError(
                "step_size='auto' needs the data: give a number, e.g. stable_step_size(problem, "
                "algorithm)"
            )
        return Rules(
            num_agents=num_agents,
            step_size=self.step_size,
            examples=self.examples,
            example_design=self.example_design,
            agents=self.agents,
            divide_by_steps=self.divide_by_steps,
        )
