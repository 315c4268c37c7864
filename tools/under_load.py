"""Run a command several times beside processes that keep the cores busy, and report each outcome.

    python tools/under_load.py --times 3 --busy 2 -- make test-federation

It stops at the first failure, exits with its code, and ends the busy processes whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

# A busy process ends by itself when the one that started it is gone, even by kill -9.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen]]:
    """So many processes that compute without a pause, until the block ends."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    # Sessions of their own: Linux may share the cores among sessions rather than processes.
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_times(command: Sequence[str], *, times: int, loops: Sequence[subprocess.Popen]) -> int:
    """Run the command up to `times` times; the code of the first failure, or 0."""
    for number in range(1, times + 1):
        began = time.monotonic()
        code = subprocess.run(command).returncode
        idle = [loop.pid for loop in loops if loop.poll() is not None]
        if idle:
            sys.exit(f"error: busy processes {idle} ended early, so this was not a run under load")
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        outcome = "passed" if code == 0 else f"failed with code {code}"
        print(
            f"==> run {number} of {times} {outcome} in {minutes} min {seconds} s "
            f"beside {len(loops)} busy processes (load {load})",
            flush=True,
        )
        if code != 0:
            return code if code > 0 else 128 - code  # ended by a signal
    return 0


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--times", type=int, default=3, help="how often (default: 3)")
    parser.add_argument("--busy", type=int, default=2, help="busy processes (default: 2)")
    parser.add_argument("command", nargs="+", help="after --, what to run")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leave the block
    with busy(given.busy) as loops:
        return run_times(given.command, times=given.times, loops=loops)


if __name__ == "__main__":
    sys.exit(main())
