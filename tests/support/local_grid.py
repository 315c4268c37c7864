"""A grid of Flower without a network: nodes that answer at once, fail, or keep silent."""

# pyright: reportMissingImports=false
from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


def give_identity(monkeypatch) -> None:
    """To this process, as Flower does before it runs an app: messages need it."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


class LocalGrid(Grid):
    """Runs client apps in process. `spoil(agent, reply)` may change or remove a reply."""

    def __init__(self, app: ClientApp, node_configs: list[dict[str, Any]], spoil=None) -> None:
        self.app = app
        self.spoil = spoil or (lambda agent, reply: reply)
        self.contexts = {
            1000 + k: Context(1, 1000 + k, config, RecordDict(), {})
            for k, config in enumerate(node_configs)
        }
        self.offline: set[int] = set()
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run) -> None:
        """Nothing to set."""

    @property
    def run(self):
        """No run."""
        raise NotImplementedError

    def create_message(self, *_, **__):
        """Deprecated in Flower."""
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        """Those online."""
        return [node for node in self.contexts if node not in self.offline]

    def get_nodes(self):
        """With the names that an operator would have registered."""
        return [SimpleNamespace(node_id=n, name=f"agent{n - 1000}") for n in self.get_node_ids()]

    def push_messages(self, messages) -> list[str]:
        """Deliver, and keep what comes back."""
        ids = []
        for message in messages:
            ident = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = ident
            node = message.metadata.dst_node_id
            self.sent.append(message)
            try:
                reply: Message | None = self.app(message, self.contexts[node])
            except Exception as error:  # as a SuperNode does
                reply = Message(Error(2, f"client raised\n{error}"), reply_to=message)
            reply = self.spoil(node - 1000, reply)
            if reply is not None:
                self._replies[ident] = reply
            ids.append(ident)
        return ids

    def pull_messages(self, message_ids) -> list[Message]:
        """What has come back."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages, *, timeout=None):
        """Flower's own exchange."""
        return self.pull_messages(self.push_messages(messages))
