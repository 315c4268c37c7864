"""Checks at the border: a user's value is looked at once, where it enters."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_whole(value: Any, *, name: str, least: int) -> int:
    """A whole number that is not too small."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value} must be a whole number >= {least}")
    return int(value)


def check_active(num_active: int, num_agents: int) -> int:
    """L, between 1 and K: compiled code would draw beyond the table."""
    check_whole(num_active, name="num_active", least=1)
    if num_active > num_agents:
        raise ValueError(f"num_active={num_active} exceeds num_agents={num_agents}")
    return int(num_active)
