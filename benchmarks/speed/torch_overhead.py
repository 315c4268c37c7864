"""Local work through isfed against a bare PyTorch loop: CPU seconds, interleaved in one run.

    python benchmarks/speed/torch_overhead.py [--rounds 10] [--model mlp|cnn|small|gelu] [--ways]

K=500 agents, L=10, E=5, B=20. The bare loop draws a batch, steps with torch.optim.SGD and averages
the models, as a script without any library would. With --ways, uniform draws in every way that
turns can be taken: by autograd, agent by agent (which has passes written by hand for some modules),
all agents at once, and the way that the first cohort chose by its time. Beside networks of linear
layers, their matrix products alone say how far a pass could go.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn

from isfed import FedAvg, FederatedData, ISFedAvg, Memory, Problem, Score
from isfed.torch import Network

K, L, E, B, ROWS = 500, 10, 5, 20, 60
STEP = 0.05


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def gelu() -> nn.Module:
    """A network that has no pass written by hand."""
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 64), nn.LayerNorm(64), nn.GELU(),
        nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn, "small": small, "gelu": gelu}
BOTH = ("mlp", "cnn")  # those whose figures are published


def make_data() -> FederatedData:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((K * ROWS, 1, 28, 28), dtype=np.float32)
    y = rng.integers(0, 10, K * ROWS)
    return FederatedData(x, y, np.arange(K + 1) * ROWS)


class Bare:
    """What one writes without a library."""

    def __init__(self, make, data: FederatedData) -> None:
        torch.manual_seed(0)
        self.module, self.cloud = make(), make()
        self.cloud.load_state_dict(self.module.state_dict())
        self.data = [
            (torch.tensor(x), torch.tensor(y)) for x, y in (data.agent(k) for k in range(K))
        ]
        self.loss = nn.CrossEntropyLoss()

    def round(self) -> None:
        chosen = torch.randperm(K)[:L].tolist()
        total = None
        for k in chosen:
            x, y = self.data[k]
            self.module.load_state_dict(self.cloud.state_dict())
            optimizer = torch.optim.SGD(self.module.parameters(), lr=STEP)
            for _ in range(E):
                rows = torch.randint(len(x), (B,))
                optimizer.zero_grad()
                self.loss(self.module(x[rows]), y[rows]).backward()
                optimizer.step()
            state = {name: value.clone() for name, value in self.module.state_dict().items()}
            total = state if total is None else {n: total[n] + v for n, v in state.items()}
        assert total is not None
        self.cloud.load_state_dict({name: value / L for name, value in total.items()})


class Ours:
    """The same rounds through the library."""

    def __init__(self, make, data: FederatedData, algorithm, score, device: str = "cpu") -> None:
        made = Network(make, score=score, device=device)
        self.problem = Problem(data, made, local_steps=E, batch_size=B)
        self.algorithm = algorithm
        network: Network = self.problem.loss
        rules = algorithm.rules(K)
        self.agents = network.make_agents(self.problem, rules, seed=0, repetition=0)
        self.state = algorithm.start(self.agents, network.initial())
        self.done = 0

    def round(self) -> None:
        self.state = self.algorithm.round(self.state, self.agents, self.done)
        self.done += 1


class Products:
    """The matrix products and steps of the linear layers alone: what no way can undercut."""

    def __init__(self, make) -> None:
        layers = [layer for layer in make() if isinstance(layer, nn.Linear)]
        self.weights = [layer.weight.detach() for layer in layers]
        self.inputs = [torch.randn(B, layer.in_features) for layer in layers]
        self.slopes = [1e-6 * torch.randn(B, layer.out_features) for layer in layers]

    def round(self) -> None:
        for _ in range(L * E):
            for i, (weight, x, slope) in enumerate(
                zip(self.weights, self.inputs, self.slopes, strict=True)
            ):
                torch.mm(x, weight.t())
                if i > 0:
                    torch.mm(slope, weight)
                weight.addmm_(slope.t(), x, alpha=-STEP)


def contestants(make, data: FederatedData) -> dict:
    second = Memory(score=Score.SECOND_MOMENT)
    fedavg = FedAvg(step_size=STEP, num_active=L)
    scored = ISFedAvg(step_size=STEP * E, num_active=L, agents=second, examples=Memory())
    return {
        "bare PyTorch": Bare(make, data),
        "uniform": Ours(make, data, fedavg, "last_layer"),
        "last layer": Ours(make, data, scored, "last_layer"),
        "exact": Ours(make, data, scored, "exact"),
    }


def ways(make, data: FederatedData, device: str = "cpu") -> dict:
    """The ways to take turns of uniform draws."""
    fedavg = FedAvg(step_size=STEP, num_active=L)
    names = ("autograd", "one by one", "at once", "chosen")
    runs = {name: Ours(make, data, fedavg, "last_layer", device) for name in names}
    runs["autograd"].problem.loss.worker.fast = None
    for name, group in (("autograd", 0), ("one by one", 0), ("at once", L)):
        runs[name].agents.group = group
    runs["chosen"].agents.compare_speed()
    return runs


def measure(runs: dict, *, rounds: int) -> dict[str, np.ndarray]:
    """CPU seconds per round of every contestant, (rounds,), by turns in a random order.

    Whoever comes after a run that used much memory finds none of its own in the caches.
    """
    for run in runs.values():
        run.round()  # compiles, allocates
    seconds = {name: np.empty(rounds) for name in runs}
    order = np.random.default_rng(0)
    for i in range(rounds):
        for name in order.permutation(list(runs)).tolist():
            before = time.process_time()
            runs[name].round()
            seconds[name][i] = time.process_time() - before
    return seconds


def report(title: str, seconds: dict[str, np.ndarray]) -> None:
    """Medians, and ratios to the first contestant with their quartiles."""
    print(title)
    base = next(iter(seconds.values()))
    for run, spent in seconds.items():
        ratio = np.median(spent / base)
        low, high = np.percentile(spent / base, [25, 75])
        print(
            f"  {run:14s} {1e3 * np.median(spent):8.1f} ms  x {ratio:.2f} "
            f"({low:.2f} to {high:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=(*MODELS, "both"), default="both")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in BOTH if given.model == "both" else [given.model]:
        make, data = MODELS[name], make_data()
        runs = contestants(make, data)
        if given.ways:
            runs = {"bare PyTorch": Bare(make, data), **ways(make, data)}
            if name in ("mlp", "small"):
                runs["products"] = Products(make)
        seconds = measure(runs, rounds=given.rounds)
        report(f"{name}, {given.threads} thread(s), median of {given.rounds} rounds", seconds)
        if given.ways:
            others = [
                spent
                for run, spent in seconds.items()
                if run in ("autograd", "one by one", "at once")
            ]
            ratio = np.median(seconds["chosen"]) / min(map(np.median, others))
            print(f"  chosen: {runs['chosen'].agents.how}; {ratio:.2f} of the best of the others")


if __name__ == "__main__":
    main()
