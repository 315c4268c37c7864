"""Damaged files of every kind: one line that names the file, or the same results; no traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from common import (
    COMMANDS,
    DRAWN,
    Tally,
    difference,
    files_of,
    judged,
    references,
)
from warm import Fork, prepare, sketched

RNG = random.Random(1)


def _flip(content: bytes) -> bytes:
    at = RNG.randrange(max(1, len(content)))
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] if content else b"\1"


KINDS: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by one byte": lambda content: content[:-1],
    "one byte flipped": _flip,
    "another byte flipped": _flip,
    "random bytes": lambda content: RNG.randbytes(max(1, len(content))),
    "text": lambda content: b"something else\n",
    "invalid UTF-8": lambda content: b"\xff\xfe\x00" + content[3:],
    "JSON of another shape": lambda content: b'{"format": 1, "algorithms": 7}',
    "zeros": lambda content: b"\0" * len(content),
    # Not of Parquet, which is read from its end, and would be read as it was.
    "twice": lambda content: content + (b"" if content[:4] == b"PAR1" else content),
    "a folder": lambda content: None,
}


FEW_KINDS = ("empty", "random bytes", "a folder")  # of files that nobody reads again


def _spoil(path: Path, kind: str) -> None:
    content = KINDS[kind](path.read_bytes())
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


def _unfinished(name: str, place: Path) -> Path:
    """A folder with work in progress: the command was stopped after its first checkpoint."""
    out = place / f"unfinished-{name}"
    while not list(out.rglob("*.npz")):
        shutil.rmtree(out, ignore_errors=True)
        fork = Fork([*COMMANDS[name], "--out", str(out), "--resume"], place, out, draw=False)
        while fork.poll() is None and not list(out.rglob("*.npz")):
            time.sleep(0.001)
        fork.send_signal(signal.SIGINT)
        fork.finish()
    return out


def run(place: Path, tally: Tally, *, share: float = 1.0) -> None:
    """Every file of a complete and of an unfinished folder, damaged in every way."""
    known = references(place)
    prepare(place)
    for name in COMMANDS:
        expected, _ = known[name]
        complete = place / f"reference-{name}"
        for whole in (complete, _unfinished(name, place)):
            for path in sorted(p for p in whole.rglob("*") if p.is_file()):
                harmless = path.name in _HARMLESS or path.suffix in DRAWN
                for kind in FEW_KINDS if harmless else KINDS:
                    key = f"{name} {path.relative_to(place)} {kind}"
                    if key in tally.counts or random.Random(key).random() > share:
                        continue
                    _damage(name, whole, path, kind, place, expected, tally)
                    tally.add(key)
            tally.save()


def _damage(name, whole: Path, path: Path, kind: str, place: Path, expected, tally: Tally) -> None:
    out = place / "damaged"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(whole, out)
    _spoil(out / path.relative_to(whole), kind)
    what = f"{path.relative_to(place)} is {kind}"
    tally.add("damaged files")
    words = [*COMMANDS[name], "--out", str(out)]
    with sketched():
        code, errors = in_process([*words, "--resume"], place)
    wrong = judged(code, errors, allowed=[0, 1, 2])
    if wrong:
        tally.fail(f"{what}: {wrong}")
    elif code == 0:
        tally.add("without consequence")
        ignored = path.name in (*_HARMLESS, "config.toml") or path.suffix in DRAWN
        found = None if ignored else _other_content(files_of(out), expected)
        if found:
            tally.fail(f"{what}: accepted, and the results {found}")
    else:
        tally.add("refused in one line")
        if path.name not in errors and path.parent.name not in errors and "damaged" not in errors:
            tally.fail(f"{what}: the message does not name it: {errors.strip()[:200]}")
        with sketched():
            code, errors = in_process([*words, "--overwrite"], place)
        if kind != "a folder":  # that somebody has to move away
            wrong = judged(code, errors, allowed=[0]) or difference(files_of(out), expected)
            if wrong:
                tally.fail(f"{what}, then --overwrite: {wrong}")


_HARMLESS = (".lock", "times.json")


def _other_content(found: dict[str, bytes], expected: dict[str, bytes]) -> str | None:
    """`difference` without files that say the same in other bytes, such as a lost last line end."""
    same = {
        n for n in found.keys() & expected.keys() if _content(n, found) == _content(n, expected)
    }
    rest = [{n: c for n, c in files.items() if n not in same} for files in (found, expected)]
    return difference(*rest)


def _content(name: str, files: dict[str, bytes]) -> object:
    if name.endswith(".json"):
        return json.loads(files[name])
    if name.endswith(".parquet"):
        return pq.read_table(io.BytesIO(files[name])).to_pydict()
    return files[name]


def in_process(words: list[str], place: Path) -> tuple[int, str]:
    """Call the command line in this process: a start takes seconds, and here is nothing to kill."""
    from typer.testing import CliRunner

    from isfed.cli.app import app

    before = Path.cwd()
    os.chdir(place)
    try:
        result = CliRunner().invoke(app, words)
    finally:
        os.chdir(before)
    errors = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        import traceback

        errors += "Traceback " + "".join(traceback.format_exception(result.exception))[-800:]
    return result.exit_code, errors
