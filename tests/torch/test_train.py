"""Training to the end: evaluations, targets, callbacks, models on disk, resume, divergence."""

# pyright: reportMissingImports=false

import os
import subprocess
import sys
import types
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from isfed import (
    Average,
    DivergenceError,
    FedAdam,
    FedAvg,
    FederatedData,
    LookAhead,
    Problem,
    Scheduled,
    Served,
    simulate,
)
from isfed.torch import (
    Evaluate,
    Lines,
    MLflow,
    Network,
    ResumeError,
    TensorBoard,
    TorchSchedule,
    TorchServer,
    diagnose,
    importance,
    load_model,
    train,
)
from isfed.torch.fingerprint import value_fingerprint

RNG = np.random.default_rng(0)
CENTRES = 2.0 * RNG.standard_normal((3, 4))
LABELS = RNG.integers(0, 3, 120)
ROWS = (CENTRES[LABELS] + RNG.standard_normal((120, 4))).astype(np.float32)
TEST = (ROWS[80:], LABELS[80:])


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 3))


def make_problem(make=mlp, **options):
    data = FederatedData(ROWS[:80], LABELS[:80], np.array([0, 20, 35, 60, 80]))
    return Problem(data, Network(make, **options), 3, 5)


FEDAVG = FedAvg(step_size=0.2, num_active=2)
ALGORITHMS = {
    "importance": importance(step_size=0.1, num_active=2),
    "drift": importance(step_size=0.3, num_active=2, correction="drift"),
    "scheduled, FedAdam": Served(
        Scheduled(FEDAVG, TorchSchedule(0.2, partial(lr_scheduler.CosineAnnealingLR, T_max=12))),
        FedAdam(step_size=0.05),
    ),
    "Adam of PyTorch": Served(FEDAVG, TorchServer(partial(torch.optim.Adam, lr=0.05))),
    "look-ahead Adam, averaged": Served(FEDAVG, Average(LookAhead(FedAdam(step_size=0.05)))),
}


def test_it_evaluates_and_keeps_the_best_and_the_last_model(tmp_path):
    problem, points = make_problem(), []
    found = train(
        problem, FEDAVG, rounds=25, test=TEST, every=10, folder=tmp_path, callbacks=[points.append]
    )
    measure = Evaluate(problem.loss, *TEST, every=10)
    history = simulate(problem, FEDAVG, rounds=25, measure=measure)
    np.testing.assert_array_equal(found.params, history.params[0])
    assert found.rounds.tolist() == [0, 10, 20, 25] == history.measured_rounds.tolist()
    np.testing.assert_array_equal(found.accuracy, history.measured["accuracy"][0])
    np.testing.assert_array_equal(found.loss, history.measured["loss"][0])
    assert [p.round for p in points] == [10, 20, 25]
    ledger, size = found.history.ledger(), problem.num_params
    assert ledger.models_up == ledger.models_down == 50
    assert points[-1].megabytes == 1e-6 * (ledger.bytes_up(size) + ledger.bytes_down(size))
    best = int(np.argmax(found.accuracy))
    assert found.best_round == found.rounds[best]
    for name, params in (("last", found.params), ("best", found.best_params)):
        loaded = load_model(problem.loss, tmp_path / f"{name}.safetensors")
        np.testing.assert_allclose(loaded, params, rtol=1e-6)
    assert not found.stopped


