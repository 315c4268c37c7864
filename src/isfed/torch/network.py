"""A neural network as a loss: an nn.Module and an unreduced loss of its outputs."""

# pyright: reportMissingImports=false

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from isfed.base.argument_types import check_fields
from isfed.base.value_checks import check_seed
from isfed.federation.agent import Rules
from isfed.problems import FederatedData, Problem
from isfed.torch.accuracy import hits_of
from isfed.torch.agents import TorchAgents
from isfed.torch.example_norms import OtherLayers, Watch
from isfed.torch.fingerprint import name_of, shown
from isfed.torch.flat_module import FlatModule
from isfed.torch.module_checks import (
    check_batch,
    check_device,
    check_examples_apart,
    check_labels,
    check_optimizer,
    targets_for,
    warn_of_softmax,
)
from isfed.torch.module_turn import OptimizerFactory
from isfed.torch.module_worker import Trial, Worker, per_example
from isfed.torch.numpy_conversion import as_tensor, numpy_type, seeded

NEAR = 1000  # rows among which one that differs from the first is looked for
Score = Literal["last_layer", "exact"]


def _cross_entropy() -> nn.Module:
    return nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True, eq=False)
class Network:
    """A neural network, usable wherever a loss is: `Problem(data, Network(...))`.

    make_module: a function without arguments that returns the nn.Module; it is called once per
        thread, always under the same `seed`, so that frozen parameters are the same everywhere.
    loss: outputs and targets to one loss per example, i.e. with `reduction="none"`.
    score: what stands for the norm of an example's gradient. "last_layer" is the bound of
        Katharopoulos and Fleuret (2018), the norm of the loss's gradient in the outputs, at
        almost no cost; "exact" computes the norm itself.
    other_layers: what "exact" does with layers it has no rule for: "refuse" them by name, or
        send them through "func" (torch.func, slower).
    optimizer: the agents' own optimizer, made anew for every turn as `optimizer(params, lr=step)`,
        for instance `partial(torch.optim.SGD, momentum=0.9)`; plain gradient steps without. Its lr
        is the method's step size.
    device: "cpu", "cuda", "cuda:1", "mps".
    seed: the seed of the initial parameters.

    >>> network = Network(lambda: nn.Linear(2, 3))
    >>> network.num_params(), network.initial().shape
    (9, (9,))
    """

    make_module: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] = field(default_factory=_cross_entropy)
    score: Score = field(default="last_layer", kw_only=True)
    other_layers: OtherLayers = field(default="refuse", kw_only=True)
    optimizer: OptimizerFactory | None = field(default=None, kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False)
    _trial: Trial = field(default_factory=Trial, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.make_module) or isinstance(self.make_module, nn.Module):
            raise TypeError(
                f"make_module={type(self.make_module).__name__} must be a function that returns a "
                "new module, e.g. lambda: nn.Linear(784, 10)"
            )
        if isinstance(self.loss, nn.Module) and getattr(self.loss, "reduction", "none") != "none":
            kind = type(self.loss).__name__
            raise ValueError(
                f"the loss must be unreduced: give {kind}(reduction='none') instead of "
                f"reduction={getattr(self.loss, 'reduction', None)!r}"
            )
        check_fields(self)
        check_seed(self.seed)
        if self.score not in ("last_layer", "exact"):
            raise ValueError(f"score={self.score!r} must be 'last_layer' or 'exact'")
        if self.other_layers not in ("refuse", "func"):
            raise ValueError(f"other_layers={self.other_layers!r} must be 'refuse' or 'func'")
        check_device(self.device)
        if isinstance(self.optimizer, partial) and "lr" in self.optimizer.keywords:
            raise ValueError(
                f"optimizer={name_of(self.optimizer)} must not have an lr: the step_size of the "
                "method is the lr of the agents' optimizer"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def __repr__(self) -> str:
        """What the network computes, the same in every process: fingerprints are made of it."""
        with seeded(self.seed):
            module = shown(self.make_module())
        return (
            f"Network({module}, {self.num_params()} parameters, loss={shown(self.loss)}, "
            f"score={self.score!r}, optimizer={shown(self.optimizer)}, seed={self.seed})"
        )

    @property
    def worker(self) -> Worker:
        """The module of this thread."""
        if not hasattr(self._local, "worker"):
            self._local.worker = self.make_worker()
        return self._local.worker

    def make_worker(self) -> Worker:
        """A module of its own, in training mode, at the initial parameters."""
        with seeded(self.seed):
            made = self.make_module()
        if not isinstance(made, nn.Module):
            raise TypeError(f"make_module returned {type(made).__name__}, expected an nn.Module")
        flat = FlatModule(made, torch.device(self.device))
        flat.module.train()

        def values(outputs: Any, targets: Any) -> Tensor:
            return per_example(self.loss(outputs, targets))

        exact = self.score == "exact"
        others = self._trial.others
        watch = Watch(flat.module, values, self.other_layers, others) if exact else None
        return Worker(flat, self.loss, watch, self._trial)

    # What makes it a loss.

    without_optimum = True  # nobody knows the minimiser of a network, and nobody expects it
    diagnosed_by = "isfed.torch.diagnose"

    @property
    def not_for_objects(self) -> str | None:
        """Why agents that know nothing but `gradient` cannot train it; None if they can."""
        if self.optimizer is not None:
            return (
                f"Network(optimizer={name_of(self.optimizer)}) steps by an optimizer of its own, "
                "which agents as objects do not know; use engine='agents' (or leave the engine "
                "out), and flower.torch_turn instead of agent_turn"
            )
        flat = self.worker.flat
        if flat.trained < flat.size:
            return (
                "this network has buffers that change during training (such as the running means "
                "of batch norm), which agents as objects do not know; use engine='agents' (or "
                "leave the engine out), and flower.torch_turn instead of agent_turn"
            )
        return None

    def make_agents(self, problem: Problem, rules: Rules, **address: int) -> TorchAgents:
        """The agents that train it."""
        return TorchAgents(problem, rules, **address)

    def num_params(self, num_features: int | None = None) -> int:
        """The length of the model: trainable parameters and float buffers."""
        return self.worker.flat.size

    def prepare(self, data: FederatedData) -> FederatedData:
        """The data in the module's types, after a trial on its first rows."""
        worker = self.make_worker()  # of its own: a trial changes the buffers of some layers
        features = data.features
        if features.dtype.kind == "f":
            features = np.asarray(features, numpy_type(worker.flat.dtype))
        targets = targets_for(self.loss, data.targets, features.dtype)
        x, y = as_tensor(features[:1]), as_tensor(targets[:1])
        x, y = x.to(worker.flat.device), y.to(worker.flat.device)
        with seeded(self.seed):
            outputs = check_batch(worker, x, y)
            check_labels(self.loss, targets, outputs)
            warn_of_softmax(self.loss, outputs)
            if worker.watch is not None:
                other = _other_row(features)
                if other is not None:
                    pair = self.tensors(features[[0, other]], targets[[0, other]])
                    check_examples_apart(worker, *pair, self.seed)
                worker.watch.audit(x, y)
        if self.optimizer is not None:
            check_optimizer(self.optimizer, name_of(self.optimizer), worker)
        same = features is data.features and targets is data.targets
        return data if same else FederatedData(features, targets, data.offsets, data.weights)

    def check_targets(self, targets: np.ndarray) -> None:
        """`prepare` has checked them against the outputs."""

    def initial(self, seed: int | None = None) -> np.ndarray:
        """The parameters of a fresh module; another seed gives others."""
        with seeded(self.seed if seed is None else seed):
            return FlatModule(self.make_module(), torch.device("cpu")).vector()

    def gradient(
        self, params: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted mean gradient of a batch, and the score of every example."""
        worker = self.worker
        worker.flat.load(params)
        inputs, targets = self.tensors(x, y)
        weights = torch.as_tensor(weight, dtype=worker.flat.dtype, device=worker.flat.device)
        # Scores are found from the weighted losses: a weight of 0 leaves nothing to find.
        positive = bool(np.all(np.asarray(weight) > 0.0))
        found = worker.batch(inputs, targets, weights, scored=positive)
        gradient = np.zeros(worker.flat.size)  # buffers have none
        gradient[: worker.flat.trained] = worker.flatten(found).cpu().numpy()
        scores = found.norms if found.norms is not None else worker.scores(inputs, targets)
        return gradient, _float64(scores)

    def scores(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The score of every example, without a backward pass where the bound is all it takes."""
        self.worker.flat.load(params)
        return _float64(self.worker.scores(*self.tensors(x, y)))

    def values(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example, in evaluation mode."""
        self.worker.flat.load(params)
        measure = lambda outputs, t: per_example(self.loss(outputs, t))  # noqa: E731
        return _float64(self.worker.evaluate(measure, *self.tensors(x, y)))

    def losses_and_hits(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n, 2) the loss of every example, and 1 where its class is found, 0 where not.

        In evaluation mode; nan where targets are not classes.
        """

        def measure(outputs: Tensor, targets: Tensor) -> Tensor:
            losses = per_example(self.loss(outputs, targets))
            return torch.stack([losses, hits_of(self.loss, outputs, targets).to(losses)], 1)

        self.worker.flat.load(params)
        return _float64(self.worker.evaluate(measure, *self.tensors(x, y)))

    def predict(self, params: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The outputs of the module, in evaluation mode."""
        self.worker.flat.load(params)
        inputs, _ = self.tensors(x, np.zeros(0))
        return _float64(self.worker.evaluate(lambda outputs, _: outputs, inputs, inputs))

    def tensors(self, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        """Rows and targets as tensors of the types that the module and the loss take."""
        flat = self.worker.flat
        inputs = as_tensor(np.asarray(x))
        inputs = inputs.to(flat.dtype) if inputs.is_floating_point() else inputs
        targets = targets_for(self.loss, np.asarray(y), numpy_type(flat.dtype))
        return inputs.to(flat.device), as_tensor(targets).to(flat.device)

    # What a model is outside of isfed.

    def state_dict(self, params: np.ndarray) -> dict[str, Tensor]:
        """The model by name, as `nn.Module.load_state_dict` takes it."""
        flat = self.make_worker().flat
        flat.load(params)
        return flat.state_dict()

    def params(self, state: Mapping[str, Any]) -> np.ndarray:
        """The model as one vector, from a state_dict of the same architecture."""
        flat = self.make_worker().flat
        flat.load_state_dict(state)
        return flat.vector()

    def module(self, params: np.ndarray) -> nn.Module:
        """A module of the user's own with this model, in evaluation mode."""
        with seeded(self.seed):
            module = self.make_module()
        module.load_state_dict(self.state_dict(params))
        return module.eval()


def _other_row(features: np.ndarray) -> int | None:
    """A row that is not like the first; None if there is none near it."""
    near = range(1, min(len(features), NEAR))
    return next((i for i in near if not np.array_equal(features[i], features[0])), None)


def _float64(values: Tensor) -> np.ndarray:
    return values.detach().cpu().to(torch.float64).numpy()
