"""Numbers as sentences show them."""

from __future__ import annotations


def plain_number(value: float, digits: int) -> str:
    """A number to so many digits, without an exponent if it is not tiny.

    >>> plain_number(137.2, 2), plain_number(0.04321, 2), plain_number(12345678.0, 3)
    ('140', '0.043', '12,300,000')
    """
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.{digits}g}" if abs(rounded) < 10.0 ** (digits - 1) else f"{rounded:,.0f}"
