"""The server: averages the models of the agents."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp

from isfed import LookAheadPasses, flower
from torchapp.task import Net, load, test

app = ServerApp()


def evaluate(server_round, arrays):
    """The accuracy on test images, every round."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, *load(-1))
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid, context):
    """All rounds."""
    torch.manual_seed(0)
    names = ["agent0", "agent1", "agent2"]  # as registered
    algorithm = LookAheadPasses(num_active=2)
    sizes = [1000, 350, 150]  # agents count by their images, as in Flower's FedAvg
    strategy = flower.Strategy(algorithm, num_agents=3, names=names, agent_weights=sizes)
    result = strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
        train_config=ConfigRecord({"lr": 0.05}),
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), context.run_config["model"])
