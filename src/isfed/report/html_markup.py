"""HTML and SVG elements: always closed, and everything that is text is escaped."""

from __future__ import annotations

import html
import re
from typing import Any

VOID = frozenset({"meta", "link", "input", "br", "hr"})
# Characters that HTML forbids even when they are escaped.
FORBIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Markup(str):
    """Text that is already HTML."""


def escape(value: Any) -> Markup:
    """A value as HTML text; Markup stays as it is.

    >>> escape("a < b & 'c'")
    'a &lt; b &amp; &#x27;c&#x27;'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(FORBIDDEN.sub("\ufffd", str(value)), quote=True))


def sentence(text: str) -> Markup:
    """A sentence as HTML; what stands between backticks is code.

    >>> sentence("`isfed compare` shows < 1")
    '<code>isfed compare</code> shows &lt; 1'
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """One element; of attributes None and False are left out, True has no value.

    >>> tag("p", "1 < 2", class_="note", hidden=True, data_of=None)
    '<p class="note" hidden>1 &lt; 2</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(value)}"')
    start = f"<{' '.join(words)}>"
    if name in VOID:
        return Markup(start)
    return Markup(f"{start}{''.join(map(escape, children))}</{name}>")
