"""The arguments that a record inherits, for the site: Griffe reads one docstring at a time."""

from __future__ import annotations

import re

import griffe

SECTION = re.compile(r"^(Args|Attributes):\n((?: {4}.*\n?)+)", re.M)


def arguments(text: str) -> dict[str, str]:
    """The entries of a docstring's list of arguments, by name.

    >>> arguments("Add.\\n\\nArgs:\\n    a: first.\\n        More.\\n    b: second.\\n\\nEnd.")
    {'a': '    a: first.\\n        More.', 'b': '    b: second.'}
    """
    section = SECTION.search(text)
    entries = re.split(r"\n(?=    \S)", section[2].rstrip("\n")) if section else []
    named = [(entry.strip().partition(":")[0], entry) for entry in entries]
    # An entry may explain several arguments: "a, b: what to add."
    return {
        name: entry.replace(names, name, 1) for names, entry in named for name in names.split(", ")
    }


def with_inherited(text: str, bases: list[str]) -> str:
    """The docstring with the arguments that only those of its bases explain."""
    own, more = arguments(text), {}
    for base in bases:
        more = {name: entry for name, entry in arguments(base).items() if name not in own} | more
    if not more:
        return text
    if not own:
        return f"{text.rstrip()}\n\nArgs:\n" + "\n".join(more.values())
    listed = "\n".join([*own.values(), *more.values()])
    return SECTION.sub(lambda section: f"{section[1]}:\n{listed}\n", text, 1)


class InheritedArguments(griffe.Extension):
    """Adds them to the docstrings of all classes, once everything is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Read all docstrings before any of them is changed."""
        documented = [kind for kind in _classes(pkg) if kind.docstring is not None]
        texts = [(kind, with_inherited(kind.docstring.value, _bases(kind))) for kind in documented]
        for kind, text in texts:
            kind.docstring.value = text


def _classes(root: griffe.Object) -> list[griffe.Class]:
    members = [member for member in root.members.values() if isinstance(member, griffe.Object)]
    nested = [kind for member in members for kind in _classes(member)]
    return [member for member in members if isinstance(member, griffe.Class)] + nested


def _bases(kind: griffe.Class) -> list[str]:
    try:
        return [base.docstring.value for base in kind.mro() if base.docstring is not None]
    except ValueError:  # a base that is not ours and was not loaded
        return []
