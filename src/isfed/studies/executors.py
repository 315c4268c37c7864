"""Where cells run: one after the other in this process, or side by side through joblib."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from isfed.base.import_by_name import user_modules
from isfed.base.ray_cluster import check_reachable, connect_ray
from isfed.base.temporary_folders import end_with
from isfed.simulate.kernel_run import num_cores
from isfed.simulate.simulate_call import make_run
from isfed.studies.config_schema import ConfigError, nearest
from isfed.studies.results_folder import StoreError
from isfed.studies.work_cells import (
    Cell,
    CellStore,
    Finished,
    cells_of,
    merged,
    problem_of,
    run_cell,
)
from isfed.theory.stable_step_size import AUTO, GrowthWarning, warn_if_growing

EXTRAS = {"ray": ("ray", "Ray"), "dask": ("distributed", "Dask")}  # what needs to be installed
BACKENDS = ("loky", "threading", *EXTRAS)
CELLS_PER_JOB = 4  # at least, so that nobody waits long for the last one
LEAST_BLOCK = 5  # repetitions: a smaller cell would not be worth its start
MOST_DEATHS = 3  # of workers in a row, without a result in between


class Progress(Protocol):
    """Told about the work as it goes, in rounds, each counted once for every repetition."""

    def begin(self, name: str, work: int, done: int) -> None:
        """Work begins, with `done` of it already there."""
        ...

    def advance(self, work: int) -> None:
        """That much more is done."""
        ...


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where and how cells run.

    Args:
        backend: a backend of joblib: loky (processes), threading, ray or dask. None: one cell after
            the other in this process, each on all threads.
        jobs: how many cells run side by side; unless given, as many as there are cores.
        threads: the threads of one cell; unless given, its share of the cores.
        chunk_seconds: about how long a cell runs between two looks at the clock.
    """

    backend: str | None = None
    jobs: int | None = None
    threads: int | None = None
    chunk_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
        if self.backend is None:
            if self.jobs not in (None, 1):
                raise ConfigError(
                    f"jobs={self.jobs} needs a backend: --backend {', '.join(BACKENDS)}"
                )
            return
        if self.backend not in BACKENDS:
            hint = nearest(self.backend, BACKENDS)
            known = "" if "known:" in hint else f" (known: {', '.join(BACKENDS)})"
            raise ConfigError(f"backend={self.backend!r} is not known{hint}{known}")
        if self.backend in EXTRAS:
            module, title = EXTRAS[self.backend]
            if importlib.util.find_spec(module) is None:
                raise ConfigError(
                    f"backend={self.backend!r} needs {title}, which is not installed: "
                    f"pip install 'isfed[{self.backend}]'"
                )

    def block(self, repetitions: int, algorithms: int, jobs: int) -> int | None:
        """How many repetitions a cell takes at most; None for all of them."""
        if self.backend is None:
            return None
        parts = -(-CELLS_PER_JOB * jobs // algorithms)
        return max(LEAST_BLOCK, -(-repetitions // parts))

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Connect to the workers; yields how many there are."""
        cores = num_cores()
        if self.backend == "ray":
            with _ray(self.jobs) as jobs:
                yield jobs
        elif self.backend == "dask":
            with _dask(self.jobs) as jobs:
                yield jobs
        else:
            yield 1 if self.backend is None else self.jobs or cores


@contextlib.contextmanager
def _ray(jobs: int | None) -> Iterator[int]:
    """The cluster that $RAY_ADDRESS names, or one of our own on this machine."""
    import ray  # pyright: ignore[reportMissingImports]
    from joblib import register_parallel_backend
    from ray.cloudpickle import (  # pyright: ignore[reportMissingImports]
        register_pickle_by_value,
    )
    from ray.util.joblib.ray_backend import RayBackend  # pyright: ignore[reportMissingImports]

    class Backend(RayBackend):
        supports_return_generator = True  # its pool can; that of multiprocessing cannot

    register_parallel_backend("ray", Backend)
    try:
        mine = connect_ray(jobs)
    except ConnectionError as error:
        raise ConfigError(str(error)) from error
    for module in user_modules:
        register_pickle_by_value(module)
    try:
        there = int(ray.cluster_resources().get("CPU", 1))
        if jobs is not None and jobs > there:
            raise ConfigError(f"jobs={jobs}, but the Ray cluster has {there} CPUs")
        yield jobs or there
    finally:
        if mine:
            ray.shutdown()


@contextlib.contextmanager
def _dask(jobs: int | None) -> Iterator[int]:
    """The cluster that $DASK_SCHEDULER_ADDRESS names, or one of our own on this machine."""
    from distributed import Client  # pyright: ignore[reportMissingImports]

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    try:
        check_reachable(address)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler can be used at DASK_SCHEDULER_ADDRESS={address}: {error}. Start "
            "one by `dask scheduler` there, or unset DASK_SCHEDULER_ADDRESS to use this machine "
            "alone"
        ) from error
    own = {"n_workers": jobs or num_cores(), "threads_per_worker": 1, "dashboard_address": None}
    with Client(address) if address else Client(**own) as client:
        threads: Any = client.nthreads()
        yield jobs or sum(threads.values())


def _tied_loky() -> str:
    """The name of joblib's processes, made to end with this one if it is killed."""
    from joblib import register_parallel_backend
    from joblib.parallel import LokyBackend

    class Backend(LokyBackend):
        def configure(self, *args: Any, **options: Any) -> int:
            tied = {"initializer": end_with, "initargs": (os.getpid(),)}
            return super().configure(*args, **options, **tied)

    register_parallel_backend("isfed-loky", Backend)
    return "isfed-loky"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A cell says nothing of growth: that is said once, of all repetitions together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrowthWarning)
        yield


class Executor:
    """The workers of one study, and the store with what they have done.

    `preview` is shown what a study has finished while its slow methods are still to run.
    """

    def __init__(
        self,
        workers: Workers,
        jobs: int,
        store: CellStore,
        progress: Progress | None = None,
        preview: Callable[[Any], None] | None = None,
    ) -> None:
        self.workers = workers
        self.jobs = jobs
        self.store = store
        self.progress = progress
        self.preview = preview

    def cells(
        self, name: str, file: str, repetitions: int, groups: int, **common: Any
    ) -> list[Cell]:
        """The cells of one algorithm, of which there are so many groups: see `cells_of`."""
        block = self.workers.block(repetitions, groups, self.jobs)
        return cells_of(name, file, repetitions, self.store, block, **common)

    @contextlib.contextmanager
    def reporting(self, title: str, steps: int = 1) -> Iterator[Callable[[], None]]:
        """Report the progress of work without cells; the last of its steps is the end."""
        if self.progress is not None:
            self.progress.begin(title, steps, 0)
        yield self._step
        if steps == 1:
            self._step()

    def _step(self) -> None:
        if self.progress is not None:
            self.progress.advance(1)

    def run(
        self, groups: Mapping[str, Sequence[Cell]], title: str | None = None, *, warn: bool = True
    ) -> dict[str, Finished]:
        """Run the cells that are not done, and put those of a group together.

        With a title the progress is that of all groups together. With `warn`, a group whose msd
        grows is warned of.
        """
        cells = [cell for group in groups.values() for cell in group]
        if self.workers.backend is not None:
            self._run_there(title or f"{len(cells)} cells", cells)
        else:
            with _quiet():
                for name, group in groups.items() if title is None else [(title, cells)]:
                    self._run_here(name, group)
        return {name: self._together(name, group, warn) for name, group in groups.items()}

    def _begin(self, title: str, cells: Sequence[Cell]) -> dict[str, int]:
        """Tell how much is done already, and return it by the cells' files."""
        if self.progress is None:
            return {}
        done = {cell.file: self.store.done(cell) for cell in cells}
        self.progress.begin(title, sum(cell.work for cell in cells), sum(done.values()))
        return done

    def _run_here(self, title: str, cells: Sequence[Cell]) -> None:
        self._begin(title, cells)
        report = None if self.progress is None else self.progress.advance
        for cell in cells:
            if not self.store.has(cell):
                result = run_cell(
                    cell, self.store, self.workers.threads, report, self.workers.chunk_seconds
                )
                self.store.keep(cell, result)

    def _run_there(self, title: str, cells: Sequence[Cell]) -> None:
        before = self._begin(title, cells)
        deaths = 0
        while waiting := [cell for cell in cells if not self.store.has(cell)]:
            try:
                for done, cell in enumerate(self._results(waiting)):
                    deaths = 0 if done else deaths
                    if self.progress is not None:
                        self.progress.advance(cell.work - before[cell.file])
            except Exception as error:
                if not _is_death(error):
                    raise
                deaths += 1
                if deaths > MOST_DEATHS:
                    raise StoreError(
                        f"workers keep dying, most often because memory runs out ({error}); "
                        "continue with fewer --jobs and --resume"
                    ) from error
                warnings.warn("a worker died; its part of the work is run again", stacklevel=2)

    def _results(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Run cells and keep their results as they come."""
        from joblib import Parallel, delayed, parallel_config

        _compile(cells[0])
        by_file = {cell.file: cell for cell in cells}
        threads = self.workers.threads or max(1, num_cores() // self.jobs)
        options: dict[str, Any] = {"backend": self.workers.backend, "n_jobs": self._there()}
        if self.workers.backend == "loky":
            options["backend"] = _tied_loky()
        if self.workers.backend == "ray":
            options["ray_remote_args"] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        stop = threading.Event()
        # What is kept here need not go there with every cell.
        there = CellStore(self.store.folder, self.store.digest)
        common = {"chunk_seconds": self.workers.chunk_seconds, "threads": threads, "store": there}
        work = partial(_in_worker, **common)
        if self.workers.backend == "threading":
            work = partial(work, stop=stop)
        try:
            with _quiet(), parallel_config(**options):
                # One cell at a time to a worker, as it is: a cell is long, and what is small.
                how: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "2*n_jobs"}
                parallel: Any = Parallel(return_as="generator_unordered", max_nbytes=None, **how)
                for file, result in parallel(delayed(work)(cell) for cell in cells):
                    self.store.keep(by_file[file], result)
                    yield by_file[file]
        finally:
            stop.set()

    def _there(self) -> int:
        """How many workers there are room for: a lost node of Ray takes its own with it."""
        if self.workers.backend != "ray":
            return self.jobs
        import ray  # pyright: ignore[reportMissingImports]

        return max(1, min(self.jobs, int(ray.cluster_resources().get("CPU", 1))))

    def _together(self, name: str, cells: Sequence[Cell], warn: bool) -> Finished:
        problem, _ = problem_of(cells[0].source)
        result = merged([self.store.result(cell) for cell in cells], rows=len(problem.data.targets))
        if warn and not result.diverged:
            algorithm = cells[0].algorithm
            if getattr(algorithm, "step_size", None) == AUTO:
                algorithm = replace(algorithm, step_size=result.history.step_size)
            warn_if_growing(problem, algorithm, result.history.msd, name=name)
        return result


def _compile(cell: Cell) -> None:
    """Compile once, here: else every worker would, at the same time."""
    problem, _ = problem_of(cell.source)
    known = contextlib.nullcontext() if cell.failed is None else contextlib.suppress(Exception)
    with known:  # else the worker says what is wrong
        make_run(
            problem, cell.algorithm, repetitions=range(1), engine=cell.engine, threads=1,
            clock=cell.clock,
        ).compile()  # fmt: skip


def _in_worker(
    cell: Cell,
    *,
    store: CellStore,
    threads: int,
    chunk_seconds: float | None,
    stop: threading.Event | None = None,
) -> tuple[str, dict[str, np.ndarray]]:
    def look(_: int) -> None:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt

    if stop is not None:  # the filters of warnings belong to all threads together
        return cell.file, run_cell(cell, store, threads, look, chunk_seconds)
    with _quiet():
        return cell.file, run_cell(cell, store, threads, None, chunk_seconds)


def _is_death(error: BaseException) -> bool:
    """Whether a worker died, rather than its work having failed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"BrokenExecutor", "RayActorError", "RaySystemError", "NodeDiedError",
                         "WorkerCrashedError", "KilledWorker"})  # fmt: skip
