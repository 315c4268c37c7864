"""Who is which agent, when nodes are slow to say so or fail at first."""

# pyright: reportMissingImports=false
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from isfed.flower import find_nodes, tell_agent, tell_examples
from isfed.flower.node_directory import NodeDirectory


class SlowGrid(LocalGrid):
    """Answers of some nodes come only after so many looks at the mail."""

    def __init__(self, looks, tell=tell_agent):
        app = ClientApp()
        app.query()(tell)
        super().__init__(app, [{"partition-id": k} for k in range(4)])
        self.looks = dict(looks)
        self.questions = {}

    def pull_messages(self, message_ids):
        ready = []
        for ident in message_ids:
            message = next(m for m in self.sent if m.metadata.message_id == ident)
            node = message.metadata.dst_node_id
            self.questions.setdefault(node, set()).add(ident)
            if self.looks.get(node, 0) > 0:
                self.looks[node] -= 1
            else:
                ready.append(ident)
        return super().pull_messages(ready)


def test_a_slow_node_is_known_as_soon_as_it_answers():
    grid, directory = SlowGrid({1002: 3}), NodeDirectory(4)
    found = [sorted(directory.online(grid)) for _ in range(5)]
    assert found == [[0, 1, 3]] * 3 + [[0, 1, 2, 3]] * 2
    assert len(grid.questions[1002]) == 1  # one question is on its way: no second one


def test_a_node_that_never_answers_holds_up_nobody():
    grid, directory = SlowGrid({1002: 10**9}), NodeDirectory(4, patience=3600.0)
    for _ in range(20):
        assert sorted(directory.online(grid)) == [0, 1, 3]
    assert len(grid.questions[1002]) == 1


def test_a_node_that_fails_at_first_is_asked_again():
    failures = iter([True, True])

    def tell(message, context):
        if context.node_config["partition-id"] == 1 and next(failures, False):
            raise RuntimeError("the library is not loaded yet")
        return tell_agent(message, context)

    grid, directory = SlowGrid({}, tell), NodeDirectory(4)
    assert sorted(directory.online(grid)) == [0, 2, 3]
    directory.wait(grid, seconds=60.0)
    assert sorted(directory.online(grid)) == [0, 1, 2, 3]
    assert len(grid.questions[1001]) == 3


def test_of_two_nodes_with_one_name_neither_is_believed(caplog, monkeypatch):
    def nodes(self):
        names = {1000: "agent0", 1001: "agent1", 1002: "agent1", 1003: "agent3"}
        return [SimpleNamespace(node_id=n, name=names[n]) for n in self.get_node_ids()]

    monkeypatch.setattr(LocalGrid, "get_nodes", nodes)
    grid, directory = SlowGrid({}), NodeDirectory(4, [f"agent{k}" for k in range(4)])
    for _ in range(3):
        assert directory.online(grid) == {0: 1000, 3: 1003}
    assert caplog.text.count("2 nodes are registered as agent1") == 1
    grid.offline.add(1002)
    assert directory.online(grid) == {0: 1000, 1: 1001, 3: 1003}


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_start_waits_as_long_as_the_join_limit_and_says_who_is_missing(caplog, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("isfed.flower.node_directory.time", clock)
    grid, directory = SlowGrid({1002: 10**9, 1003: 20}), NodeDirectory(4)
    directory.wait(grid, seconds=1.0)
    assert clock.now == pytest.approx(1001.0, abs=0.02)
    assert sorted(directory.online(grid)) == [0, 1, 3]
    assert "3 of 4 agents are online; missing: 2. Is their SuperNode running" in caplog.text
    assert "5 seconds ahead or 5 minutes behind" in caplog.text


@pytest.mark.parametrize("answer", [-1, 4, "2", None, 1.0])
def test_a_node_that_is_no_agent_is_asked_once_and_ignored(answer):
    def tell(message, context):
        if context.node_config["partition-id"] != 3:
            return tell_agent(message, context)
        record = ConfigRecord({} if answer is None else {"agent": answer})
        return Message(RecordDict({"isfed": record}), reply_to=message)

    grid, directory = SlowGrid({}, tell), NodeDirectory(4)
    for _ in range(3):
        assert sorted(directory.online(grid)) == [0, 1, 2]
    assert len(grid.questions[1003]) == 1


def test_agents_are_found_from_the_nodes_with_their_names_and_sizes(monkeypatch):
    sizes = {0: 5, 1: 7, 2: 6, 3: 10**9}
    tell = tell_examples(lambda context: sizes[int(context.node_config["partition-id"])])
    grid = SlowGrid({}, tell)
    names = [f"agent{k}" for k in range(4)]
    assert find_nodes(grid, least=4) == {"num_agents": 4, "names": names}
    found = find_nodes(grid, least=4, by_examples=True)
    assert found["agent_weights"] == [5.0, 7.0, 6.0, 65.0]  # a claim counts up to ten medians
    nodes = [SimpleNamespace(node_id=n, name=None) for n in (1003, 1001, 1002, 1000)]
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)  # a simulation, in any order
    found = find_nodes(grid, least=4, by_examples=True)
    assert found == {"num_agents": 4, "names": None, "agent_weights": [5.0, 7.0, 6.0, 65.0]}


def test_missing_nodes_and_nodes_that_tell_no_size_are_named():
    with pytest.raises(ValueError, match=r"4 nodes are online .* least=5: start the other"):
        find_nodes(SlowGrid({}), least=5, seconds=0.0)
    with pytest.raises(ValueError, match=r"agent0 did not say .* needs app.query\(\)"):
        find_nodes(SlowGrid({}), least=4, by_examples=True)
