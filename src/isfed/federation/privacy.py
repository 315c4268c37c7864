"""Clipping and Gaussian noise for changes of the model, and what they do and do not guarantee.

A weighted change u_k = w_k (change of agent k), where w_k is all that the cloud multiplies it by,
is shortened to length `clip` if it is longer, so that no agent moves the model by more than
clip / L in a round. Noise of standard deviation noise * clip / L on every coordinate of the step
then makes one round a Gaussian mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.base.portable_arithmetic import norm


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The largest length of a change, and the noise relative to it.

    clip: the largest length: in the cloud that of the weighted change, at an agent that of what
        leaves it.
    noise: the standard deviation of the noise on every coordinate, in multiples of what one agent
        can contribute: clip / L in the cloud, clip at an agent.

    >>> Privacy(clip=1.0).shorten(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """

    clip: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.clip) and self.clip > 0.0):
            raise ValueError(f"clip={self.clip} must be a length greater than 0")
        if not (math.isfinite(self.noise) and self.noise >= 0.0):
            raise ValueError(f"noise={self.noise} must be a number >= 0")

    def factor(self, change: np.ndarray) -> float:
        """What shortens a change to `clip`: 1 for one that is short enough."""
        length = norm(change)
        return 1.0 if length <= self.clip else self.clip / length

    def shorten(self, change: np.ndarray) -> np.ndarray:
        """The change, at most `clip` long."""
        return self.factor(change) * change

    def disturbance(
        self, size: int, *, num_active: int = 1, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """The noise; from the system's entropy: noise that others can reproduce hides nothing."""
        rng = np.random.default_rng() if rng is None else rng
        return rng.normal(scale=self.noise * self.clip / num_active, size=size)

    def statement(self) -> str:
        """What the cloud's clipping and noise guarantee, for a log; no epsilon, on purpose."""
        bound = f"no agent moves the model by more than {self.clip:g} / L in a round"
        if self.noise == 0.0:
            return f"privacy: {bound}; without noise this hides nothing"
        return (
            f"privacy: {bound}, and every coordinate of a step has noise of {self.noise:g} times "
            "that. Towards those who see only the models, one round is a Gaussian mechanism with "
            f"noise multiplier {self.noise:g}, given who was drawn and who answered. Not covered: "
            "the cloud, which sees every change; who is drawn, which depends on scores and so on "
            "data; the scores. Rounds add up, so no epsilon is stated."
        )
