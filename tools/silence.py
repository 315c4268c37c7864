"""How long a command is silent: until its first word, and at most between two words.

    python tools/silence.py -- isfed compare hospitals.csv --agent hospital --target days

What the command writes is shown, each piece after the seconds at which it came. With --cold the
compiled code of earlier runs is not used, as after an installation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time


def measure(command: list[str], *, cold: bool = False) -> tuple[float, float, float, int]:
    """Seconds to the first output, of the longest silence and in all, and the exit code."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cold else {})
        began = last = time.monotonic()
        first, longest = None, 0.0
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        ) as process:
            assert process.stdout is not None
            while piece := os.read(process.stdout.fileno(), 1 << 16):
                now = time.monotonic()
                first = now - began if first is None else first
                longest, last = max(longest, now - last), now
                print(
                    f"[{now - began:6.1f} s] {piece.decode(errors='replace')}", end="", flush=True
                )
            code = process.wait()
        end = time.monotonic()
    return first or end - began, max(longest, end - last), end - began, code


def main() -> None:
    parser = argparse.ArgumentParser(description="how long a command is silent")
    parser.add_argument("--cold", action="store_true", help="use no compiled code of earlier runs")
    parser.add_argument("command", nargs="+", help="the command and its arguments, after --")
    given = parser.parse_args()
    first, longest, whole, code = measure(given.command, cold=given.cold)
    print(f"first words after {first:.1f} s, longest silence {longest:.1f} s, {whole:.1f} s in all")
    sys.exit(code)


if __name__ == "__main__":
    main()
