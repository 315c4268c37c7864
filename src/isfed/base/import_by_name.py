"""Objects that a configuration names as "package.module:name", and who allows their import.

To import a module runs it. A file that somebody sent must therefore not be enough: whoever reads
the file names a folder that they trust, or allows all imports. The standard library is never used.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class _Allowed:
    """Which modules a file may name: any, or those that lie in trusted folders."""

    anything: bool = False
    folders: tuple[Path, ...] = ()


_NOTHING = _Allowed()
_allowed: ContextVar[_Allowed] = ContextVar("_allowed", default=_NOTHING)


@contextlib.contextmanager
def allowing(*, anything: bool, folders: str | Path | Sequence[str | Path]) -> Iterator[None]:
    """Inside the block `check_allowed` accepts these modules.

    anything: whether every module may be named that Python finds.
    folders: one or several, whose modules may be named; these are found from now on.
    """
    folders = [folders] if isinstance(folders, str | Path) else folders
    for folder in folders:
        if not Path(folder).is_dir():
            raise ValueError(f"there is no folder {str(folder)!r} to trust; name one that exists")
    token = _allowed.set(_Allowed(anything, tuple(Path(f).resolve() for f in folders)))
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(name: str) -> None:
    """Raise a ValueError unless "package.module:name" may be imported now; imports nothing."""
    top = name.partition(":")[0].partition(".")[0]
    _refuse_standard(name, top)
    allowed = _allowed.get()
    if allowed.anything:
        return
    if not allowed.folders:
        raise ValueError(
            f"{name!r} is Python code, and a file alone may not start it; if you trust that code, "
            "add --trust FOLDER with the folder of its module, or --allow-imports for all modules "
            "(in Python trust=[FOLDER] or allow_imports=True)"
        )
    for folder in allowed.folders:
        mine = PathFinder.find_spec(top, [str(folder)])
        if mine is not None and mine.origin is not None:
            _make_findable(name, top, folder, mine)
            return
    looked = ", ".join(map(str, allowed.folders))
    raise ValueError(
        f"{name!r}: there is no module {top!r} in the trusted folder {looked}; name its folder "
        "(--trust), or allow all modules (--allow-imports)"
    )


def _make_findable(name: str, top: str, folder: Path, mine: ModuleSpec) -> None:
    """Let Python find the modules of a folder, if it does not find others of that name first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at the end, as nothing installed may be replaced
    loaded = sys.modules.get(top)
    found = PathFinder.find_spec(top) if loaded is None else loaded.__spec__
    if found is None or found.origin != mine.origin:
        other = found.origin if found is not None else "a module that is loaded already"
        raise ValueError(
            f"{name!r}: Python finds {other} before {mine.origin}; give your module another name"
        )


def import_named(name: str) -> Callable[..., Any]:
    """The class or function that "package.module:name" stands for; ValueError says what is wrong.

    >>> import_named("isfed.sampling.designs:Deville")().draw([0.5, 0.5, 1.0], 0).size
    2
    """
    module, _, attribute = name.partition(":")
    _refuse_standard(name, module.partition(".")[0])
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name!r} cannot be imported: {reason}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is {found!r}, not a class or a function")
    # A module of the user's may have imported `Popen` itself; it is no more a policy there.
    _refuse_standard(name, str(getattr(found, "__module__", None) or "builtins").partition(".")[0])
    return found


def _refuse_standard(name: str, top: str) -> None:
    if top in sys.stdlib_module_names:
        raise ValueError(
            f"{name!r} belongs to Python's own library ({top}), of which no file may start "
            "anything; name a class of your own, in a module of another name"
        )


def lacking(kind: type, protocol: Any) -> list[str]:
    """The members of a protocol that a class does not have; found without a call.

    >>> from isfed.sampling.designs import Design, Deville
    >>> lacking(Deville, Design), lacking(dict, Design)
    ([], ['draw'])
    """
    wanted = [name for name in vars(protocol) if name[0] != "_" or name == "__call__"]
    # A dataclass has a field without a default only among its annotations.
    known = {name for part in kind.__mro__ for name in (*vars(part), *_annotated(part))}
    return [name for name in wanted if name not in known]


def _annotated(kind: type) -> Any:
    return vars(kind).get("__annotations__", ())
