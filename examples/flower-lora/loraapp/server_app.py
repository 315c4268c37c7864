"""The server: knows the adapters alone; the body never leaves the hosts that have it."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp

from isfed import flower
from isfed.torch import importance
from loraapp.task import adapters_of, load, make_model

app = ServerApp()


def evaluate(server_round, arrays):
    """The accuracy on text of nobody's."""
    model = make_model(arrays.to_torch_state_dict())
    tokens, targets = load(-1)
    with torch.no_grad():
        right = model(tokens).argmax(1) == targets
    return MetricRecord({"accuracy": right.float().mean().item()})


@app.main()
def main(grid, context):
    """All rounds."""
    strategy = flower.Strategy(
        importance(num_active=3),
        num_agents=6,
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid,
        ArrayRecord(adapters_of(make_model())),
        num_rounds=int(context.run_config["rounds"]),
        train_config=ConfigRecord({"lr": 0.02}),
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), context.run_config["adapters"])
