"""The state of a run, and its form in a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coalface.core import codec
from coalface.core.compression import Updates
from coalface.core.method import Method, Ticket
from coalface.engine.checkpoint import CheckpointError
from coalface.training.server_optimizers import Moments

MOMENTS = "moments"
"""What a checkpoint calls those of the server optimiser."""
ON_DISK = {"sum_block": "block", "client_batch": "cohorts", "processes_per_party": "shards", "update_dtype": "updates"}
"""Fields of Numerics that files call otherwise, whose bytes are to stay."""


@dataclass(frozen=True)
class Numerics:
    """What the bits of a run depend on besides its recipe; the same for every number of workers."""

    threads: int = 2
    """Threads of each step."""
    device: str = "cpu"
    autocast: str | None = None
    channels_last: bool = False
    flush_denormals: bool = True
    sum_block: int = 16
    """Parties whose replies are summed before their sum joins the total."""
    client_batch: int = 0
    """Images of several parties that are one batch, where a step has a batched form; 0: party by party."""
    processes_per_party: Mapping[str, int] = field(default_factory=dict)
    """How many processes play a party: sums over them round otherwise than those of one."""
    update_dtype: Updates | None = None
    """The type that updates are sent in; None: the one that they have."""

    def record(self) -> dict[str, Any]:
        """As checkpoints and `summary.json` hold it."""
        return {ON_DISK.get(name, name): value for name, value in dataclasses.asdict(self).items()}


@dataclass
class PartyStats:
    """What the server counts of one party over a run."""

    rounds: int = 0
    failed: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    last_loss: float | None = None


@dataclass(frozen=True)
class Call:
    """One `ask` or `post`."""

    step: str
    to: tuple[str, ...]
    stage: str
    round: int
    rounds: int
    ordinal: int
    call: int
    common: codec.Encoded | None
    each: Mapping[str, Any] | None
    receipts: tuple[int, str] | None = None
    """Lines and last hash of the server's receipts when it was made; posted work says them whenever it is sent. None
    with `privacy.dp`."""


@dataclass
class RunState:
    """What the rounds so far have made of a run, the method's own state apart."""

    party_stats: dict[str, PartyStats]
    """What was counted of each party, by name, sorted."""
    ordinal: int = 0
    """Rounds begun since the start of the run, over all stages."""
    stage: int = 0
    round: int = 0
    abandoned: int = 0
    """Rounds abandoned one after the other up to now."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Each party's last accepted commit."""
    horizons: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(0, {})])
    """`horizon` at each checkpoint that is kept, the oldest first."""
    posted: dict[Ticket, Call] = field(default_factory=dict)
    """Work that was posted and not yet collected."""
    moments: Moments | None = None
    """Of the server optimiser; None without one, and before its first step in a stage."""
    totals: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0})
    """Bytes of all messages to the parties, and from them; of these, what was `refused`, and `lost` or late."""
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "judging": 0.0, "checkpoint": 0.0})

    @property
    def horizon(self) -> tuple[int, dict[str, str]]:
        """What a party may forget once a resume begins here or later: commits up to an ordinal, but those accepted.

        Work that was posted has the ordinal of its posting and is accepted, or asked for again, later than that.
        """
        return min([self.ordinal, *(call.ordinal - 1 for call in self.posted.values())]), dict(self.accepted)

    def record(self, numerics: Numerics, seed: int, metrics: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What a checkpoint holds of it: JSON, and by name the moments and the encoded messages of posted work.

        `metrics` is the length in bytes of the metrics that belong to it.
        """
        messages = {} if self.moments is None else {MOMENTS: bytes(codec.pack(self.moments).data)}
        calls = []
        for place, (ticket, call) in enumerate(self.posted.items()):
            about = {k: v for k, v in vars(call).items() if k not in ("common", "each")}
            calls.append({"ticket": vars(ticket), "call": about})
            if call.common is not None:
                messages[f"posted-{place}-common"] = bytes(call.common.data)
            for number, party in enumerate(call.to):
                if call.each is not None:
                    messages[f"posted-{place}-each-{number}"] = bytes(codec.encode(call.each[party]).data)
        record = {
            "accepted": self.accepted,
            "abandoned": self.abandoned,
            "tallies": {p: list(vars(t).values()) for p, t in self.party_stats.items() if t != PartyStats()},
            "totals": self.totals,
            "seconds": self.seconds,
            "metrics": metrics,
            "numerics": numerics.record(),
            "seed": seed,
            "posted": calls,
        }
        return record, messages

    def restore(self, record: Mapping[str, Any], messages: Mapping[str, bytes], method: Method, keep: int) -> None:
        """Take up what `record` gave, once `ordinal`, `stage` and `round` are set. The engine posts `posted` again."""
        self.accepted, self.abandoned = record["accepted"], record["abandoned"]
        self.totals, self.seconds = record["totals"], record["seconds"]
        self.moments = codec.decode(bytearray(messages[MOMENTS]), Moments) if MOMENTS in messages else None
        self.party_stats |= {p: PartyStats(*values) for p, values in record["tallies"].items()}
        for place, entry in enumerate(record["posted"]):
            about = entry["call"] | {"to": tuple(entry["call"]["to"])}
            declaration = method.steps[about["step"]][1]
            common = messages.get(f"posted-{place}-common")
            each: dict[str, Any] | None = None
            if declaration.each is not None and f"posted-{place}-each-0" in messages:
                every = [bytearray(messages[f"posted-{place}-each-{i}"]) for i in range(len(about["to"]))]
                each = {p: codec.decode(m, declaration.each) for p, m in zip(about["to"], every, strict=True)}
            encoded = None
            if common is not None and declaration.common is not None:
                encoded = codec.encode(codec.decode(bytearray(common), declaration.common))
            self.posted[Ticket(**entry["ticket"])] = Call(**about, common=encoded, each=each)
        self.horizons = [(0, {}), self.horizon][-keep:]  # older checkpoints lie there too


def check_same(record: Mapping[str, Any], numerics: Numerics, seed: int) -> None:
    """Raise CheckpointError where a run was begun with other numerics or another seed."""
    earlier = Numerics().record() | record["numerics"]  # a key of a later version was at its default
    current, words = numerics.record(), {key: name for name, key in ON_DISK.items()}
    differ = [
        f"{words.get(key, key)} {value} (now {current.get(key)})"
        for key, value in earlier.items()
        if current.get(key) != value
    ]
    if differ or record["seed"] != seed:
        raise CheckpointError(
            f"the run was begun with other numerics: {', '.join(differ) or 'the seed'}. "
            "Resume with the same, or start a new run."
        )
