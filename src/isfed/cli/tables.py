"""`isfed compare` and `isfed diagnose`: what importance sampling does for a table of your own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isfed.cli.common import (
    Backend,
    DataDir,
    Jobs,
    Out,
    Overwrite,
    Resume,
    Threads,
    console,
    one_line_errors,
    print_line,
)

if TYPE_CHECKING:
    from isfed.experiments.sources import FileSource

RIDGE = 1e-3
Task = Annotated[str, typer.Option(help="regression (a measured target) or classification.")]
Drop = Annotated[
    list[str] | None, typer.Option(help="A column that is no feature; may be repeated.")
]
Missing = Annotated[
    str, typer.Option(help="What a missing value is: error, mean, or a number to put there.")
]


def compare(
    file: Annotated[Path, typer.Argument(help="Your table: Parquet, CSV or LIBSVM.")],
    agent: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    task: Task = "regression",
    drop: Drop = None,
    missing: Missing = "error",
    active: Annotated[int | None, typer.Option(help="Agents a round (default: a tenth).")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples a step, at most.")] = 8,
    ridge: Annotated[
        float, typer.Option(help="Weight of the squared length of the model.")
    ] = RIDGE,
    rounds: Annotated[int, typer.Option(help="Rounds of every repetition.")] = 2000,
    repetitions: Annotated[int, typer.Option(help="Independent repetitions.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    threads: Threads = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    backend: Backend = None,
    jobs: Jobs = None,
) -> None:
    """Would importance sampling help on your own data, and by how much?

    FedAvg against ISFedAvg on your table, each at its own best step size: how many rounds, uploads
    and gradient evaluations each needs to reach the loss that FedAvg ends with.
    """
    from isfed.experiments import Budget, Workers
    from isfed.experiments.cells import problem_of
    from isfed.experiments.contest import Rivalry, run_comparison
    from isfed.experiments.folder import Folder
    from isfed.report.comparison import comparison_figure, comparison_table
    from isfed.report.progress import RunProgress
    from isfed.report.tables import settling_lines

    with one_line_errors():
        folder = out or Path("runs") / f"compare-{file.stem}"
        workers = Workers(backend=backend, jobs=jobs, threads=threads)
        source = _own_file(file, agent, target, task, drop or [], missing)
        source = replace(source, ridge=ridge, batch_size=batch_size)
        problem, _ = problem_of(source)
        budget = Budget(
            num_active=max(1, problem.num_agents // 10) if active is None else active,
            rounds=rounds, repetitions=repetitions, seed=seed,
        )  # fmt: skip
        rivalry = Rivalry(file.stem, source, budget)
        Folder(folder, rivalry).check(resume=resume, overwrite=overwrite)
        print_line(
            f"{file.name}: {problem.num_agents} agents, {len(problem.data.targets)} rows, "
            f"{problem.data.num_features} features, {type(problem.loss).__name__}"
        )
        with RunProgress(console) as progress:
            results = run_comparison(
                rivalry, folder, resume=resume, overwrite=overwrite, workers=workers,
                progress=progress,
            )  # fmt: skip
        comparison_figure(results)
        console.print(comparison_table(results))
        print_line(results.summary["verdict"])
        for line in settling_lines(results):
            print_line(line)
        print_line(f"Results are in {folder}")


def _own_file(
    file: Path, agent: str, target: str, task: Any, drop: list[str], missing: str
) -> FileSource:
    """The user's table with its columns."""
    from isfed.datasets.tables import Columns
    from isfed.experiments import ConfigError
    from isfed.experiments.sources import FileSource

    try:
        filling: Any = missing if missing in ("error", "mean") else float(missing)
    except ValueError:
        raise ConfigError(f"missing={missing!r} must be error, mean or a number") from None
    columns = Columns(agent=agent, target=target, task=task, missing=filling)
    return FileSource(file=file, columns=columns, drop=tuple(drop))


