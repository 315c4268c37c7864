"""Accuracy, losses per agent, and models that come back from disk as they were."""

# pyright: reportMissingImports=false

import numpy as np
import pytest
import torch
from torch import nn

from isfed import FOLB, Current, FedAvg, FederatedData, Problem, importance, simulate
from isfed.datasets.named_datasets import digits
from isfed.datasets.partition import shards
from isfed.torch import Evaluate, Network, evaluate, evaluate_agents, load_model, save_model


def mlp():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def normed():
    return nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))


def test_a_network_learns_digits_and_is_measured_on_the_way():
    rows = digits()
    x, y = rows.features[:1500], rows.targets[:1500]
    network = Network(mlp)
    data = shards(y, num_agents=20, per_agent=4).federate(x, y)
    problem = Problem(data, network, local_steps=10, batch_size=20)
    measure = Evaluate(network, rows.features[1500:], rows.targets[1500:], every=20)
    history = simulate(problem, FedAvg(step_size=0.3, num_active=10), rounds=40, measure=measure)
    assert history.measured_rounds.tolist() == [0, 20, 40]
    accuracy = history.measured["accuracy"][0]
    assert accuracy[0] < 0.3
    assert accuracy[-1] > 0.75
    agents = evaluate_agents(network, history.params[0], problem.data)
    assert agents.shape == (20, 2)
    literal = [network.values(history.params[0], *data.agent(k)).mean() for k in range(20)]
    np.testing.assert_allclose(agents[:, 0], literal, rtol=1e-6)


def test_rows_that_cannot_be_evaluated_are_refused_at_once():
    network = Network(lambda: nn.Linear(4, 3))
    x, y = np.zeros((5, 4), np.float32), np.arange(5) % 3
    with pytest.raises(ValueError, match=r"the test rows: targets\[4\]=9 but the module has 3"):
        Evaluate(network, x, np.array([0, 1, 2, 0, 9]))
    with pytest.raises(ValueError, match=r"evaluate on: Linear cannot take features of .*\(3, 2\)"):
        evaluate(network, network.initial(), x[:, :2], y)
    with pytest.raises(ValueError, match=r"rows of the agents: targets\[0\]=3 but the module"):
        evaluate_agents(network, network.initial(), FederatedData(x, y + 3, np.array([0, 2, 5])))


def test_rows_may_be_reversed():
    network = Network(lambda: nn.Linear(4, 3))
    x, y = np.arange(20.0, dtype=np.float32).reshape(5, 4), np.arange(5) % 3
    params = network.initial()
    found = evaluate(network, params, x[::-1, ::-1], y[::-1])
    again = evaluate(network, params, x[::-1, ::-1].copy(), y[::-1].copy())
    np.testing.assert_array_equal(found, again)


def test_an_accuracy_needs_classes():
    network = Network(lambda: nn.Linear(2, 1), nn.MSELoss(reduction="none"))
    found = evaluate(network, np.zeros(3), np.ones((4, 2)), np.ones((4, 1)))
    assert found.loss == pytest.approx(1.0)
    assert np.isnan(found.accuracy)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_models_come_back_from_disk_as_they_were(tmp_path, name):
    network = Network(normed)
    params = network.initial(3)
    params[-8:] += 0.5  # running means and variances
    save_model(network, params, tmp_path / name)
    np.testing.assert_array_equal(load_model(network, tmp_path / name), params.astype(np.float32))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(ValueError, match=rf"{name}: these weights are of another architecture"):
        load_model(Network(mlp), tmp_path / name)
    (tmp_path / name).write_bytes(b"no model")
    with pytest.raises(ValueError, match="cannot be read as a model"):
        load_model(network, tmp_path / name)


