"""Several agents at once give the numbers of one by one, and leave to it what vmap cannot take."""

# pyright: reportMissingImports=false

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isfed import FedAvg, FederatedData, ISFedAvg, Memory, Poisson, Problem
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.torch import Network, cohort_pass, importance, train
from isfed.torch.cohort_pass import CohortPass
from isfed.torch.flat_module import FlatModule
from isfed.torch.module_worker import LocalStep, TurnTask, Worker

RNG = np.random.default_rng(0)
SIZES = (6, 9, 5, 12, 7)
ROWS = RNG.standard_normal((sum(SIZES), 6)).astype(np.float32)
DATA = FederatedData(ROWS, RNG.integers(0, 3, sum(SIZES)), np.cumsum([0, *SIZES]))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


def make_agents(make=mlp, algorithm=None, group: int | None = 3, **options):
    problem = Problem(DATA, Network(make, **options), 3, np.array([2, 2, 3, 2, 3]))
    rules = (algorithm or FedAvg(step_size=0.1, num_active=3)).rules(5)
    agents = problem.loss.make_agents(problem, rules, seed=0, repetition=0)
    agents.group = group
    return agents


def request(agents, *, own_models=False):
    params = agents.network.initial()
    if own_models:
        params = params + 0.1 * RNG.standard_normal((5, params.size))
    return TrainRequest(np.arange(5), params, np.linspace(0.1, 0.2, 5))


def assert_same(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize(
    "local", [LocalOptions(), LocalOptions(momentum=0.5, nesterov=True, prox=0.1)]
)
def test_the_numbers_of_one_by_one(make, local):
    scored = importance(step_size=0.1, num_active=3, examples=Memory())
    apart, once = (make_agents(make, scored, group) for group in (0, 4))
    turns = request(once, own_models=True)
    correction, velocity = 0.1 * RNG.standard_normal((2, 5, once.num_params))
    velocity = velocity if local.momentum else None
    local = replace(
        local, steps=np.array([2, 2, 1, 2, 2]), correction=correction, velocity=velocity
    )
    for i in range(2):  # the second round draws by what the first one learned
        assert_same(once.work(turns, i, local), apart.work(turns, i, local))
    assert_same([once.table(k).scores for k in range(5)], [apart.table(k).scores for k in range(5)])
    assert once.turn_losses == pytest.approx(apart.turn_losses, rel=1e-4)
    assert_same(once.work(turns._replace(step=np.full(5, 0.1)), 2),
                apart.work(turns._replace(step=np.full(5, 0.1)), 2))  # fmt: skip


class Stopping(nn.Linear):
    """Looks at a number to decide what to compute."""

    def forward(self, input):
        out = super().forward(input)
        return out if out.sum() > 0.0 else 2.0 * out


class Mixing(nn.Linear):
    """Under vmap its state is that of all models together."""

    def forward(self, input):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(input) * (1.0 + 0.1 * (self.calls % 2))


MIXING = partial(Mixing, 6, 3)


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), {}, "vmap.*random"),
        (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), {}, "buffers that training"),
        (
            lambda: nn.Sequential(
                nn.BatchNorm1d(6, track_running_stats=False), nn.Dropout(), nn.Linear(6, 3)
            ),
            {},
            "vmap.*random",
        ),
        (lambda: Stopping(6, 3), {}, "vmap.*control flow"),
        (MIXING, {}, "not those of single models"),
        (mlp, {"score": "exact"}, "exact"),
        (mlp, {"optimizer": partial(torch.optim.SGD, momentum=0.9)}, "optimizer"),
    ],
)
def test_what_vmap_cannot_take_goes_agent_by_agent_and_says_why(make, options, why, monkeypatch):
    monkeypatch.setattr("isfed.torch.agents.AHEAD", 0.1)
    agents, apart = (make_agents(make, group=group, **options) for group in (None, 0))
    agents.compare_speed()
    found, expected = (some.work(request(some), 0) for some in (agents, apart))
    assert agents.group == 0
    assert agents.how.startswith("agent by agent: ")
    assert "\n" not in agents.how
    assert re.search(why, agents.how), agents.how
    if make is not MIXING:  # which counts its calls
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_batches_of_different_sizes_go_agent_by_agent():
    agents = make_agents(
        algorithm=ISFedAvg(step_size=0.1, num_active=3, example_design=Poisson()), group=None
    )
    agents.compare_speed()
    agents.work(request(agents), 0)
    assert "batches of different sizes" in agents.how


def test_the_first_cohort_decides_by_its_time(monkeypatch):
    for speed, group in ((2.0, 3), (1.0, 0)):
        monkeypatch.setattr("isfed.torch.agents.AHEAD", 1.05)
        monkeypatch.setattr(CohortPass, "_speed", lambda *_, _s=speed, **__: _s)
        agents = make_agents(group=None)
        agents.compare_speed()
        agents.work(request(agents), 0)  # three of the five have batches of one size
        assert agents.group == group
        assert f"{speed:.2f}" in agents.how


