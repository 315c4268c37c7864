"""How the library compiles: one place for the options of Numba.

Python calls what is `compiled`, which is cached on disk. Compiled code calls what is `jit_call`;
`jit_inline` in its loops, where Numba would hand over arrays as seven words and count references;
`jit_alloc` to make arrays. These three are parts: they stop at LLVM's intermediate code, and all is
optimised once, in the function that Python calls, not again at each of ten levels of calls.

All release the interpreter's lock and divide as the hardware does. None reorders floating-point
sums: a result does not depend on what was inlined. Assign to slices by a loop: Numba checks their
shapes with a message made of strings, which takes three seconds to compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numba
import numpy as np
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

from isfed.base.compile_cache import cache_of
from isfed.base.progress import watch_compilation

watch_compilation()


def _njit(function: Callable[..., Any], **options: Any) -> Any:
    njit: Any = numba.njit  # not all of its options are known to a type checker
    return njit(function, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile what Python calls."""
    dispatcher = _njit(function, **options)
    if isinstance(dispatcher, CPUDispatcher):  # not where NUMBA_DISABLE_JIT is set
        cache = cache_of(function)
        if cache is not None:
            # What `cache=True` does, with a cache of our own:
            dispatcher._cache = cache  # pyright: ignore[reportAttributeAccessIssue]
    return dispatcher


class TypedOnce:
    """A compiled function whose arguments keep their types, but for some arrays.

    Numba looks up the types of all arguments at every call, which takes as long as the turns of a
    few agents. Here that is done once for each kind of these arrays.
    """

    known: ClassVar[dict[Any, Any]] = {}  # the entry points by function and kinds of all arguments

    def __init__(self, function: Any) -> None:
        self.function = function
        self.entries: dict[Any, Any] = {}  # by the kinds of the arrays

    def __call__(self, arrays: tuple[np.ndarray, ...], *args: Any) -> Any:
        """Call the function; `arrays` are those of the arguments whose types may change."""
        kinds = tuple([(array.dtype, array.ndim, array.flags.num) for array in arrays])
        entry = self.entries.get(kinds)
        if entry is None:
            entry = self.entries[kinds] = self._entry(args)
        return entry(*args)

    def _entry(self, args: tuple[Any, ...]) -> Any:
        function = self.function
        if not isinstance(function, CPUDispatcher):  # NUMBA_DISABLE_JIT is set
            return function
        key = function, _kind(args)
        if key not in self.known:
            types = tuple(function.typeof_pyval(arg) for arg in args)
            self.known[key] = function.compile(types)
        return self.known[key]


def _kind(value: Any) -> Any:
    """What Numba's type of a value depends on; to compare it is faster than to ask Numba."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.num
    return (type(value), *map(_kind, value)) if isinstance(value, tuple) else type(value)


def jit_call(function: Callable[..., Any], *, inline: bool = False, allocates: bool = False) -> Any:
    """Compile what compiled code calls now and then: a call of its own, no reference counts."""
    # Both are said in any case: left out, a function takes them over from its first caller.
    options = {"forceinline": inline, "_nrt": allocates}
    dispatcher = _njit(function, no_cpython_wrapper=True, pipeline_class=_PartCompiler, **options)
    if isinstance(dispatcher, CPUDispatcher):
        dispatcher.__class__ = _Part
        assert isinstance(dispatcher, _Part)
        dispatcher.alone = functools.cache(lambda: compiled(function, **options))
    return dispatcher


# Inlined everywhere, no reference counts, no allocation; and a call that may make arrays.
jit_inline = functools.partial(jit_call, inline=True)
jit_alloc = functools.partial(jit_call, allocates=True)


class _PartLibrary(JITCodeLibrary):
    """The intermediate code of a part and of its own parts, neither optimised nor made to run."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


class _PartCompiler(Compiler):
    """Numba's way from Python to intermediate code, and no further."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        self.state.flags.no_compile = True
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        # What other compiled code knows the part by; for other functions it is what Python calls.
        result = result._replace(entry_point=object())
        self.state.targetctx.insert_user_function(
            result.entry_point, result.fndesc, [result.library]
        )
        return result


class _Part(CPUDispatcher):
    """A part; when Python calls it after all, it is compiled as a function of its own."""

    alone: Callable[[], Any]  # compiles it so

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # A constant is a number like any other.
        return super().get_call_template(tuple(types.unliteral(kind) for kind in args), kws)

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres  # for compiled code alone

    def __call__(self, *args: Any) -> Any:
        return self.alone()(*args)
