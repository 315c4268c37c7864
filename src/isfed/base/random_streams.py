"""Random numbers by address: a draw is a function of seed, repetition, purpose, round and agent.

So no result depends on threads, chunks, a resume, or the machine that an agent runs on. The
generator is xoshiro256++ (Blackman and Vigna), started for every turn by splitmix64.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_whole, is_whole, shown
from isfed.base.interpret_first import InterpretFirst
from isfed.base.jit import compiled, jit_inline

UINT = np.uint64
# splitmix64 (Steele, Lea, Flood): the increment and the two multipliers of its mixing function.
_GAMMA = UINT(0x9E3779B97F4A7C15)
_MIX_1 = UINT(0xBF58476D1CE4E5B9)
_MIX_2 = UINT(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
NO_AGENT = -1  # the address of a draw that the cloud makes


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes are independent."""

    AGENTS = 0
    EXAMPLES = 1
    DRIFT = 2
    DATA = 3
    DESIGN = 4
    PARTITION = 5
    DELAYS = 6  # how long a turn takes, and who does not answer
    SPEEDS = 7  # how fast each agent is
    STRAGGLERS = 8  # who does less than it was asked
    DOMAINS = 9  # a second choice of agents in a round
    STALENESS = 10  # how old a model an agent works from
    CLUSTERS = 11  # who belongs to whom
    SERVER = 12  # the cloud's own training
    RISKS = 13  # of which example an agent tells the loss


def stream_key(seed: int, *, repetition: int, purpose: Purpose) -> np.uint64:
    """The 64-bit key of one stream; different (seed, repetition, purpose) give independent keys."""
    sequence = np.random.SeedSequence(seed, spawn_key=(repetition, int(purpose)))
    return sequence.generate_state(1, np.uint64)[0]


def stream_keys(seed: int, *, repetitions: range, purpose: Purpose) -> np.ndarray:
    """The keys of many repetitions, as one array."""
    keys = [stream_key(seed, repetition=r, purpose=purpose) for r in repetitions]
    return np.array(keys, dtype=np.uint64)


@jit_inline
def _mix(z):
    z = (z ^ (z >> UINT(30))) * _MIX_1
    z = (z ^ (z >> UINT(27))) * _MIX_2
    return z ^ (z >> UINT(31))


@jit_inline
def start(state, key, round_index, agent):
    """Set the four words of `state` to the beginning of the stream (key, round, agent)."""
    # The agent enters through its own mix: adding round and agent would make (1, 2) equal (2, 1).
    z = _mix(key + _GAMMA * UINT(round_index + 1)) ^ _mix(~key + _GAMMA * UINT(agent + 2))
    for word in range(4):
        z += _GAMMA
        state[word] = _mix(z)


@jit_inline
def _advance(s0, s1, s2, s3):
    """One step of xoshiro256++: a uniform on [0, 1), and the new state."""
    total = s0 + s3
    word = ((total << UINT(23)) | (total >> UINT(41))) + s0
    shifted = s1 << UINT(17)
    s2 ^= s0
    s3 ^= s1
    s1 ^= s2
    s0 ^= s3
    s2 ^= shifted
    s3 = (s3 << UINT(45)) | (s3 >> UINT(19))
    return np.float64(word >> UINT(11)) * _TO_UNIT, s0, s1, s2, s3


@jit_inline
def fill_uniform(state, out, count):
    """Fill out[:count] with uniforms on [0, 1) and advance `state`."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for i in range(count):
        out[i], s0, s1, s2, s3 = _advance(s0, s1, s2, s3)
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3


@jit_inline
def uniform(state):
    """One uniform on [0, 1)."""
    drawn, s0, s1, s2, s3 = _advance(state[0], state[1], state[2], state[3])
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3
    return drawn


@jit_inline
def below(state, bound):
    """One integer uniform on {0, ..., bound - 1}; the bias is below bound * 2**-53."""
    return int(uniform(state) * bound)


@jit_inline
def fill_normal(state, out, count):
    """Fill out[:count] with standard normals (Box-Muller)."""
    for i in range(0, count, 2):
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform(state)))
        angle = 2.0 * math.pi * uniform(state)
        out[i] = radius * math.cos(angle)
        if i + 1 < count:
            out[i + 1] = radius * math.sin(angle)


@compiled
def fill_at(keys, round_index, out):
    """Fill each row of `out` with the first uniforms of the cloud's turn under its key."""
    state = np.empty(4, np.uint64)
    for row in range(keys.size):
        start(state, keys[row], round_index, NO_AGENT)
        fill_uniform(state, out[row], out.shape[1])


_start_stream = InterpretFirst(start, lambda state, key, round_index, agent: 50)
_fill_uniform = InterpretFirst(fill_uniform, lambda state, out, count: 20 * count)


class Stream:
    """A source of random numbers for the designs: four words of state, advanced by every draw.

    Args:
        seed: A whole number; or a generator of NumPy, which is advanced.

    Examples:
        >>> Stream(7).uniforms(2).round(3) == Stream(7).uniforms(2).round(3)
        array([ True,  True])
    """

    def __init__(self, seed: int | np.random.Generator) -> None:
        _check_source(seed, name="seed")
        if isinstance(seed, np.random.Generator):
            self.state = seed.integers(0, 2**64, size=4, dtype=np.uint64)
            return
        self.state = np.empty(4, np.uint64)
        key = stream_key(seed, repetition=0, purpose=Purpose.DESIGN)
        _start_stream(self.state, key, 0, NO_AGENT)

    @classmethod
    def at(cls, key: np.uint64, *, round_index: int, agent: int = NO_AGENT) -> Stream:
        """The stream of one turn; compiled at once, for a federation has many of them."""
        stream = cls.__new__(cls)
        stream.state = np.empty(4, np.uint64)
        start(stream.state, key, round_index, agent)
        return stream

    def uniforms(self, count: int) -> np.ndarray:
        """`count` uniforms on [0, 1)."""
        check_whole(count, name="count", least=0)
        out = np.empty(count)
        _fill_uniform(self.state, out, count)
        return out

    def normals(self, count: int) -> np.ndarray:
        """`count` standard normals."""
        check_whole(count, name="count", least=0)
        out = np.empty(count)
        fill_normal(self.state, out, count)
        return out


def _check_source(source: Any, *, name: str) -> None:
    """None would be another seed every time, and nobody could repeat what it gave."""
    if not (isinstance(source, np.random.Generator) or (is_whole(source) and source >= 0)):
        raise ValueError(
            f"{name}={shown(source)} must be a Stream, a NumPy generator or a whole number >= 0"
        )


def as_stream(source: Stream | np.random.Generator | int) -> Stream:
    """A stream from a stream, a NumPy generator or a seed."""
    if isinstance(source, Stream):
        return source
    _check_source(source, name="rng")
    return Stream(source)
