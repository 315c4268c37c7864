"""The client: an ordinary Flower app that trains adapters and sends nothing else."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from isfed import flower
from loraapp.task import adapters_of, fit, load, make_model

app = ClientApp()
app.query()(flower.tell_agent)  # for Flower's simulation, whose nodes have no names


@app.train()
@flower.own_turn
def train(message, context):
    """Train the adapters on this agent's text."""
    model = make_model(message.content["arrays"].to_torch_state_dict())
    tokens, targets = load(context.node_config["partition-id"])
    loss = fit(model, tokens, targets, lr=message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(targets)})
    content = RecordDict({"arrays": ArrayRecord(adapters_of(model)), "metrics": metrics})
    return Message(content, reply_to=message)
