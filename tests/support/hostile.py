"""Replies of agents that are wrong or hostile: name -> what it does to an honest reply."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import io
import math
import struct
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

LONG = 1_000_000


def saved(array: np.ndarray, **options: Any) -> bytes:
    """The bytes of np.save."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def headed(header: bytes, body: bytes = b"\0" * 16, *, version: int = 1) -> bytes:
    """Bytes with a header of one's own."""
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + body


def archive() -> bytes:
    """The bytes of np.savez."""
    file = io.BytesIO()
    np.savez(file, params=np.zeros(2))
    return file.getvalue()


def send(reply, arrays: Any, score: Any = 1.0, **records: Any):
    """Put arrays, with the digest that an honest agent would send, into a reply."""
    arrays = arrays if isinstance(arrays, ArrayRecord) else ArrayRecord({"params": arrays})
    found = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        found.update(array.data)
    content: dict[str, Any] = {
        "change": arrays,
        "metrics": MetricRecord({"score": score}),
        "isfed": ConfigRecord({"digest": found.hexdigest()}),
        **records,
    }
    content = {name: record for name, record in content.items() if record is not None}
    reply.__dict__["_content"] = RecordDict(content)
    return reply


def labelled(data: bytes, *, dtype: str = "float64", shape: tuple[int, ...] = (2,)) -> Array:
    """Bytes that are said to be an array."""
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


def error(reply, reason: str):
    """An error in place of content."""
    reply.__dict__.update(_content=None, _error=Error(2, reason))
    return reply


def empty(reply):
    """Neither content nor an error."""
    reply.__dict__.update(_content=None, _error=None)
    return reply


def _bytes(data: bytes, **label: Any):
    return lambda reply: send(reply, labelled(data, **label))