def test_it_stops_at_a_target_or_when_a_callback_says_so():
    found = train(make_problem(), FEDAVG, rounds=500, test=TEST, every=5, target=0.8)
    assert found.stopped
    assert found.accuracy[-1] >= 0.8
    assert (found.accuracy[:-1] < 0.8).all()
    assert found.history.rounds == found.rounds[-1] < 500
    asked = train(make_problem(), FEDAVG, rounds=50, every=4, callbacks=[lambda p: p.round >= 8])
    assert asked.rounds.tolist() == [0, 4, 8]
    assert np.isnan(asked.accuracy).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_training_that_was_killed_goes_on_bit_for_bit(algorithm, tmp_path, monkeypatch):
    problem = make_problem()
    whole = train(problem, algorithm, rounds=12, test=TEST, every=3)

    def killed(point):
        if point.round == 6:
            raise KeyboardInterrupt

    options = {"rounds": 12, "test": TEST, "every": 3, "folder": tmp_path, "form": "pt"}
    monkeypatch.setattr("isfed.simulate.run_driver.LEAST_BETWEEN", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(problem, algorithm, callbacks=[killed], **options)
    with pytest.raises(ResumeError, match="holds a training already"):
        train(problem, algorithm, **options)
    rounds = []
    # Another problem and network of the same kind: nothing is left but the files.
    found = train(
        make_problem(), algorithm, resume=True, callbacks=[lambda p: rounds.append(p.round)],
        **options,
    )  # fmt: skip
    assert rounds[-1] == 12
    assert 3 not in rounds
    np.testing.assert_array_equal(found.params, whole.params)
    np.testing.assert_array_equal(found.accuracy, whole.accuracy)
    assert found.best_round == whole.best_round
    np.testing.assert_allclose(found.best_params, whole.best_params, rtol=1e-6)
    again = train(problem, algorithm, resume=True, **options)  # complete: nothing is run
    np.testing.assert_array_equal(again.params, whole.params)
    with pytest.raises(ResumeError, match="another network, algorithm, data, seed"):
        train(problem, algorithm, resume=True, seed=1, **options)


FAR = FedAvg(step_size=20.0, num_active=2)  # so large that a good model only gets worse


def test_the_first_model_may_be_the_best_also_after_a_resume_in_another_form(tmp_path):
    good = train(make_problem(), FEDAVG, rounds=60, test=TEST, every=20).params
    options = {"rounds": 6, "test": TEST, "every": 2, "initial": good, "folder": tmp_path}

    def killed(point):
        if point.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_problem(), FAR, form="pt", callbacks=[killed], **options)
    found = train(make_problem(), FAR, resume=True, **options)
    assert (found.accuracy[1:] < found.accuracy[0]).all()
    assert found.best_round == 0
    np.testing.assert_array_equal(found.best_params, good)
    for form in ("pt", "safetensors"):
        kept = load_model(make_problem().loss, tmp_path / f"best.{form}")
        np.testing.assert_allclose(kept, good, rtol=1e-6)


def same_name(step):
    """Functions that cannot be told apart by what they are called."""
    schedule = lambda i: step  # noqa: E731
    schedule.__qualname__ = "schedule"
    return schedule


def test_a_resume_notices_another_schedule_other_test_rows_and_another_interval(tmp_path):
    options: dict[str, Any] = {"rounds": 4, "test": TEST, "every": 2, "folder": tmp_path}
    first = Scheduled(FEDAVG, same_name(0.2))
    done = train(make_problem(), first, **options)
    again = train(make_problem(), Scheduled(FEDAVG, same_name(0.2)), resume=True, **options)
    np.testing.assert_array_equal(again.params, done.params)
    changes: list[tuple[Any, dict[str, Any]]] = [
        (Scheduled(FEDAVG, same_name(0.3)), {}),
        (first, {"test": (np.roll(TEST[0], 1, axis=0), TEST[1])}),
        (first, {"test": None}),
        (first, {"every": 1}),
    ]
    for algorithm, change in changes:
        with pytest.raises(ResumeError, match=r"another network.* test rows or `every`"):
            train(make_problem(), algorithm, resume=True, **(options | change))


class Unseen(nn.Module):
    """Returns NaN in evaluation once its weights have moved."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        out = self.linear(x)
        return out if self.training or not self.linear.weight.any() else out * np.nan


def test_an_evaluation_that_is_nan_is_never_the_best():
    problem = make_problem(Unseen)
    found = train(problem, FEDAVG, rounds=4, test=TEST, every=2)
    assert np.isnan(found.loss[1:]).all()
    assert found.best_round == 0
    np.testing.assert_array_equal(found.best_params, problem.loss.initial())


class Fragile(nn.Module):
    """Returns NaN once its weights have grown."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        out = self.linear(x)
        return out / 0 * 0 if float(self.linear.weight.detach().abs().max()) > 1.5 else out


def test_a_diverging_run_says_where_and_keeps_the_last_good_model(tmp_path):
    problem = make_problem(Fragile)
    with pytest.raises(DivergenceError) as caught:
        train(problem, FEDAVG, rounds=400, every=50, folder=tmp_path)
    message = str(caught.value)
    assert "ended its turn of round" in message
    assert "not finite" in message
    assert "last.safetensors" in message
    assert np.isfinite(caught.value.history.params).all()
    kept = load_model(problem.loss, tmp_path / "last.safetensors")
    np.testing.assert_allclose(kept, caught.value.history.params[0], rtol=1e-6)
    assert np.abs(kept).max() > 1.2  # shortly before it broke
    with pytest.raises(DivergenceError):  # and so says a resume
        train(problem, FEDAVG, rounds=400, every=50, folder=tmp_path, resume=True)
    assert np.isfinite(load_model(problem.loss, tmp_path / "last.safetensors")).all()


