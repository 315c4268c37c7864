"""One entry of the catalogue of methods, and the words that several entries share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

HEARD = "only those heard"
CANDIDATES = "asks candidates"
ALL = "all agents in every round"
ORACLE = "the solution"


class Knob(NamedTuple):
    """An option of a method that a comparison may tune.

    Attributes:
        name: the field of the method.
        low: the smallest value.
        high: the largest value.
        scale: how values are tried between them; "share of K" is a whole number, a share of all
            agents but at least L.
    """

    name: str
    low: float
    high: float
    scale: Literal["log", "linear", "whole", "share of K"] = "log"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method.

    Attributes:
        name: what a configuration calls it, and the name to import.
        paper: who, when, where.
        selects: whom it selects in a round.
        steps: what the selected agents do.
        combines: how the cloud makes one model of it.
        minimises: the objective whose minimiser, or the fixed point, it really goes to.
        needs: what it must know besides a step size and the number of agents of a round.
        unbiased: whether the mean update is that of full participation; if not, why.
        confirmed: against which public implementation, by reading; empty if against none.
        network: whether it runs on Flower, and if not why.
        hears: what it must hear of agents in a round: `HEARD`, `CANDIDATES`, `ALL` or `ORACLE`.
            Methods of different classes are not ranked together.
        state: what the cloud keeps from round to round, in numbers.
        knobs: what a comparison may tune besides the step size: two at most.
    """

    name: str
    paper: str
    selects: str
    steps: str
    combines: str
    minimises: str
    needs: str = "nothing"
    unbiased: str = "yes"
    confirmed: str = ""
    network: str = "-"
    hears: str = HEARD
    state: str = "M"
    knobs: tuple[Knob, ...] = ()


EVERYBODY = "all agents"
UNIFORM = "L of K, uniform, without replacement"
SGD = "E_k mini-batch steps"
LOCAL = "H mini-batch steps"
MEAN = "weighted mean of the models"
RISK = "P = sum_k c_k P_k"
PULLED = "not w^o: a fixed point that leans to agents with more steps and flatter risks"
ALL_AGENTS = "yes: all agents take part"
SHORTER = "; with v auxiliary models the step is K / (K + v) of it"
RATIO = "uniform c_k: yes; by size: a ratio of two sums, slightly biased"
STICH = "Stich 2019, arXiv 1805.09767"
PERIODIC = (
    "epfml/LocalSGD-Code distributed_code/pcode/optim/local_sgd.py (mean of the "
    "changes every H steps)"
)
ISFEDAVG = "Rizk, Vlaski, Sayed 2022, arXiv 2012.07383 (this library's paper)"
COOPERATIVE = "Wang and Joshi 2018, arXiv 1808.07576"
WEIGHED = "sum of the changes by c_k over their probabilities"
