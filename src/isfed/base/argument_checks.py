"""What a user gives, checked once, where it enters; every error names the argument.

Kinds of values are checked by annotation; which values make sense is for each function to say.
`check_scalar` of scikit-learn takes half a second to import, and accepts True for a number.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text",
    Path: "a path", type(None): "None",
}  # fmt: skip
NOT_NUMBERS = (bool, np.timedelta64)  # which Python and NumPy count among the whole numbers
LONGEST = 80  # characters of a value that a message shows
LARGEST_WHOLE = 2**63 - 1  # that compiled code and arrays can count to
_NEVER_OBJECTS = (
    bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None), type, np.ndarray,
    np.generic,
)  # fmt: skip


def shown(value: Any) -> str:
    """A value as a message shows it."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object of somebody else's may refuse
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def is_number(value: Any, *, infinite: bool = False) -> bool:
    """Whether a value is a real number; finite, unless infinity will do."""
    if not isinstance(value, Real) or isinstance(value, NOT_NUMBERS):
        return False
    try:
        return not math.isnan(value) if infinite else math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, of Python or NumPy."""
    # Test for int first: the check of an abstract class is slow.
    return type(value) is int or (
        isinstance(value, Integral) and not isinstance(value, NOT_NUMBERS)
    )


def matches(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says; what cannot be checked is accepted.

    >>> matches(3, float), matches(True, int), matches(math.nan, float), matches([1, 2], list[int])
    (True, False, False, True)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is int or hint is float:  # infinity may be a limit; not-a-number is nothing
        return is_whole(value) if hint is int else is_number(value, infinite=True)
    if hint is Path:
        return isinstance(value, str | Path)
    if origin in (Union, types.UnionType):
        return any(matches(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in parts)
    if origin is Callable or hint is Callable:
        return callable(value)
    if origin in (tuple, list, Sequence):
        return _matches_sequence(value, parts)
    # Arrays are looked at where they are made of what was given: a list will do.
    if isinstance(hint, type) and not issubclass(hint, Mapping | np.ndarray):
        if getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", 0):
            return not isinstance(value, _NEVER_OBJECTS)
        # A class where an object is expected: the brackets were forgotten.
        return isinstance(value, hint) and not isinstance(value, type)
    return True


def _matches_sequence(value: Any, parts: tuple) -> bool:
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__len__"):
        return False  # a set has no order
    if isinstance(value, np.ndarray) and (value.ndim == 0 or np.ma.is_masked(value)):
        return False
    if not parts or not hasattr(value, "__iter__"):
        return hasattr(value, "__iter__")
    if len(parts) == 1 or parts[-1] is Ellipsis:
        return all(matches(part, parts[0]) for part in value)
    return len(value) == len(parts) and all(map(matches, value, parts))


def expected(hint: Any) -> str:
    """What an annotation asks for, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(option) for option in parts)
    if origin in (tuple, list, Sequence):
        if not parts or len(parts) == 1 or parts[-1] is Ellipsis:
            return f"a list, each {expected(parts[0])}" if parts else "a list"
        return f"{len(parts)} values, each {expected(parts[0])}"
    if origin is Callable or hint is Callable:
        return "a function"
    name = getattr(hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    """The annotations as types; none if one of them is known to type checkers alone."""
    try:
        return get_type_hints(owner)
    except Exception:
        return {}


def check_argument(name: str, value: Any, hint: Any) -> None:
    """Raise an error by name unless the value is what the annotation says."""
    if not matches(value, hint):
        plain = isinstance(value, str | Real) or value is None or get_origin(hint) is Literal
        wrong = ValueError if plain else TypeError
        raise wrong(f"{name}={shown(value)} must be {expected(hint)}")


def check_fields(record: Any) -> None:
    """Look at every field of a dataclass; call it first thing in `__post_init__`."""
    if not is_dataclass(record):
        return
    hints = _hints(type(record))
    for field in fields(record):
        if field.init and field.name in hints:
            value = getattr(record, field.name)
            check_argument(field.name, value, hints[field.name])
            if isinstance(value, np.integer | np.floating):  # of few bits, which overflow
                plain = int(value) if isinstance(value, np.integer) else float(value)
                object.__setattr__(record, field.name, plain)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Have the arguments of a function looked at before it runs.

    >>> @checked
    ... def double(*, count: int) -> int:
    ...     return 2 * count
    >>> double(count=1.5)
    Traceback (most recent call last):
    ValueError: count=1.5 must be a whole number
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints:
                check_argument(name, value, hints[name])
        return function(*args, **kwargs)

    return call


def check_whole(value: Any, *, name: str, least: int) -> int:
    """A whole number that is not too small."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}={shown(value)} must be a whole number >= {least}")
    if value > LARGEST_WHOLE:
        raise ValueError(f"{name}={shown(value)} must be a whole number, at most {LARGEST_WHOLE}")
    return int(value)


def check_seed(value: Any) -> int:
    """A whole number that is not negative, of any size."""
    if not is_whole(value) or value < 0:
        raise ValueError(f"seed={shown(value)} must be a whole number >= 0")
    return int(value)


def check_share(value: Any, *, name: str) -> float:
    """A number above 0 and at most 1."""
    if not (is_number(value) and 0.0 < value <= 1.0):
        raise ValueError(f"{name}={shown(value)} must be in (0, 1]")
    return float(value)


def check_positive(value: Any, *, name: str) -> float:
    """A finite number above 0."""
    if not (is_number(value) and value > 0.0):
        raise ValueError(f"{name}={shown(value)} must be a positive number")
    return float(value)


def as_numbers(value: Any, *, name: str, objects: bool = False) -> np.ndarray:
    """An array of real numbers or truth values, in the type that it has.

    With `objects` also of fractions and their like, as floats.
    """
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ValueError(f"{name} has masked entries; fill them in or leave them out")
    try:
        array = np.asarray(value)
    except Exception:  # an object of somebody else's may refuse in any way
        raise ValueError(f"{name}={shown(value)} must be numbers in rows of equal length") from None
    if objects and array.dtype.kind == "O" and all(isinstance(entry, Real) for entry in array.flat):
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{name} holds a number that float64 does not: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got an array of {array.dtype}")
    return array


def check_vector(value: Any, *, name: str, size: int) -> np.ndarray:
    """So many finite numbers as a new float64 vector."""
    vector = np.array(as_numbers(value, name=name), dtype=np.float64)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{name} must be {size} finite numbers, got shape {vector.shape}")
    return vector


def check_active(num_active: int, num_agents: int) -> int:
    """L, between 1 and K: compiled code would draw beyond the table."""
    check_whole(num_active, name="num_active", least=1)
    if num_active > num_agents:
        raise ValueError(
            f"num_active={num_active} exceeds num_agents={num_agents}; use at most {num_agents}"
        )
    return int(num_active)