def test_a_server_optimizer_leaves_running_means_to_the_average():
    make = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    problem = make_problem(make)
    plain = simulate(problem, FEDAVG, rounds=1).params[0]
    still = Served(FEDAVG, TorchServer(partial(torch.optim.SGD, lr=0.0)))
    served = simulate(problem, still, rounds=1).params[0]
    trained = problem.loss.worker.flat.trained
    np.testing.assert_array_equal(served[:trained], problem.loss.initial()[:trained])
    np.testing.assert_array_equal(served[trained:], plain[trained:])
    assert not np.array_equal(served[trained:], problem.loss.initial()[trained:])


@pytest.mark.parametrize("window", ["half", "pass"])
def test_an_average_is_of_what_is_trained_and_has_the_current_running_means(window, tmp_path):
    make = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    problem, options = make_problem(make), {"rounds": 6, "test": TEST, "every": 3}
    kept = simulate(problem, FEDAVG, rounds=6, keep=range(7)).kept[0]
    averaged = Served(FEDAVG, Average(window=window))
    found = train(problem, averaged, folder=tmp_path, **options)
    trained = problem.loss.worker.flat.trained
    # Four agents, two of them in every round: K / L = 2.
    weights = [0, 0, 0, 1 / 3, 1 / 3, 1 / 3]
    if window == "pass":
        weights = np.zeros(6)
        for i in range(6):
            weights *= 1 - 1 / min(2, 1 + i / 4)
            weights[i] = 1 / min(2, 1 + i / 4)
    np.testing.assert_allclose(found.params[:trained], weights @ kept[1:, :trained], rtol=1e-12)
    np.testing.assert_array_equal(found.params[trained:], kept[-1, trained:])
    assert not np.array_equal(kept[-1, trained:], kept[-2, trained:])
    loaded = load_model(problem.loss, tmp_path / "last.safetensors")
    np.testing.assert_allclose(loaded, found.params, rtol=1e-6)
    measure = Evaluate(problem.loss, *TEST, every=3)
    np.testing.assert_array_equal(found.loss[-1], measure(found.params[None])[0, 0])


def test_an_optimizer_of_pytorch_in_the_cloud_is_that_optimizer():
    algorithm = ALGORITHMS["Adam of PyTorch"]
    updates = RNG.standard_normal((4, 6))
    model = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = torch.optim.Adam([model], lr=0.05)
    params, memory = np.zeros(6), algorithm.server.init(np.zeros(6))
    for update in updates:
        params, memory = algorithm.server.move(memory, params, update)
        model.grad = torch.tensor(-update)
        optimizer.step()
        np.testing.assert_array_equal(params, model.detach().numpy())
    assert algorithm.name == "FedAvg, Adam"


def test_objects_refuse_what_they_cannot_train():
    problem = make_problem(optimizer=partial(torch.optim.SGD, momentum=0.9))
    with pytest.raises(ValueError, match=r"SGD\(momentum=0.9\).*engine='agents'"):
        simulate(problem, FEDAVG, rounds=1, engine="objects")
    norm = make_problem(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="running means"):
        simulate(norm, FEDAVG, rounds=1, engine="objects")


def test_lines_and_mlflow_are_told_every_evaluation(capsys, monkeypatch):
    log = []
    fake: Any = types.ModuleType("mlflow")
    fake.active_run = lambda: None
    fake.start_run = lambda run_name: log.append(("start", run_name))
    fake.log_params = lambda options: log.append(("params", options))
    fake.log_metrics = lambda numbers, step: log.append((step, sorted(numbers)))
    fake.end_run = lambda status: log.append(("end", status))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    trackers = [Lines(), MLflow("digits", step=0.2)]
    train(make_problem(), FEDAVG, rounds=4, test=TEST, every=2, callbacks=trackers)
    names = ["accuracy", "loss", "megabytes", "seconds"]
    begun = [("start", "digits"), ("params", {"step": 0.2})]
    assert log == [*begun, (2, names), (4, names), ("end", "FINISHED")]
    printed = capsys.readouterr().err.splitlines()
    assert printed[1].startswith("round 4, loss ")
    assert "accuracy" in printed[1]


def test_the_real_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    train(make_problem(), FEDAVG, rounds=4, test=TEST, every=2, callbacks=[MLflow("good", step=1)])
    with pytest.raises(DivergenceError):
        train(make_problem(Fragile), FEDAVG, rounds=400, every=50, callbacks=[MLflow("fragile")])
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    found = {run.info.run_name: run for run in client.search_runs(["0"])}
    assert {name: run.info.status for name, run in found.items()} == {
        "good": "FINISHED", "fragile": "FAILED",
    }  # fmt: skip
    assert found["good"].data.params == {"step": "1"}
    steps = client.get_metric_history(found["good"].info.run_id, "accuracy")
    assert [metric.step for metric in steps] == [2, 4]