def test_other_files_are_refused(tmp_path):
    network = Network(mlp)
    with pytest.raises(ValueError, match=r"ends in '.bin'; expected .safetensors"):
        save_model(network, network.initial(), tmp_path / "model.bin")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_model(network, tmp_path / "absent.pt")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent to write model"):
        save_model(network, network.initial(), tmp_path / "absent" / "model.safetensors")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([torch.zeros(2)], "it holds a list, expected a state_dict"),
        (torch.zeros(2), "it holds a Tensor, expected a state_dict"),
        ({"epoch": 3}, "'epoch' is of type int, expected a state_dict of tensors"),
    ],
)
def test_what_is_no_model_is_said(tmp_path, content, said):
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=rf"model\.pt cannot be read as a model: {said}"):
        load_model(Network(mlp), tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
@pytest.mark.parametrize("text", ["", "hello", "epoch,loss\n1,0.5\n"])
def test_a_text_is_no_model(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="cannot be read as a model"):
        load_model(Network(mlp), tmp_path / name)


class Centred(nn.Module):
    """Changes its input in place; in training mode it does so to a copy."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.linear = in_place, nn.Linear(4, 3)

    def forward(self, x):
        if self.training or not self.in_place:
            x = x + 0.0
        x -= 0.5
        x /= 0.5
        return self.linear(x)


FRONT = {
    "evaluation only": lambda: Centred(True),
    "in front": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
    "after dropout": lambda: nn.Sequential(
        nn.Dropout(0.2), nn.ReLU(inplace=True), nn.Linear(4, 3), nn.PReLU()
    ),
}


@pytest.mark.parametrize(
    ("name", "score"),
    [  # torch.func does not go with dropout
        *((name, "last_layer") for name in FRONT),
        ("evaluation only", "exact"),
        ("in front", "exact"),
    ],
)
def test_a_module_that_works_in_place_changes_nobodys_rows(name, score):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    kept = x.copy()
    network = Network(FRONT[name], score=score, other_layers="func")
    data = FederatedData(x, y, np.array([0, 10, 20, 40]))
    problem = Problem(data, network, local_steps=2, batch_size=5)
    measure = Evaluate(network, x, y, every=1)
    algorithm = importance(step_size=0.01, num_active=2, agents=Current(), examples=Current())
    simulate(problem, algorithm, rounds=3, measure=measure)
    params = network.initial()
    evaluate_agents(network, params, problem.data)
    network.predict(params, x)
    network.scores(params, x, y)
    simulate(problem, FOLB(step_size=0.01, num_active=2), rounds=2)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(problem.data.features, kept)
    if name == "evaluation only":
        plain = Network(lambda: Centred(False))
        assert evaluate(network, params, x, y) == evaluate(plain, params, x, y)


def test_the_accuracy_of_two_classes_by_one_output():
    network = Network(
        lambda: nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)),
        nn.BCEWithLogitsLoss(reduction="none"),
    )
    x, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 1, 1, 1])
    found = evaluate(network, np.array([1.0, 0.0]), x, y)
    assert found.accuracy == 0.75
    with pytest.raises(ValueError, match=r"targets\[2\]=7 but BCEWithLogitsLoss takes"):
        evaluate(network, np.array([1.0, 0.0]), x, np.array([0, 1, 7, 1]))
    soft = evaluate(network, np.array([1.0, 0.0]), x, np.array([0.0, 0.5, 1.0, 1.0]))
    assert np.isnan(soft.accuracy)


def test_examples_that_the_loss_ignores_do_not_count_in_the_accuracy():
    loss = nn.CrossEntropyLoss(reduction="none", ignore_index=2)
    network = Network(lambda: nn.Linear(3, 3, bias=False), loss)
    x, y = np.eye(3)[[0, 1, 1, 2]], np.array([0, 1, 0, 2])
    found = evaluate(network, np.eye(3).ravel(), x, y)
    assert found.accuracy == pytest.approx(2 / 3)


class Words(nn.Module):
    """(B, C, T): a class of every word."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(3, 3)

    def forward(self, x):
        return self.layer(x).movedim(1, 2)


def test_the_accuracy_of_sequences_is_that_of_their_entries():
    network = Network(Words, nn.CrossEntropyLoss(reduction="none"))
    x = np.array([[0, 1, 2, 2], [1, 1, 0, 0]])
    y = np.array([[0, 1, 2, 0], [1, 1, -100, 0]])
    assert evaluate(network, np.eye(3).ravel(), x, y).accuracy == (3 / 4 + 3 / 3) / 2


def test_numbers_as_targets_have_no_accuracy():
    def gaussian(outputs, targets):
        mean, log = outputs.unbind(1)
        return log + (targets - mean) ** 2 / log.exp() ** 2 / 2

    network = Network(lambda: nn.Linear(2, 2), gaussian)
    x, y = np.ones((3, 2)), np.array([0.0, 1.0, 2.0])
    assert np.isnan(evaluate(network, network.initial(), x, y).accuracy)
