"""A virtual clock: how long the agents of a run compute and talk, by addressed randomness.

An agent's speeds are a function of (seed, repetition, agent) and the delays of a turn of (seed,
repetition, round, agent) as well, so two methods in the same run meet the same delays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isfed.base.argument_checks import check_fields, is_number
from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import exp, log
from isfed.base.random_streams import NO_AGENT, Stream, fill_normal, start, uniform
from isfed.federation.ledger import BYTES


class Speeds(NamedTuple):
    """What the agents can do.

    Attributes:
        rate: (K,) examples per second.
        upload, download: (K,) bytes per second.
    """

    rate: np.ndarray
    upload: np.ndarray
    download: np.ndarray


class Times(NamedTuple):
    """Seconds of every turn, (n,) each: receive the model, compute, send the change."""

    download: np.ndarray
    compute: np.ndarray
    upload: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """(n,) from the cloud's message to the agent's answer."""
        return self.download + self.compute + self.upload


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How fast agents are, in virtual seconds; a range is log-uniform over the agents.

    Args:
        rate: examples per second, from the slowest to the fastest agent.
        upload: bytes per second from an agent to the cloud.
        download: bytes per second from the cloud to an agent.
        latency: seconds of every message.
        jitter: standard deviation of the logarithm of a turn's computing time.
        drop: probability that an agent does not answer in a round.

    Examples:
        >>> Clock(rate=(10.0, 100.0), jitter=0.2).latency
        0.05
    """

    rate: tuple[float, float] = (10.0, 100.0)
    upload: tuple[float, float] = (2e4, 2e5)
    download: tuple[float, float] = (1e5, 1e6)
    latency: float = 0.05
    jitter: float = 0.0
    drop: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("rate", "upload", "download"):
            value = getattr(self, name)
            if not (len(value) == 2 and 0.0 < value[0] <= value[1] < math.inf):
                raise ValueError(f"{name}={value} must be a range of two positive numbers")
        for name in ("latency", "jitter"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0.0):
                raise ValueError(f"{name}={value!r} must be a number >= 0")
        if not (is_number(self.drop) and 0.0 <= self.drop < 1.0):
            raise ValueError(f"drop={self.drop!r} must be a probability below 1")

    def speeds(self, key: np.uint64, num_agents: int) -> Speeds:
        """The speeds of all agents of a repetition."""
        columns = []
        for place, name in enumerate(Speeds._fields):
            low, high = log(getattr(self, name))
            uniforms = Stream.at(key, round_index=place, agent=NO_AGENT).uniforms(num_agents)
            columns.append(exp(low + (high - low) * uniforms))
        return Speeds(*columns)

    def messages(self, speeds: Speeds, num_params: int) -> tuple[np.ndarray, np.ndarray]:
        """(K,) seconds of one model to every agent, and of one from it."""
        message = BYTES * num_params
        return message / speeds.download + self.latency, message / speeds.upload + self.latency

    def delayed(self, times: Times, which: np.ndarray, key: np.uint64, round_index: int) -> Times:
        """What the turns really take in a round: computing is slowed down or sped up at random."""
        if self.jitter == 0.0:
            return times
        normals, _ = _delays(key, round_index, which)
        return times._replace(compute=times.compute * exp(self.jitter * normals))

    def answers(self, which: np.ndarray, key: np.uint64, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents answers in a round."""
        if self.drop == 0.0:
            return np.ones(which.size, bool)
        return _delays(key, round_index, which)[1] >= self.drop


@compiled
def _delays(key, round_index, which):
    """One normal and one uniform for each agent, by its address."""
    state = np.empty(4, np.uint64)
    normals, uniforms = np.empty(which.size), np.empty(which.size)
    pair = np.empty(2)
    for i in range(which.size):
        start(state, key, round_index, which[i])
        fill_normal(state, pair, 2)
        normals[i] = pair[0]
        uniforms[i] = uniform(state)
    return normals, uniforms
