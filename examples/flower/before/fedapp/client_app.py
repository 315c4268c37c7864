"""The client: trains on its own examples, and says how good a model is on them."""

from flwr.clientapp import ClientApp

from fedapp.messages import params_in, reply
from fedapp.task import fit, load, loss

app = ClientApp()


@app.train()
def train(message, context):
    features, targets = load(context)
    params = fit(params_in(message), features, targets)
    return reply(message, {"num-examples": len(targets)}, params)


@app.evaluate()
def evaluate(message, context):
    features, targets = load(context)
    value = loss(params_in(message), features, targets)
    return reply(message, {"loss": value, "num-examples": len(targets)})
