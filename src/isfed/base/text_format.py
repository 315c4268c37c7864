"""Numbers and names as sentences show them."""

from __future__ import annotations

from collections.abc import Sequence

MOST_PROBLEMS = 20  # in a list


def plain_number(value: float, digits: int) -> str:
    """A number to so many digits, without an exponent if it is not tiny.

    >>> plain_number(137.2, 2), plain_number(0.04321, 2), plain_number(12345678.0, 3)
    ('140', '0.043', '12,300,000')
    """
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.{digits}g}" if abs(rounded) < 10.0 ** (digits - 1) else f"{rounded:,.0f}"


def typed(name: str) -> str:
    """The name of a column as it is typed; that of a column without a name can be seen then.

    >>> typed("age"), typed("")
    ('age', "''")
    """
    return name or "''"


def problem_list(problems: Sequence[str]) -> str:
    """Everything that is wrong, at once: one problem as it is, several as a list.

    >>> problem_list(["no agent"]), problem_list(["no agent", "no target"])
    ('no agent', '2 problems:\\n- no agent\\n- no target')
    """
    if len(problems) < 2:
        return "".join(problems)
    more = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    return "\n- ".join([f"{len(problems)} problems:", *problems[:MOST_PROBLEMS], *more])


def counted(number: int, thing: str) -> str:
    """So many things.

    >>> counted(1, "agent"), counted(1200, "row")
    ('1 agent', '1200 rows')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
