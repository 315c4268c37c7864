"""A network is a loss: gradients, values, scores, and clear refusals."""

# pyright: reportMissingImports=false

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isfed import FedAvg, FederatedData, Problem, simulate
from isfed.torch import Network, load_model
from isfed.torch.module_worker import CHUNK

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 4))
Y = np.arange(12) % 3
OFFSETS = np.array([0, 5, 12])


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def literal_gradients(network, params, x, y):
    """The gradient of every example by itself, (N, M)."""
    module = network.module(params)
    rows = []
    for n in range(len(y)):
        module.zero_grad()
        loss = network.loss(module(torch.as_tensor(x[n : n + 1])), torch.as_tensor(y[n : n + 1]))
        loss.sum().backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy().copy())
    return np.array(rows)


@pytest.mark.parametrize("count", [12, 2 * CHUNK + 7])
def test_the_gradient_is_the_weighted_mean_of_single_ones(count):
    network = Network(mlp, score="exact")
    x, y = RNG.standard_normal((count, 4)), RNG.integers(0, 3, count)
    weight = RNG.random(count) + 0.1
    params = network.initial(3)
    single = literal_gradients(network, params, x, y)
    gradient, norms = network.gradient(params, x, y, weight)
    np.testing.assert_allclose(gradient, weight @ single / count, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(norms, np.linalg.norm(single, axis=1), rtol=1e-10)


def test_the_last_layers_bound_is_the_gradient_in_the_outputs():
    network = Network(mlp)
    params = network.initial()
    outputs = network.predict(params, X)
    slopes = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    slopes[np.arange(12), Y] -= 1.0
    _, in_training = network.gradient(params, X, Y, np.linspace(0.5, 2.0, 12))
    np.testing.assert_allclose(in_training, np.linalg.norm(slopes, axis=1), rtol=1e-12)
    np.testing.assert_allclose(network.scores(params, X, Y), in_training, rtol=1e-12)
    # For a module that is one linear layer it bounds the norm up to the length of the inputs.
    linear = {
        s: Network(lambda: nn.Linear(4, 3).double(), score=s) for s in ("exact", "last_layer")
    }
    params = linear["exact"].initial()
    exact, bound = (linear[s].scores(params, X, Y) for s in ("exact", "last_layer"))
    np.testing.assert_allclose(exact, bound * np.sqrt(1 + (X**2).sum(1)), rtol=1e-12)


@pytest.mark.parametrize("score", ["exact", "last_layer"])
def test_a_weight_of_zero_keeps_the_score(score):
    network = Network(mlp, score=score)
    params = network.initial()
    weight = np.ones(12)
    weight[4] = 0.0
    gradient, norms = network.gradient(params, X, Y, weight)
    _, with_ones = network.gradient(params, X, Y, np.ones(12))
    np.testing.assert_allclose(norms, with_ones, rtol=1e-12)
    single = literal_gradients(network, params, X, Y)
    np.testing.assert_allclose(gradient, weight @ single / 12, rtol=1e-10, atol=1e-14)


def test_values_are_those_of_evaluation():
    network = Network(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).double())
    params = network.initial()
    first, again = (network.values(params, X, Y) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    trained = [network.gradient(params, X, Y, np.ones(12))[0] for _ in range(2)]
    assert not np.array_equal(trained[0], trained[1])  # dropout is back in training


def test_a_problem_holds_the_data_in_the_modules_types():
    data = FederatedData(X, Y.astype(np.float64), OFFSETS)  # labels as floats, as tables have them
    problem = Problem(data, Network(lambda: nn.Linear(4, 3)), local_steps=2, batch_size=3)
    assert problem.data.features.dtype == np.float32
    assert problem.data.targets.dtype == np.int64
    assert problem.num_params == 15
    values = problem.loss.values(problem.loss.initial(), X, Y)
    assert problem.risk(problem.loss.initial()) == pytest.approx(data.row_weights() @ values)


def test_token_ids_reach_the_embedding():
    def make():
        return nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(6, 2))

    x = RNG.integers(0, 9, (12, 2)).astype(np.int32)
    problem = Problem(FederatedData(x, Y % 2, OFFSETS), Network(make, score="exact"))
    assert problem.data.features.dtype == np.int32
    gradient, norms = problem.loss.gradient(problem.loss.initial(), x, Y % 2, np.ones(12))
    assert np.isfinite(gradient).all()
    assert (norms > 0.0).all()


