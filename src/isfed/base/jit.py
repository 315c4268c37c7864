"""How the library compiles: one place for the options of Numba.

Python calls what is `compiled`. Compiled code calls what is `called`, or `inlined` in its loops,
where Numba would otherwise hand over every array as seven words and count references, or
`allocating` if it makes arrays. These three are parts, see `compiled_parts`: Python can call them,
but then they are compiled for that as well.

All release the interpreter's lock and divide as the hardware does, and what Python calls is cached
on disk. None allows reordering of floating-point sums: a result is the same whichever function it
was inlined into. Assign to slices by a loop: Numba checks their shapes with a message made of
strings, which takes three seconds to compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core.registry import CPUDispatcher

from isfed.base.compile_cache import cache_of
from isfed.base.compile_progress import watch_compilation
from isfed.base.jit_parts import Part, PartCompiler

watch_compilation()


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    njit: Any = numba.njit  # not all of its options are known to a type checker
    return njit(function, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)


def _whole(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = _jit(function, **options)
    if isinstance(dispatcher, CPUDispatcher):  # not where NUMBA_DISABLE_JIT is set
        cache = cache_of(function)
        if cache is not None:
            # What `cache=True` does, with a cache of our own:
            dispatcher._cache = cache  # pyright: ignore[reportAttributeAccessIssue]
    return dispatcher


def _part(function: Callable[..., Any], *, inline: bool = False, allocates: bool = False) -> Any:
    # Both are said in any case: left out, a function takes them over from its first caller.
    options = {"forceinline": inline, "_nrt": allocates}
    dispatcher = _jit(function, no_cpython_wrapper=True, pipeline_class=PartCompiler, **options)
    if isinstance(dispatcher, CPUDispatcher):
        dispatcher.__class__ = Part
        assert isinstance(dispatcher, Part)
        dispatcher.alone = functools.cache(lambda: _whole(function, **options))
    return dispatcher


def compiled(function: Callable[..., Any]) -> Any:
    """Compile what Python calls."""
    return _whole(function)


def called(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls now and then: a call of its own, no reference counts."""
    return _part(function)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls to make arrays."""
    return _part(function, allocates=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls: inlined everywhere, no reference counts, no allocation."""
    return _part(function, inline=True)
