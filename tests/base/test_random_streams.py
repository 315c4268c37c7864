"""The generator against its definition, and streams by address."""

from itertools import islice, product

import numpy as np
import pytest

from isfed.base import random_streams
from isfed.base.jit import compiled
from isfed.base.random_streams import NO_AGENT, Purpose, Stream, as_stream, stream_key, stream_keys

WORD = 2**64 - 1


def _rotate(x, k):
    return ((x << k) | (x >> (64 - k))) & WORD


def _xoshiro256pp(state):
    """The outputs of xoshiro256++, in Python's whole numbers, as Blackman and Vigna print it."""
    s = [int(word) for word in state]
    while True:
        yield (_rotate((s[0] + s[3]) & WORD, 23) + s[0]) & WORD
        t = (s[1] << 17) & WORD
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotate(s[3], 45)


def _splitmix64(x):
    """The outputs of splitmix64 from state x."""
    while True:
        x = (x + 0x9E3779B97F4A7C15) & WORD
        z = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        yield z ^ (z >> 31)


def _nth(key, n):
    """The n-th output of splitmix64 from state `key`, n = 1, 2, ..."""
    return next(_splitmix64((key + (n - 1) * 0x9E3779B97F4A7C15) & WORD))


@compiled
def _many_uniform(state, out):
    for i in range(out.size):
        out[i] = random_streams.uniform(state)


@compiled
def _many_below(state, bound, out):
    for i in range(out.size):
        out[i] = random_streams.below(state, bound)


def _stream_of(state):
    stream = Stream(0)
    stream.state = np.array(state, dtype=np.uint64)
    return stream


def test_the_definitions_written_here_give_the_published_outputs():
    # xoshiro256++ from (1, 2, 3, 4): the test of the Rust crate rand_xoshiro, made with the
    # authors' C; splitmix64 from 1234567: Rosetta Code.
    assert list(islice(_xoshiro256pp([1, 2, 3, 4]), 5)) == [
        41943041,
        58720359,
        3588806011781223,
        3591011842654386,
        9228616714210784205,
    ]
    assert list(islice(_splitmix64(1234567), 3)) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("state", [[1, 2, 3, 4], [WORD, WORD, WORD, WORD], [0, 0, 0, 1], None])
def test_uniforms_are_the_top_53_bits_of_xoshiro(state):
    stream = Stream(5) if state is None else _stream_of(state)
    expected = [(word >> 11) / 2**53 for word in islice(_xoshiro256pp(stream.state), 1000)]
    one_by_one = np.empty(1000)
    _many_uniform(stream.state.copy(), one_by_one)
    np.testing.assert_array_equal(one_by_one, expected)
    np.testing.assert_array_equal(stream.uniforms(1000), expected)


def test_the_state_goes_on_where_it_stopped():
    whole, parts = Stream(3), Stream(3)
    expected = whole.uniforms(100)
    got = np.concatenate([parts.uniforms(n) for n in (1, 0, 7, 92)])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(parts.state, whole.state)
    _many_uniform(parts.state, one := np.empty(1))
    assert one[0] == whole.uniforms(1)[0]


@pytest.mark.parametrize("key", [0, 1, 0xDEADBEEFCAFEBABE, WORD])
@pytest.mark.parametrize(("round_index", "agent"), [(0, NO_AGENT), (0, 0), (7, 3), (10**9, 10**7)])
def test_an_address_starts_splitmix_at_a_mix_of_key_round_and_agent(key, round_index, agent):
    begin = _nth(key, round_index + 1) ^ _nth(key ^ WORD, agent + 2)
    stream = Stream.at(np.uint64(key), round_index=round_index, agent=agent)
    assert stream.state.tolist() == list(islice(_splitmix64(begin), 4))