def test_a_loss_with_one_number_per_word_is_averaged_per_example():
    def make():
        return nn.Conv1d(3, 4, 1)  # (B, words, places) to (B, classes, places)

    x, y = RNG.standard_normal((12, 3, 6)), RNG.integers(0, 4, (12, 6))
    network = Network(make)
    problem = Problem(FederatedData(x, y, OFFSETS), network)
    module = network.module(network.initial())
    mean = nn.functional.cross_entropy(module(torch.tensor(x).float()), torch.tensor(y))
    assert network.values(network.initial(), x, y).mean() == pytest.approx(mean.item(), rel=1e-6)
    assert problem.data.targets.shape == (12, 6)


def test_initial_parameters_come_from_the_seed_alone():
    network = Network(mlp)
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    first, other = network.initial(), network.initial(1)
    assert torch.rand(1) == before  # the caller's generator has not moved
    np.testing.assert_array_equal(first, Network(mlp).initial())
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, Network(mlp, seed=2).initial())


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1), r"as optimizer\(params, lr=step\)"),
        (lambda params, lr: None, "returned NoneType, expected a torch.optim.Optimizer"),
        (torch.optim.LBFGS, "LBFGS cannot take a step from the gradients alone"),
    ],
)
def test_an_optimizer_that_cannot_be_one_is_named_before_the_first_round(optimizer, said):
    with pytest.raises(TypeError, match=said):
        Problem(FederatedData(X, Y, OFFSETS), Network(mlp, optimizer=optimizer), 1, 2)


def test_an_optimizer_has_no_step_size_of_its_own():
    with pytest.raises(ValueError, match=r"SGD\(lr=0\.001\) must not have an lr: the step_size"):
        Network(mlp, optimizer=partial(torch.optim.SGD, lr=0.001))


