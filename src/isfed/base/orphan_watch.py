"""Workers end with the process that started them, even if that one was killed.

Linux's PR_SET_PDEATHSIG will not do: it fires when the thread that started a worker ends.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import NoReturn

BETWEEN = 0.5  # seconds between two looks
ORPHANED = 1  # the exit code, which nobody is left to read


def end_with(parent: int) -> None:
    """End this process, whatever it is doing, as soon as its parent has ended.

    Args:
        parent: The parent's process id, told by the parent: it may be dead before we can ask.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="isfed-orphans").start()


def _watch(parent: int) -> NoReturn:
    if os.name == "nt":  # where a dead parent keeps its number, and can be waited for
        process = multiprocessing.parent_process()
        while process is None or process.is_alive():
            time.sleep(BETWEEN)
    else:
        while os.getppid() == parent:  # an orphan is given another parent
            time.sleep(BETWEEN)
    os._exit(ORPHANED)
