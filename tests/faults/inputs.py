"""Generated bad inputs: TOML files, tables, and the arguments of public functions.

Each must be refused in one line that names what is wrong, or be taken with finite results. Counted
in batches of their own seeds, so that a part can be continued.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import math
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import table_cases
import tomli_w
from common import Tally, judged
from damage import in_process
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from table_cases import Case
from warm import sketched

from isfed.studies import make_experiment
from isfed.studies.results_folder import StoreError

KINDS = {"calls": 575, "TOML files": 225, "tables": 200}  # and how many of a thousand
BATCH = 250
SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
SLOW = 60.0  # seconds of computing: such an input takes a fraction of one, after compiling
HUGE = [
    2**31,
    2**63,
    10**30,
    -(2**63),
    1e300,
    -1e300,
    5e-324,
    1e-308,
    math.inf,
    -math.inf,
    math.nan,
]
WORDS = ["", "x", "FedAvg", "memory", "auto", "é", "\x00", "../..", "a" * 300, "paper", "nan"]
PLAIN = (
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(-3, 3) | st.sampled_from(HUGE)
    | st.sampled_from(WORDS)
)  # fmt: skip
JUNK = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.sampled_from(WORDS), PLAIN)
CONFIG: dict[str, Any] = {
    "name": "mine", "rounds": 3, "repetitions": 1, "seed": 0, "engine": "auto",
    "problem": {
        "preset": "paper", "seed": 0, "num_agents": 4, "num_examples": 6,
        "num_features": 2, "feature_variance": [0.5, 2.0], "noise_variance": [0.001, 1.0],
        "noisy_share": 0.0, "noise_ratio": 1.0, "local_steps": [1, 2], "batch_size": [1, 2],
        "ridge": 0.001,
    },
    "algorithm": [
        {"kind": "FedAvg", "step_size": 0.01, "num_active": 2, "divide_by_steps": False},
        {"kind": "ISFedAvg", "step_size": 0.01, "num_active": 2, "agents": "memory",
         "examples": {"policy": "running", "floor": 0.3}, "agent_design": "deville",
         "example_design": "systematic", "drift": 0.0, "divide_by_steps": True},
    ],
}  # fmt: skip
# A number that makes a run long or large is no mistake: of these only what cannot be is tried.
COUNTS = ("rounds", "repetitions", "num_agents", "num_examples", "num_features")


def _paths(value: Any, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += _paths(part, (*path, key))
    return found


@st.composite
def tomls(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and the word that a message has to name ("" if any will do)."""
    given = copy.deepcopy(CONFIG)
    kind = draw(st.sampled_from(["value", "value", "value", "gone", "unknown", "text"]))
    path = draw(st.sampled_from(_paths(CONFIG)))
    holder: Any = given
    for key in path[:-1]:
        holder = holder[key]
    word = next(str(key) for key in reversed(path) if isinstance(key, str))
    if kind == "value":
        value = draw(JUNK)
        if word in COUNTS and isinstance(value, int) and 12 < value < 2**62:
            value = -1
        if value is None:
            holder.pop(path[-1])
        else:
            holder[path[-1]] = value
    elif kind == "gone":
        holder.pop(path[-1])
    elif kind == "unknown":
        word = draw(st.sampled_from(["stepsize", "x y", "roundss", "é"]))
        place: Any = draw(st.sampled_from([given, given["problem"], given["algorithm"][0]]))
        place[word] = draw(PLAIN.filter(lambda v: v is not None))
    try:
        text = tomli_w.dumps(_written(given))
    except (TypeError, ValueError, OverflowError):
        text = "x = "
    if kind == "text":
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 5))
        text = (
            text[:at]
            + draw(st.sampled_from(["", "\x00", "=", "[", '"', "é", "1"]))
            + text[at + cut :]
        )
        return text, ""
    return text, word if kind != "gone" else ""


def _written(value: Any) -> Any:
    """What TOML can hold: None has no word there."""
    if isinstance(value, dict):
        return {str(k): _written(v) for k, v in value.items() if v is not None}
    return [_written(v) for v in value if v is not None] if isinstance(value, list) else value