class Counting(nn.Module):
    """Buffers as batch norm has them, an integer without axes among them, and a frozen part."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.frozen = nn.Parameter(torch.rand(2), requires_grad=False)
        self.register_buffer("calls", torch.tensor(7))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.layer(x) - self.mean


def test_state_dicts_go_in_and_out_by_name():
    network = Network(Counting, seed=4)
    state = network.worker.flat.state_dict()
    assert set(state) == {"layer.weight", "layer.bias", "frozen", "calls", "mean"}
    state["mean"] += torch.tensor([1.0, 2.0, 3.0])
    params = network.params(state)
    assert params.size == 15 + 3  # what is trained, then the float buffer
    np.testing.assert_array_equal(params[15:], [1.0, 2.0, 3.0])
    again = network.state_dict(params)
    assert {k: (v.dtype, v.shape) for k, v in again.items()} == {
        k: (v.dtype, v.shape) for k, v in state.items()
    }
    assert all(torch.equal(again[name], state[name]) for name in state)
    module: Any = network.module(params)
    assert not module.training
    assert (module.calls.dtype, module.calls.dim(), module.calls.item()) == (torch.int64, 0, 7)
    torch.testing.assert_close(module.frozen, state["frozen"])
    back = network.params({name: value.numpy() for name, value in state.items()})
    np.testing.assert_array_equal(back, params)


@pytest.mark.parametrize(
    ("name", "said"), [("frozen", "frozen is frozen"), ("order", "order is not trained")]
)
def test_what_is_outside_the_vector_is_not_replaced_silently(tmp_path, name, said):
    class Ordered(Counting):
        def __init__(self):
            super().__init__()
            self.register_buffer("order", torch.arange(3))

    network = Network(Ordered, seed=4)
    state = network.state_dict(network.initial())
    state["calls"] += 1  # a counter: it may differ
    network.params(state)
    network.params({k: v.double() if v.is_floating_point() else v for k, v in state.items()})
    state[name] = state[name] + 1
    with pytest.raises(ValueError, match=f"{said} and differs from what make_module makes"):
        network.params(state)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=rf"model\.pt: {said}"):
        load_model(network, tmp_path / "model.pt")


def test_buffers_move_with_the_model_and_have_no_gradient():
    def make():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    network = Network(make)
    params = network.initial()
    assert params.size == 15 + 6 + 6  # weights, scale and shift, running mean and variance
    gradient, _ = network.gradient(params, X, Y, np.ones(12))
    assert np.all(gradient[21:] == 0.0)
    # The pass has moved the running means of the module, inside its vector.
    assert not np.array_equal(network.worker.flat.vector()[21:24], params[21:24])
    moved = params.copy()
    moved[21:24] += 1.0
    assert not np.allclose(network.predict(moved, X), network.predict(params, X))


def test_a_module_that_replaces_its_buffers_is_followed():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen = self.seen + len(x)
            return self.layer(x)

    network = Network(Replacing)
    network.gradient(network.initial(), X, Y, np.ones(12))
    assert network.worker.flat.vector()[-1] == 12.0
    network.gradient(network.initial(), X, Y, np.ones(12))
    assert network.worker.flat.vector()[-1] == 12.0


class Leaving(nn.Module):
    """A pass changes tensors that are in no vector, in their places and by putting others there."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.teacher = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        with torch.no_grad():
            self.teacher.mul_(0.5)
        self.calls += 1
        self.scratch = self.scratch + 1.0
        self.seen = self.seen + 1.0
        self.late = torch.ones(1) if self.late is None else self.late + 1.0
        told = self.calls + self.scratch + self.late + self.seen + self.teacher
        return self.layer(x) * told


def test_no_pass_sees_what_another_one_left():
    network = Network(Leaving)
    params = network.initial()
    first = network.predict(params, X)
    np.testing.assert_array_equal(network.predict(params, X), first)
    gradients = [network.gradient(params, X, Y, np.ones(12))[0] for _ in range(2)]
    np.testing.assert_array_equal(*gradients)  # pyright: ignore[reportArgumentType]
    assert network.state_dict(params)["calls"].item() == 0


def test_counting_batch_norm_does_not_depend_on_what_ran_before():
    """With momentum=None the share of a batch in the running mean is 1 / num_batches_tracked."""
    make = lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))  # noqa: E731
    problem = Problem(FederatedData(X, Y, OFFSETS), Network(make), 3, 4)
    runs = [simulate(problem, FedAvg(step_size=0.1, num_active=1), rounds=3) for _ in range(2)]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)


def test_float_buffers_of_another_type_belong_to_the_model():
    def make():
        norm = nn.BatchNorm1d(4)
        mean: Any = norm.running_mean
        norm.running_mean = mean.double()
        return nn.Sequential(norm, nn.Linear(4, 3))

    network = Network(make)
    same = Network(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    params = network.initial()
    assert params.size == same.num_params()
    moved = network.params({**network.state_dict(params), "0.running_mean": np.arange(4.0)})
    assert network.state_dict(moved)["0.running_mean"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert network.state_dict(moved)["0.running_mean"].dtype == torch.float64
    place = network.worker.flat.named(moved)["0.running_mean"]
    np.testing.assert_array_equal(place, np.arange(4.0))
    flat = network.worker.flat
    flat.load(moved)
    network.worker.module[0].running_mean += 1.0  # pyright: ignore[reportIndexIssue]
    np.testing.assert_array_equal(flat.named(flat.vector())["0.running_mean"], 1.0 + np.arange(4.0))


def test_a_model_of_another_architecture_is_named():
    network = Network(mlp)
    state = Network(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))).state_dict(
        np.zeros(51)
    )
    with pytest.raises(
        ValueError, match=r"another arch.*0\.bias has shape \(6,\), expected \(5,\)"
    ):
        network.params(state)
    with pytest.raises(ValueError, match=r"2\.weight is missing"):
        network.params(
            {k: v for k, v in network.state_dict(np.zeros(43)).items() if k != "2.weight"}
        )


