"""Compiled functions that other compiled functions are made of.

Numba optimises every function on its own and makes machine code of it, and does so again with
whatever function it is called from, and again one level higher: a draw ten calls deep is compiled
ten times. Nobody runs a part by itself, so a part stops at LLVM's intermediate code, and all is
optimised once, in the function that Python calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher


class _PartLibrary(JITCodeLibrary):
    """The intermediate code of a part and of its own parts, neither optimised nor made to run."""

    def finalize(self) -> None:
        """Put everything into one module."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


class PartCompiler(Compiler):
    """Numba's way from Python to intermediate code, and no further."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a part for one signature."""
        self.state.flags.no_compile = True
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        # What other compiled code knows the part by; for other functions it is what Python calls.
        result = result._replace(entry_point=object())
        self.state.targetctx.insert_user_function(
            result.entry_point, result.fndesc, [result.library]
        )
        return result


class Part(CPUDispatcher):
    """A part; when Python calls it after all, it is compiled as a function of its own."""

    alone: Callable[[], Any]  # compiles it so

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a call with these types returns; a constant is a number like any other."""
        return super().get_call_template(tuple(types.unliteral(kind) for kind in args), kws)

    def add_overload(self, cres: Any) -> None:
        """Remember a part for compiled code alone."""
        self.overloads[tuple(cres.signature.args)] = cres

    def __call__(self, *args: Any) -> Any:
        """Run it, called from Python."""
        return self.alone()(*args)
