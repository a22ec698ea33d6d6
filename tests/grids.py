"""A Flower grid within this process: the real ClientApp of every party, with no SuperLink between."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coalface.engine.party import service
from coalface.engine.party.setup import FederatedData, Setup
from coalface.flower.app import records, server
from coalface.flower.app.client_app import client_app
from coalface.flower.app.transport import FlowerTransport, Patience
from coalface.flower.party import process


class InProcessGrid(Grid):
    """Runs an app's handler where its message is pushed, and keeps the reply until it is pulled."""

    def __init__(self, apps: Iterable[Any]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower says it to a ServerApp
        self.apps = {1000 + number: app for number, app in enumerate(apps)}
        self.away: set[int] = set()
        """Nodes that are not there."""
        self.dead: set[int] = set()
        """Nodes that are gone and are not missed yet: messages for them are answered with an error."""
        self.keys: dict[int, bytes] = {}
        """Public keys, of nodes that have one."""
        self.held: set[int] = set()
        """Nodes whose replies do not come for now."""
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in self.apps
        }
        self.sent: list[Message] = []
        self.answered: list[Message] = []
        self._numbers = itertools.count(1)
        self._replies: dict[str, tuple[int, Message]] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node in self.apps if node not in self.away]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def first_request(self) -> Message:
        """The first step that the first node was asked for."""
        return next(m for m in self.sent if (m.metadata.message_type, m.metadata.dst_node_id) == (records.STEP, 1000))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            node = message.metadata.dst_node_id
            if node in self.dead:
                self._replies[name] = node, Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
            elif node not in self.away:
                self.answered.append(self.apps[node](message, self.contexts[node]))
                self._replies[name] = node, self.answered[-1]
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [name for name in message_ids if name in self._replies and self._replies[name][0] not in self.held]
        return [self._replies.pop(name)[1] for name in ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


def seated(party_service: service.PartyService) -> Any:
    """The ClientApp of a party that is played in this process."""
    return client_app(lambda context: functools.partial(service.answer, lambda: party_service))


def played_here(recipe: Path) -> Any:
    """The ClientApp, whose messages are answered in this process and not in one that stays beside it."""

    @functools.cache
    def answers(words: str) -> Any:
        return process.answers(recipe, *json.loads(words))

    return client_app(lambda context: answers(json.dumps([dict(context.node_config), dict(context.run_config)])))


def roles(world: FederatedData) -> dict[str, str]:
    """The parties of a world, and what they are."""
    return {name: member.role for name, member in world.members().items()}


def over_flower(patience: Patience | None = None, grids: list[InProcessGrid] | None = None) -> Callable[..., Any]:
    """A transport over a grid within this process, each party at a node of its own."""

    def transport(setup: Setup, world: FederatedData) -> FlowerTransport:
        setup.prepare()

        def app(name: str) -> Any:
            node_world = setup.build()
            return seated(service.PartyService(name, node_world.members()[name], setup.context(node_world), "test"))

        grid = InProcessGrid([app(name) for name in world.members()])
        if grids is not None:
            grids.append(grid)
        return FlowerTransport(grid, roles(world), patience or Patience(join=5, step=60, poll=0.01))

    return transport


def context(node: int, node_config: dict[str, Any], run_config: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config)


def run_recipe(
    recipe: Path,
    home: Path,
    parties: Iterable[str],
    node_config: Mapping[str, object] = {},
    at_nodes: Path | None = None,
    keys: Mapping[str, bytes] = {},
    **run_config: Any,
) -> InProcessGrid:
    """The server's side to its end, over nodes that play the parties, which have the recipe as it stands in `at_nodes`
    where that is given; a value of their configuration may hold `{party}`. `keys` are the nodes' public ones."""
    parties = list(parties)
    grid = InProcessGrid([played_here(at_nodes or recipe) for _ in parties])
    for node, party in zip(grid.apps, parties, strict=True):
        extras = {key: str(value).format(party=party) for key, value in node_config.items()}
        grid.keys[node] = keys.get(party, b"")
        grid.contexts[node] = context(node, {"party": party, "home": str(home / party), **extras}, run_config)
    server.server(recipe)(grid, context(1, {}, run_config))
    return grid
