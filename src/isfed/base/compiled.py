"""How the library compiles: one place for the options of Numba.

`compiled` is for what is called from Python, `inlined` for what compiled code calls in its loops:
without it Numba hands every array over as seven words and counts references at every call; every
level of inlining is compiled once more, so `called` stands where a call costs nothing beside the
work. All cache on disk, release the interpreter's lock and divide as the hardware does. None allows
reordering of floating-point sums: a result is the same whichever function it was inlined into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.registry import CPUDispatcher

from isfed.base.compile_cache import cache_of
from isfed.base.compiling import watch_compilation

watch_compilation()


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher: Any = numba.njit(function, nogil=True, error_model="numpy", **options)
    if isinstance(dispatcher, CPUDispatcher):  # not where NUMBA_DISABLE_JIT is set
        cache = cache_of(function)
        if cache is not None:
            # What `cache=True` does, with a cache of our own:
            dispatcher._cache = cache  # pyright: ignore[reportAttributeAccessIssue]
    return dispatcher


def compiled(function: Callable[..., Any]) -> Any:
    """Compile what Python calls."""
    return _jit(function)


def called(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls now and then: a call of its own, no reference counts."""
    return _jit(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls: inlined everywhere, no reference counts, no allocation."""
    return _jit(function, forceinline=True, _nrt=False)
