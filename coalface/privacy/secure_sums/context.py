"""Which sum a message belongs to, and what is refused while it is formed."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass

COMPLETE = 100
"""Up to so many parties all are neighbours, where nothing else is said."""


class SecureSumError(ValueError):
    """A message, or a request, that must not be answered or counted.

    `party` names who sent it, or whom it is about; empty where that cannot be told. `code` is one of

    - `message`: it is not of the form, or of the size, that its stage asks for;
    - `stage`: it comes at a stage that is over, or twice;
    - `unknown`: the party was not asked, or has dropped out;
    - `keys`: public keys that are weak, or that two parties claim;
    - `signature`: it is not signed by the party that it names;
    - `roster`: the sets of parties do not fit together;
    - `too-few`: so few parties are left that the sum would tell too much, or cannot be opened;
    - `unconfirmed`: too few neighbours have signed the set of parties that the sum is over;
    - `answered`: the same was asked before about other parties, or for another vector, or nobody can tell any more;
    - `target`: what has left the party would add up to more than its target of ε;
    - `vector`: a vector is not of the length and type of this sum, or a value cannot be encoded;
    - `overflow`: the weights add up to more than the ring was chosen for, so the sum may have wrapped around;
    - `weight`: the weights add up to nothing.
    """

    def __init__(self, code: str, text: str, party: str = "") -> None:
        super().__init__(f"{party}: {text}" if party else text)
        self.code, self.text, self.party = code, text, party


@dataclass(frozen=True)
class SumContext:
    """One sum, in words that all its parties and the server agree on. Raises ValueError where they cannot be met.

    Examples:
        >>> context = SumContext("run-1", "train", 3, 1, asked=10, dropouts=3, corrupt=2, length=1000, bits=32)
        >>> context.least
        7
    """

    run: str
    stage: str
    round: int
    call: int
    asked: int
    """Parties that are asked."""
    dropouts: int
    """How many of them may drop out; one more, and the sum is not opened."""
    corrupt: int
    """How many of them may show the server all that they know, and their neighbours' secrets still be safe."""
    length: int
    """Entries of a party's vector."""
    bits: int
    """32 or 64: sums are modulo 2^bits."""
    layout: bytes = b""
    """The digest of what the entries stand for."""
    complete: int = COMPLETE
    """Up to so many parties all are neighbours; the graph of more is sparse."""

    def __post_init__(self) -> None:
        if self.bits not in (32, 64) or self.length < 1:
            raise ValueError(f"bits must be 32 or 64 and length 1 or more; got {self.bits} and {self.length}")
        if why := unsafe(self.asked, self.dropouts, self.corrupt, self.complete):
            raise ValueError(f"{why}. Allow fewer of either")

    @property
    def least(self) -> int:
        """The fewest parties that a sum is opened over."""
        return self.asked - self.dropouts

    @property
    def place(self) -> str:
        """The place in the run: at each one a party helps to open one sum at most."""
        return json.dumps([self.run, self.stage, self.round, self.call])

    @functools.cached_property
    def digest(self) -> bytes:
        """32 bytes that stand for all of it."""
        numbers = [self.asked, self.dropouts, self.corrupt, self.length, self.bits, self.complete]
        return hashlib.sha256(joined(b"coalface secure sum 1", self.place, self.layout, json.dumps(numbers))).digest()


def unsafe(asked: int, dropouts: int, corrupt: int, complete: int = COMPLETE) -> str:
    """Why n parties, of which d may drop out and c be corrupt, cannot have a sum; empty where they can.

    n - d < c + 2: the sum could be one honest party's vector. n ≤ 2d + c, where all are neighbours: the corrupt ones,
    and one half each of the honest, sign two sets of survivors, by which a server that lies gets both secrets of a
    party (Bonawitz et al. 2017, section 6.2). On a sparse graph signatures do not prevent that: its threshold is
    chosen for a server that keeps to the protocol.
    """
    if min(dropouts, corrupt) < 0 or asked - dropouts < corrupt + 2:
        why = "a sum could be of fewer than two honest ones, and tell one party's vector"
    elif asked <= complete and asked <= 2 * dropouts + corrupt:
        why = "a server could have two sets of survivors signed, and open the vector of each party"
    else:
        return ""
    return f"of {asked} parties {dropouts} may drop out and {corrupt} be corrupt, so {why}"


def joined(*parts: bytes | str) -> bytes:
    """Parts one after the other, each after its length, so that no other parts give the same bytes."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)
