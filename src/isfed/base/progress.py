"""Long computations say what they are doing; whoever started them decides whether to show it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Have `listener` called with what is being done, now and then, inside the block.

    >>> with listening(print):
    ...     say("finding the optimum")
    finding the optimum
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def say(what: str) -> None:
    """Tell the listener, if there is one; cheap enough for every pass over the data."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)
