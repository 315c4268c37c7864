"""The client: an ordinary Flower app that trains a PyTorch model."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from torchapp.task import Net, fit, load, test

app = ClientApp()


def model_in(message):
    """The model in a message."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message, context):
    """Train on this agent's images."""
    model, (x, y) = model_in(message), load(context.node_config["partition-id"])
    loss = fit(model, x, y, lr=message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """The loss on this agent's images."""
    x, y = load(context.node_config["partition-id"])
    loss, accuracy = test(model_in(message), x, y)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
