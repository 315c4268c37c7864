"""What an agent keeps on its own disk: scores, a secret, a count of reports.

Flower runs every message in a new process, so what the agent remembers lives in files. The file of
a job holds the state before and after its last turn. When a cloud that was killed asks for that
turn again, the agent starts from where it stood and sends the same answer.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from flwr.app import Context

from isfed.base import atomic_files
from isfed.federation.agent import Agent
from isfed.flower.wire_format import AgentRequest

STATE_FOLDER = "isfed-state"  # key of --node-config
MOST_JOBS = 16  # files of jobs that are kept per agent; the oldest go first
SECRET_BYTES = 32
DAYS_KEPT = 31  # of counted reports
ALL = "all"  # under which reports of all days are counted
LOCK_SECONDS = 30.0
_OUR_FILES = ("agent-", ".agent-", "secret", ".secret", "reports", ".reports")


def state_folder(context: Context) -> Path:
    """Where the agent's files are: --node-config 'isfed-state="/path"', or the user's folder."""
    given = context.node_config.get(STATE_FOLDER)
    if given:
        return Path(str(given))
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "isfed"


def private_folder(path: Path) -> Path:
    """The folder, which only its owner can enter; one that holds other things is left alone."""
    try:
        path.mkdir(mode=0o700, parents=True)
        return path
    except FileExistsError:
        pass
    if not hasattr(os, "getuid"):  # Windows: rights come from the parent folder, not from a mode
        return path
    owners = {path.stat().st_uid}
    if path.is_symlink():  # as systemd makes for a user of its own choice; that is root's
        owners.add(path.lstat().st_uid or os.getuid())
    if owners != {os.getuid()}:
        raise ValueError(
            f"{path} belongs to another user, who could read what this agent keeps; give "
            "isfed-state a folder of its own, or: chown"
        )
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        if not all(other.name.startswith(_OUR_FILES) for other in path.iterdir()):
            raise ValueError(
                f"{path} can be entered by others (mode {mode:o}) and holds more than an agent's "
                "files; give isfed-state a folder of its own, or: chmod 700"
            )
        path.chmod(0o700)
    return path


def wait_for_lock(path: Path, seconds: float) -> TextIO:
    """The lock, when the process that has it lets go; a BlockingIOError if it takes too long."""
    until = time.monotonic() + seconds
    while True:
        try:
            return atomic_files.lock_file(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


class AgentStateFile:
    """The file of one agent in one job: what it knew before and after the last turn it took.

    Args:
        folder: where the file is.
        agent: the agent, whose state is read and written.
        request: of this turn.
        node: the agent's own number, or None: files of one node are counted together, whatever the
            cloud calls the job and the agent.
    """

    def __init__(self, folder: Path, agent: Agent, request: AgentRequest, node: Any) -> None:
        called = repr((request.job, request.agent)).encode()  # the cloud's words
        job = hashlib.blake2b(called, digest_size=8).hexdigest()
        self.pattern = f"agent-{node if isinstance(node, int) else 'own'}-*.npz"
        self.path = folder / self.pattern.replace("*", job)
        self.agent, self.round_index, self.node = agent, request.round_index, node
        self.before: dict[str, np.ndarray] = {}
        self.last_score: float | None = None  # that was reported

    def _stored(self) -> dict[str, np.ndarray] | None:
        return atomic_files.load_arrays(self.path) if self.path.exists() else None

    def _state(self, moment: str) -> dict[str, np.ndarray]:
        return {f"nodes_{moment}": self.agent.table.nodes, f"memory_{moment}": self.agent.memory}

    def recall(self) -> float | None:
        """Put the agent where it stood, for a turn asked for again before that turn.

        Returns the score that was reported in that case: noise anew would average out.
        """
        stored, score = self._stored(), None
        if stored is not None:
            moments = {f"{n}_{m}" for n in ("nodes", "memory") for m in ("before", "after")}
            if lacking := {"round_index", "told", *moments} - set(stored):
                raise ValueError(f"{self.path} lacks {min(lacking)}; remove it to start again")
            again = int(stored["round_index"]) == self.round_index
            self._restore(stored, "before" if again else "after")
            self.last_score = float(stored["told"])
            score = self.last_score if again else None
        self.before = {name: values.copy() for name, values in self._state("before").items()}
        return score

    def _restore(self, stored: dict[str, np.ndarray], moment: str) -> None:
        nodes = stored[f"nodes_{moment}"]
        if nodes.shape != self.agent.table.nodes.shape:
            raise ValueError(
                f"{self.path} remembers another number of examples than the "
                f"{self.agent.table.count} loaded; the data must not change during a job: "
                "remove the file to start again"
            )
        self.agent.table.nodes, self.agent.memory = nodes, stored[f"memory_{moment}"]

    def keep(self, score: float) -> None:
        """Write what the agent knows now, unless a later turn has been written meanwhile."""
        stored = self._stored()
        if stored is not None and int(stored["round_index"]) > self.round_index:
            return  # this process was overtaken: it answers a round that is over
        numbers = {"round_index": np.array(self.round_index), "told": np.array(score)}
        state = {**numbers, **self._state("after"), **self.before}
        wrong = [name for name, value in state.items() if not np.isfinite(value).all()]
        if wrong:
            raise ValueError(
                f"{wrong[0]} of this turn is not finite, and every later turn would start from it; "
                f"{self.path} stays as it was"
            )
        atomic_files.save_arrays(self.path, state)
        if stored is None:  # a cloud that begins job after job must not fill the disk
            jobs = sorted(self.path.parent.glob(self.pattern), key=lambda p: p.stat().st_mtime)
            for old in jobs[:-MOST_JOBS]:
                old.unlink(missing_ok=True)


class PrivacyFiles:
    """A secret that nobody else has, and the number of reports of every day.

    Noise is drawn from the secret, so that the same question has the same answer and a cloud
    cannot average it away by asking again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, path = folder, folder / "secret"
        if not path.exists():
            draft = folder / f".secret.{secrets.token_hex(8)}"
            secret = secrets.token_bytes(SECRET_BYTES)
            atomic_files.write_whole(draft, secret, mode=atomic_files.OWNER_ONLY)
            try:
                os.link(draft, path)  # whole from the first moment, and only if nobody was faster
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        self.secret = path.read_bytes()
        if len(self.secret) != SECRET_BYTES:  # an empty one would make noise that all can compute
            raise ValueError(
                f"{path} is damaged: it has {len(self.secret)} bytes instead of {SECRET_BYTES}; "
                "remove it, and the next start makes another"
            )

    def rng(self, *about: object) -> np.random.Generator:
        """The generator of the noise for one question; the same question gives the same noise."""
        seed = hashlib.blake2b(repr(about).encode(), key=self.secret, digest_size=32).digest()
        return np.random.default_rng(int.from_bytes(seed, "little"))

    def reports(self) -> tuple[int, int]:
        """How many reports were made today, and in all."""
        path = self.folder / "reports.json"
        counts = atomic_files.read_json(path) if path.exists() else {}
        return counts.get(datetime.now(UTC).date().isoformat(), 0), counts.get(ALL, 0)

    def may_report(self, limit: int) -> bool:
        """Count one more report of today, if the budget has one left."""
        path = self.folder / "reports.json"
        with wait_for_lock(self.folder / "reports.lock", LOCK_SECONDS):
            today = datetime.now(UTC).date().isoformat()
            counts = atomic_files.read_json(path) if path.exists() else {}
            if not all(type(count) is int and count >= 0 for count in counts.values()):
                raise ValueError(f"{path} is damaged (a count that is no number)")
            if counts.get(today, 0) >= limit:
                return False
            # Other days are kept: a clock that goes back must not give a day's budget again.
            total = counts.pop(ALL, sum(counts.values()))
            recent = {day: counts[day] for day in sorted(counts)[-DAYS_KEPT:]}
            now = {today: counts.get(today, 0) + 1, ALL: total + 1}
            content = json.dumps({**recent, **now}).encode()
            atomic_files.write_whole(path, content, mode=atomic_files.OWNER_ONLY)
        return True