def test_tensorboard_reads_the_event_files(tmp_path):
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        with pytest.raises(ImportError, match="pip install tensorboard"):
            TensorBoard(tmp_path)
        return
    found = train(
        make_problem(), FEDAVG, rounds=4, test=TEST, every=2, callbacks=[TensorBoard(tmp_path)]
    )
    events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("accuracy")
    assert [s.step for s in scalars] == [2, 4]
    np.testing.assert_allclose([s.value for s in scalars], found.accuracy[1:], rtol=1e-6)


def test_what_train_cannot_do_is_said(tmp_path):
    problem = make_problem()
    with pytest.raises(ValueError, match=r"target=0.9 needs test"):
        train(problem, FEDAVG, rounds=1, target=0.9)
    with pytest.raises(ValueError, match=r"target=90.* must be an accuracy, a number in \(0, 1\]"):
        train(problem, FEDAVG, rounds=1, target=90.0, test=TEST)
    squares = Network(lambda: nn.Linear(4, 1), nn.MSELoss(reduction="none"))
    y = ROWS[:, :1]
    regression = Problem(FederatedData(ROWS[:80], y[:80], np.array([0, 40, 80])), squares, 1, 5)
    with pytest.raises(ValueError, match=r"target=0.9 is an accuracy.* not classes"):
        train(regression, FEDAVG, rounds=1, target=0.9, test=(ROWS[80:], y[80:]))
    with pytest.raises(ValueError, match="needs the folder"):
        train(problem, FEDAVG, rounds=1, resume=True)
    with pytest.raises(ValueError, match="form='onnx' must be"):
        train(problem, FEDAVG, rounds=1, form="onnx")  # pyright: ignore[reportArgumentType]
    from isfed import PAPER

    with pytest.raises(TypeError, match="loss is a Network, got LeastSquares"):
        train(PAPER.make(), FEDAVG, rounds=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_agents_in_the_data_are_refused(dtype):
    """Also where the rows must be converted to the type of the module."""
    offsets = np.array([0, 20, 35, 60, 80])
    data = FederatedData(ROWS[:80].astype(dtype), LABELS[:80], offsets, weights=np.diff(offsets))
    problem = Problem(data, Network(mlp), 3, 5)
    np.testing.assert_array_equal(problem.data.agent_weights, data.agent_weights)
    with pytest.raises(ValueError, match="client_weights='size'"):
        train(problem, FEDAVG, rounds=1)
    with pytest.raises(ValueError, match="client_weights='size'"):
        simulate(problem, importance(step_size=0.1, num_active=2), rounds=1)
    with pytest.raises(ValueError, match="without weights"):
        diagnose(problem, num_active=2, step_size=0.1)


class Body(nn.Module):
    """A frozen body under a head, and a `forward` with a choice."""

    def __init__(self, value: float = 0.1, sign: float = 1.0) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        nn.init.constant_(self.body.weight, value)
        self.body.requires_grad_(False)
        self.sign = sign

    def forward(self, x):
        return self.head(self.sign * self.body(x))


class OtherWay(Body):
    def forward(self, x):
        return self.head(self.sign * self.body(x).relu())


OtherWay.__qualname__ = OtherWay.__name__ = "Body"


def weighted(*weights):
    return nn.CrossEntropyLoss(torch.tensor(weights), reduction="none")


def smoothed(amount):
    return nn.CrossEntropyLoss(reduction="none", label_smoothing=amount)


def times(factor):
    return lambda outputs, y: factor * nn.functional.cross_entropy(outputs, y, reduction="none")


def served(lr, around):
    return Served(FEDAVG, around(TorchServer(lambda params: torch.optim.SGD(params, lr=lr))))


SWAPPED = {
    "smoothing": ({"loss": smoothed(0.0)}, {"loss": smoothed(0.5)}),
    "weights": ({"loss": weighted(1.0, 1.0, 1.0)}, {"loss": weighted(1.0, 9.0, 1.0)}),
    "factor": ({"loss": times(1.0)}, {"loss": times(10.0)}),
    "optimizer": (
        {"optimizer": lambda p, lr: torch.optim.SGD(p, lr)},
        {"optimizer": lambda p, lr: torch.optim.Adam(p, lr)},
    ),
    "frozen": ({"make": lambda: Body(0.1)}, {"make": lambda: Body(0.7)}),
    "option": ({"make": lambda: Body(sign=1.0)}, {"make": lambda: Body(sign=-1.0)}),
    "forward": ({"make": Body}, {"make": OtherWay}),
}


@pytest.mark.parametrize(("one", "other"), SWAPPED.values(), ids=SWAPPED)
def test_a_resume_notices_another_network_that_looks_alike(one, other, tmp_path):
    common = {"rounds": 3, "folder": tmp_path / "run", "resume": True}
    train(make_problem(**one), FEDAVG, **common)
    train(make_problem(**one), FEDAVG, **common)  # made anew, and still the same
    with pytest.raises(ResumeError, match="belongs to another network"):
        train(make_problem(**other), FEDAVG, **common)


@pytest.mark.parametrize("around", [lambda s: s, Average], ids=["alone", "averaged"])
def test_a_resume_notices_another_optimizer_of_the_cloud(around, tmp_path):
    common = {"rounds": 3, "folder": tmp_path / "run", "resume": True}
    train(make_problem(), served(1.0, around), **common)
    train(make_problem(), served(1.0, around), **common)
    with pytest.raises(ResumeError, match="another network, algorithm"):
        train(make_problem(), served(1e-3, around), **common)


@pytest.mark.parametrize("said", [True, np.True_])
def test_a_callback_may_say_true_in_either_way(said):
    found = train(make_problem(), FEDAVG, rounds=9, every=3, callbacks=[lambda _: said])
    assert found.stopped
    assert found.history.rounds == 3


def test_a_schedule_that_ends_too_early_is_refused_before_the_first_round():
    schedule = TorchSchedule(0.1, partial(lr_scheduler.CosineAnnealingLR, T_max=3))
    scheduled = Served(Scheduled(FEDAVG, schedule), FedAdam())
    assert train(make_problem(), scheduled, rounds=3).history.rounds == 3
    told = []
    with pytest.raises(ValueError, match=r"step_size=0.0 for round 3"):
        train(make_problem(), scheduled, rounds=5, every=1, callbacks=[told.append])
    assert not told


def test_optimizers_and_schedulers_that_the_cloud_cannot_use_are_refused_at_once():
    with pytest.raises(TypeError, match=r"steps by gradients alone.*'int' object is not callable"):
        TorchServer(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"steps by gradients alone.*closure"):
        TorchServer(torch.optim.LBFGS)
    with pytest.raises(TypeError, match=r"steps once per round without arguments.*metrics"):
        TorchSchedule(0.1, lr_scheduler.ReduceLROnPlateau)


NAN_ABOVE = float(ROWS[0].max()) + 0.01


class NaNs(nn.Linear):
    """nan for some rows, none of them the first."""

    def forward(self, input):
        return super().forward(torch.where(input > NAN_ABOVE, torch.nan, input))


def test_a_module_that_returns_nan_later_is_blamed_and_not_the_step_size():
    problem = make_problem(lambda: NaNs(4, 3))
    said = r"the loss of \d+ of the \d+ examples of agent \d is not finite at the first model"
    with pytest.raises(ValueError, match=said):
        train(problem, FedAvg(step_size=0.1, num_active=4), rounds=3)


def test_a_training_says_in_one_line_what_it_came_to():
    found = train(make_problem(), FEDAVG, rounds=4, every=2, test=TEST)
    best = found.accuracy[found.rounds.tolist().index(found.best_round)]
    assert (
        repr(found)
        == f"Training(4 rounds, best accuracy {best:.1%} after round {found.best_round})"
    )
    assert repr(train(make_problem(), FEDAVG, rounds=2)) == "Training(2 rounds)"
    stopped = train(make_problem(), FEDAVG, rounds=4, every=1, callbacks=[lambda _: True])
    assert repr(stopped) == "Training(1 round, stopped)"


IN_A_SET = """
from torch import nn
from isfed.torch import Network

class Kind(nn.Linear):
    def forward(self, input):
        return super().forward(input) if "a" in {"a", "b", "c", "d"} else input

def loss(outputs, y, known=frozenset(["a", "b", "c", "d"])):
    return outputs[:, 0]

print(repr(Network(lambda: Kind(2, 2), loss)))
"""


def test_a_network_is_known_by_the_same_text_in_every_process():
    found = [
        subprocess.run(
            [sys.executable, "-c", IN_A_SET], env={**os.environ, "PYTHONHASHSEED": seed},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]  # fmt: skip
    assert len(set(found)) == 1


def test_functions_that_hold_each_other_have_a_text_too():
    def one(x):
        return other(x)

    def other(x):
        return one(x)

    assert value_fingerprint(one) != value_fingerprint(other)
