"""Networks in a configuration, and the study of networks on a small scale."""

# pyright: reportMissingImports=false

import tomllib

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from isfed import FedAvg, simulate
from isfed.cli.app import app
from isfed.studies import ConfigError, load_results, make_experiment, run_experiment
from isfed.studies.dataset_config import FewClasses, OneClass, Shards
from isfed.studies.experiment_config import read_study, study_settings, study_tables
from isfed.studies.neural_network_config import NetworkData, read_rows
from isfed.studies.study_engine import run_study
from isfed.studies.study_summaries import first_round
from isfed.torch.models import MODELS, find_model

FILE = """
rounds = 6
repetitions = 2

[problem]
data = "network"
rows = "digits"
model = "mlp"
hidden = 8
num_agents = 10
partition = { partition = "shards", per_agent = 2 }
every = 3

[[algorithm]]
kind = "FedAvg"
step_size = 0.2
num_active = 3

[[algorithm]]
kind = "importance"
step_size = 0.2
num_active = 3
"""


def test_compiled_softmax_is_the_network_of_that_name():
    """Full batches of all agents leave nothing to chance: the two engines see the same accuracy."""
    found = []
    for compiled in (False, True):
        source = NetworkData(
            rows="digits", model="softmax", compiled=compiled, num_agents=6, local_steps=3,
            batch_size=10_000, every=1,
        )  # fmt: skip
        problem = source.make()
        algorithm = FedAvg(step_size=0.3, num_active=6)
        history = simulate(
            problem, algorithm, rounds=4, repetitions=1, measure=source.measure(problem)
        )
        found.append((history.measured["loss"], history.measured["accuracy"]))
    (loss, accuracy), (compiled_loss, compiled_accuracy) = found
    assert loss[0, 0] == pytest.approx(np.log(10))
    np.testing.assert_allclose(compiled_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(compiled_accuracy, accuracy, atol=1e-12)
    with pytest.raises(ValueError, match="compiled=true needs model='softmax', not 'mlp'"):
        NetworkData(compiled=True)


def test_isfed_run_trains_a_network(tmp_path):
    experiment = make_experiment(tomllib.loads(FILE))
    assert experiment.algorithms["importance"].weighting == "change"
    results = run_experiment(experiment, tmp_path / "out")
    assert not results.diverged
    found = results.algorithms[1].measures["accuracy"]
    assert found.rounds.tolist() == [0, 3, 6]
    assert (found.mean > 0.0).all()
    again = make_experiment(experiment.resolved)
    assert again.source == experiment.source
    assert again.resolved == experiment.resolved


def _arrays(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((60, 3, 2)), "y": rng.integers(0, 4, 60),
        "agent": np.repeat(["a", "b", "c"], 20),
    }  # fmt: skip
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return arrays


OWN = FILE.replace('"digits"', '"mine.npz"').replace("num_agents = 10\n", "")
OWN = OWN.replace('partition = { partition = "shards", per_agent = 2 }\n', "")


def test_isfed_run_trains_a_network_on_arrays_of_your_own(tmp_path, monkeypatch):
    arrays = _arrays(tmp_path / "mine.npz")
    (tmp_path / "own.toml").write_text(OWN)
    monkeypatch.chdir(tmp_path.parent)  # the path is relative to the file, not to where we are
    told = CliRunner().invoke(
        app, ["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "o")]
    )
    assert told.exit_code == 0, told.output
    assert not load_results(tmp_path / "o").diverged
    source = make_experiment(tomllib.loads(OWN), folder=tmp_path).source
    problem = source.make()
    assert problem.num_agents == 3
    assert problem.data.num_examples.sum() == 54  # every tenth row is for the test
    whole = arrays["x"].astype(np.float32).tolist()
    assert all(row in whole for row in problem.data.features.tolist())
    assert problem.num_params == 6 * 8 + 8 + 8 * 4 + 4  # four classes
    _arrays(tmp_path / "mine.npz", y=np.zeros(60, int))
    with pytest.raises(ValueError, match="not the file that the configuration was written for"):
        source.make()


def test_test_rows_of_your_own(tmp_path):
    rng = np.random.default_rng(1)
    _arrays(tmp_path / "a.npz", test_x=rng.standard_normal((5, 3, 2)), test_y=np.arange(5))
    source = NetworkData(rows=str(tmp_path / "a.npz"))
    problem = source.make()
    assert problem.data.num_examples.tolist() == [20, 20, 20]
    assert problem.num_params == 6 * 32 + 32 + 32 * 5 + 5  # class 4 is in the test only
    assert source.measure(problem)(problem.loss.initial()[None]).shape == (1, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": None}, "it needs x and y"),
        ({"test_x": np.zeros((2, 3, 2))}, "test_x with test_y"),
        ({"labels": np.zeros(60)}, "it needs x and y, may have agent"),
        ({"y": np.zeros(59, int)}, r"x has shape \(60, 3, 2\) and y \(59,\)"),
        ({"y": np.full(60, 0.5)}, "y must be whole numbers from 0"),
        ({"y": np.full(60, -1)}, "y must be whole numbers from 0"),
        ({"x": np.full((60, 3, 2), np.nan)}, "x has entries that are not finite"),
        ({"x": np.full((60, 3, 2), "a")}, "x has numbers of type <U1"),
        ({"agent": np.full(60, np.nan)}, "agent must be whole numbers or text, not float64"),
        ({"x": np.ones((60, 3), int)}, "x has whole numbers, which model='mlp' does not take"),
        ({"y": np.arange(60) % 3 + 1}, "the 3 classes 1, 2, 3; number them from 0"),
        ({"y": np.arange(60) % 3 * 1000}, "the 3 classes 0, 1000, 2000; number them from 0"),
        ({"x": np.ones((8, 2)), "y": np.arange(8) % 2, "agent": None}, "8 rows are too few"),
        ({"agent": np.zeros(3)}, r"agent has shape \(3,\), y \(60,\)"),
        ({"test_x": np.zeros((2, 3)), "test_y": np.zeros(2, int)}, "have different shapes"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(tmp_path, changes, said):
    _arrays(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=said):
        NetworkData(rows=str(tmp_path / "a.npz")).make()


@pytest.mark.parametrize("keys", [{"num_agents": 10}, {"partition": Shards()}])
def test_who_owns_the_rows_is_said_once(tmp_path, keys):
    _arrays(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="says whose row is whose"):
        NetworkData(rows=str(tmp_path / "a.npz"), **keys).make()
    _arrays(tmp_path / "a.npz", agent=None)
    NetworkData(rows=str(tmp_path / "a.npz"), **keys).make()


def test_rows_are_kept_for_the_test_at_random_and_no_agent_is_lost(tmp_path):
    y = np.arange(100) % 10
    owner = np.repeat(np.arange(50), 2)
    owner[:9] = np.arange(100, 109)  # of one row each
    _arrays(tmp_path / "a.npz", x=np.arange(200.0).reshape(100, 2), y=y, agent=owner)
    found = read_rows(tmp_path / "a.npz")
    assert found.owners is not None
    assert set(np.unique(found.owners)) == set(owner)
    assert np.bincount(found.y).min() >= 5  # the tenth rows as they stand are all of one class
    assert 5 <= len(found.test_y) <= 10
    rows = np.concatenate([found.x, found.test_x])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.arange(0.0, 200.0, 2.0))


def test_bytes_are_pixels_and_colours_have_an_axis_of_their_own(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
    _arrays(tmp_path / "a.npz", x=x, agent=None)
    problem = NetworkData(rows=str(tmp_path / "a.npz"), model="cnn", num_agents=4).make()
    assert problem.data.features.dtype == np.float32
    assert 0.9 < problem.data.features.max() <= 1.0
    simulate(problem, FedAvg(step_size=0.1, num_active=2), rounds=2)


@pytest.mark.parametrize(
    ("name", "said"),
    [("two", "too many positional arguments"), ("module", "is a module"), ("Kind", "positional")],
)
def test_models_that_are_no_functions_of_three(name, said, tmp_path, monkeypatch):
    (tmp_path / "mymodels.py").write_text(
        "from torch import nn\n"
        "def two(shape, classes):\n    return nn.Linear(4, 3)\n"
        "module = nn.Linear(4, 3)\n"
        "class Kind(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"mymodels:{name}.*{said}.*a function of shape, classes"):
        find_model(f"mymodels:{name}")


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"x, y")
    with pytest.raises(ValueError, match=r"a\.npz is not a file that numpy\.savez wrote"):
        NetworkData(rows=str(tmp_path / "a.npz")).make()
    with pytest.raises(ValueError, match="does not exist"):
        NetworkData(rows=str(tmp_path / "none.npz"))
    with pytest.raises(ValueError, match=r"rows='digit' must be one of digits, .*\.npz file"):
        NetworkData(rows="digit")


def test_an_optimizer_in_a_configuration():
    common = {"rows": "digits", "num_agents": 5, "local_steps": 3}
    network = NetworkData(**common, optimizer="AdamW", weight_decay=0.1).make().loss
    made = network.optimizer([nn.Parameter(torch.zeros(2))], lr=0.5)
    assert isinstance(made, torch.optim.AdamW)
    assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.5, 0.1)
    heavy = NetworkData(**common, momentum=0.9).make().loss
    assert isinstance(heavy.optimizer([nn.Parameter(torch.zeros(2))], lr=0.5), torch.optim.SGD)
    assert NetworkData(**common).make().loss.optimizer is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"optimizer": "Adm"}, "optimizer='Adm' must be one of ASGD, .*AdamW"),
        ({"optimizer": "Adam", "momentum": 0.9}, "optimizer='Adam' has no momentum"),
        ({"optimizer": "no.such:thing"}, "optimizer='no.such:thing' cannot be imported"),
        ({"momentum": -1.0}, "momentum=-1.0 must be a number >= 0"),
        ({"weight_decay": np.nan}, "weight_decay=nan must be a number >= 0"),
        ({"sha256": "ab"}, "sha256 is for a file of your own; rows='digits' has none"),
        ({"device": "cuda:77"}, "cuda"),
        ({"model": "softmax", "compiled": True, "momentum": 0.9}, "plain gradient steps on a CPU"),
    ],
)
def test_optimizers_and_devices_that_do_not_exist(keys, said):
    with pytest.raises(ValueError, match=said):
        NetworkData(rows="digits", **keys).make()


