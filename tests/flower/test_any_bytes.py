"""Whatever bytes, records and numbers come over the wire: the right ones, or a WireError."""

# pyright: reportMissingImports=false
import math
from typing import Any

import hostile
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from isfed import ISFedAvg
from isfed.federation.safety import ScoreRange
from isfed.flower import evaluation, wire_format
from isfed.flower.array_records import Layout, WireError, read_bytes

MODEL = np.array([[1.0, -2.0, 3.0]])
LAYOUT = Layout.of(ArrayRecord({"w": Array(MODEL)}))
RULES = ISFedAvg(step_size=0.01, num_active=1).rules(2)
GOOD = hostile.saved(MODEL)
QUICK = settings(max_examples=300, deadline=None, derandomize=True, database=None)

numbers = (
    st.integers(-(2**63), 2**63 - 1) | st.floats() | st.sampled_from([2**64, -1, math.nan, 1e308])
)
texts = st.text(max_size=20) | st.sampled_from(["-1", "ff" * 9, "../..", "\0", "Deville", "1e9"])
values = (
    numbers | st.booleans() | texts | st.binary(max_size=9) | st.lists(numbers, max_size=3)
    | st.lists(texts, max_size=3)
)  # fmt: skip


@st.composite
def near_misses(draw):
    """The bytes of a good array with some of them cut out, replaced or put in."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 12))
        data[at : at + size] = draw(st.binary(max_size=12))
    return bytes(data)


@QUICK
@given(st.binary(max_size=200) | near_misses() | st.binary(max_size=60).map(hostile.headed))
def test_an_array_is_read_as_it_was_written_or_refused(data):
    try:
        found = read_bytes(data, dtype="float64", shape=(1, 3))
    except WireError:
        return
    assert found.shape == (3,)
    assert found.tobytes() == data[-24:]


@QUICK
@given(
    data=st.just(GOOD) | near_misses(),
    dtype=st.just("float64") | texts,
    shape=st.just((1, 3)) | st.lists(st.integers(-3, 10**15), max_size=5).map(tuple),
    name=st.just("w") | texts,
    score=numbers | st.lists(numbers, max_size=2),
    digest=st.none() | values,
)
def test_an_upload_is_the_one_that_was_sent_or_refused(data, dtype, shape, name, score, digest):
    change = ArrayRecord({name: hostile.labelled(data, dtype=dtype, shape=shape)})
    digest = wire_format.digest(change) if digest is None else digest
    content = RecordDict({"change": change, "metrics": _record(MetricRecord, {"score": score})})
    content["isfed"] = _record(ConfigRecord, {"digest": digest})
    try:
        upload = wire_format.unpack_upload(content, LAYOUT)
    except WireError:
        return
    except OverflowError:  # a whole number beyond every float; a reply is refused for any error
        assert isinstance(score, int)
        return
    assert (name, shape, upload.change.shape) == ("w", (1, 3), (3,))
    assert upload.change.tobytes() == data[-24:]


def _record(kind, fields):
    """A record of Flower's, empty if it does not take the fields."""
    try:
        return kind(fields)
    except (TypeError, ValueError):
        return kind()


ORDER: Any = dict(
    wire_format.pack_request(
        wire_format.AgentRequest("job", 0, 0, 0.5, 7, RULES, ScoreRange(0.1, 9.0))
    )["isfed"]
)


@QUICK
@given(st.dictionaries(st.sampled_from(sorted(ORDER)), values, min_size=1, max_size=3))
def test_an_order_is_possible_or_refused(fields):
    content = RecordDict({"isfed": _record(ConfigRecord, {**ORDER, **fields})})
    try:
        order = wire_format.unpack_request(content)
    except WireError:
        return
    np.uint64(order.key)
    np.int64(order.round_index)
    assert 0 <= order.agent < order.rules.num_agents
    assert 0.0 < order.rules.step_size < math.inf
    assert order.agent_prob is not None
    assert 0.0 < order.agent_prob <= 1.0


@QUICK
@given(st.lists(st.dictionaries(texts, numbers | st.lists(numbers, max_size=3), max_size=4)))
def test_metrics_are_finite_and_alike_or_left_out(told):
    records = {k: _record(MetricRecord, metrics) for k, metrics in enumerate(told)}
    found = evaluation.training_metrics(records, "n")
    assert len({tuple(sorted(metrics)) for metrics in found}) <= 1
    for metrics in found:
        assert metrics["n"] > 0.0
        assert all(np.isfinite(np.asarray(value, float)).all() for value in metrics.values())
    evaluation.limited(found, "n")
    evaluation.medians(found, "n")


@pytest.mark.parametrize("key", ["-1", "1" + "0" * 16])
def test_a_key_beyond_64_bits_is_refused(key):
    with pytest.raises(WireError, match=r"key=-?[0-9]+ makes no sense"):
        wire_format.unpack_request(RecordDict({"isfed": ConfigRecord({**ORDER, "key": key})}))