def test_same_address_same_numbers_and_different_address_different_numbers():
    key = stream_key(1, repetition=0, purpose=Purpose.AGENTS)
    addresses = list(product(range(60), range(-1, 59)))
    states = [Stream.at(key, round_index=r, agent=a).state.tolist() for r, a in addresses]
    again = [Stream.at(key, round_index=r, agent=a).state.tolist() for r, a in addresses]
    assert states == again
    words = [word for state in states for word in state]
    assert len(set(words)) == len(words)  # (1, 2) is not (2, 1), nor does a stream run into another


def test_keys_differ_by_seed_repetition_and_purpose():
    keys = {
        int(stream_key(seed, repetition=r, purpose=purpose))
        for seed, r, purpose in product(range(10), range(10), Purpose)
    }
    assert len(keys) == 10 * 10 * len(Purpose)


def test_the_keys_of_a_range_do_not_depend_on_where_it_begins():
    first = stream_keys(4, repetitions=range(10), purpose=Purpose.EXAMPLES)
    later = stream_keys(4, repetitions=range(6, 10), purpose=Purpose.EXAMPLES)
    np.testing.assert_array_equal(first[6:], later)
    assert first.dtype == np.uint64


def test_neighbouring_streams_are_uncorrelated():
    key = stream_key(2, repetition=0, purpose=Purpose.EXAMPLES)
    first = np.array([Stream.at(key, round_index=r, agent=0).uniforms(1)[0] for r in range(20_000)])
    by_agent = np.array(
        [Stream.at(key, round_index=0, agent=a).uniforms(1)[0] for a in range(20_000)]
    )
    for values in (first, by_agent):
        z = (values - 0.5) * np.sqrt(12.0)
        assert abs(z.sum()) < 4 * np.sqrt(z.size)
        assert abs((z[1:] * z[:-1]).sum()) < 4 * np.sqrt(z.size)  # each product has variance 1


def test_uniforms_have_the_mean_and_variance_of_the_uniform():
    u = Stream(11).uniforms(1_000_000)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 1 / 2) < 4 * np.sqrt(1 / 12 / u.size)
    square = (u - 1 / 2) ** 2  # mean 1/12, second moment 1/80
    assert abs(square.mean() - 1 / 12) < 4 * np.sqrt((1 / 80 - 1 / 144) / u.size)


def test_normals_have_the_moments_of_the_normal():
    x = Stream(12).normals(1_000_001)  # odd: the last pair gives one only
    for power, moment in [(1, 0), (2, 1), (3, 0), (4, 3), (6, 15)]:
        error = (x**power).std() / np.sqrt(x.size)
        assert abs((x**power).mean() - moment) < 4 * error
    pairs = x[:-1].reshape(-1, 2)
    assert abs(pairs.prod(axis=1).mean()) < 4 / np.sqrt(len(pairs))


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100])
def test_below_covers_its_range_evenly(bound):
    draws = 200_000
    out = np.empty(draws, np.int64)
    _many_below(Stream(bound).state, bound, out)
    counts = np.bincount(out, minlength=bound)
    assert counts.size == bound
    error = np.sqrt(draws * (1 / bound) * (1 - 1 / bound))
    assert np.all(np.abs(counts - draws / bound) <= 4 * error)


def test_below_stays_below_at_the_largest_uniform():
    largest = [0, 0, 0, WORD]  # its output is all ones
    for bound in (1, 3, 2**31 + 1, 2**53):
        out = np.empty(1, np.int64)
        _many_below(np.array(largest, dtype=np.uint64), bound, out)
        assert out[0] == bound - 1


def test_a_stream_comes_from_a_stream_a_generator_or_a_seed():
    stream = Stream(1)
    assert as_stream(stream) is stream
    np.testing.assert_array_equal(as_stream(1).uniforms(5), Stream(1).uniforms(5))
    assert (Stream(1).uniforms(5) != Stream(2).uniforms(5)).all()
    first, second = np.random.default_rng(3), np.random.default_rng(3)
    np.testing.assert_array_equal(as_stream(first).uniforms(5), as_stream(second).uniforms(5))
    # a generator goes on, so the next stream made from it is another
    assert (as_stream(first).uniforms(5) != Stream(np.random.default_rng(3)).uniforms(5)).all()
