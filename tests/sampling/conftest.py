"""What the tests of several designs share."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st

from isfed.base.random_streams import Stream

MOST_UNITS = 100_000
WORD = 2**64 - 1


def _small_weights() -> st.SearchStrategy[np.ndarray]:
    """Up to 40 weights from 1e-300 to 1e300, with zeros and ties."""
    weight = st.sampled_from([0.0, 1.0, 1.0, 3.0, 1e-300, 1e300]) | st.floats(1e-300, 1e300)
    return st.lists(weight, min_size=1, max_size=40).map(np.array)


@st.composite
def _large_weights(draw: st.DrawFn) -> np.ndarray:
    """Up to 1e5 weights of one family, some set to zero, perhaps one far above the rest."""
    count = draw(st.integers(1, MOST_UNITS) | st.sampled_from([16, 256, 1024, 1025, 4096, 4097]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    family = draw(st.sampled_from(["near", "wide", "ties", "equal"]))
    if family == "near":
        weights = rng.lognormal(0.0, 1.0, count)
    elif family == "wide":
        weights = 10.0 ** rng.uniform(-300, 300, count)
    elif family == "ties":
        weights = rng.integers(1, 4, count).astype(float)
    else:
        weights = np.full(count, draw(st.sampled_from([1e-300, 1.0, 1e300])))
    weights[rng.random(count) < draw(st.sampled_from([0.0, 0.0, 0.5, 0.999]))] = 0.0
    if draw(st.booleans()):
        weights[rng.integers(count)] = 1e300
    return weights


@st.composite
def _weights_and_num(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    weights = draw(_small_weights() | _large_weights())
    if not weights.any():
        weights[0] = 1.0
    positive = int(np.count_nonzero(weights))
    num = draw(st.integers(1, positive) | st.sampled_from([1, positive]))
    return weights, num


@pytest.fixture(scope="session")
def weights_and_num() -> st.SearchStrategy[tuple[np.ndarray, int]]:
    """A strategy: weights, and a size of draw that the positive ones allow."""
    return _weights_and_num()


def _largest_deviation(counts: np.ndarray, chance: np.ndarray, draws: int) -> float:
    never, always = chance == 0.0, chance == 1.0
    assert not counts[never].any()
    assert np.all(counts[always] == draws)
    rest = ~(never | always)
    error = np.sqrt(draws * chance[rest] * (1.0 - chance[rest]))
    return float(np.max(np.abs(counts[rest] - draws * chance[rest]) / error, initial=0.0))


@pytest.fixture(scope="session")
def largest_deviation() -> Callable[[np.ndarray, np.ndarray, int], float]:
    """counts, chance, draws -> how far counts are from draws * chance, in standard errors.

    What has chance 0 or 1 must have happened never or always.
    """
    return _largest_deviation


def _stream_giving(value: float, after: int) -> Stream:
    """Run xoshiro256++ backwards from a state whose next output is `value`."""
    rotated = int(value * 2**53) << 11
    a, b, c, d = 0, 1, 2, _rotate(rotated, 64 - 23)  # output = rotate(a + d, 23) + a
    for _ in range(after):
        d = _rotate(d, 64 - 45)
        a ^= d
        x = b ^ c  # = s ^ (s << 17) of the b before
        before = (x ^ (x << 17) ^ (x << 34) ^ (x << 51)) & WORD
        c = b ^ before ^ a
        d, b = d ^ before, before
    stream = Stream(0)
    stream.state = np.array([a, b, c, d], dtype=np.uint64)
    return stream


def _rotate(x: int, k: int) -> int:
    return ((x << k) | (x >> (64 - k))) & WORD


@pytest.fixture(scope="session")
def stream_giving() -> Callable[[float, int], Stream]:
    """value, after -> a stream whose uniform number `after` (from 0) is `value`, a 53-bit number.

    A draw that uses one uniform can so be integrated over it, through the public function.
    """
    return _stream_giving
