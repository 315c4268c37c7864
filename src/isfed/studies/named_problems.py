"""Problems that have a name on the command line, each with the number of agents a round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isfed.problems import Problem
from isfed.problems.synthetic_problems import PRESETS
from isfed.studies.problem_sources import DATA

Made = tuple[Problem, int]  # with the usual number of agents a round


def _preset(name: str) -> Callable[[Path | None], Made]:
    return lambda _: (PRESETS[name].make(), 6)


def _data(name: str, **options) -> Callable[[Path | None], Made]:
    def made(data_dir: Path | None) -> Made:
        source = DATA[name](data_dir=data_dir, **options)
        return source.make(), source.usual_active

    return made


NAMED: dict[str, Callable[[Path | None], Made]] = {
    **{name: _preset(name) for name in PRESETS},
    "ijcnn1": _data("ijcnn1"),
    "ijcnn1-natural": _data("ijcnn1", partition="natural"),
    "parkinsons": _data("parkinsons"),
    "digits": _data("digits"),
    "breast-cancer": _data("breast-cancer"),
    "synthetic": _data("synthetic"),
}
