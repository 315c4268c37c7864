"""Modules and public names as they were called in version 0.1, until version 0.4.

Importing an old name gives the module under its new one, with a warning that names it. Listed are
the modules of the rooms that were renamed, and those of other rooms that documentation has named.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOMS = {"algorithms": "methods", "experiments": "studies"}
# By the old room: old=new names of the modules in it.
_RENAMED = {
    "algorithms": """
        agnostic=agnostic_fl algorithm=method_protocol around=method_wrappers
        clustered=clustered_sampling cooperative=cooperative_sgd fedexp=estimators importance=fedavg
        in_process=object_federation job=network_job local_gd=local_sgd momentum=local_sgd
        parts=shared_fields qffl=q_ffl restarted=local_sgd samplers=uniform_samplers server=servers
        server_optimizers=servers
    """,
    "base": "arithmetic=portable_arithmetic streams=random_streams",
    "datasets": "flwr_partitions=partition images=named_datasets named=named_datasets",
    "experiments": """
        cells=work_cells classification=experiment_config config=experiment_config
        contest=comparison_run data_sets=dataset_config deals=dataset_config
        diagnosing=diagnosis_folder estimators=sklearn_estimators folder=results_folder
        forecast=comparison held_out=held_out_error heterogeneity=experiment_config
        keys=config_schema measures=test_measures named=dataset_config network_data=network_config
        networks=experiment_config own_rows=network_config registry=name_registry
        resting=fixed_points results=results_reader runner=study_engine settling=results_summary
        sources=problem_sources steps=study_engine summary=results_summary
        systems=experiment_config tuned=experiment_config
        workers=executors
    """,
}
RENAMED = {
    f"{room}.{old}": f"{ROOMS.get(room, room)}.{new}"
    for room, table in _RENAMED.items()
    for old, new in (pair.split("=") for pair in table.split())
}
PUBLIC = {"Local": "LocalOptions", "Rules": "AgentConfig", "Turns": "TrainRequest"}
REMOVED = {
    "Cloud": "isfed.Federated(sampler, local, estimator) runs the rounds of a cloud",
    "Selection": "isfed.Cohort says which agents were drawn",
}


def new_public_name(name: str) -> str:
    """What a name of `isfed` is called now; an error if there is no such name."""
    if name in REMOVED:  # `from isfed import ...` would not show the text of an AttributeError
        raise ImportError(f"isfed.{name} is no more: {REMOVED[name]}")
    if name not in PUBLIC:
        raise AttributeError(f"module 'isfed' has no attribute {name!r}")
    return PUBLIC[name]


def new_name(name: str) -> str | None:
    """The new name of a module, both without "isfed."; None if it has kept its name."""
    room, _, rest = name.partition(".")
    if name in RENAMED:
        return RENAMED[name]
    if room not in ROOMS:
        return None
    return f"{ROOMS[room]}.{rest}" if rest else ROOMS[room]


class OldModule:
    """Loads a module by its new name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, with a warning."""
        warnings.warn(
            f"{spec.name} is now {self.name}; the old name goes in version 0.4",
            DeprecationWarning,
            stacklevel=2,
        )
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run; the module keeps knowing itself by its new name."""
        module.__spec__ = self.spec


def spec_of(name: str) -> ModuleSpec | None:
    """How to load a module of isfed by its old name; None for every other name."""
    current = new_name(name.removeprefix("isfed."))
    return None if current is None else ModuleSpec(name, OldModule(f"isfed.{current}"))  # type: ignore[arg-type]