def test_it_can_be_sent_to_another_process_and_describes_itself():
    network = Network(mlp, score="exact")
    assert repr(network) == repr(Network(mlp, score="exact"))
    assert repr(network) != repr(Network(lambda: nn.Linear(4, 3)))
    again = pickle.loads(pickle.dumps(network))
    params = network.initial()
    np.testing.assert_array_equal(again.values(params, X, Y), network.values(params, X, Y))


class Broken(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.layer, self.fault = nn.Linear(4, 3), fault

    def forward(self, x):
        return self.fault(self.layer(x))


def trial(make, loss=None, x: Any = X, y: Any = Y, **options):
    loss = loss or nn.CrossEntropyLoss(reduction="none")
    return Problem(FederatedData(x, y, OFFSETS), Network(make, loss, **options))


def linear():
    return nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (
            lambda: trial(linear, nn.CrossEntropyLoss()),
            r"give CrossEntropyLoss\(reduction='none'\)",
        ),
        (
            lambda: trial(linear, nn.functional.cross_entropy),
            r"shape \(\) for 3 examples.*unreduced",
        ),
        (
            lambda: trial(lambda: Broken(lambda o: o / 0)),
            "Broken returns -?(inf|nan) for the first",
        ),
        (
            lambda: trial(lambda: Broken(lambda o: (o, o))),
            "Broken returns tuple, expected one tensor",
        ),
        (lambda: trial(lambda: Broken(lambda o: o.sum())), r"shape \(\) for 3 examples"),
        (
            lambda: trial(linear, y=Y + 1),
            r"targets\[2\]=3 but the module has 3 outputs.*\(4 such\)",
        ),
        (lambda: trial(linear, y=Y - 1), r"targets\[0\]=-1 but the module has 3 outputs"),
        (
            lambda: trial(linear, partial(nn.functional.cross_entropy, reduction="none"), y=Y + 1),
            r"targets\[2\]=3 but the module's outputs have shape \(3,\)",
        ),
        (lambda: trial(linear, y=Y + 0.5), r"targets\[0\]=0.5 but CrossEntropyLoss needs whole"),
        (lambda: trial(linear, x=X[:, :3]), r"Linear cannot take features of shape \(3, 3\)"),
        (
            lambda: trial(lambda: nn.Linear(4, 1), nn.MSELoss(reduction="none")),
            r"not one row per example; outputs and targets must have the same shape",
        ),
        (
            lambda: trial(linear, nn.MSELoss(reduction="none"), y=X[:, :2]),
            "the loss cannot take outp",
        ),
        (lambda: trial(lambda: nn.LazyLinear(3)), "parameter weight has no shape yet"),
        (lambda: trial(nn.ReLU), "ReLU has no trainable parameters"),
        (
            lambda: trial(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double())),
            "must all be of one float type, got torch.float32, torch.float64",
        ),
        (lambda: trial(linear, score="best"), "score='best' must be"),
        (lambda: trial(linear, other_layers="skip"), "other_layers='skip' must be"),
        (lambda: trial(linear, device="warp"), "device='warp' is unknown"),
        (lambda: trial(linear, device="cuda:99"), "device='cuda:99': PyTorch finds .* CUDA"),
        (lambda: trial(linear, device="meta"), "device='meta' is not supported; use 'cpu'"),
        (lambda: trial(linear, device="xpu"), "device='xpu' is not supported; use 'cpu'"),
        (lambda: trial(lambda: linear().bfloat16()), r"bfloat16.*return module\.float\(\)"),
    ],
)
def test_what_cannot_work_is_said_at_once(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


MIXING = {
    "mean": lambda o: o - o.mean(0),
    "batch norm": lambda o: nn.functional.batch_norm(o, None, None, training=True),
}


@pytest.mark.parametrize("mix", MIXING.values(), ids=MIXING)
def test_a_module_that_mixes_examples_has_no_exact_norms(mix):
    x = X.copy()
    x[1] = x[0]  # a row that differs is found further on
    with pytest.raises(ValueError, match=r"Broken mixes the examples of a batch.*'last_layer'"):
        trial(lambda: Broken(mix), x=x, score="exact")
    trial(lambda: Broken(mix), x=x)


def test_dropout_and_counting_do_not_look_like_mixing():
    trial(lambda: Broken(nn.Dropout(0.5)), score="exact")
    trial(Leaving, score="exact")


def test_batch_norm_takes_any_number_of_rows():
    """A chunk of a single row would have no variance."""
    network = Network(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    x, y = RNG.standard_normal((CHUNK + 1, 4)), RNG.integers(0, 3, CHUNK + 1)
    gradient, norms = network.gradient(network.initial(), x, y, np.ones(len(y)))
    assert np.isfinite(gradient).all()
    assert norms.shape == network.scores(network.initial(), x, y).shape == (CHUNK + 1,)


def test_a_module_in_place_of_a_function_is_refused():
    module: object = linear()
    with pytest.raises(TypeError, match="must be a function that returns a new module"):
        Network(module)  # pyright: ignore
    with pytest.raises(TypeError, match="make_module returned int"):
        Network(lambda: 3).num_params()  # pyright: ignore


def test_regression_and_class_probabilities():
    squares = nn.MSELoss(reduction="none")
    regression = trial(lambda: nn.Linear(4, 1), squares, y=Y[:, None])
    assert regression.data.targets.dtype == np.float32
    shares = np.full((12, 3), 1 / 3)
    assert trial(linear, y=shares).data.targets.dtype == np.float32
    ignored = nn.CrossEntropyLoss(reduction="none", ignore_index=2)
    assert trial(lambda: nn.Linear(4, 2), ignored, y=Y).num_params == 10


@pytest.mark.parametrize(
    ("last", "loss", "said"),
    [
        (nn.Softmax(1), nn.CrossEntropyLoss, "leave nn.Softmax out"),
        (nn.Identity(), nn.NLLLoss, r"end it with nn\.LogSoftmax"),
    ],
)
def test_softmax_twice_or_not_at_all_is_a_warning(last, loss, said):
    data = FederatedData(np.eye(4), np.arange(4) % 3, np.array([0, 4]))
    make = lambda: nn.Sequential(nn.Linear(4, 3), last)  # noqa: E731
    with pytest.warns(UserWarning, match=said):
        Problem(data, Network(make, loss(reduction="none")))


def test_the_right_ends_are_no_warning(recwarn):
    data = FederatedData(np.eye(4), np.arange(4) % 3, np.array([0, 4]))
    Problem(data, Network(lambda: nn.Linear(4, 3)))
    logs = lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))  # noqa: E731
    Problem(data, Network(logs, nn.NLLLoss(reduction="none")))
    assert not recwarn.list


def test_classes_as_floats_are_said_to_a_loss_of_ones_own():
    data = FederatedData(np.eye(4), np.arange(4.0) % 3, np.array([0, 4]))
    loss = lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none")  # noqa: E731
    with pytest.raises(ValueError, match=r"give whole numbers: targets\.astype\(int\)"):
        Problem(data, Network(lambda: nn.Linear(4, 3), loss))
