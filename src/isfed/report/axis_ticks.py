"""Where the ticks of an axis go and what they say; page.js does the same in the browser."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def tick_step(low: float, high: float, most: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten with at most `most` steps in the range.

    >>> tick_step(0.0, 3000.0, 6)
    500.0
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5) if m * power >= raw * (1 - 1e-9)), 10 * power)


def linear_ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Ticks inside [low, high], as (where, label).

    >>> linear_ticks(0, 3000)[:3]
    [(0.0, '0'), (500.0, '500'), (1000.0, '1k')]
    """
    step = tick_step(low, high, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [i * step for i in range(first, last + 1)]
    largest = max(abs(low), abs(high))
    return [(value, _plain(value, step, largest)) for value in values]


def _plain(value: float, step: float, largest: float) -> str:
    if abs(value) < step / 2:
        return "0"
    if largest >= 1e12 or largest < 1e-3:
        digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - _power(step))
        return _scientific(value, digits)
    size, letter = next(((s, p) for s, p in PREFIXES if abs(value) >= s * (1 - 1e-9)), (1.0, ""))
    digits = max(0, -_power(step / size))
    text = f"{value / size:.{digits}f}"
    if letter and digits:
        text = text.rstrip("0").rstrip(".")  # 1k, 1.5k, 2k
    return (text + letter).replace("-", "−")


def _power(step: float) -> int:
    return math.floor(math.log10(step) + 1e-9)


def _scientific(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")


def log_ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Ticks inside [10^low, 10^high], as (exponent, label).

    >>> [label for _, label in log_ticks(-5.2, 1.1)]
    ['10⁻⁵', '10⁻⁴', '10⁻³', '10⁻²', '10⁻¹', '10⁰', '10¹']
    >>> [label for _, label in log_ticks(-1.1, 0.6)]
    ['0.1', '0.2', '0.5', '1', '2']
    """
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    if last - first >= 2:
        stride = math.ceil((last - first) / most) if last - first > most + 2 else 1
        decades = range(math.ceil(first / stride) * stride, last + 1, stride)
        if first >= -3 and last <= 3:
            return [(float(k), f"{10.0**k:.{max(0, -k)}f}") for k in decades]
        return [(float(k), f"10{str(k).translate(SUPERSCRIPTS)}") for k in decades]
    marks = [(k + math.log10(m), m, k) for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    marks = [(at, m, k) for at, m, k in marks if low - 1e-9 <= at <= high + 1e-9]
    if len(marks) >= 3:
        if marks[0][2] >= -3 and marks[-1][2] <= 3:
            return [(at, f"{m * 10.0**k:.{max(0, -k)}f}") for at, m, k in marks]
        return [(at, f"{m}×10{str(k).translate(SUPERSCRIPTS)}") for at, m, k in marks]
    # Less than a factor of five: the ticks of a linear axis, where they fall here.
    return [(math.log10(v), s) for v, s in linear_ticks(10.0**low, 10.0**high, most) if v > 0]


def limits(low: float, high: float, *, logarithmic: bool) -> tuple[float, float]:
    """The range to show: whole steps of a linear axis, a little room on a logarithmic one."""
    if logarithmic:
        room = max(0.03 * (high - low), 0.02)
        return low - room, high + room
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = 0.5 * abs(high) or 1.0
        low, high = low - room, high + room
    if 0.0 < low < 0.5 * high:
        low = 0.0
    step = tick_step(low, high, 6)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def spread(wanted: list[float], gap: float, top: float = 0.0, bottom: float = 100.0) -> list[float]:
    """Move labels apart until neighbours are `gap` apart, within [top, bottom] if they fit.

    >>> spread([50.0, 51.0, 10.0], 5.0)
    [48.0, 53.0, 10.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # [mean place, how many]
    for i in order:
        groups.append([min(max(wanted[i], top), bottom), 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (
            (groups[-1][1] + groups[-2][1]) / 2
        ):
            (second, m), (first, n) = groups.pop(), groups.pop()
            middle = (first * n + second * m) / (n + m)
            half = gap * (n + m - 1) / 2
            groups.append([max(min(middle, bottom - half), top + half), n + m])
    places = [mid + gap * (j - (n - 1) / 2) for mid, n in groups for j in range(int(n))]
    return [places[order.index(i)] for i in range(len(wanted))]
