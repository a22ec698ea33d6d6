"""What a process gives to the executors of the parties that it plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from coalface.core.compression import Updates
from coalface.core.method import Method, Party
from coalface.engine.party.request import Request
from coalface.privacy.templates import TemplateRelease
from coalface.training.distributed.shards import Shards

if TYPE_CHECKING:
    from coalface.engine.party.encryption import Vault
    from coalface.engine.party.sums import PartySums

SaveReplies = Literal["auto"] | bool
"""Whether replies are kept; `auto`: those that took `COSTLY` seconds or more to make."""
COSTLY = 0.5


class ProcessGroup(Protocol):
    """The processes that play a party together with this one, which alone has an executor for the server."""

    shards: Shards

    def beside(self, request: Request) -> AbstractContextManager[None]:
        """Within, each of them runs the step too."""

    def agree(self, sums: tuple[str, ...]) -> None:
        """Raise ValueError unless all of them came to the reply with these hashes."""

    def keep(self, request: Request, *, flush: bool) -> tuple[str, ...]:
        """Each writes its part of the private state, beside the commit; the names of the files, by rank."""


@dataclass(frozen=True)
class ExecutorContext:
    """What a process gives to the steps that it runs."""

    method: Method
    party: Callable[[Request], Party]
    folder: Path
    """Holds `parties/NAME/` (private state) and `ledger/NAME.jsonl`."""
    flush: bool = False
    """Flush every commit to the disk, as a deployment must; a simulation flushes with its checkpoints."""
    save_replies: SaveReplies = True
    """Keep the reply in the commit. Without it a request that comes again is answered by running the step again from
    the same private state, which gives the same bytes and writes nothing."""
    processes_per_party: Mapping[str, int] = field(default_factory=dict)
    """The parties that several processes play, and how many."""
    rank: int = 0
    """Which of them this one is; 0 has the executor."""
    group: Callable[[str], ProcessGroup | None] = lambda party: None
    """The others, by party."""
    update_dtype: Updates | None = None
    """The type that updates are sent in."""
    vault: Vault | None = None
    """Of a process that plays one party: its commits are encrypted with it."""
    sums: PartySums | None = None
    """Where replies leave in secure sums alone."""
    templates: TemplateRelease | None = None
    """What puts noise on the templates of a reply."""
    secret: bytes = b""
    """What a method's own noise is drawn from, and below which folder what it costs is written down: see `Releases`."""
    spent: Path | None = None
    """None: `spent/` in `folder`."""