_PAIR = np.zeros(2, [("a", "<f8"), ("b", "<i4")])
_HEAD = "{'descr': '<f8', 'fortran_order': False, 'shape': %s, }\n"
UNREADABLE = {
    "strings": lambda r: send(r, Array(np.array(["a", "b"]))),
    "strings labelled as numbers": _bytes(saved(np.array(["a", "b"]))),
    "a structured type": lambda r: send(r, Array(_PAIR)),
    "a structured type labelled as numbers": _bytes(saved(_PAIR)),
    "dates": _bytes(saved(np.zeros(2, "datetime64[s]"))),
    "complex numbers": _bytes(saved(np.zeros(2, complex))),
    "integers": _bytes(saved(np.zeros(2, np.int64))),
    "half precision": _bytes(saved(np.zeros(2, np.float16))),
    "the wrong byte order": _bytes(saved(np.zeros(2, ">f8"))),
    "pickled objects": _bytes(saved(np.array([{}, []], object), allow_pickle=True)),
    "an archive": _bytes(archive()),
    "bytes that begin like an archive": _bytes(b"PK\x03\x04" + b"\0" * 100),
    "no bytes": _bytes(b""),
    "only the first six bytes of a file": _bytes(b"\x93NUMPY"),
    "half a header": _bytes(saved(np.zeros(2))[:40]),
    "a header that does not end": _bytes(headed(b"{'descr': '<f8', 'shape': (\n")),
    "a header that is not a dictionary": _bytes(headed(b"[" * 500 + b"\n")),
    "a header that calls a function": _bytes(headed(b"__import__('os').getpid()\n")),
    "a header of four gigabytes": _bytes(headed(b"", version=2)[:8] + b"\xff" * 4 + b"{" * 99),
    "a version that does not exist": _bytes(b"\x93NUMPY\x09\x00" + b"\0" * 99),
    "a shape of 10^15": _bytes(headed((_HEAD % "(1000000000000000,)").encode())),
    "a negative shape": _bytes(headed((_HEAD % "(-2,)").encode())),
    "a shape that is not a number": _bytes(headed((_HEAD % "('x',)").encode())),
    "another shape than labelled": _bytes(saved(np.zeros((2, 2)))),
    "too few numbers": _bytes(saved(np.zeros(2))[:-1]),
    "too many numbers": _bytes(saved(np.zeros(2)) + b"\0" * 8),
    "another shape": lambda r: send(r, Array(np.zeros(3))),
    "a scalar": lambda r: send(r, Array(np.zeros(()))),
    "a label of 100 000 dimensions": _bytes(saved(np.zeros(2)), shape=(1,) * 100_000),
    "a label that is a long word": _bytes(saved(np.zeros(2)), dtype="f" * LONG),
    "no arrays": lambda r: send(r, ArrayRecord()),
    "10 000 arrays": lambda r: send(
        r, ArrayRecord({f"a{i}": labelled(b"") for i in range(10_000)})
    ),
    "a name with line breaks": lambda r: send(
        r, ArrayRecord({"\x1b[2J\nround 9: 5 of 5 answered" * 99: labelled(b"")})
    ),
    "no change": lambda r: send(r, Array(np.zeros(2)), change=None),
    "no metrics": lambda r: send(r, Array(np.zeros(2)), metrics=None),
    "a configuration as change": lambda r: send(r, Array(np.zeros(2)), change=ConfigRecord()),
    "a change without its digest": lambda r: send(r, Array(np.zeros(2)), isfed=None),
    "a change that was altered on its way": lambda r: send(
        r, Array(np.ones(2)), isfed=ConfigRecord({"digest": "0" * 32})
    ),
    "an empty reply": empty,
    "values that are not numbers": lambda r: send(r, Array(np.full(2, math.nan))),
    "infinite values": lambda r: send(r, Array(np.array([math.inf, 0.0]))),
    "a change that overflows": lambda r: send(r, Array(np.full(2, 1e300))),
    "a change a million times the others'": lambda r: send(r, Array(np.full(2, 1e6))),
}
FAILURES = {
    "an error of ten megabytes": lambda r: error(r, "x" * 10 * LONG),
    "an error that imitates log lines": lambda r: error(r, "bad\n\x1b[1mround 9: 5 of 5 answered"),
    "an error without a reason": lambda r: error(r, ""),
}
SCORES = {
    "a negative score": lambda r: send(r, Array(np.zeros(2)), -1.0),
    "an infinite score": lambda r: send(r, Array(np.zeros(2)), math.inf),
    "an enormous score": lambda r: send(r, Array(np.zeros(2)), 1e200),
    "a score that is not a number": lambda r: send(r, Array(np.zeros(2)), math.nan),
    "a list of scores": lambda r: send(r, Array(np.zeros(2)), [1.0, 2.0]),
    "no score": lambda r: send(r, Array(np.zeros(2)), metrics=MetricRecord({})),
}
REFUSED = "nothing: refused and counted; the model is the same as if the agent were absent"
ABSENT = "nothing: counts as an absence; what it writes into the log is cut to a line"
KEPT = "nothing: the score is refused and counted; its change counts like any other"
# What was tried elsewhere: name -> (what it achieved, the test that tries it).
ELSEWHERE = {
    "a reply that Flower itself cannot decode": (
        "nothing: refused, and no other reply is lost with it",
        "tests/flower/test_hostile.py",
    ),
    "200 megabytes in place of a change": (
        "**the cloud loads them**, then refuses and counts them",
        "tests/network/test_faults.py",
    ),
    "refused models in every round": (
        "the agent is left out after three of them, and reported",
        "tests/flower/test_hostile.py",
    ),
    "a change as long as the others', in any direction": (
        "**moves the model** by its length over L K p_k: poisoning is not prevented",
        "tests/flower/test_replies.py",
    ),
    "a huge change before three agents have been heard": (
        "**accepted** up to `largest_change`: there is no median yet to compare it with",
        "tests/federation/test_agent_records.py",
    ),
    "two replies to one message": ("nothing: it counts once", "tests/flower/test_replies.py"),
    "the reply of an earlier round again": (
        "nothing: counts as an absence",
        "tests/flower/test_replies.py",
    ),
    "an answer to another agent's message": (
        "the other is absent in that round; the answer is not used. It needs the message's id, "
        "which the other agent alone is told",
        "tests/flower/test_replies.py",
    ),
    "a tiny score in every round, to weigh more when drawn": (
        "fewer turns, in which its change **counts up to 1 / `floor` times**; no more on average",
        "tests/flower/test_replies.py",
    ),
    "changes that overflow a model of half precision, before three agents have been heard": (
        "nothing: the step that would overflow is left out, and the model stays finite",
        "tests/flower/test_replies.py",
    ),
    "training metrics named like the cloud's own counts": (
        "nothing: the cloud's counts stay",
        "tests/flower/test_replies.py",
    ),
    "any bytes, labels and records that Hypothesis thinks of": (
        "nothing: read as they were sent, or refused",
        "tests/flower/test_any_bytes.py",
    ),
    "a huge score in every round": (
        "more turns, up to the cap; no more weight",
        "tests/federation/test_guarded.py",
    ),
    "an evaluation of 1e300 examples": (
        "counts as ten times the median agent",
        "tests/flower/test_evaluation.py",
    ),
    "the same by one of only two agents": (
        "counts as ten times the other",
        "tests/flower/test_evaluation.py",
    ),
    "a malformed evaluation": ("nothing: left out", "tests/flower/test_evaluation.py"),
    "a million metrics, or metrics whose names are log lines": (
        "nothing: left out",
        "tests/flower/test_evaluation.py",
    ),
    "an evaluation by a stranger, or by an agent that was left out": (
        "nothing: not asked",
        "tests/flower/test_evaluation.py",
    ),
    "asking again under 400 job names to average the score's noise away": (
        "the same noise every time",
        "tests/flower/test_client.py",
    ),
    "a cloud that calls the agent by other numbers to get other noise": (
        "the same noise every time",
        "tests/flower/test_client.py",
    ),
    "a cloud that begins job after job to fill the agent's disk": (
        "old files are removed",
        "tests/flower/test_client.py",
    ),
    "a cloud that calls the agent by number after number, with the same aim": (
        "old files are removed",
        "tests/flower/test_client.py",
    ),
    "a job named like a path": (
        "nothing: no file outside the agent's folder",
        "tests/flower/test_client.py",
    ),
    "setting the agent's clock back for another day's budget of reports": (
        "nothing: every day's reports are counted once",
        "tests/flower/test_client.py",
    ),
    "another user of the agent's host who made its folder first": (
        "nothing: the folder is not used",
        "tests/flower/test_client.py",
    ),
    "a second node that claims the number of another": (
        "not believed while the first is there",
        "tests/flower/test_strategy.py",
    ),
    "a second node under the registered name of another, which Flower allows": (
        "neither is asked while both are online, and the log says so",
        "tests/flower/test_node_directory.py",
    ),
    "Flower's differential privacy around the strategy": (
        "the run ends with an error that says why",
        "tests/flower/test_privacy.py",
    ),
    "a node with a key that was never registered": (
        "not let in",
        "tests/network/test_faults.py",
    ),
    "a node without a key": ("not let in", "tests/network/test_faults.py"),
    "a second node with the key of one that is online": (
        "not let in",
        "tests/network/test_faults.py",
    ),
    "a node without TLS": ("not let in", "tests/network/test_faults.py"),
    "a node with a stolen key that was revoked": ("not let in", "tests/network/test_faults.py"),
}


def attack_table() -> str:
    """The table of docs/appendix/federation.md: what one test tries with one end shares a row."""
    here = "tests/flower/test_hostile.py"
    rows = [
        (
            f"a change that cannot be used, in {len(UNREADABLE)} ways: {_list(UNREADABLE)}",
            REFUSED,
            here,
        ),
        (_list(FAILURES), ABSENT, here),
        (_list(SCORES), KEPT, here),
        *((name, *found) for name, found in ELSEWHERE.items()),
    ]
    lines = ["| attack | what it achieved | tried in |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {a} | {b} | {c} |" for a, b, c in rows)])


def _list(attacks: dict[str, Any]) -> str:
    return "; ".join(attacks)
