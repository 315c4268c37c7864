"""Pooling with its ReLU in one pass against PyTorch's."""

# pyright: reportMissingImports=false

import pytest
import torch
from torch import nn

from isfed.torch.fast_sequential import (
    LEAST_CHANNELS,
    FastMaxPool2d,
    FastReLU,
    FastSequential,
    MaxPoolReLU,
    UnfitError,
)
from isfed.torch.flat_module import FlatModule

INF = float("inf")


def inputs(channels: int, high: int, wide: int, dtype: torch.dtype):
    """Numbers of which many are equal, some are infinite and, at last, some are not numbers."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-2, 3, (7, channels, high, wide), generator=generator).to(dtype)
    yield x
    yield x.contiguous(memory_format=torch.channels_last)
    yield torch.where(x == 2, INF, x)
    yield torch.where(x < 2, -INF, x)
    yield torch.where(x == 1, torch.nan, x)


def expected(x, relu, slope):
    """What autograd says."""
    x = x.clone().requires_grad_()
    result = nn.functional.max_pool2d(x.relu() if relu else x, 2)
    return result, torch.autograd.grad(result, x, slope)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(16, 8, 6), (33, 5, 7), (3, 2, 3), (1, 4, 4)])
def test_numbers_and_gradients_are_those_of_pytorch(shape, relu, dtype):
    layer = MaxPoolReLU()
    layer.relu = relu
    for x in inputs(*shape, dtype):  # pyright: ignore[reportCallIssue]
        for rows in (x, x[:4]):  # a smaller batch after a larger one
            kept = rows.clone()
            result = layer.forward(rows)
            slope = torch.randn(result.shape, dtype=dtype)  # its channels are not last
            theirs, gradient = expected(rows, relu, slope)
            assert torch.equal(rows.nan_to_num(7.0), kept.nan_to_num(7.0)), "the data were changed"
            assert torch.equal(result.nan_to_num(7.0), theirs.nan_to_num(7.0))
            assert torch.equal(result.isnan(), theirs.isnan())
            assert torch.equal(layer.backward(slope, first=False), gradient)


def test_images_without_a_whole_window_are_left_to_autograd():
    for shape in ((2, 16, 1, 4), (16, 4, 4)):
        with pytest.raises(UnfitError):
            MaxPoolReLU().forward(torch.zeros(shape))
    with pytest.raises(UnfitError):
        MaxPoolReLU().forward(torch.zeros(2, 16, 4, 4, dtype=torch.bfloat16))


def layers_of(*layers: nn.Module, channels: int = 16) -> list:
    module = nn.Sequential(nn.Conv2d(1, channels, 3), *layers, nn.Flatten())
    loss = nn.CrossEntropyLoss(reduction="none")
    fast = FastSequential.of(FlatModule(module, torch.device("cpu")), loss)
    assert fast is not None
    return fast.layers[1:-1]


def test_a_pooling_takes_over_the_relu_beside_it():
    for layers in ((nn.ReLU(), nn.MaxPool2d(2)), (nn.MaxPool2d(2), nn.ReLU())):
        (layer,) = layers_of(*layers)
        assert isinstance(layer, MaxPoolReLU)
        assert layer.relu
    layer, _, last = layers_of(nn.MaxPool2d(2), nn.Tanh(), nn.ReLU())
    assert isinstance(layer, MaxPoolReLU)
    assert not layer.relu
    assert isinstance(last, FastReLU)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d((2, 1)),
        nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(2, ceil_mode=True),
    ],
)  # fmt: skip
def test_every_other_pooling_goes_before_its_relu(layer):
    pool, relu = layers_of(nn.ReLU(), layer)
    assert isinstance(pool, FastMaxPool2d)
    assert isinstance(relu, FastReLU)
    assert relu.in_place


def test_few_channels_are_pooled_by_pytorch():
    pool, _ = layers_of(nn.ReLU(), nn.MaxPool2d(2), channels=LEAST_CHANNELS - 1)
    assert isinstance(pool, FastMaxPool2d)
