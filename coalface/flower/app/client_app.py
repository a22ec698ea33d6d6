"""The ClientApp of a party: hands every message to the process that plays the party, and sends its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coalface.flower.app.records import CHECK, COUNTERSIGN, JOIN, SETTLE, STEP, read, write

log = logging.getLogger(__name__)

Answer = Callable[[str, Mapping[str, Any], Mapping[str, bytes]], tuple[Mapping[str, Any], Mapping[str, bytes]]]
"""(about, plain values, bytes by name) -> (plain values, bytes by name): `coalface.engine.party.service.answer` behind
it."""


def client_app(player: Callable[[Context], Answer]) -> ClientApp:
    """The ClientApp of a party. `player` says from a node's configuration who answers for it, at every message."""
    app = ClientApp()

    def register(about: str) -> None:
        category, _, action = about.partition(".")

        @getattr(app, category)(action)
        def handle(message: Message, context: Context) -> Message:
            try:
                values, data = read(message.content)
            except Exception as error:  # the server's fault, whatever it is
                log.error("%s: not a message of a server: %r", about, error)
                return Message(write({"failed": type(error).__name__}), reply_to=message)
            return Message(write(*player(context)(about, values, data)), reply_to=message)

    for about in (JOIN, STEP, SETTLE, CHECK, COUNTERSIGN):
        register(about)
    return app
