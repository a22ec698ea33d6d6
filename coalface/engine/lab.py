"""What the lab alone looks at: what stays at the parties, of which nothing is a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coalface.core.method import Models, Tensors
from coalface.core.steps import LocalResult
from coalface.engine.federation import ServerFederation


class Lab(ServerFederation):
    """A run's parties as the lab's evaluators see them; no method asks for any of it."""

    def local_results(self, kind: LocalResult, models: Models, each: Any = None) -> Iterator[tuple[str, Tensors]]:
        """(party, what it tells) of a kind, from the method's step that gives it; `each` is what the kind puts to them.

        Nothing where the method has no such step, or `models` has not the message that it needs. Nothing of it is a
        message, a commit or a line of a ledger.
        """
        if (step := self.method.local_step(kind)) is None:
            return iter(())
        declaration = self.method.find(step)[1]
        common = models.common if declaration.common is not None else None
        if common is None and declaration.common is not None and "common" not in declaration.optional:
            return iter(())
        put = None if kind.each is None else dict.fromkeys(self.parties(declaration.role), each)
        return self.transport.local_results(self._requests(self._call(step, None, common, put), None))
