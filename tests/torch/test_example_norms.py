"""The norm of every example's gradient against a loop over single examples."""

# pyright: reportMissingImports=false

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isfed import FederatedData, Memory, Problem, importance, simulate
from isfed.torch import LayerError, Network
from isfed.torch.example_norms import ExampleNorms
from isfed.torch.flat_module import FlatModule
from isfed.torch.module_worker import Worker, per_example

B = 5


class Sum(nn.Module):
    """Something after the layer, so that the gradient of its output differs from place to place."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return torch.sin(3.0 * self.layers(x)).flatten(1)


class Residual(nn.Module):
    """A mixed model: convolutions, group norm, a skip, a pooled classifier."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 7), nn.ReLU(), nn.Linear(7, 4))

    def forward(self, x):
        x = torch.relu_(self.norm(self.first(x)))
        return self.head(x + self.second(x))


class Text(nn.Module):
    """A mixed model: embedding, layer norm, attention written out, places summed."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        x = self.norm(self.words(x))
        chances = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), dim=2)
        return self.out(torch.tanh(chances @ self.value(x)).mean(1))


def images(*shape):
    return lambda: torch.randn(B, *shape)


def words(*shape):
    return lambda: torch.randint(0, 11, (B, *shape))


CASES = {
    "linear": (lambda: Sum(nn.Linear(4, 3)), images(4)),
    "linear without bias": (lambda: Sum(nn.Linear(4, 3, bias=False)), images(4)),
    "linear over few places": (lambda: Sum(nn.Linear(9, 8)), images(2, 9)),
    "linear over many places": (lambda: Sum(nn.Linear(3, 2)), images(5, 4, 3)),
    "conv1d": (lambda: Sum(nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2)), images(2, 11)),
    "conv1d, few places": (lambda: Sum(nn.Conv1d(8, 9, 5)), images(8, 6)),
    "conv2d": (lambda: Sum(nn.Conv2d(3, 4, 3)), images(3, 6, 5)),
    "conv2d, all options": (
        lambda: Sum(nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (2, 1), groups=2)),
        images(4, 8, 7),
    ),
    "conv2d, same": (lambda: Sum(nn.Conv2d(2, 3, (3, 5), padding="same")), images(2, 5, 4)),
    "conv2d, reflect": (
        lambda: Sum(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect")),
        images(2, 5, 4),
    ),
    "conv2d, circular, no bias": (
        lambda: Sum(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False)),
        images(2, 5, 4),
    ),
    "conv2d, depthwise": (lambda: Sum(nn.Conv2d(4, 4, 3, groups=4)), images(4, 5, 5)),
    "conv3d": (lambda: Sum(nn.Conv3d(2, 3, 2)), images(2, 4, 3, 5)),
    "conv3d, all options": (
        lambda: Sum(nn.Conv3d(2, 4, (3, 2, 2), (1, 2, 1), (2, 1, 0), (2, 1, 3), groups=2)),
        images(2, 5, 4, 6),
    ),
    "embedding": (lambda: Sum(nn.Embedding(11, 3)), words(7)),
    "embedding, one word": (lambda: Sum(nn.Embedding(11, 3)), words()),
    "embedding, padding": (lambda: Sum(nn.Embedding(11, 3, padding_idx=4)), words(4, 5)),
    "layer norm": (lambda: Sum(nn.LayerNorm(6)), images(6)),
    "layer norm over places": (lambda: Sum(nn.LayerNorm([3, 4])), images(5, 3, 4)),
    "layer norm without bias": (lambda: Sum(nn.LayerNorm(6, bias=False)), images(2, 6)),
    "group norm": (lambda: Sum(nn.GroupNorm(2, 6)), images(6, 3, 4)),
    "group norm of vectors": (lambda: Sum(nn.GroupNorm(3, 6)), images(6)),
    "residual": (Residual, images(3, 6, 6)),
    "text": (Text, words(7)),
}


def watched(module, dtype, other_layers: Any = "refuse"):
    module = module.to(dtype)
    module.train()
    loss = nn.CrossEntropyLoss(reduction="none")
    norms = ExampleNorms(module, lambda o, t: per_example(loss(o, t)), other_layers)
    return Worker(FlatModule(module, torch.device("cpu")), loss, norms)


def literal(worker, x, y):
    """One backward pass for every example."""
    norms = []
    for n in range(len(x)):
        loss = worker.values(x[n : n + 1], y[n : n + 1]).sum()
        gradients = torch.autograd.grad(loss, worker.flat.params, allow_unused=True)
        norms.append(sum(g.square().sum() for g in gradients if g is not None) ** 0.5)
    return torch.stack(norms)


def typed(x, dtype):
    return x.to(dtype) if x.is_floating_point() else x


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("make", "inputs"), CASES.values(), ids=CASES)
def test_hooks_give_the_norms_of_single_examples(make, inputs, dtype, tolerance):
    torch.manual_seed(1)
    worker = watched(make(), dtype)
    x, y = typed(inputs(), dtype), torch.randint(0, 3, (B,))
    weight = torch.rand(B, dtype=dtype) + 0.1
    assert worker.exact_norms is not None
    worker.exact_norms.audit(x, y)
    found = worker.batch(x, y, weight, scored=True)
    torch.testing.assert_close(found.norms, literal(worker, x, y), rtol=tolerance, atol=0.0)
    # The gradient itself is that of the weighted mean, as if nobody had watched.
    mean = (worker.values(x, y) * weight).sum() / B
    plain = torch.autograd.grad(mean, worker.flat.params)
    for with_hooks, without in zip(found.gradients, plain, strict=True):
        torch.testing.assert_close(with_hooks, without, rtol=tolerance, atol=tolerance)


class Twice(nn.Module):  # pyright: ignore[reportRedeclaration]
    def __init__(self):
        super().__init__()
        self.once, self.again = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.again(torch.tanh(self.again(self.once(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 4), nn.Linear(4, 4)
        self.leave.weight = self.enter.weight

    def forward(self, x):
        return self.leave(torch.tanh(self.enter(x)))


class Beside(nn.Module):
    """Uses a weight both through its layer and beside it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x)) @ self.layer.weight


class Uncalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x @ self.layer.weight + self.layer.bias)


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).sum(0)


class Scaled(nn.Module):
    """A parameter of its own, of no layer."""

    def __init__(self):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(x * self.scale))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.transposed = nn.ConvTranspose1d(2, 3, 2)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.transposed(x))).mean(1)


ODD = {
    "used twice": (Twice, images(4), "layer 'again' is used more than once"),
    "shared": (Tied, images(4), "'enter.weight' and 'leave.weight' are the same"),
    "never called": (Uncalled, images(4), "parameter 'layer.(weight|bias)' is used without call"),
    "time first": (TimeFirst, images(7, 4), r"layer 'layer' gets an input of shape \(7, 2, 4\)"),
    "no layer": (Scaled, images(4), r"no rule for layer '' \(Scaled\)"),
    "no rule": (Recurrent, images(2, 4), r"'transposed' \(ConvTranspose1d\)"),
    "by frequency": (
        lambda: Sum(nn.Embedding(11, 3, scale_grad_by_freq=True)),
        words(7),
        r"no rule for layer 'layers.0' \(Embedding\)",
    ),
}


@pytest.mark.parametrize(("make", "inputs", "message"), ODD.values(), ids=ODD)
def test_layers_that_hooks_cannot_serve_are_refused_by_name(make, inputs, message):
    torch.manual_seed(1)
    x, y = inputs(), torch.randint(0, 3, (B,))
    with pytest.raises(LayerError, match=message + ".*other_layers='func'"):  # noqa: PT012
        worker = watched(make(), torch.float32)
        assert worker.exact_norms is not None
        worker.exact_norms.audit(x, y)