def _finite_results(folder: Path) -> str | None:
    """What in a results folder is not finite and not absent; None if nothing is."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        for path in folder.rglob("*.json"):
            json.loads(path.read_text(), parse_constant=refuse)
        for path in folder.rglob("*.parquet"):
            table = pq.read_table(path)
            for name in table.column_names:
                column = table.column(name)
                if pa.types.is_floating(column.type):
                    values = column.drop_null().to_numpy()
                    if not np.isfinite(values).all():
                        raise ValueError(f"{path.name}: {name}")
    except ValueError as error:
        return f"results that are not finite: {error}"
    return None


def _try_toml(case: tuple[str, str], place: Path, tally: Tally) -> None:
    text, word = case
    file, out = place / "bad.toml", place / "bad-out"
    shutil.rmtree(out, ignore_errors=True)
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    begun = time.process_time()
    with contextlib.nullcontext() if tally.counts["TOML files"] % 8 == 0 else sketched():
        code, errors = in_process(["run", "bad.toml", "--out", "bad-out", "--threads", "1"], place)
    wrong = judged(code, errors, allowed=[0, 1, 2]) or _late(begun)
    if not wrong and code == 2 and word and word not in errors and "bad.toml" not in errors:
        wrong = f"the message does not name {word}: {errors.strip()[:200]}"
    if not wrong and code == 0:
        wrong = _finite_results(out)
    _book(tally, "TOML files", code, wrong, text)


def _try_table(case: Case, place: Path, tally: Tally) -> None:
    """Through `diagnose` or `compare`; one in eight is drawn, which takes most of the time."""
    folder, out = place / "table", place / "bad-out"
    for old in (folder, out):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    (folder / case.name).write_bytes(case.content)
    number = tally.counts["tables"]
    command = "compare" if number % 2 else "diagnose"
    few = ["--rounds", "8", "--repetitions", "2", "--threads", "1"] if number % 2 else []
    words = [command, f"table/{case.name}", *case.options, *few, "--out", "bad-out"]
    begun = time.process_time()
    with contextlib.nullcontext() if number % 16 < 2 else sketched():
        code, errors = in_process(words, place)
    wrong = judged(code, errors, allowed=[0, 1, 2]) or _late(begun)
    if not wrong and code == 0:
        wrong = _finite_results(out)
    if not wrong and code and not any(word in errors for word in case.words):
        wrong = f"the message names nothing: {errors.strip()[:300]}"
    for what in case.done:
        tally.add(f"table, {what}: {'refused' if code else 'taken'}")
    _book(tally, "tables", code, wrong, f"{words} {case.done}: {case.content[:1200]!r}")


def _late(begun: float) -> str | None:
    spent = time.process_time() - begun
    return f"took {spent:.0f} s of computing" if spent > SLOW else None


def _book(tally: Tally, what: str, code: int, wrong: str | None, case: str) -> None:
    tally.add(what)
    tally.add(f"{what} that were taken", int(code == 0))
    if wrong:
        tally.fail(f"{what}: {wrong} <- {case[:1500]!r}")


def _calls() -> dict[str, tuple[Any, dict, dict]]:
    """The table of tests/test_arguments.py."""
    path = Path(__file__).parents[1] / "test_arguments.py"
    sys.path.insert(0, str(path.parent / "support"))
    spec = importlib.util.spec_from_file_location("test_arguments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: call for name, call in module.CALLS.items() if call[2]}


ARRAYS = st.one_of(
    st.lists(st.floats(0, 3) | st.sampled_from(HUGE), max_size=4).map(
        lambda values: np.array(values, object if any(abs(v) > 1e25 for v in values) else float)
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.just(np.ma.masked_array([1.0, 2.0], [True, False])), st.just(np.array(["a"])),
    st.just(np.array([[1.0, 2.0], [3.0, 4.0]])), st.just(np.array([object()])),
)  # fmt: skip
# A count that makes a call long is no mistake.
LARGE = {
    *COUNTS, "count", "samples", "steps", "local_steps", "inner_rounds", "threads", "most_tries",
    "num_classes",
}  # fmt: skip


def _try_call(data: Any, calls: dict, tally: Tally) -> None:
    name = data.draw(st.sampled_from(sorted(calls)))
    call, given, kinds = calls[name]
    argument = data.draw(st.sampled_from(sorted(kinds)))
    value = data.draw(JUNK | ARRAYS)
    if argument in LARGE and isinstance(value, int) and value > 12:
        value = -value
    arguments = {
        k: v() if callable(v) and k in ("problem", "algorithm", "data", "rules") else v
        for k, v in given.items()
    }
    begun, wrong, taken = time.process_time(), None, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(**arguments | {argument: value})
        taken = True
        if not _finite(result):
            wrong = f"{name}({argument}=...) returns numbers that are not finite"
    except StoreError as error:  # of a folder that is not there
        wrong = None if str(value)[:50] in str(error) else f"{name}: {error}"
    except (ValueError, TypeError) as error:
        if argument.removesuffix("s") not in str(error):
            wrong = f"{name}: {type(error).__name__}: {error} does not name {argument}"
    except Exception as error:
        wrong = f"{name}: {type(error).__name__}: {error}"
    _book(tally, "calls", 0 if taken else 2, wrong or _late(begun), f"{name} {argument}={value!r}")


def _finite(result: Any) -> bool:
    if isinstance(result, tuple):
        return all(map(_finite, result))
    if isinstance(result, float):
        return not math.isnan(result)
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return bool(np.isfinite(result).all())
    return True


def run(place: Path, tally: Tally, *, cases: int, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Calls are quick, and tables slow: of the former there are more."""
    make_experiment(CONFIG)  # it must be right as it is, or every change of it is refused
    calls = _calls()

    def batch(strategy: Any, attempt: Any, number: int, of: str) -> None:
        count = min(BATCH, shares[of] - tally.counts[of])

        @seed(number)
        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=SLOW_IS_FINE,
        )  # fmt: skip
        @given(case=strategy)
        def go(case: Any) -> None:
            if tally.counts[of] < shares[of]:
                attempt(case)

        go()

    shares = {kind: -(-cases * share // 1000) for kind, share in KINDS.items()}
    for of, strategy, attempt in (
        ("tables", table_cases.cases(), lambda case: _try_table(case, place, tally)),
        ("calls", st.data(), lambda case: _try_call(case, calls, tally)),
        ("TOML files", tomls(), lambda case: _try_toml(case, place, tally)),
    ):
        while of in kinds and tally.counts[of] < shares[of]:
            batch(strategy, attempt, tally.counts[f"batches of {of}"], of)
            tally.add(f"batches of {of}")
            tally.save()
            print(f"{of}: {tally.counts[of]} of {shares[of]}", flush=True)