def diagnose(
    what: Annotated[
        str, typer.Argument(help="A table (Parquet, CSV, LIBSVM), or a name: see below.")
    ],
    agent: Annotated[str | None, typer.Option(help="Of a table: whose row it is.")] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column to predict.")] = None,
    task: Task = "regression",
    drop: Drop = None,
    missing: Missing = "error",
    active: Annotated[
        int | None, typer.Option(help="L, agents a round (default: a tenth, or as named).")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="B, examples a step, at most (default: 8, or as named).")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="E, steps of a turn (default: 1, or as named).")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(help=f"Of a table: weight of |params|^2 (default: {RIDGE}).")
    ] = None,
    data_dir: DataDir = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Would importance sampling help, and by how much? Predicted, without a training run.

    The variance of a round's gradient estimate under uniform sampling and under importance sampling
    of agents, of examples and of both, exactly; what that does to the error that remains; the
    largest stable step sizes; who would be drawn most. All of it at the minimiser w^o, which is
    computed from the whole table: that is the only fit it makes.

    WHAT is a table (Parquet, CSV or LIBSVM; say --agent and --target), or a name: paper, equal,
    outliers (the regression), ijcnn1, ijcnn1-natural, parkinsons, digits, breast-cancer.
    """
    from isfed.experiments.diagnosing import check_folder, write_diagnosis
    from isfed.report.diagnosis import (
        constant_lines,
        diagnosis_table,
        dominant_lines,
        inclusion_figure,
        setting_line,
        settling_line,
    )
    from isfed.theory import diagnose as find

    with one_line_errors(stopped="nothing was written"):
        folder = out or Path("runs") / f"diagnose-{Path(what).stem}"
        check_folder(folder, overwrite=overwrite)
        columns = (agent, target, task, drop or [], missing)
        problem, usual, names = _problem_of(what, columns, ridge, data_dir)
        problem = _with_work(problem, batch_size, local_steps)
        found = find(problem, num_active=usual if active is None else active)
        results = write_diagnosis(folder, problem, found, names=names, overwrite=overwrite)
        inclusion_figure(results)
        print_line(setting_line(results))
        console.print(diagnosis_table(results))
        print_line(results.summary["recommendation"])
        print_line(settling_line(results))
        for line in dominant_lines(results):
            print_line(f"- {line}")
        print_line(
            "Constants of the paper's lemmas and theorem; their limits are bounds, far more "
            "careful than what is stable (docs/theory.md):"
        )
        for line in constant_lines(results):
            print_line(f"  {line}")
        print_line(f"Results are in {folder}")


def _problem_of(
    what: str, columns: tuple, ridge: float | None, data_dir: Path | None
) -> tuple[Any, int, Any]:
    """The problem of a table or of a name, the usual number of agents a round, and their names."""
    from isfed.experiments import ConfigError
    from isfed.experiments.named import NAMED

    agent, target, _, drop, _ = columns
    if what in NAMED:
        if agent or target or drop or ridge is not None:
            raise ConfigError(
                f"{what} is no table: --agent, --target, --drop, --ridge do not apply"
            )
        return *NAMED[what](data_dir), None
    if not Path(what).exists():
        raise ConfigError(f"{what} is no file and no name; the names are {', '.join(NAMED)}")
    if agent is None or target is None:
        raise ConfigError(f"{what} is a table: say --agent COLUMN and --target COLUMN")
    source = replace(_own_file(Path(what), *columns), ridge=RIDGE if ridge is None else ridge)
    table = source.table()
    problem = source.problem_of(table)
    return problem, max(1, problem.num_agents // 10), table.agents


def _with_work(problem: Any, batch_size: int | None, local_steps: int | None) -> Any:
    """The problem with other B_k (no larger than an agent) and E_k, where they are given."""
    import numpy as np

    from isfed.experiments import ConfigError

    changes: dict[str, Any] = {}
    if batch_size is not None:
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        changes["batch_size"] = np.minimum(batch_size, problem.data.num_examples)
    if local_steps is not None:
        changes["local_steps"] = local_steps
    return replace(problem, **changes) if changes else problem
