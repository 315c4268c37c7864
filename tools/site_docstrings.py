"""How the site reads our docstrings, which list arguments as `name: what it is`, without a heading.

`help()` reads better that way. The parser of the site wants Google's sections, so the lists become
`Args:` and examples become `Examples:` before it sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe

ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): \S")


def to_sections(text: str) -> str:
    """Our docstring in Google's style; text that has sections of its own stays as it is.

    >>> print(to_sections("Add.\\n\\na, b: what to add.\\n    More.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    Args:
        a: what to add.
            More.
        b: what to add.
            More.
    <BLANKLINE>
    Examples:
        >>> 1 + 1
        2
    """
    if re.search(r"^(Args|Attributes|Returns|Examples):$", text, re.M):
        return text
    blocks, listed, examples = [], [], []
    for block in re.split(r"\n{2,}", text.strip()):
        lines = block.split("\n")
        if ENTRY.match(lines[0]):
            listed += entries(lines)
        elif lines[0].startswith(">>>"):
            examples.append(block)
        else:
            blocks.append(block)
    if listed:
        blocks.append("Args:\n" + "\n".join(listed))
    if examples:
        blocks.append("Examples:\n" + "\n\n".join(re.sub("(?m)^", "    ", e) for e in examples))
    return "\n\n".join(blocks)


def entries(lines: list[str]) -> list[str]:
    """The entries of a list, one name each, as Google's style writes them."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if ENTRY.match(line):
            names, what = line.split(": ", 1)
            found.append((names, [what]))
        else:
            found[-1][1].append(line.strip())
    return [
        f"    {name}: " + "\n        ".join(what)
        for names, what in found
        for name in names.split(", ")
    ]


class HouseStyle(griffe.Extension):
    """Rewrites every docstring of the package before it is parsed."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """All modules, once all of them are loaded: a record also explains what it inherits."""
        classes = list(_classes(pkg))
        inherited = {id(found): _inherited(found) for found in classes}
        for found in _objects(pkg):
            if found.docstring is not None:
                more = inherited.get(id(found), [])
                found.docstring.value = to_sections("\n\n".join([found.docstring.value, *more]))


def _objects(root: griffe.Object) -> Iterator[griffe.Object]:
    yield root
    for member in root.members.values():
        if isinstance(member, griffe.Object):
            yield from _objects(member)


def _classes(root: griffe.Object) -> Iterator[griffe.Class]:
    return (found for found in _objects(root) if isinstance(found, griffe.Class))


def _inherited(found: griffe.Class) -> list[str]:
    """The lists of arguments in the docstrings of the classes that it derives from."""
    try:
        bases = found.mro()
    except ValueError:  # a base that is not ours and was not loaded
        return []
    known, more = set(names(found.docstring.value) if found.docstring else ()), []
    for base in bases:
        for entry in entries_in(base.docstring.value if base.docstring else ""):
            fresh = [name for name in names(entry) if name not in known]  # else it is redefined
            known.update(fresh)
            more += [re.sub(r"^[^:]+", name, entry) for name in fresh]
    return more


def entries_in(text: str) -> list[str]:
    """The entries of the lists of arguments in a docstring, each with the lines that continue it.

    >>> entries_in("Add.\\n\\na: first.\\n    More.\\nb: second.\\n\\nEnd.")
    ['a: first.\\n    More.', 'b: second.']
    """
    lists = [block for block in re.split(r"\n{2,}", text.strip()) if ENTRY.match(block)]
    return [
        entry for block in lists for entry in re.split(r"\n(?=\*{0,2}\w+(?:, \w+)*: \S)", block)
    ]


def names(text: str) -> list[str]:
    """The arguments that a docstring explains."""
    return [name for entry in entries_in(text) for name in entry.split(": ", 1)[0].split(", ")]
