"""Flower's records to and from the model."""

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict


def model(params):
    """The model as Flower sends it."""
    return ArrayRecord({"params": Array(params)})


def params_in(message):
    """The model in a message."""
    return message.content["arrays"]["params"].numpy()


def reply(message, metrics, params=None):
    """The answer to a message: numbers, and after training a model."""
    content = RecordDict({"metrics": MetricRecord(metrics)})
    if params is not None:
        content["arrays"] = model(params)
    return Message(content, reply_to=message)
