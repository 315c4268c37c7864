"""The kernel against FedJAX and pfl doing FedAvg, where they are installed.

See requirements-peers.txt. Every peer gets what it lacks to do the same work: a fresh batch at
every step, agents without repeats within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import problems
from c_reference import kernel_run
from measure import CHUNK, Case, Report, by_turns

from isfed import ISFedAvg, Logistic, Problem

NEVER = 10**9


def fedjax_case(problem: Problem, algorithm: ISFedAvg) -> Case:
    """Rounds of FedJAX's fed_avg on a linear model."""
    numpy = import_module("jax").numpy
    ridge, logistic = problem.loss.ridge, isinstance(problem.loss, Logistic)

    def loss(params, batch, _rng):
        margin, y = batch["x"] @ params, batch["y"]
        value = numpy.logaddexp(0.0, -y * margin) if logistic else (y - margin) ** 2
        return value.mean() + ridge * params @ params

    return fedjax_rounds(problem, algorithm, loss, numpy.zeros(problem.num_params))


def fedjax_rounds(problem: Problem, algorithm: Any, loss: Callable, params: Any) -> Case:
    """Rounds of FedJAX's fed_avg; `loss` is that of (params, batch, rng)."""
    fedjax, jax = import_module("fedjax"), import_module("jax")
    clients = {}
    for agent in range(problem.num_agents):
        x, y = map(_narrow, problem.data.agent(agent))
        clients[str(agent).encode()] = {"x": x, "y": y}
    data = fedjax.InMemoryFederatedData(clients)
    peer = import_module("fedjax.algorithms.fed_avg").federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(algorithm.step_size),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=int(problem.batch_size[0]), num_steps=int(problem.local_steps[0])
        ),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        data, num_clients=algorithm.num_active, seed=0
    )
    state = peer.init(params)

    def advance(rounds: int) -> None:
        nonlocal state
        for _ in range(rounds):
            state, _info = peer.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    return advance


def _narrow(values: np.ndarray) -> np.ndarray:
    """Numbers in single precision, classes as they are."""
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _torch_model(problem: Problem) -> Any:
    """A linear model with the loss as a method, as pfl wants it."""
    torch = import_module("torch")
    ridge, logistic = problem.loss.ridge, isinstance(problem.loss, Logistic)

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(problem.num_params))

        def loss(self, x, y):
            margin = x @ self.weight
            value = (y - margin) ** 2
            if logistic:
                value = torch.nn.functional.softplus(-y * margin)
            return value.mean() + ridge * self.weight @ self.weight

        def metrics(self, _x, _y):
            return {}

    return Linear()


class _Agents:
    """What pfl lacks: agents without repeats in a round, and fresh examples at every turn."""

    def __init__(self, problem: Problem, num_active: int) -> None:
        self.problem = problem
        self.num_active = num_active
        self.rng = np.random.default_rng(0)
        self.waiting: list[int] = []
        self.dataset = import_module("pfl.data.dataset").Dataset

    def next_agent(self) -> int:
        """The agents of one round after the other."""
        if not self.waiting:
            count = self.problem.num_agents
            self.waiting = self.rng.choice(count, self.num_active, replace=False).tolist()
        return self.waiting.pop()

    def make(self, agent: int) -> Any:
        """The examples of one turn, E_k batches of B_k."""
        x, y = self.problem.data.agent(agent)
        num = self.problem.local_steps[agent] * self.problem.batch_size[agent]
        rows = self.rng.integers(len(y), size=num)
        return self.dataset([_narrow(x[rows]), _narrow(y[rows])])


def pfl_case(problem: Problem, algorithm: ISFedAvg) -> Case:
    """Rounds of pfl's FederatedAveraging on a linear model, with PyTorch."""
    import_module("torch").set_num_threads(1)
    return pfl_rounds(problem, algorithm, _torch_model(problem))


def pfl_rounds(problem: Problem, algorithm: Any, module: Any) -> Case:
    """Rounds of pfl's FederatedAveraging; `module` is an nn.Module with the loss as a method."""
    torch = import_module("torch")
    model_of = import_module("pfl.model.pytorch").PyTorchModel
    base = import_module("pfl.algorithm.base")
    averaging = import_module("pfl.algorithm.federated_averaging").FederatedAveraging
    parameters = import_module("pfl.hyperparam").NNTrainHyperParams(
        local_num_epochs=None,
        local_num_steps=int(problem.local_steps[0]),
        local_batch_size=int(problem.batch_size[0]),
        local_learning_rate=algorithm.step_size,
    )
    model = model_of(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    agents = _Agents(problem, algorithm.num_active)
    federated = import_module("pfl.data.federated_dataset").FederatedDataset
    data = federated(agents.make, agents.next_agent)
    backend = import_module("pfl.aggregate.simulate").SimulatedBackend(data, data)

    def advance(rounds: int) -> None:
        averaging().run(
            base.NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=NEVER,
                train_cohort_size=algorithm.num_active,
                val_cohort_size=None,
            ),
            backend,
            model,
            parameters,
            send_metrics_to_platform=False,
        )

    return advance


PEERS: dict[str, Callable[[Problem, ISFedAvg], Case]] = {"fedjax": fedjax_case, "pfl": pfl_case}


def run(report: Report, _folder: Path) -> None:
    """FedAvg on W1 and W2."""
    for peer, case in PEERS.items():
        try:
            import_module(peer)
        except ImportError as error:
            print(
                f"peers: {peer} is skipped: {error} (see benchmarks/speed/requirements-peers.txt)"
            )
            continue
        for problem in (problems.regression(), problems.ragged()):
            algorithm = problems.fedavg(problem)
            kernel = kernel_run(problem, algorithm)
            cases = {peer: case(problem, algorithm), "kernel": kernel.advance}
            # Their work may be done by other threads, so by the clock on the wall.
            times = by_turns(cases, report, clock=time.perf_counter, seconds=CHUNK)
            name = f"{problem.name} FedAvg: {peer}"
            report.compare("peers", name, times[peer], "kernel", times["kernel"])
