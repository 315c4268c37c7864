"""The server: averages the models of the agents."""

import numpy as np
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedapp.messages import model

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=0.67, min_available_nodes=3)
    strategy.start(grid, model(np.zeros(4)), num_rounds=int(context.run_config["rounds"]))
