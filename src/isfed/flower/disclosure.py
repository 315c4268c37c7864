"""What an agent lets the cloud know of its turn: noise, clipping, and a number of reports a day."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from isfed.base import atomic_files
from isfed.base.argument_checks import check_whole
from isfed.federation.agent import Upload
from isfed.federation.safety import Privacy, check_noise, revealed_score
from isfed.flower.agent_state import AgentStateFile, wait_for_lock
from isfed.flower.wire_format import AgentRequest, unpack_request

REPORTS_PER_DAY = 1000  # where noise is asked for and nothing is said
DAYS_KEPT = 31  # of counted reports
LOCK_SECONDS = 30.0
SECRET_BYTES = 32


class Disclosure:
    """What an agent does to a turn before it tells the cloud; the options of `agent_turn`."""

    def __init__(
        self, score_noise: float, privacy: Privacy | None, reports_per_day: int | None
    ) -> None:
        if not (math.isfinite(score_noise) and score_noise >= 0.0):
            raise ValueError(f"score_noise={score_noise} must be a number >= 0")
        if reports_per_day is not None:
            check_whole(reports_per_day, name="reports_per_day", least=1)
        self.score_noise, self.privacy, self.limit = score_noise, privacy, reports_per_day
        if reports_per_day is None and (score_noise > 0.0 or privacy is not None):
            self.limit = REPORTS_PER_DAY

    def request(self, message: Message) -> AgentRequest:
        """The request in a message, if this agent can follow it and hide what it must."""
        request = unpack_request(message.content)
        check_noise(request.scores, self.score_noise)
        if request.terms is not None and self.privacy is not None:
            raise ValueError(
                "this agent hides its changes (privacy), and a correction would remember what is "
                "hidden: the cloud must leave correction out"
            )
        more = request.ask or request.also or request.local.momentum > 0.0
        if more and self.limit is not None:
            raise ValueError(
                "this agent limits what it tells (privacy, score_noise or reports_per_day), and a "
                "loss, a gradient or a momentum would tell more: use a method that asks for none"
            )
        return request

    def hide(
        self, upload: Upload, request: AgentRequest, state: AgentStateFile, told: float | None,
        node: Any,
    ) -> Upload:  # fmt: skip
        """The upload as it leaves; the state keeps the score that is told now, or was before."""
        files = PrivacyFiles(state.path.parent)
        may_report = told is not None or self.limit is None or files.may_report(self.limit)
        if told is None and may_report:  # noise of this agent and round, whatever the job is called
            rng = files.rng("score", node, request.round_index)
            told = revealed_score(upload.score, request.scores, noise=self.score_noise, rng=rng)
        elif told is None:  # nothing new: the last score again, or the middle of the range
            low, high, last = request.scores.low, request.scores.high, state.last_told
            told = math.sqrt(low * high) if last is None else request.scores.clip(last)
        if self.privacy is not None:
            if not may_report:
                raise ValueError(f"this agent has answered {self.limit} times today")
            # The same answer again has the same noise, so that asking again does not help; another
            # has noise of its own, or the difference of the two would show through.
            rng = files.rng("change", node, upload.change.tobytes())
            noise = self.privacy.disturbance(upload.change.size, rng=rng)
            upload = replace(upload, change=self.privacy.shorten(upload.change) + noise)
        state.keep(told)
        return replace(upload, score=told)


class PrivacyFiles:
    """A secret that nobody else has, and the number of reports of every day.

    Noise is drawn from the secret, so that the same question has the same answer and a cloud
    cannot average it away by asking again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, path = folder, folder / "secret"
        if not path.exists():
            draft, secret = (
                folder / f".secret.{secrets.token_hex(8)}",
                secrets.token_bytes(SECRET_BYTES),
            )
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
            recent = {day: counts[day] for day in sorted(counts)[-DAYS_KEPT:]}
            content = json.dumps({**recent, today: counts.get(today, 0) + 1}).encode()
            atomic_files.write_whole(path, content, mode=atomic_files.OWNER_ONLY)
        return True
