"""The server: averages the models of the agents."""

import numpy as np
from flwr.serverapp import ServerApp

from fedapp.messages import model
from isfed import ISFedAvg, flower

app = ServerApp()


@app.main()
def main(grid, context):
    names = ["agent0", "agent1", "agent2"]  # as registered
    strategy = flower.Strategy(ISFedAvg(step_size=0.01, num_active=2), num_agents=3, names=names)
    strategy.start(grid, model(np.zeros(4)), num_rounds=int(context.run_config["rounds"]))
