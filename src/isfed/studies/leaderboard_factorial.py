"""The factorial of a leaderboard: what each part of a method gains, and which work together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isfed.studies.leaderboard_config import Protocol
from isfed.studies.leaderboard_entries import PARTS
from isfed.studies.leaderboard_problem import COMBINED, RAISED, TUNED, Board
from isfed.studies.leaderboard_scores import (
    Difference,
    effects,
    excess_decibels,
    holm,
    paired,
)


def summarise_factorial(protocol: Protocol, boards: Sequence[Board]) -> dict[str, Any]:
    """Main effects, interactions, and the best combination against every method at its best."""
    if not protocol.factorial or not boards:
        return {}
    parts_of, refused = {}, []
    for method, parts, reason in protocol.combinations():
        if method is None:
            refused.append({**parts, "reason": reason})
        else:
            parts_of[method.name] = tuple(parts[key] for key in PARTS)
    cells, chosen = {}, {}
    for name, levels in parts_of.items():
        found = [board.find(COMBINED, name) for board in boards]
        raised = [r.scored.reason for r in found if r and r.scored.reason.startswith(RAISED)]
        if raised:  # no effect of a part
            refused.append({**dict(zip(PARTS, levels, strict=True)), "reason": raised[0]})
            continue
        if all(run is not None for run in found):
            pairs = [(b, r) for b, r in zip(boards, found, strict=True) if r is not None]
            cells[levels] = np.concatenate([board.db(run.scored) for board, run in pairs])
            tuned = [  # on the tuning seeds
                excess_decibels(np.array([run.entry.level]), board.worst)[0] for board, run in pairs
            ]
            chosen[name] = float(np.mean(tuned))
    if not chosen:
        return {"refused": refused}
    factors = {key: protocol.factorial[key] for key in PARTS}
    mains, twos = (effects(cells, factors, order) for order in (1, 2))
    best = min(chosen, key=lambda name: chosen[name])
    against = _against(boards, cells[parts_of[best]], protocol)
    return {
        "combinations": [
            {"name": name, **dict(zip(PARTS, parts_of[name], strict=True)),
             "level_db": float(cells[parts_of[name]].mean()), "tuning_db": level}
            for name, level in sorted(chosen.items(), key=lambda pair: pair[1])
        ],
        "refused": refused,
        "effects": [{"factor": f, "level": v, "base": factors[f][0], **d._asdict()}
                    for (f, v), d in mains.items()],
        "interactions": [
            {"factor": f, "level": a, "other": g, "other_level": b, **d._asdict()}
            for (f, a, g, b), d in twos.items()
        ],
        "best": best,
        "against": [{"method": name, **d._asdict()} for name, d in against.items()],
        "sentences": _sentences(factors, mains, twos, best, against),
    }  # fmt: skip


def _against(
    boards: Sequence[Board], best: np.ndarray, protocol: Protocol
) -> dict[str, Difference]:
    """What the best combination gains over every method, each at its best, on the same seeds."""
    count = best.size // len(boards)
    found = {}
    for method in protocol.methods:
        runs = [board.find(TUNED, method.name) for board in boards]
        gains = [
            board.db(run.scored)[:count] - best[place * count : (place + 1) * count]
            for place, (board, run) in enumerate(zip(boards, runs, strict=True))
            if run is not None
        ]
        if gains:
            found[method.name] = paired(np.concatenate(gains))
    return holm(found)


def _sentences(
    factors: Mapping[str, Sequence[str]], mains: Mapping[Any, Difference],
    twos: Mapping[Any, Difference], best: str, against: Mapping[str, Difference],
) -> list[str]:  # fmt: skip
    """The effects in words, the largest first."""
    lines = []
    for (factor, level), effect in sorted(mains.items(), key=lambda pair: -pair[1].mean):
        base = factors[factor][0]
        if effect.clear:
            way, than = ("gains", "over") if effect.mean > 0.0 else ("loses", "against")
            lines.append(f"As {factor}, {level!r} {way} {_size(effect)} {than} {base!r}, whatever "
                         "the other parts are.")  # fmt: skip
        else:
            lines.append(f"As {factor}, {level!r} cannot be told from {base!r}: "
                         f"{effect.words()}.")  # fmt: skip
    clear = {key: effect for key, effect in twos.items() if effect.clear and effect.p < 0.05}
    for (_, level, _, other), effect in sorted(clear.items(), key=lambda pair: -abs(pair[1].mean))[
        :8
    ]:
        way = "more" if effect.mean > 0.0 else "less"
        lines.append(f"{level!r} gains {_size(effect)} {way} together with {other!r}.")
    if not clear:
        lines.append("No pair of parts works clearly better or worse together than apart.")
    beaten = [name for name, d in against.items() if d.low > 0.0 and d.p < 0.05]
    better = [name for name, d in against.items() if d.high < 0.0 and d.p < 0.05]
    lines.append(
        f"The best combination on the tuning seeds is {best}. It ends clearly closer than "
        f"{len(beaten)} of {len(against)} methods at their best"
        f", and clearly farther than {', '.join(better) or 'none'}."
    )  # fmt: skip
    return lines


def _size(effect: Difference) -> str:
    ends = sorted((abs(effect.low), abs(effect.high)))
    return f"{abs(effect.mean):.1f} dB ({ends[0]:.1f} to {ends[1]:.1f})"