def test_one_repetition_has_no_standard_error_and_still_a_report(tmp_path):
    file, out = tmp_path / "one.toml", tmp_path / "out"
    file.write_text(FILE.replace("repetitions = 2", "repetitions = 1"))
    told = CliRunner().invoke(app, ["run", str(file), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert (out / "report.html").stat().st_size > 0
    found = load_results(out).algorithms[0].measures["accuracy"]
    assert found.stderr.dtype == np.float64
    assert np.isnan(found.stderr).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "resnet"}, "must be one of softmax, mlp, cnn"),
        ({"model": "no.such:thing"}, "cannot be imported"),
        ({"side": 20}, "side=20 must be 28 or 14"),
        ({"hidden": 0}, "hidden=0 must be at least 1"),
        ({"rows": "cifar"}, "rows="),
        ({"layers": 3}, "layers"),
        ({"test_rows": -1}, "test_rows=-1 must be at least 1, or 0 for all rows"),
        ({"passes": -1}, "passes=-1 must be at least 1, or 0"),
    ],
)
def test_mistakes_in_the_file_are_one_line(change, said, tmp_path):
    given = tomllib.loads(FILE)
    given["problem"].update(change)
    with pytest.raises(ConfigError, match=said):
        run_experiment(make_experiment(given, allow_imports=True), tmp_path / "out")


