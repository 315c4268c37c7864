"""Objects that a configuration names as "package.module:name", and who allows their import.

An import runs code, so whoever reads the file says which folders to trust.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

# Modules from files of the user's, which workers elsewhere cannot import: their classes are sent.
user_modules: list[Any] = []
# Folders whose modules a file may name; None for any module that Python finds.
_trusted: ContextVar[tuple[Path, ...] | None] = ContextVar("_trusted", default=())


@contextlib.contextmanager
def allowing(*, anything: bool, folders: str | Path | Sequence[str | Path]) -> Iterator[None]:
    """Inside the block `check_allowed` accepts the modules of these folders, or any module."""
    folders = [folders] if isinstance(folders, str | Path) else folders
    for folder in folders:
        if not Path(folder).is_dir():
            raise ValueError(f"there is no folder {str(folder)!r} to trust; name one that exists")
    token = _trusted.set(None if anything else tuple(Path(f).resolve() for f in folders))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_allowed(name: str) -> None:
    """Raise a ValueError unless "package.module:name" may be imported now; imports nothing."""
    top = name.partition(":")[0].partition(".")[0]
    _refuse_standard(name, top)
    folders = _trusted.get()
    if folders is None:
        return
    if not folders:
        raise ValueError(
            f"{name!r} is Python code, and a file alone may not start it; if you trust that code, "
            "add --trust FOLDER with the folder of its module, or --allow-imports for all modules "
            "(in Python trust=[FOLDER] or allow_imports=True)"
        )
    for folder in folders:
        mine = PathFinder.find_spec(top, [str(folder)])
        if mine is not None and mine.origin is not None:
            _make_findable(name, top, folder, mine)
            return
    looked = ", ".join(map(str, folders))
    raise ValueError(
        f"{name!r}: there is no module {top!r} in the trusted folder {looked}; name its folder "
        "(--trust), or allow all modules (--allow-imports)"
    )


def _make_findable(name: str, top: str, folder: Path, mine: ModuleSpec) -> None:
    """Let Python find the modules of a folder, if it does not find others of that name first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at the end, as nothing installed may be replaced
    loaded = sys.modules.get(top)
    first = PathFinder.find_spec(top) if loaded is None else loaded.__spec__
    if first is None or first.origin != mine.origin:
        other = first.origin if first is not None else "a module that is loaded already"
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
        target = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name!r} cannot be imported: {reason}") from error
    if not callable(target):
        raise ValueError(f"{name!r} is {target!r}, not a class or a function")
    # A module of the user's may have imported `Popen` itself; it is no more a policy there.
    _refuse_standard(name, str(getattr(target, "__module__", None) or "builtins").partition(".")[0])
    return target


def _refuse_standard(name: str, top: str) -> None:
    if top in sys.stdlib_module_names:
        raise ValueError(
            f"{name!r} belongs to Python's own library ({top}), of which no file may start "
            "anything; name a class of your own, in a module of another name"
        )


def missing_members(kind: type, protocol: Any) -> list[str]:
    """The members of a protocol that a class does not have; found without a call.

    >>> from isfed.sampling.designs import Design, Deville
    >>> missing_members(Deville, Design), missing_members(dict, Design)
    ([], ['draw'])
    """
    wanted = [name for name in vars(protocol) if name[0] != "_" or name == "__call__"]
    # A dataclass has a field without a default only among its annotations.
    known = {
        name
        for part in map(vars, kind.__mro__)
        for name in (*part, *part.get("__annotations__", ()))
    }
    return [name for name in wanted if name not in known]
