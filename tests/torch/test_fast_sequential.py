"""The gradient by hand against autograd's, and who goes which way."""

# pyright: reportMissingImports=false

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from isfed.torch import Network
from isfed.torch.models import cnn, mlp, softmax


def deep() -> nn.Module:
    """A ReLU that must not change the data before it, and one at the end."""
    inner = nn.Sequential(nn.Linear(49, 9), nn.Tanh(), nn.Identity(), nn.ReLU(), nn.ReLU())
    layers = [nn.Linear(9, 8), nn.Linear(8, 7), nn.Linear(7, 5, bias=False)]
    return nn.Sequential(nn.Flatten(), nn.ReLU(), inner, *layers, nn.ReLU())


def images() -> nn.Module:
    """Convolutions and pooling in unusual orders and shapes."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv2d(1, 4, 3, padding=2, stride=2), nn.Tanh(), nn.ReLU(),
        nn.MaxPool2d(2, stride=1, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2, bias=False),
        nn.ReLU(), nn.MaxPool2d((2, 3), ceil_mode=True), nn.Conv2d(6, 1, 1), nn.MaxPool2d(1),
        nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def wide() -> nn.Module:
    """Convolutions large enough to get their zeros first, and pooling with its ReLU in one."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 34, 5, padding=(4, 5), dilation=(2, 1), stride=(1, 2), groups=2),
        nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(34, 33, (5, 6), padding=3, bias=False),
        nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def made(build):
    module = build()
    module(torch.zeros(1, 7, 7))  # gives lazy layers their shapes
    return module


LINEAR = {
    "softmax": lambda: softmax((7, 7), 5, 0),
    "mlp": lambda: mlp((7, 7), 5, 33),
    "deep": deep,
}
CONVOLUTIONS = {"cnn": lambda: cnn((7, 7), 5, 12), "images": images, "wide": wide}


def batches(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(3)
    for count in (1, 8, 21):
        x = torch.randn(count, 7, 7, generator=generator, dtype=dtype)
        y = torch.randint(5, (count,), generator=generator)
        weight = torch.rand(count, generator=generator, dtype=dtype) + 0.1
        yield x, y, None
        yield x, y, weight


def by_hand_and_autograd(worker, x, y, weight):
    """(gradient, scores, loss) of both."""
    assert worker.fast is not None
    kept = x.clone()
    found = worker.batch(x, y, weight, scored=True)
    assert found.vector is not None, "it went through autograd"
    assert torch.equal(x, kept), "the data were changed"
    first = (found.vector.clone(), found.norms, found.loss)
    fast, worker.fast = worker.fast, None
    found = worker.batch(x, y, weight, scored=True)
    worker.fast = fast
    return first, (worker.flatten(found), found.norms, found.loss)


@pytest.mark.parametrize("score", ["last_layer", "exact"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers_give_the_bits_of_autograd(name, score):
    worker = Network(LINEAR[name], score=score).make_worker()
    for x, y, weight in batches(torch.float32):
        for ours, theirs in zip(*by_hand_and_autograd(worker, x, y, weight), strict=True):
            assert torch.equal(ours, theirs)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("score", ["last_layer", "exact"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_give_the_numbers_of_autograd(name, score):
    worker = Network(lambda: made(CONVOLUTIONS[name]).double(), score=score).make_worker()
    for x, y, weight in batches(torch.float64):
        for ours, theirs in zip(*by_hand_and_autograd(worker, x, y, weight), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_batch_without_scores_after_one_with_exact_scores():
    worker = Network(lambda: made(CONVOLUTIONS["cnn"]).double(), score="exact").make_worker()
    first, *_, (x, y, weight) = batches(torch.float64)
    worker.batch(*first, scored=True)
    ours = worker.flatten(worker.batch(x, y, weight, scored=False)).clone()
    worker.fast = None
    theirs = worker.flatten(worker.batch(x, y, weight, scored=False))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_examples_that_cross_entropy_ignores_count_for_nothing():
    loss = nn.CrossEntropyLoss(reduction="none", ignore_index=2)
    worker = Network(LINEAR["mlp"], loss=loss).make_worker()
    x, y = torch.randn(6, 7, 7), torch.tensor([0, 2, 1, 2, 3, 4])
    for ours, theirs in zip(*by_hand_and_autograd(worker, x, y, None), strict=True):
        assert torch.equal(ours, theirs)  # pyright: ignore[reportArgumentType]


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def tied() -> nn.Module:
    layer = nn.Linear(49, 49)
    return nn.Sequential(nn.Flatten(), layer, layer)


def frozen() -> nn.Module:
    module = mlp((7, 7), 5, 8)
    module[1].bias.requires_grad = False  # pyright: ignore[reportIndexIssue]
    return module


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Flatten(), Doubled(49, 5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 5), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 5), nn.BatchNorm1d(5)),
        lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(49, 5))),
        lambda: nn.Sequential(nn.Conv1d(7, 5, 7), nn.Flatten()),
        tied,
        frozen,
    ],
)  # fmt: skip
def test_every_other_module_goes_through_autograd(build):
    assert Network(build).make_worker().fast is None


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="none", weight=torch.ones(5)),
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none"),
    ],
)
def test_every_other_loss_goes_through_autograd(loss):
    assert Network(LINEAR["mlp"], loss=loss).make_worker().fast is None


def test_rows_that_a_layer_by_hand_does_not_take_go_through_autograd():
    worker = Network(lambda: nn.Sequential(nn.Linear(7, 5), nn.Flatten())).make_worker()
    assert worker.fast is not None  # whether x is a matrix shows later
    assert worker.batch(torch.randn(3, 7, 7), torch.zeros(3).long(), None, scored=False)
    assert not worker.fast.takes(torch.randn(3, 7, 7), torch.zeros(3).long())


@pytest.mark.parametrize("score", ["last_layer", "exact"])
def test_a_hook_that_comes_later_is_called(score):
    worker = Network(LINEAR["mlp"], score=score).make_worker()
    called = []
    module: Any = worker.module
    hook = module[2].register_forward_hook(lambda *_: called.append(1))
    x, y = torch.randn(3, 7, 7), torch.zeros(3).long()
    assert worker.batch(x, y, None, scored=False).vector is None
    assert called
    hook.remove()
    assert worker.batch(x, y, None, scored=False).vector is not None


@pytest.mark.parametrize("name", ["mlp", "cnn", "wide"])
def test_evaluation_gives_the_outputs_of_the_module(name):
    worker = Network(lambda: made({**LINEAR, **CONVOLUTIONS}[name]).double()).make_worker()
    x = torch.randn(1030, 7, 7, dtype=torch.float64)  # more than one pass
    found = worker.evaluate(lambda outputs, _: outputs, x, x)
    torch.testing.assert_close(found, worker.module(x).detach(), rtol=1e-12, atol=1e-14)
    for name in ("x", "places", "before"):
        fast: Any = worker.fast
        kept = [getattr(layer, name, None) for layer in fast.layers]
        assert all(value is None for value in kept), "activations are kept"