def test_a_model_of_ones_own_has_a_name():
    def tiny(shape, classes, hidden):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))

    MODELS["tiny"] = tiny
    try:
        problem = NetworkData(model="tiny", partition=OneClass(), num_agents=20).make()
        assert problem.num_params == 650
        assert all(np.unique(problem.data.agent(k)[1]).size == 1 for k in range(20))
    finally:
        del MODELS["tiny"]
    assert find_model("isfed.torch.models:mlp") is MODELS["mlp"]


def test_passes_over_the_data_make_the_number_of_steps():
    source = NetworkData(
        model="softmax", num_agents=30, partition=FewClasses(spread=1.0, least=2), passes=2,
        batch_size=10,
    )  # fmt: skip
    problem = source.make()
    sizes, batch = problem.data.num_examples, problem.batch_size
    np.testing.assert_array_equal(problem.local_steps, np.ceil(2 * sizes / batch))
    held = NetworkData(held_out=True).make()
    assert len(held.data.targets) < len(NetworkData().make().data.targets)


@pytest.mark.parametrize("most", [1, 60, 100, 179, 500])
def test_there_are_no_more_test_rows_than_asked_for(most):
    source = NetworkData(model="softmax", test_rows=most)
    problem = source.make()
    for measure in (source.measure(problem), source.held_out_loss(problem)):
        assert 1 <= len(measure.y) <= most  # pyright: ignore[reportAttributeAccessIssue]


