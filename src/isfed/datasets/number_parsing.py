"""Numbers as people write them: currencies, thousands, decimal commas, signs for "not known"."""

from __future__ import annotations

import re

UNKNOWN = frozenset(
    ("?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown")
)  # in a column of numbers: a value that is not known
_CURRENCY = r"(?:[$€£¥₹]|US\$|USD|EUR|GBP|CHF|JPY|INR|CNY)"
_NUMBER = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+\u2212])?\s*{_CURRENCY}?\s*(?P<inner>[-+\u2212])?\s*"
    rf"(?P<body>[\d.,'\u2019 \u00a0\u202f]*\d[\d.,]*(?:[eE][-+]?\d+)?)\s*(?:{_CURRENCY}|%)?\s*"
    rf"(?P<close>\))?"
)
_GROUPED = re.compile(r"\d{1,3}(?:G\d{3})+".replace("G", r"[,'\u2019 \u00a0\u202f]"))


def unknown(word: str) -> bool:
    """Whether a word among numbers means that the value is not known."""
    return word.strip().lower() in UNKNOWN


def number(word: str, *, comma: bool = False) -> float | None:
    """The number that a word is, or None; `comma` if decimals come after a comma.

    >>> [number(word) for word in ("1,234.5", "$ 7", "(12)", "3 %", "1e3", "1,5", "red")]
    [1234.5, 7.0, -12.0, 3.0, 1000.0, None, None]
    >>> [number(word, comma=True) for word in ("1.234,5", "1,5", "7 €")]
    [1234.5, 1.5, 7.0]
    """
    if not comma:
        try:
            return float(word)
        except ValueError:
            pass
    found = _NUMBER.fullmatch(word.strip())
    if found is None or bool(found["open"]) != bool(found["close"]):
        return None
    body = found["body"].strip()
    if comma:
        body = body.translate(str.maketrans(".,", ",."))
    whole, point, decimals = body.partition(".")
    if not whole.isdecimal() and whole:
        if _GROUPED.fullmatch(whole) is None or len(set(re.findall(r"\D", whole))) > 1:
            return None
        whole = re.sub(r"\D", "", whole)
    try:
        value = float(whole + point + decimals)
    except ValueError:
        return None
    negative = (found["sign"] or found["inner"]) in ("-", "\u2212")
    return -value if negative != bool(found["open"]) else value