@pytest.mark.parametrize("case", [name for name in ODD if name != "by frequency"])
def test_or_go_through_torch_func(case):
    torch.manual_seed(1)
    make, inputs, _ = ODD[case]
    x, y = inputs().double(), torch.randint(0, 3, (B,))
    worker = watched(make(), torch.float64, "func")
    assert worker.exact_norms is not None
    worker.exact_norms.audit(x, y)
    weight = torch.rand(B, dtype=torch.float64) + 0.1
    found = worker.batch(x, y, weight, scored=True)
    torch.testing.assert_close(found.norms, literal(worker, x, y), rtol=1e-12, atol=0.0)


def test_a_weight_used_beside_its_layer_is_found_by_the_audit():
    torch.manual_seed(1)
    worker = watched(Beside(), torch.float32)
    assert worker.exact_norms is not None
    with pytest.raises(LayerError, match="used outside its layer"):
        worker.exact_norms.audit(torch.randn(B, 4), torch.zeros(B, dtype=torch.long))


@pytest.mark.parametrize("other_layers", ["refuse", "func"])
def test_batch_norm_is_refused_by_name(other_layers):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(LayerError, match=r"layer '1' is BatchNorm1d.*nn\.GroupNorm"):
        watched(module, torch.float32, other_layers)


def test_a_refusal_reaches_another_process_whole():
    error = LayerError("1", "layer '1' is odd")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.layer, str(back)) == (LayerError, "1", "layer '1' is odd")


def test_frozen_and_unused_parameters_count_nothing():
    torch.manual_seed(1)

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.used, self.unused = (nn.Linear(4, 4) for _ in range(3))
            self.frozen.requires_grad_(False)
            self.used.bias.requires_grad_(False)

        def forward(self, x):
            return self.used(torch.tanh(self.frozen(x)))

    worker = watched(Part(), torch.float64)
    x, y = torch.randn(B, 4, dtype=torch.float64), torch.randint(0, 3, (B,))
    assert worker.exact_norms is not None
    worker.exact_norms.audit(x, y)
    found = worker.batch(x, y, None, scored=True)
    torch.testing.assert_close(found.norms, literal(worker, x, y), rtol=1e-12, atol=0.0)
    assert [g is None for g in found.gradients] == [False, True, True]


class Places(nn.Module):
    """A learned place of every word: one input for all examples, with their axis or without."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.word, self.place, self.out = nn.Embedding(7, 4), nn.Embedding(5, 4), nn.Linear(4, 3)
        self.axes = axes

    def forward(self, x):
        places = torch.arange(5)
        places = places[None] if self.axes == 2 else places
        return self.out((self.word(x) + self.place(places)).mean(1))


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.layer(self.layer(x.float()).tanh()))


@pytest.mark.parametrize("make", [lambda: Places(1), lambda: Places(2), Twice])
def test_what_a_trial_finds_goes_through_torch_func_in_a_run_too(make):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (24, 5)), rng.integers(0, 3, 24)
    data = FederatedData(x, y, np.array([0, 8, 16, 24]))
    with pytest.raises(LayerError, match="other_layers='func'"):
        Problem(data, Network(make, score="exact"))
    network = Network(make, score="exact", other_layers="func")
    network.num_params()  # the worker that trains is there before the trial
    problem = Problem(data, network, local_steps=2, batch_size=4)
    algorithm = importance(step_size=0.1, num_active=2, examples=Memory())
    one, two = (simulate(problem, algorithm, rounds=3, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one.params, two.params)
    params = network.initial()
    found = network.gradient(params, x, y, np.ones(24))[1]
    single = [network.gradient(params, x[[i]], y[[i]], np.ones(1))[0] for i in range(24)]
    np.testing.assert_allclose(found, np.linalg.norm(single, axis=1), rtol=1e-5)


def test_dropout_and_torch_func_do_not_go_together():
    make = lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Dropout(0.5), nn.Linear(4, 3))  # noqa: E731
    data = FederatedData(np.ones((4, 5)), np.arange(4) % 3, np.array([0, 4]))
    with pytest.raises(LayerError, match=r"draws random numbers, as nn\.Dropout does\. Use score="):
        Problem(data, Network(make, score="exact", other_layers="func"))