def test_the_study_chooses_steps_on_seeds_of_its_own_and_tells_how_methods_stand(tmp_path):
    tables = study_tables("networks")
    tables = {key: value for key, value in tables.items() if key not in ("setting", "size")}
    source = NetworkData(hidden=8, num_agents=10, partition=Shards(), local_steps=3, every=2)
    steps = {"grid": [0.05, 0.3], "rounds": 2, "repetitions": 1, "widen": 1, "seed": 1000}
    tables |= {"rounds": 6, "repetitions": 2, "values": {"num_active": 3}, "step_sizes": steps}
    study = make_experiment(tables | {"title": "digits", "problem": source.describe()})
    results = run_study(study, tmp_path / "out")
    rows = {row["name"]: row for row in results.summary["networks"]}
    assert set(rows) == set(study.algorithms)
    assert len(rows) == 16
    curves = {a.name: a.measures["accuracy"] for a in results.algorithms}
    for name, row in rows.items():
        for rival, count in row["rounds_to"].items():
            reached = curves[name].rounds[curves[name].mean >= rows[rival]["accuracy"] - 1e-12]
            assert count == (reached[0] if reached.size else None), (name, rival)
        assert 2 <= row["steps_tried"] <= 4, name
    # Two vectors each way for SCAFFOLD, one for FedAvg; an agent with two places is sent one model.
    for name, times in (("SCAFFOLD", 2.0), ("importance", 1.0), ("FedAdam", 1.0)):
        ratio = rows[name]["megabytes_per_round"] / rows["FedAvg"]["megabytes_per_round"]
        assert ratio == pytest.approx(times, rel=0.01), name
    assert rows["default"]["megabytes_per_round"] <= rows["FedAvg"]["megabytes_per_round"]
    tried = {
        name: [step for step, _ in search["losses"]]
        for name, search in results.summary["step_sizes"].items()
    }
    np.testing.assert_allclose(tried["default"][:2], [0.05, 0.3])
    for name, search in results.summary["step_sizes"].items():
        losses = dict(search["losses"])
        assert rows[name]["step_size"] == min(losses, key=lambda step: losses[step]), name
        low, high, *more = losses  # and one beyond the edge where the best was
        assert len(more) <= 2
        assert not set(more) - {low / 2, 2 * high}, name
        assert more or losses[low] != min(losses.values()), name
    for key in study_settings("networks"):
        small = read_study("networks", setting=key, size="quick")
        assert small.rounds <= 30, key
        assert small.digest != read_study("networks", setting=key).digest


def test_first_round():
    rounds, accuracy = np.array([0, 5, 10]), np.array([0.1, 0.6, 0.5])
    assert first_round(rounds, accuracy, 0.55) == 5
    assert first_round(rounds, accuracy, 0.7) is None
