"""Modules and public names as they were called in version 0.1, until version 0.3.

Importing an old name gives the module under its new one, with a warning that names it.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOMS = {"algorithms": "methods", "experiments": "studies"}
RENAMED = {
    "algorithms.agnostic": "methods.agnostic_fl",
    "algorithms.algorithm": "methods.method_protocol",
    "algorithms.around": "methods.wrappers",
    "algorithms.clustered": "methods.clustered_sampling",
    "algorithms.cooperative": "methods.cooperative_sgd",
    "algorithms.importance": "methods.importance_defaults",
    "algorithms.in_process": "methods.object_federation",
    "algorithms.local_gd": "methods.local_sgd",
    "algorithms.job": "methods.network_job",
    "algorithms.momentum": "methods.momentum_sgd",
    "algorithms.parts": "methods.shared_fields",
    "algorithms.qffl": "methods.q_ffl",
    "algorithms.restarted": "methods.restarted_sgd",
    "algorithms.samplers": "methods.uniform_samplers",
    "algorithms.server": "methods.server_wrappers",
    "base.arguments": "base.argument_checks",
    "base.arithmetic": "base.portable_arithmetic",
    "base.checks": "base.argument_checks",
    "base.compiled": "base.jit",
    "base.compiled_parts": "base.jit",
    "base.compiling": "base.progress",
    "base.files": "base.atomic_files",
    "base.folders": "base.temporary_folders",
    "base.gram": "base.gram_matrix",
    "base.imports": "base.import_by_name",
    "base.interpreted": "base.interpret_first",
    "base.orphans": "base.temporary_folders",
    "base.streams": "base.random_streams",
    "base.words": "base.text_format",
    "cli.common": "cli.command_helpers",
    "cli.stopping": "cli.interrupt_exit",
    "cli.tables": "cli.compare_and_diagnose",
    "datasets.account": "datasets.table_report",
    "datasets.columns": "datasets.encoder",
    "datasets.dates": "datasets.number_and_date_parsing",
    "datasets.encoding": "datasets.column_encoding",
    "datasets.excel": "datasets.table_sources",
    "datasets.files": "datasets.dataset_files",
    "datasets.flwr_partitions": "datasets.partition",
    "datasets.images": "datasets.named_datasets",
    "datasets.libsvm": "datasets.libsvm_reader",
    "datasets.named": "datasets.named_datasets",
    "datasets.numerals": "datasets.number_and_date_parsing",
    "datasets.packing": "datasets.dataset_files",
    "datasets.reading": "datasets.read_options",
    "datasets.recipe": "datasets.encoder",
    "datasets.scaling": "datasets.encoder",
    "datasets.sources": "datasets.table_sources",
    "datasets.tables": "datasets.table_data",
    "datasets.text": "datasets.delimited_text",
    "experiments.cells": "studies.work_cells",
    "experiments.classification": "studies.classification_study",
    "experiments.config": "studies.experiment_config",
    "experiments.contest": "studies.comparison_run",
    "experiments.data_sets": "studies.dataset_config",
    "experiments.deals": "studies.partition_config",
    "experiments.diagnosing": "studies.diagnosis_folder",
    "experiments.estimators": "studies.sklearn_estimators",
    "experiments.folder": "studies.results_folder",
    "experiments.forecast": "studies.runtime_forecast",
    "experiments.held_out": "studies.held_out_error",
    "experiments.heterogeneity": "studies.heterogeneity_study",
    "experiments.keys": "studies.config_schema",
    "experiments.measures": "studies.test_measures",
    "experiments.named": "studies.named_problems",
    "experiments.network_data": "studies.network_config",
    "experiments.networks": "studies.networks_study",
    "experiments.own_rows": "studies.npz_data",
    "experiments.registry": "studies.name_registry",
    "experiments.resting": "studies.fixed_points",
    "experiments.results": "studies.results_reader",
    "experiments.runner": "studies.experiment_runner",
    "experiments.settling": "studies.steady_state",
    "experiments.sources": "studies.problem_sources",
    "experiments.steps": "studies.step_size_search",
    "experiments.summary": "studies.results_summary",
    "experiments.systems": "studies.systems_study",
    "experiments.tuned": "studies.tuned_step_sizes",
    "experiments.workers": "studies.executors",
    "federation.absences": "federation.response_rates",
    "federation.apart": "federation.remote_variates",
    "federation.arrays": "federation.problem_arrays",
    "federation.clock": "federation.virtual_clock",
    "federation.correction": "federation.variate_updates",
    "federation.privacy": "federation.safety",
    "federation.reports": "federation.guarded",
    "federation.standing": "federation.agent_records",
    "federation.trust": "federation.safety",
    "federation.turn": "federation.compiled_turn",
    "flower.arrays": "flower.array_records",
    "flower.check": "flower.connection_check",
    "flower.client": "flower.agent_handler",
    "flower.exchange": "flower.message_exchange",
    "flower.keyring": "flower.key_folder",
    "flower.memory": "flower.agent_state",
    "flower.own": "flower.agent_handler",
    "flower.processes": "flower.local_processes",
    "flower.registry": "flower.key_folder",
    "flower.roll": "flower.node_directory",
    "flower.torch": "flower.torch_handler",
    "flower.turns": "flower.message_exchange",
    "flower.wire": "flower.wire_format",
    "problems.data": "problems.federated_data",
    "problems.devices": "problems.synthetic_problems",
    "problems.gradients": "problems.compiled_losses",
    "problems.newton": "problems.optimum",
    "problems.risk": "problems.scaled_risk",
    "problems.synthetic": "problems.synthetic_problems",
    "problems.values": "problems.compiled_losses",
    "report.axes": "report.axis_ticks",
    "report.comparison": "report.comparison_report",
    "report.diagnosis": "report.diagnosis_report",
    "report.from_results": "report.page_from_results",
    "report.markup": "report.html_markup",
    "report.measured": "report.page_sentences",
    "report.methods": "report.methods_table",
    "report.networks": "report.networks_report",
    "report.page": "report.html_page",
    "report.pair": "report.two_runs",
    "report.progress": "report.progress_bar",
    "report.quantities": "report.page_curves",
    "report.svg": "report.svg_chart",
    "report.systems": "report.systems_report",
    "report.tables": "report.terminal_tables",
    "report.thin": "report.svg_chart",
    "report.ways": "report.diagnosis_report",
    "simulate.driver": "simulate.run_driver",
    "simulate.history": "simulate.run_history",
    "simulate.interrupts": "simulate.run_driver",
    "simulate.run": "simulate.simulate_call",
    "simulate.running": "simulate.run_base",
    "theory.bound": "theory.msd_bound",
    "theory.choices": "theory.probabilities",
    "theory.constants": "theory.paper_constants",
    "theory.curvature": "theory.round_curvature",
    "theory.findings": "theory.diagnosis",
    "theory.prediction": "theory.msd_prediction",
    "theory.remembering": "theory.variate_variance",
    "theory.settling": "theory.msd_prediction",
    "theory.stability": "theory.stable_step_size",
    "theory.variance": "theory.round_variance",
    "theory.ways": "theory.strategies",
    "torch.chain": "torch.fast_sequential",
    "torch.check": "torch.module_checks",
    "torch.convert": "torch.numpy_conversion",
    "torch.convolve": "torch.fast_sequential",
    "torch.evaluate": "torch.evaluation",
    "torch.files": "torch.model_files",
    "torch.flat": "torch.flat_module",
    "torch.halve": "torch.fast_sequential",
    "torch.hits": "torch.module_worker",
    "torch.identity": "torch.fingerprint",
    "torch.links": "torch.fast_sequential",
    "torch.mailbox": "torch.process_pool",
    "torch.norms": "torch.example_norms",
    "torch.pool": "torch.process_pool",
    "torch.server": "torch.torch_optimizers",
    "torch.turn": "torch.module_turn",
    "torch.watch": "torch.example_norms",
    "torch.worker": "torch.module_worker",
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
            f"{spec.name} is now {self.name}; the old name goes in version 0.3",
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
    found = new_name(name.removeprefix("isfed."))
    return None if found is None else ModuleSpec(name, OldModule(f"isfed.{found}"))  # type: ignore[arg-type]
