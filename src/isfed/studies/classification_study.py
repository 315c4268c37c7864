"""The paper's classification (section V-B) on ijcnn1, and the same on MNIST by writer."""

from __future__ import annotations

from isfed.methods import FedAvg, ISFedAvg
from isfed.sampling.policies import Current, Memory, Running
from isfed.studies.dataset_config import Ijcnn1Source, WritersSource
from isfed.studies.tuned_step_sizes import Tuned

PAPER_ERRORS = {"FedAvg": 0.2245, "ISFedAvg": 0.1846}


def _methods(step_size: float, num_active: int, *, current: bool = True) -> dict[str, ISFedAvg]:
    common = {"step_size": step_size, "num_active": num_active}
    methods = {"FedAvg": FedAvg(**common)}
    if current:
        methods["current"] = ISFedAvg(**common, agents=Current(), examples=Current())
    methods["running"] = ISFedAvg(**common, agents=Running(), examples=Running())
    methods["memory"] = ISFedAvg(**common, agents=Memory(), examples=Memory())
    return methods


def paper_classification(source: Ijcnn1Source) -> Tuned:
    """Section V-B: K=100, L=10, B_k=E_k=1, mu=0.25, rho=1e-4."""
    grid = (0.0625, 0.25, 1.0, 2.0, 4.0, 8.0, 16.0)
    name = f"classification-{source.partition}"
    return Tuned(name, source, _methods(0.25, 10), grid, paper=PAPER_ERRORS)


def writers(source: WritersSource) -> Tuned:
    """539 writers, ten a round, ten digits each; `current` would read all 60 000 every round."""
    grid = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    return Tuned(
        "writers", source, _methods(0.2, 10, current=False), grid,
        rounds=1500, grid_rounds=500, grid_repetitions=2,
    )  # fmt: skip
