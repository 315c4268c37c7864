"""Faults on purpose: kills, full disks, two runs on one folder, damaged files, bad inputs.

    make test-faults                     everything: about an hour, continued where it was stopped
    make test-faults FAULTS="--kills 20 --inputs 300 --pairs 2 --damage 0.05"    minutes
    python tests/faults/main.py --only kills --folder /tmp/faults
    python tests/faults/main.py --only kills --kills 20 --command "quick leaderboard"

Prints what was tried and what went wrong; the exit code is 1 if anything did.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import damage
import disk
import inputs
import kills
from common import COMMANDS, ON_REQUEST, Tally, make_place

PARTS = ("inputs", "damage", "disk", "two", "kills")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first run to kill")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--damage", type=float, default=1.0, help="share of the damages")
    parser.add_argument("--folder", type=Path, help="keeps what was done, so that it continues")
    parser.add_argument("--kind", choices=list(inputs.KINDS), action="append", help="of inputs")
    parser.add_argument("--command", choices=list(COMMANDS), action="append", help="only these")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    given = parser.parse_args()
    wanted = given.command or [name for name in COMMANDS if name not in ON_REQUEST]
    for name in [name for name in COMMANDS if name not in wanted]:
        del COMMANDS[name]  # for all parts, which share it
    folder = given.folder or Path(tempfile.gettempdir()) / "isfed-faults"
    if given.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    place = make_place(folder)
    wrong = 0
    for part in given.only or PARTS:
        tally = Tally.of(folder, part)
        if part == "inputs":
            inputs.run(place, tally, cases=given.inputs, kinds=given.kind or list(inputs.KINDS))
        elif part == "damage":
            damage.run(place, tally, share=given.damage)
        elif part == "disk":
            disk.full(place, tally)
        elif part == "two":
            disk.two(place, tally, pairs=given.pairs)
        else:
            kills.run(place, tally, kills=given.kills, first=given.first)
        tally.save()
        wrong += len(tally.wrong)
        _report(part, tally)
    print(f"{wrong} went wrong" if wrong else "nothing went wrong")
    return 1 if wrong else 0


def _report(part: str, tally: Tally) -> None:
    print(f"== {part}")
    for what, count in tally.counts.items():
        if not any(kind in what for kind in damage.KINDS):
            print(f"  {count:6d}  {what}")
    print(f"  {len(tally.wrong):6d}  wrong")
    for text in tally.wrong[:20]:
        print(f"    {text[:400]}")


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    sys.exit(main())