def fast(*_, **__):
    return 2.0


def slow(*_, **__):
    return 0.5


def run(problem, monkeypatch, speed, **options):
    monkeypatch.setattr("isfed.torch.agents.AHEAD", 1.05)
    monkeypatch.setattr(CohortPass, "_speed", speed)
    algorithm = FedAvg(step_size=0.1, num_active=4)
    return train(problem, algorithm, rounds=4, every=1, **options)


def test_a_training_that_continues_keeps_the_choice(monkeypatch, tmp_path):
    problem = Problem(DATA, Network(mlp), 3, 2)
    whole = run(problem, monkeypatch, fast)
    assert whole.how.startswith("4 agents at once")
    run(problem, monkeypatch, fast, folder=tmp_path, callbacks=[lambda p: p.round == 2])
    found = run(problem, monkeypatch, slow, folder=tmp_path, resume=True)
    assert found.how == "4 agents at once, as before the checkpoint"
    np.testing.assert_array_equal(found.params, whole.params)


def test_deterministic_fixes_the_choice_also_of_what_continues(monkeypatch, tmp_path):
    problem = Problem(DATA, Network(mlp), 3, 2)
    whole = run(problem, monkeypatch, fast, deterministic=True)
    assert whole.how == "agent by agent"
    stop = [lambda p: p.round == 2]
    run(problem, monkeypatch, fast, deterministic=True, folder=tmp_path, callbacks=stop)
    found = run(problem, monkeypatch, fast, folder=tmp_path, resume=True)
    np.testing.assert_array_equal(found.params, whole.params)
    assert not np.array_equal(run(problem, monkeypatch, fast).params, whole.params)


@pytest.mark.parametrize("group", [2, 5])
def test_two_processes_keep_groups_together(group):
    problem = Problem(DATA, Network(mlp), 3, 2)
    rules = FedAvg(step_size=0.1, num_active=3).rules(5)
    one, two = (
        problem.loss.make_agents(problem, rules, seed=0, repetition=0, workers=n) for n in (1, 2)
    )
    one.group = two.group = group
    turns = request(one)
    for found, expected in zip(two.work(turns, 0), one.work(turns, 0), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_of_a_pass_leaves_the_device(device):
    flat = FlatModule(mlp(), torch.device(device))
    worker = Worker(flat, nn.CrossEntropyLoss(reduction="none"), None)
    models = flat.flat.expand(4, -1).clone()
    x = torch.zeros(4, 5, 6, device=device)
    y, weight = torch.zeros(4, 5, dtype=torch.int64, device=device), torch.ones_like(x[..., 0])
    unused: Any = None
    task = TurnTask(
        0, 1, 5, 0.1, np.zeros((4, flat.size)), np.zeros((4, 0)), LocalOptions(prox=0.1),
        unused, unused, unused,
    )  # fmt: skip
    take_step = LocalStep(worker, task, models=models, steps=torch.ones(4, 1, device=device))
    batch = CohortPass(worker).batch(models, x, y, weight, scored=True)
    take_step(batch)
    assert batch.norms is not None
    for tensor in (*batch.gradients, batch.norms, batch.loss, models):
        assert tensor is not None
        assert tensor.device.type == device
    assert (batch.norms.shape, batch.loss.shape) == ((4, 5), (4,))


@pytest.mark.parametrize("threads", [1, 2])
def test_other_work_on_the_machine_decides_nothing(threads, monkeypatch):
    """A wall that others delay says the opposite of the thread's own time."""
    spent = {"wall": 0.0, "own": 0.0}
    clock = SimpleNamespace(
        perf_counter=lambda: spent["wall"], thread_time=lambda: spent["own"],
        process_time=lambda: spent["wall"],
    )  # fmt: skip
    monkeypatch.setattr(cohort_pass, "time", clock)
    monkeypatch.setattr("isfed.torch.agents.AHEAD", 1.05)
    batch, together = Worker.batch, CohortPass.batch

    def takes(method, own, wall):
        def run(*args, **options):
            spent["own"] += own
            spent["wall"] += wall
            return method(*args, **options)

        return run

    monkeypatch.setattr(Worker, "batch", takes(batch, own=0.03, wall=0.03))
    monkeypatch.setattr(CohortPass, "batch", takes(together, own=0.03, wall=0.5))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agents = make_agents(group=None)
        agents.compare_speed()
        agents.work(request(agents), 0)
    finally:
        torch.set_num_threads(before)
    assert agents.how.startswith("3 agents at once: several at once are 3.00 times as fast")
