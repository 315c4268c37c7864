"""The client: trains on its own examples, and says how good a model is on them."""

from flwr.clientapp import ClientApp

from fedapp.messages import params_in, reply
from fedapp.task import load, loss
from isfed import LeastSquares, flower

app = ClientApp()


app.train()(flower.agent_turn(load, loss=LeastSquares(0.001), local_steps=5, batch_size=10))


@app.evaluate()
def evaluate(message, context):
    features, targets = load(context)
    value = loss(params_in(message), features, targets)
    return reply(message, {"loss": value, "num-examples": len(targets)})
