"""Progress where there is no terminal: a plain line now and then."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from isfed.report import progress_bar
from isfed.report.progress_bar import LINE_SECONDS, RunProgress


class Clocks:
    """A clock on the wall, and one that stands still while anything is compiled."""

    def __init__(self) -> None:
        self.wall = self.working = 0.0

    def wait(self, seconds: float, *, compiling: bool = False) -> None:
        """Let time pass."""
        self.wall += seconds
        self.working += 0.0 if compiling else seconds


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: clocks.wall))
    monkeypatch.setattr(progress_bar, "working_clock", lambda: clocks.working)
    return clocks


@pytest.fixture
def told() -> RunProgress:
    return RunProgress(Console(file=io.StringIO(), width=200))


def lines(told: RunProgress) -> list[str]:
    file = told.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def test_a_long_stage_tells_its_speed(clocks, told):
    told.begin("FedAvg", 1000, 0)
    for _ in range(4):
        clocks.wait(0.3 * LINE_SECONDS)
        told.advance(60)
    assert lines(told) == [
        "FedAvg: 24% of 1,000 rounds (of all repetitions), 67 rounds/s, 11 s left in this stage"
    ]


def test_stages_shorter_than_the_time_between_lines_are_told(clocks, told):
    for stage in range(30):
        told.begin(f"stage {stage}", 20, 0)
        clocks.wait(0.4 * LINE_SECONDS)
        told.advance(20)
    assert len(lines(told)) == 10  # at every third end of a stage
    assert lines(told)[0].startswith("stage 2: 100% of 20 rounds")


def test_compiling_is_waiting_too(clocks, told):
    told.begin("first", 20, 0)
    clocks.wait(5 * LINE_SECONDS, compiling=True)
    told.begin("second", 40, 0)  # the speed is not known before a round is done
    assert lines(told) == ["second: 0% of 40 rounds (of all repetitions)"]


def test_what_is_left_knows_that_some_stages_are_slow(clocks, told):
    """100 rounds of each way: of 600 seconds 100 have gone by, after a minute without rounds."""
    told.expect(600.0, {"FedAvg": 1.0, "FedAvg, passes": 5.0})
    clocks.wait(60.0)
    told.begin("FedAvg, step 0.1", 100, 0)
    clocks.wait(100.0)
    told.advance(100)
    assert lines(told)[-1].endswith("8 min left in all")
    told.begin("FedAvg, passes, step 0.1", 100, 0)
    clocks.wait(400.0)
    told.advance(80)
    assert lines(told)[-1].endswith("2 min left in all")


def test_the_first_rounds_do_not_upset_what_was_expected(clocks, told):
    """One of 1000 rounds took twenty times as long as the others will."""
    told.expect(1000.0, {"FedAvg": 1.0})
    told.begin("FedAvg, step 0.1", 1000, 0)
    clocks.wait(20.0)
    told.advance(1)
    left = told._left()
    assert left is not None
    assert abs(left - 999.0) < 200.0
