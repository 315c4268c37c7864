"""Modules and public names as they were called before, until version 0.4.

Importing an old name gives the module under its new one, with a warning that names it.
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
        in_process=object_federation job=resumable_job local_gd=local_sgd momentum=local_sgd
        parts=shared_fields qffl=q_ffl restarted=local_sgd samplers=uniform_samplers server=servers
        server_optimizers=servers
    """,
    "base": """
        arguments=argument_checks arithmetic=portable_arithmetic checks=argument_checks compiled=jit
        compiled_parts=jit compiling=progress files=atomic_files folders=temporary_folders
        gram=gram_matrix imports=import_by_name interpreted=interpret_first
        orphans=temporary_folders streams=random_streams words=text_format
    """,
    "cli": """
        common=command_helpers designs=listings methods=listings run=reproduce
        stopping=interrupt_exit tables=compare_and_diagnose
    """,
    "datasets": """
        account=table_report columns=encoder dates=number_and_date_parsing encoding=column_encoding
        excel=table_sources files=dataset_files flwr_partitions=partition images=named_datasets
        libsvm=libsvm_reader named=named_datasets numerals=number_and_date_parsing
        packing=dataset_files reading=read_options recipe=encoder scaling=encoder
        sources=table_sources tables=table_data text=delimited_text
    """,
    "experiments": """
        cells=work_cells classification=experiment_config config=experiment_config
        contest=comparison_run data_sets=dataset_config deals=dataset_config
        diagnosing=diagnosis_folder estimators=sklearn_estimators folder=results_folder
        forecast=comparison held_out=held_out_error heterogeneity=experiment_config
        keys=config_schema measures=test_measures named=dataset_config
        network_data=neural_network_config networks=experiment_config
        own_rows=neural_network_config registry=name_registry resting=fixed_points
        results=results_reader runner=study_engine settling=results_summary
        sources=problem_sources steps=study_engine summary=results_summary
        systems=experiment_config tuned=experiment_config
        workers=executors
    """,
    "federation": """
        absences=response_rates arrays=problem_arrays clock=virtual_clock
        correction=variate_updates privacy=safety reports=guarded standing=agent_records
        trust=safety turn=compiled_turn
    """,
    "flower": """
        arrays=array_records check=connection_check client=agent_handler exchange=message_exchange
        keyring=certificates keys=certificates memory=agent_state own=agent_handler
        processes=local_processes registry=certificates roll=node_directory simulation=demo
        torch=torch_handler turns=message_exchange wire=wire_format
    """,
    "methods": """
        agent_passes=passes_over_agents model_average=iterate_average network_job=resumable_job
    """,
    "problems": """
        data=federated_data devices=synthetic_problems gradients=compiled_losses newton=optimum
        risk=scaled_risk synthetic=synthetic_problems values=compiled_losses
    """,
    "report": """
        axes=axis_ticks comparison=comparison_report diagnosis=diagnosis_report
        from_results=page_from_results markup=html_markup measured=page_sentences
        methods=methods_table networks=networks_report page=html_page page_tables=page_from_results
        pair=two_runs progress=progress_bar quantities=page_curves svg=svg_chart
        systems=systems_report tables=terminal_tables thin=svg_chart ways=diagnosis_report
    """,
    "sampling": "designs.variance=designs.exact_variance",
    "simulate": """
        driver=run_driver history=run_history interrupts=run_driver run=simulate_call
        running=run_driver
    """,
    "studies": "network_config=neural_network_config",
    "theory": """
        bound=msd_prediction certificate=unbiasedness choices=probabilities
        constants=paper_constants curvature=round_curvature findings=diagnosis
        noise_path=budget_levels
        prediction=msd_prediction remembering=composition_variance settling=msd_prediction
        stability=stable_step_size variance=round_variance ways=strategies
    """,
    "torch": """
        chain=fast_sequential check=module_checks convert=flat_module convolve=fast_sequential
        evaluate=evaluation files=network flat=flat_module halve=fast_sequential hits=module_worker
        identity=fingerprint links=fast_sequential mailbox=process_pool norms=example_norms
        pool=process_pool server=server_optimizers torch_optimizers=server_optimizers
        turn=module_worker watch=example_norms worker=module_worker
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
