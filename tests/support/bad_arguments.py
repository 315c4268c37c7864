"""Values that an argument does not take, by kind, and how a refusal is judged."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

THING = object()
MADE = ("problem", "algorithm", "data", "rules")  # where the table has a function that makes one
MASKED = np.ma.masked_array([0.5, 0.5], mask=[True, False])
PAIR = np.array([1.0, 2.0])  # whose truth is ambiguous
LONE = np.array(0.5)  # without a length
SPAN = np.timedelta64(1, "s")  # which NumPy counts among the whole numbers


class Stubborn:
    """What cannot be made an array of."""

    def __array__(self, *given, **more):
        raise RuntimeError("no")


NEVER_NUMBERS = [
    None, "x", "2", b"1", math.nan, True, np.True_, [], {}, THING, 1j, PAIR, LONE, SPAN,
    np.ma.masked,
]  # fmt: skip
BAD: dict[str, list[Any]] = {
    "whole": [*NEVER_NUMBERS, -1, 1.5, math.inf, 1e300],
    "number": [*NEVER_NUMBERS, 10**400],
    "positive": [*NEVER_NUMBERS, 0.0, -1.0, math.inf, 10**400],
    "limit": [*NEVER_NUMBERS, -1.0],  # a positive number, or infinity
    "amount": [*NEVER_NUMBERS, -1.0, math.inf],
    "share": [*NEVER_NUMBERS, -0.1, 1.1, math.inf],
    "range": [None, "x", 7, [], (1.0,), ("a", "b"), (math.nan, 1.0), (2.0, 1.0), THING, LONE,
              {1.0, 2.0}, MASKED],
    "flag": [None, "x", 1, math.nan, [], PAIR, THING],
    "word": [None, 1, "no such word", [], PAIR, {}, THING],
    "text": [None, 1, [], PAIR, {}, THING],
    "object": [7, "no such word", math.nan, [], PAIR, LONE, SPAN, {}, THING, int],
    "function": [7, "x", [], PAIR, THING],
    "array": ["x", THING, {}, [[1.0], [2.0, 3.0]], [1j, 1j], MASKED, [math.nan, 1.0], Stubborn(),
              [10**400, 1.0]],
    "costs": [None, "x", 7, THING, LONE, {1.0}, {1: 2}, iter([1.0]), [0.0], ["1"], [math.nan]],
    "rounds": [None, "x", "all", 7, THING, LONE, {1}, {1: 2}, iter([1]), [-1], [0.5], [10**6],
               [True], ["1"], [math.nan], PAIR, MASKED, [[1]], [10**400]],
    "rng": [None, "x", 1.5, -1, math.nan, True, [], PAIR, THING],
    "units": ["x", THING, [0.5], MASKED],
    "pair": [None, "x", 7, [], (1.0,), ("a", "b"), (math.nan, 1.0), THING, LONE, {1.0, 2.0}],
    "path": [None, 7, [], PAIR, THING],
    "columns": [7, "x", THING, np.array("x"), {"x"}],
    "filling": [None, "x", [], PAIR, {}, THING, math.nan, True],
    "int": [*NEVER_NUMBERS, 1.5, math.inf],
}  # fmt: skip


def wrong_of(kind: str) -> list[Any]:
    optional = kind.endswith("?")
    return [v for v in BAD[kind.rstrip("?")] if not (optional and v is None)]


def complaint(call: Any, given: dict, name: str, value: Any) -> str | None:
    """What is wrong with how a call takes a wrong value; None if it refuses it by name."""
    arguments = {k: v() if callable(v) and k in MADE else v
                 for k, v in given.items()}  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**arguments | {name: value})
    except (ValueError, TypeError) as error:
        said = str(error)
        if name in said and len(said) < 1000 and "unexpected keyword" not in said:
            return None
        return f"{name}={value!r:.40}: {type(error).__name__}: {said[:160]}"
    except Exception as error:
        return f"{name}={value!r:.40}: {type(error).__name__} {str(error)[:160]}"
    return f"{name}={value!r:.40} was accepted"


def complaints(call: Any, given: dict, kinds: dict[str, str]) -> list[str]:
    """What is wrong with how a call takes every wrong value of every argument; [] if nothing is."""
    found = [
        complaint(call, given, argument, value)
        for argument, kind in kinds.items()
        for value in wrong_of(kind)
    ]
    return [text for text in found if text]
