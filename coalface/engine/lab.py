"""What the lab alone looks at: what stays at the parties, of which nothing is a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from coalface.core.method import Models, Probes, Tensors
from coalface.engine.federation import ServerFederation


class Lab(ServerFederation):
    """A run's parties as the lab's judges see them; no method asks for any of it."""

    def own_models(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """Every party's own model, made at the party by the step that `models` names."""
        return iter(()) if models.at_party is None else self._staying(models.at_party, models.common)

    def verified(self, models: Models, embeddings: Tensor) -> Iterator[tuple[str, Tensors]]:
        """How every party scores embeddings (n, d) by the step that `models` names."""
        if models.verify is None:
            return iter(())
        role = self.method.find(models.verify)[1].role
        probes = dict.fromkeys(self.parties(role), Probes(embeddings=embeddings))
        return self._staying(models.verify, models.common, probes)

    def personal(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """Every party's own model for its own people, by the step that `models` names."""
        return iter(()) if models.personal is None else self._staying(models.personal, models.common)

    def classifiers(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """The class embeddings of a pooled party, by the step that `models` names."""
        return iter(()) if models.classifier is None else self._staying(models.classifier, None)

    def labelled(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """The labels that every party has for its images, by the step that `models` names."""
        return iter(()) if models.labels is None else self._staying(models.labels, None)

    def used_public(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """How many public images each party trained on, by the step that `models` names."""
        return iter(()) if models.public_used is None else self._staying(models.public_used, None)

    def _staying(
        self, step: Callable[..., Any], common: Any, each: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, Tensors]]:
        """What a step with local=True gives at each party: nothing of it is a message, a commit or a ledger's line."""
        return self.transport.own_models(self._requests(self._call(step, None, common, each), None))
