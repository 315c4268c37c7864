"""From the keys of a TOML table to the arguments of a function, and back.

A function's parameters, or a dataclass's fields, say which keys there are, what they may hold and
what they are if they are not given.
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

REQUIRED = object()
PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
}


class ConfigError(ValueError):
    """Something in a configuration that cannot be used, said in one line."""


@dataclass(frozen=True)
class Argument:
    """One key: what it may hold, and what it is if it is not given."""

    name: str
    hint: Any
    default: Any = REQUIRED


def nearest(word: Any, known: Iterable[Any]) -> str:
    """The end of a message about a word that is not known."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def check_known(word: Any, known: Iterable[str], *, where: str) -> None:
    """Refuse a word that is none of those known."""
    if not isinstance(word, str) or word not in known:
        raise ConfigError(f"{where}={word!r} is not known{nearest(word, known)}")


def check_keys(
    given: Any, known: Iterable[str] | None = None, *, where: str, needed: Iterable[str] = ()
) -> None:
    """Refuse what is no table, a key that is not known, and a table without a key that it needs."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of keys, got {given!r}")
    known = list(given if known is None else known)
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {where}{nearest(key, known)}")
    for key in needed:
        if key not in given:
            raise ConfigError(f"{where} needs a key {key!r}")


def whole_number(given: Mapping[str, Any], key: str, least: int, where: str = "") -> int:
    """The value of a key that must be a whole number."""
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}{key}={value!r} must be a whole number >= {least}")
    return value


def arguments(factory: Callable, *, without: Iterable[str] = ()) -> dict[str, Argument]:
    """The keys that a function or a dataclass takes.

    >>> from isfed import FedAvgScheme
    >>> list(arguments(FedAvgScheme))
    ['step_size', 'num_active', 'local_steps', 'client_weights', 'full_batch', 'scheme', 'decay']
    """
    leave = set(without)
    return {name: one for name, one in _arguments(factory).items() if name not in leave}


@cache
def _arguments(factory: Callable) -> dict[str, Argument]:
    hints = get_type_hints(factory)
    by_name = {}
    if isinstance(factory, type) and is_dataclass(factory):
        for field in fields(factory):
            default = REQUIRED if field.default is MISSING else field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            if field.init:
                by_name[field.name] = Argument(field.name, hints[field.name], default)
    else:
        for name, parameter in inspect.signature(factory).parameters.items():
            default = REQUIRED if parameter.default is parameter.empty else parameter.default
            by_name[name] = Argument(name, hints.get(name, Any), default)
    return by_name


Reader = Callable[[Any, str], Any]  # from what the file says, and where, to an object


def read_arguments(
    given: Mapping[str, Any],
    known: Mapping[str, Argument],
    *,
    where: str,
    readers: Mapping[Any, Reader] | None = None,
) -> dict[str, Any]:
    """Every argument as an object: what the table gives, else the default.

    `readers` make the objects of some types, for instance of `Policy`, from their names.
    """
    check_keys(given, known, where=where)
    values = {}
    for name, argument in known.items():
        if name in given:
            here = f"{where}: {name}"
            values[name] = read_value(given[name], argument.hint, where=here, readers=readers)
        elif argument.default is REQUIRED:
            raise ConfigError(f"{where} needs a key {name!r} ({expected_value(argument.hint)})")
        else:
            values[name] = argument.default
    return values


def read_value(
    value: Any, hint: Any, *, where: str, readers: Mapping[Any, Reader] | None = None
) -> Any:
    """One value of a file as an object of a type; a ConfigError says what was expected."""
    readers = readers or {}
    if hint is Any:
        return value
    if hint in readers:
        return readers[hint](value, where)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return read_value(value, option, where=where, readers=readers)
            except ConfigError as error:
                table = isinstance(value, Mapping) and is_dataclass(option)
                if option in readers or table:  # says more than a list of what could have been
                    raise error from None
    elif origin is Literal:
        if value in get_args(hint) and not isinstance(value, bool):
            return value
        options = [option for option in get_args(hint) if isinstance(option, str)]
        if isinstance(value, str) and difflib.get_close_matches(value, options, n=1):
            raise ConfigError(f"{where}={value!r} is not known{nearest(value, options)}")
    elif origin in (tuple, list, Sequence):
        if isinstance(value, list | tuple):
            return _sequence(value, hint, where=where, readers=readers)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        names = {_kebab(member): member for member in hint}
        if value in names:
            return names[value]
        raise ConfigError(f"{where}={value!r} is not known{nearest(value, names)}")
    elif isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        options = read_arguments(value, arguments(hint), where=where, readers=readers)
        return make(hint, options, where=where)
    elif hint in PLAIN:
        plain = _plain(value, hint)
        if plain is not None:
            return plain
    raise ConfigError(f"{where}={value!r} must be {expected_value(hint)}")


def _plain(value: Any, hint: type) -> Any:
    if hint is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if hint is int:
        return value if isinstance(value, int) else None
    if hint is float:
        return float(value) if isinstance(value, int | float) else None
    return hint(value) if isinstance(value, str) and value else None


def _sequence(value: Sequence, hint: Any, *, where: str, readers: Mapping[Any, Reader]) -> tuple:
    parts = get_args(hint) or (Any,)
    variable = len(parts) == 1 or parts[-1] is Ellipsis
    if not variable and len(parts) != len(value):
        raise ConfigError(f"{where}={list(value)!r} must be {expected_value(hint)}")
    wanted = [parts[0]] * len(value) if variable else parts
    try:
        return tuple(
            read_value(part, kind, where=where, readers=readers)
            for part, kind in zip(value, wanted, strict=True)
        )
    except ConfigError:
        raise ConfigError(f"{where}={list(value)!r} must be {expected_value(hint)}") from None


def expected_value(hint: Any) -> str:
    """What a key may hold, in words."""
    origin = get_origin(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is Any:
        return "any value"
    if origin in (Union, types.UnionType):
        return " or ".join(
            expected_value(part) for part in get_args(hint) if part is not type(None)
        )
    if origin is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    if origin in (tuple, list, Sequence):
        parts = get_args(hint) or (Any,)
        if len(parts) == 1 or parts[-1] is Ellipsis:
            return f"a list, each entry {expected_value(parts[0])}"
        return f"a list of {len(parts)} entries, each {expected_value(parts[0])}"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"a table with the keys {', '.join(arguments(hint))}"
    return f"a {getattr(hint, '__name__', str(hint))}".lower()


def make(factory: Callable, options: Mapping[str, Any], *, where: str) -> Any:
    """Call a function with what a file says; what it refuses is a mistake in the file."""
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _kebab(member: Enum) -> str:
    return member.name.lower().replace("_", "-")


def write_value(value: Any) -> Any:
    """What a file says to give that value."""
    if isinstance(value, Enum):
        return _kebab(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [write_value(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return write_table({field.name: getattr(value, field.name) for field in fields(value)})
    return str(value) if isinstance(value, Path) else value


def write_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """A table that gives those values; what is None is left out: TOML has no word for it."""
    return {name: write_value(value) for name, value in values.items() if value is not None}
