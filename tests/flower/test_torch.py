"""Networks over a grid without a network: our loop, a loop of one's own, and the example."""

# pyright: reportMissingImports=false
import difflib
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from local_grid import LocalGrid  # noqa: E402
from torch import nn  # noqa: E402

from isfed import (  # noqa: E402
    Average,
    Correction,
    FedAdam,
    FedAvg,
    Federated,
    FederatedData,
    FedYogi,
    LocalSteps,
    LookAhead,
    LookAheadPasses,
    Memory,
    Problem,
    Served,
    ServerMomentum,
    Uniform,
    simulate,
)
from isfed.federation.safety import (  # noqa: E402
    Privacy,
    Safety,
)
from isfed.flower import Strategy, own_turn, tell_agent, torch_turn  # noqa: E402
from isfed.methods.by_score import ByScore  # noqa: E402
from isfed.methods.estimators import Extrapolated, Mean  # noqa: E402
from isfed.sampling.designs import Deville  # noqa: E402
from isfed.torch import Network, importance  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-torch"
RNG = np.random.default_rng(0)
SIZES = (12, 20, 8, 15)
ROWS = RNG.standard_normal((sum(SIZES), 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, sum(SIZES))
DATA = FederatedData(ROWS, LABELS, np.cumsum([0, *SIZES]))
QUICK = {"num_agents": 4, "time_limit": 60.0, "join_limit": 0.0, "fraction_evaluate": 0.0}
SIMULATED = Safety(most_inclusion=1.0)  # no cap: as in one process
QUICK["names"] = [f"agent{k}" for k in range(4)]


def module():
    """Batch norm has a counter without dimensions; dropout draws."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)
    )


NETWORK = Network(module)


def load(context):
    return DATA.agent(context.node_config["partition-id"])


def grid_of(handler, tmp_path, spoil=None):
    app = ClientApp()
    app.train()(handler)
    configs = [{"partition-id": k, "isfed-state": str(tmp_path)} for k in range(4)]
    return LocalGrid(app, configs, spoil)


def initial(network=NETWORK):
    return ArrayRecord(network.state_dict(network.initial()))


@pytest.mark.parametrize("weighting", ["step", "change"])
@pytest.mark.parametrize("examples", [None, Memory()], ids=["uniform", "memory"])
def test_our_loop_gives_the_numbers_of_the_process(tmp_path, weighting, examples):
    algorithm = importance(step_size=0.2, num_active=2, examples=examples, weighting=weighting)
    strategy = Strategy(algorithm, seed=3, weighting=weighting, **QUICK)
    grid = grid_of(torch_turn(load, NETWORK, local_steps=3, batch_size=4), tmp_path)
    result = strategy.start(grid, initial(), num_rounds=6)
    expected = simulate(Problem(DATA, NETWORK, 3, 4), algorithm, rounds=6, seed=3).params[0]
    found = NETWORK.params(result.arrays.to_torch_state_dict())
    rounded = expected.astype(np.float32)
    if weighting == "step":  # the same sums in the same order
        np.testing.assert_array_equal(found, rounded)
    else:
        np.testing.assert_allclose(found, rounded, rtol=1e-4, atol=1e-6)
    assert result.arrays["1.num_batches_tracked"].dtype == "int64"
    metrics = result.train_metrics_clientapp[6]
    assert 0.0 < metrics["train_loss"] < 3.0  # pyright: ignore[reportOperatorIssue]
    assert metrics["answered"] == 2


def test_the_default_sends_ahead_of_its_model_and_shows_the_average(tmp_path):
    """With batch norm: what is evaluated and returned is the model of `simulate`."""
    sent, shown = [], []

    def see(message, context):
        sent.append(NETWORK.params(message.content["arrays"].to_torch_state_dict()))
        return turn(message, context)

    turn = torch_turn(load, NETWORK, local_steps=3, batch_size=4)
    strategy = Strategy(LookAheadPasses(step_size=0.2, num_active=2), **QUICK, safety=SIMULATED)
    result = strategy.start(
        grid_of(see, tmp_path), initial(), num_rounds=5,
        evaluate_fn=lambda _, arrays: shown.append(NETWORK.params(arrays.to_torch_state_dict())),
    )  # fmt: skip
    method, problem = strategy.algorithm, Problem(DATA, NETWORK, 3, 4)
    models = simulate(problem, method, rounds=5, keep=range(6)).kept[0]
    np.testing.assert_array_equal(shown, models.astype(np.float32))
    found = NETWORK.params(result.arrays.to_torch_state_dict())
    np.testing.assert_array_equal(found, shown[-1])
    agents = NETWORK.make_agents(problem, method.rules(4), seed=0, repetition=0)
    state = method.start(agents, NETWORK.initial())
    for i in range(4):
        state = method.round(state, agents, i)
    ahead = method.federated.server.send(state.server, state.params)
    np.testing.assert_array_equal(sent[-1], ahead.astype(np.float32))
    assert not np.array_equal(sent[-1], shown[-2])  # neither is the other


SERVERS: dict[str, Any] = {
    "FedYogi": Served(FedAvg(step_size=0.2, num_active=2), FedYogi(step_size=0.05)),
    "FedACG": Served(FedAvg(step_size=0.2, num_active=2), LookAhead(ServerMomentum(momentum=0.5))),
    "FedExP": Federated(ByScore(2, Uniform(), Deville()), LocalSteps(0.2), Extrapolated(Mean())),
    "average, half": Served(
        FedAvg(step_size=0.2, num_active=2), Average(LookAhead(FedAdam(step_size=0.05)))
    ),
    "average, pass": FedAvg(step_size=0.2, num_active=2, average="pass"),
}


@pytest.mark.parametrize("name", list(SERVERS))
def test_servers_show_the_model_of_the_process_with_batch_norm(tmp_path, name):
    strategy = Strategy(SERVERS[name], **QUICK, safety=SIMULATED)
    grid = grid_of(torch_turn(load, NETWORK, local_steps=3, batch_size=4), tmp_path)
    result = strategy.start(grid, initial(), num_rounds=6)
    expected = simulate(Problem(DATA, NETWORK, 3, 4), SERVERS[name], rounds=6).params[0]
    found = NETWORK.params(result.arrays.to_torch_state_dict())
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_the_train_config_reaches_our_loop(tmp_path):
    algorithm = FedAvg(step_size=0.2, num_active=4)
    strategy = Strategy(algorithm, weighting="step", **QUICK)
    grid = grid_of(torch_turn(load, NETWORK, local_steps=3, batch_size=4), tmp_path)
    config = ConfigRecord({"local-steps": 2, "batch-size": 5})
    result = strategy.start(grid, initial(), num_rounds=2, train_config=config)
    expected = simulate(Problem(DATA, NETWORK, 2, 5), algorithm, rounds=2).params[0]
    found = NETWORK.params(result.arrays.to_torch_state_dict())
    np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("kind", [None, "difference", "drift"])
def test_frozen_and_tied_parameters_keep_their_places(tmp_path, kind):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(4, 3)
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.b(torch.tanh(self.a(self.frozen(x))))

    network = Network(Tied)
    # The cloud sees a parameter with two names twice, and would learn another gain from it.
    correction = None if kind is None else Correction(kind, gain=0.5)
    weighting = "step" if kind is None else "change"
    algorithm = importance(
        step_size=0.2, num_active=2, agents=Uniform(), correction=correction, weighting=weighting
    )
    grid = grid_of(torch_turn(load, network, local_steps=2, batch_size=3), tmp_path)
    strategy = Strategy(algorithm, weighting=weighting, **QUICK)
    result = strategy.start(grid, initial(network), num_rounds=3)
    expected = simulate(Problem(DATA, network, 2, 3), algorithm, rounds=3).params[0]
    state = result.arrays.to_torch_state_dict()
    found = network.params(state)
    if kind is None:  # the same sums in the same order
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    before = network.state_dict(network.initial())
    assert torch.equal(state["frozen.weight"], before["frozen.weight"])
    assert torch.equal(state["a.weight"], state["b.weight"])


def test_another_architecture_is_refused_by_the_agent(tmp_path):
    replies = []
    grid = grid_of(
        torch_turn(load, Network(lambda: nn.Linear(4, 3))),
        tmp_path,
        lambda _, reply: replies.append(reply) or reply,
    )
    strategy = Strategy(FedAvg(step_size=0.1, num_active=1), **QUICK)
    strategy.start(grid, initial(), num_rounds=1)
    assert "another architecture than Linear" in replies[0].error.reason


def test_another_frozen_body_is_refused_by_the_agent(tmp_path):
    def make():
        body = nn.Linear(4, 5).requires_grad_(False)
        return nn.Sequential(body, nn.Linear(5, 3))

    replies, network = [], Network(make)
    grid = grid_of(torch_turn(load, network), tmp_path, lambda _, r: replies.append(r) or r)
    state = make().state_dict()  # drawn anew
    strategy = Strategy(FedAvg(step_size=0.1, num_active=1), **QUICK)
    strategy.start(grid, ArrayRecord(state), num_rounds=1)
    assert "0.weight is frozen and differs from what make_module makes" in replies[0].error.reason


@pytest.mark.parametrize("part", ["model", "loss"])
def test_a_turn_that_is_not_finite_fails_and_the_next_one_is_good(tmp_path, part):
    """The first round alone has it: scores are averages, which would remember it for good."""
    first = [True]

    def loss(outputs, targets):
        found = nn.functional.cross_entropy(outputs, targets, reduction="none")
        if not first[0] or len(outputs) != 4:  # other batches are the trial before the turn
            return found
        # Infinite with a gradient, or infinite without one.
        return found * np.inf if part == "model" else found + np.inf

    replies, network = [], Network(lambda: nn.Linear(4, 3), loss)
    handler = torch_turn(load, network, local_steps=3, batch_size=4)
    grid = grid_of(handler, tmp_path, lambda _, reply: replies.append(reply) or reply)
    algorithm = importance(step_size=0.2, num_active=4)

    def mend(report, params):
        first[0] = False

    strategy = Strategy(algorithm, on_round=mend, **QUICK)
    strategy.start(grid, initial(network), num_rounds=3)
    assert all("not finite" in reply.error.reason for reply in replies[:4])
    scores = [reply.content["metrics"]["score"] for reply in replies[4:]]
    assert len(scores) == 8
    assert np.isfinite(scores).all()


# A loop of one's own: here it adds its agent's number to every float.


def reply_with(message, state, **metrics):
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def add(message, context):
    agent = context.node_config["partition-id"]
    state = message.content["arrays"].to_torch_state_dict()
    moved = {n: v + message.content["config"]["lr"] * agent if v.is_floating_point() else v + 1
             for n, v in state.items()}  # fmt: skip
    return reply_with(message, moved, **{"num-examples": SIZES[agent], "train_loss": 1.0 + agent})


def run_own(
    tmp_path, fit=add, rounds=1, num_active=4, step_size=1.0, on: Any = "change", **options
):
    algorithm = importance(step_size=step_size, num_active=num_active, weighting=on)
    strategy = Strategy(algorithm, seed=1, **{**QUICK, **options})
    replies = []
    grid = grid_of(own_turn(fit), tmp_path, lambda _, r: replies.append(r) or r)
    config = ConfigRecord({"lr": 0.5})
    result = strategy.start(grid, initial(), num_rounds=rounds, train_config=config)
    return strategy, result, replies


def test_a_loop_of_ones_own_is_averaged_and_its_counters_stay(tmp_path):
    _, result, replies = run_own(tmp_path)
    before, after = NETWORK.initial(), NETWORK.params(result.arrays.to_torch_state_dict())
    np.testing.assert_allclose(after - before, np.mean([0.0, 0.5, 1.0, 1.5]), rtol=1e-6)
    assert result.arrays["1.num_batches_tracked"].numpy() == 0
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(
        np.average([1, 2, 3, 4], weights=SIZES)
    )
    size = sum(p.numel() for p in module().parameters())  # buffers do not count
    scores = sorted(reply.content["metrics"]["score"] for reply in replies)
    np.testing.assert_allclose(scores, [0.5 * k * size**0.5 for k in range(4)], rtol=1e-5)


def test_the_step_size_of_the_method_does_nothing_to_a_loop_of_ones_own(tmp_path):
    one, other = (
        run_own(tmp_path, rounds=5, num_active=2, step_size=size)[1] for size in (1.0, 1e-6)
    )
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array.numpy(), other.arrays[name].numpy())


def test_agents_count_by_their_weights(tmp_path):
    _, result, _ = run_own(tmp_path, agent_weights=SIZES)
    moved = NETWORK.params(result.arrays.to_torch_state_dict()) - NETWORK.initial()
    np.testing.assert_allclose(moved, np.average([0.0, 0.5, 1.0, 1.5], weights=SIZES), rtol=1e-5)
    for bad in ([1, 2], [1, -1, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(ValueError, match="agent_weights must be 4 numbers"):
            run_own(tmp_path, agent_weights=bad)
    with pytest.raises(ValueError, match=r"weighting='step'\) contradicts the method"):
        run_own(tmp_path, agent_weights=SIZES, weighting="step")


def test_running_variances_stay_a_mean_of_what_the_agents_sent(tmp_path):
    """Their weights are as unequal as can be: the first agent counts 100 times the others."""
    sent = []

    def shrink(message, context):  # to a variance of the agent's own, at once
        agent = context.node_config["partition-id"]
        state = message.content["arrays"].to_torch_state_dict()
        state["1.running_var"] = torch.full_like(state["1.running_var"], 0.1 + agent)
        sent.append(0.1 + agent)
        return reply_with(message, state)

    weights = [100, 1, 1, 1]
    found = []
    options = {"agent_weights": weights, "on_round": lambda _, params: found.append(params.copy())}
    strategy, *_ = run_own(tmp_path, shrink, rounds=20, num_active=2, **options)
    assert strategy.job is not None
    places = strategy.job.agents.layout.mask(["1.running_var"])
    for round_index, params in enumerate(found):
        two = sent[2 * round_index : 2 * round_index + 2]
        assert (params[places] >= min(two) - 1e-6).all()
        assert (params[places] <= max(two) + 1e-6).all()


def test_the_scale_of_an_agents_features_changes_neither_its_score_nor_its_welcome(tmp_path):
    """Batch norm divides by it; the running variance alone shows it."""

    def fit(message, context):
        agent = context.node_config["partition-id"]
        state = message.content["arrays"].to_torch_state_dict()
        variance = 1e6 if agent == 0 else 2.0
        state["1.running_var"] = torch.full_like(state["1.running_var"], variance)
        state["0.weight"] += 0.01  # all take the same step
        return reply_with(message, state)

    _, result, replies = run_own(tmp_path, fit, rounds=2)
    scores = [reply.content["metrics"]["score"] for reply in replies]
    np.testing.assert_allclose(scores, 0.01 * 24**0.5, rtol=1e-3)  # float32
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["answered"], metrics["refused_changes"]) == (4, 0)
        assert metrics["step"] == pytest.approx(0.01 * 24**0.5, rel=1e-3)
    np.testing.assert_allclose(result.arrays["1.running_var"].numpy(), (1e6 + 6.0) / 4, rtol=1e-5)


def test_buffers_of_another_name_are_asked_for(tmp_path):
    class Centred(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("centre", torch.zeros(4))

        def forward(self, x):
            self.centre = 0.9 * self.centre + 0.1 * x.mean(0)
            return super().forward(x - self.centre)

    network, replies = Network(Centred), []
    grid = grid_of(torch_turn(load, network), tmp_path, lambda _, r: replies.append(r) or r)
    algorithm = importance(step_size=0.1, num_active=4)
    Strategy(algorithm, **QUICK).start(grid, initial(network), num_rounds=1)
    assert "Strategy(buffers=[...])" in replies[0].error.reason
    named = Strategy(algorithm, buffers=["centre"], **QUICK)
    assert named.start(grid, initial(network), num_rounds=1).train_metrics_clientapp[1]["answered"]
    with pytest.raises(ValueError, match="no float array 'center'"):
        Strategy(algorithm, buffers=["center"], **QUICK).start(grid, initial(network))
    safety = Safety(privacy=Privacy(clip=1.0))
    with pytest.raises(ValueError, match="group norm instead of batch norm"):
        Strategy(algorithm, safety=safety, **QUICK).start(grid, initial())


def test_scores_are_remembered_and_steer_the_draw(tmp_path):
    strategy, _, _ = run_own(tmp_path, rounds=30, num_active=2)
    assert strategy.job is not None
    scores = strategy.method.sampler.table(strategy.job.state.sampler, 4).scores
    assert (np.diff(scores) > 0).all()  # the length of the change, by agent


@pytest.mark.parametrize(
    ("fit", "options", "said"),
    [
        (lambda m, c: reply_with(m, {}), {}, "expected 8 arrays, got 0"),
        (lambda m, c: Message(RecordDict(), reply_to=m), {}, "one trained model, got 0"),
        (lambda m, c: reply_with(m, {n: v * np.nan if v.is_floating_point() else v for n, v in
         m.content["arrays"].to_torch_state_dict().items()}), {}, "not finite"),
        (lambda m, c: reply_with(m, m.content["arrays"].to_torch_state_dict(), score=-1.0), {},
         "score=-1.0 must be a number >= 0"),
        (add, {"on": "step"}, "weighting='change'"),
        (lambda m, c: None, {}, "returned NoneType; expected the reply, a Message"),
    ],
    ids=["another model", "no model", "nan", "score", "step", "nothing"],
)  # fmt: skip
def test_what_a_loop_may_not_return_is_said(tmp_path, fit, options, said):
    _, result, replies = run_own(tmp_path, fit, **options)
    assert said in replies[0].error.reason
    np.testing.assert_array_equal(
        NETWORK.params(result.arrays.to_torch_state_dict()), NETWORK.initial()
    )


@pytest.fixture(params=["before", "after"])
def apps(request, monkeypatch):
    """The two apps of one version, imported as Flower imports them."""
    monkeypatch.syspath_prepend(str(EXAMPLE / request.param))

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "torchapp"]:
            del sys.modules[name]

    forget()
    yield tuple(
        importlib.import_module(f"torchapp.{part}_app").app for part in ("client", "server")
    )
    forget()


def test_both_versions_of_the_example_train(apps, tmp_path, caplog):
    torch.set_num_threads(1)
    client, server = apps
    configs = [{"partition-id": k, "isfed-state": str(tmp_path)} for k in range(3)]
    told = []
    grid = LocalGrid(client, configs, lambda _, reply: told.append(reply) or reply)
    config = {"rounds": 8, "model": str(tmp_path / "model.pt")}
    server(grid, SimpleNamespace(run_config=config, state=None))
    losses = [r.content["metrics"]["loss"] for r in told if "loss" in r.content.get("metrics", {})]
    assert len(losses) == 24
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["norm.num_batches_tracked"].dim() == 0  # Flower's FedAvg makes a float of it
    logged = [record.getMessage().strip() for record in caplog.records]
    begins = {
        "Initial global evaluation results: {'loss': ": 1,
        "└──> Aggregated MetricRecord: {'train_loss': ": 8,
        "└──> Aggregated MetricRecord: {'loss": 8,  # we have medians, too
        "aggregate_evaluate: Received 3 results and 0 failures": 8,
        "└──> MetricRecord: {'loss': ": 8,
        "[ROUND ": 8,
    }
    for begin, times in begins.items():
        assert sum(line.startswith(begin) for line in logged) == times, begin


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("apps", ["after"], indirect=True)
def test_without_names_the_example_trains_if_its_client_says_who_it_is(
    apps, tmp_path, monkeypatch, answers
):
    """As in Flower's simulation, whose nodes have no names."""
    torch.set_num_threads(1)
    client, server = apps
    if answers:
        client.query()(tell_agent)
    found = []

    class Nameless(Strategy):
        def __init__(self, algorithm, *, names, **options):
            super().__init__(algorithm, join_limit=0.2, **options)
            self.on_round = lambda report, _: found.append(report.answered)

    monkeypatch.setattr("isfed.flower.Strategy", Nameless)
    grid = LocalGrid(client, [{"partition-id": k} for k in range(3)])
    config = {"rounds": 2, "model": str(tmp_path / "model.pt")}
    server(grid, SimpleNamespace(run_config=config, state=None))
    # An agent may have both places of a cohort.
    assert [count > 0 for count in found] == ([True, True] if answers else [False, False])


@pytest.mark.parametrize("apps", ["after"], indirect=True)
def test_the_example_keeps_the_objective(apps, monkeypatch):
    """Flower's FedAvg weights agents by their numbers of examples."""
    task = importlib.import_module("torchapp.task")
    sizes = np.array([len(task.load(agent)[1]) for agent in range(3)])
    made = []

    class Seen(Strategy):
        def start(self, *given, **options):
            made.append(self)
            raise InterruptedError

    monkeypatch.setattr("isfed.flower.Strategy", Seen)
    config = SimpleNamespace(run_config={"rounds": 1, "model": ""}, state=None)
    with pytest.raises(InterruptedError):
        apps[1](LocalGrid(apps[0], []), config)
    np.testing.assert_allclose(made[0].agent_weights, sizes / sizes.mean())


def test_the_change_of_the_example_is_at_most_15_lines():
    changed = []
    for path in sorted((EXAMPLE / "before").rglob("*")):
        if path.suffix in (".py", ".toml"):
            other = EXAMPLE / "after" / path.relative_to(EXAMPLE / "before")
            lines = difflib.unified_diff(
                path.read_text().splitlines(), other.read_text().splitlines(), lineterm="", n=0
            )
            changed += [x for x in lines if x[0] in "+-" and x[:3] not in ("+++", "---")]
    documented = [
        line
        for line in (EXAMPLE / "change.diff").read_text().splitlines()
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert changed == documented
    assert len(changed) <= 15


def test_a_loop_of_ones_own_needs_no_step_size_and_ours_asks_for_one(tmp_path, caplog):
    def fit(message, context):
        moved = {n: v + 1.0 for n, v in message.content["arrays"].to_torch_state_dict().items()}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"score": 1})})
        return Message(content, reply_to=message)

    start = ArrayRecord({"w": torch.zeros(2)})
    result = Strategy(importance(num_active=4), **QUICK).start(
        grid_of(own_turn(fit), tmp_path), start, num_rounds=2
    )
    assert result.arrays["w"].numpy().tolist() == [2.0, 2.0]
    turn = torch_turn(load, NETWORK, local_steps=3, batch_size=4)
    with pytest.raises(RuntimeError, match="nobody's answer could be used"):
        Strategy(importance(num_active=4), **QUICK).start(
            grid_of(turn, tmp_path), initial(), num_rounds=4
        )
    assert "the method needs step_size=..., a positive number" in caplog.text


def test_the_example_with_adapters_sends_nothing_else_and_learns(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    monkeypatch.syspath_prepend(str(EXAMPLE.parent / "flower-lora"))
    client, server = (
        importlib.import_module(f"loraapp.{part}_app").app for part in ("client", "server")
    )
    task = sys.modules["loraapp.task"]
    configs = [{"partition-id": k, "isfed-state": str(tmp_path)} for k in range(6)]
    names = []
    grid = LocalGrid(client, configs, lambda _, reply: names.append(reply) or reply)
    config = {"rounds": 10, "adapters": str(tmp_path / "adapters.pt")}
    server(grid, SimpleNamespace(run_config=config, state=None))
    turns = [reply for reply in names if "change" in reply.content]
    adapters = task.adapters_of(task.make_model())
    assert {name for turn in turns for name in turn.content["change"]} == set(adapters)
    state = torch.load(tmp_path / "adapters.pt", weights_only=True)
    tokens, targets = task.load(-1)
    right = task.make_model(state)(tokens).argmax(1) == targets
    assert right.float().mean() > 0.4  # a word drawn blindly is right in one case of ten
