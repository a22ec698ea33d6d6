"""What a secure sum costs: bytes and seconds of a party by stage, and seconds of the server.

    python benchmarks/secure_sums.py                       # 10, 100 and 1,000 parties at 1 MB and 175 MB of float32
    python benchmarks/secure_sums.py --published           # 2^10 parties of 2^20 entries, as Bonawitz et al. 2017
    python benchmarks/secure_sums.py --whole 100           # a whole round of so many parties at 1 MB, in this process

30 % of the parties may drop out and 10 % be corrupt. Nobody signs. Seconds are the processor's on one thread, medians
of three (of one above 10 MB).

A party's stages are measured in one party, with the keys and shares of all its neighbours. At the server, adding one
vector and drawing one mask are measured at full length; putting secrets together and agreeing on pairwise masks in a
round of all parties with vectors of one entry. The rest is extrapolated by count: a mask for every party whose vector
counts, and one for each of its neighbours that was masked for and left (with 30 % leaving after they shared keys, which
is the dearest place). `--whole` shows how near that comes.

Bytes up are all that a party sends, bytes down what the protocol sends it beside the model: names (as UTF-8), keys,
shares. `times the data` is bytes up to those of the float32 vector.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from coalface.privacy.secure_sums import client
from coalface.privacy.secure_sums.context import SumContext
from coalface.privacy.secure_sums.fixed_point import HiddenMean, Layout, Summand
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import Member, seal
from coalface.privacy.secure_sums.masks import add_masks
from coalface.privacy.secure_sums.neighbours import Roster
from coalface.privacy.secure_sums.server import SecureSum


def timed(run: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Median seconds of the processor, and what the last call gave."""
    seconds, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def members(parties: int, layout: Layout, complete: int) -> list[Member]:
    about = SumContext(
        "run",
        "train",
        1,
        1,
        asked=parties,
        dropouts=3 * parties // 10,
        corrupt=parties // 10,
        length=layout.length,
        bits=layout.bits,
        layout=layout.digest,
        complete=complete,
    )
    names = [f"silo-{number:04}" for number in range(parties)]
    return [Member(name, hashlib.sha256(name.encode()).digest(), about) for name in names]


def layout_of(entries: int, parties: int) -> Layout:
    """Weights to 100 images, changes to ± 1, steps of 2^-14: in 32 bits also for 1,000 parties."""
    return Layout({"backbone": HiddenMean({"weights": Summand(entries, 1.0, 14)}, heaviest=100)}, parties)


def size(texts: Iterable[bytes | str]) -> int:
    return sum(len(text) for text in texts)


def one_party(parties: int, entries: int, complete: int) -> dict[str, Any]:
    """Seconds by stage, bytes up and down."""
    layout = layout_of(entries, parties)
    repeats = 3 if entries < 2_500_000 else 1
    everyone = members(parties, layout, complete)
    me = everyone[0]
    names = [member.name for member in everyone]
    roster = Roster(me.context, names)
    near = set(roster.neighbours(me.name))
    adverts = {member.name: client.advertise(member) for member in everyone if member.name in near}
    numbers = np.random.default_rng(0).normal(0, 0.1, entries).astype(np.float32)

    def fresh() -> Member:  # without the keys that it has derived already
        return Member(me.name, me.secret, me.context)

    seconds: dict[str, float] = {}
    seconds["advertise"], advert = timed(lambda: client.advertise(fresh()), repeats)
    seconds["share"], shares = timed(lambda: client.share_keys(fresh(), names, adverts), repeats)
    seconds["encode"], (vector, _) = timed(lambda: layout.encode({"backbone": ({"weights": numbers}, 50)}), repeats)
    seconds["mask"], masked = timed(lambda: client.mask(fresh(), names, adverts, names, vector, Answers()), repeats)
    sealed = {
        member.name: seal(member.sealing_key, member.sealing, me.sealing, roster.digest, bytes(66))
        for member in everyone
        if member.name in near
    }
    seconds["unmask"], given = timed(
        lambda: client.unmask(fresh(), names, adverts, names, names, sealed, Answers()), repeats
    )
    up = [len(advert), size(shares.values()), masked.nbytes, size(given.values())]
    down = [size(names) + size(adverts.values()), size(names), size(names) + size(sealed.values())]
    return {"degree": roster.degree, "threshold": roster.threshold, "seconds": seconds, "up": up, "down": sum(down)}


def round_of(parties: int, entries: int, complete: int, leave: int) -> tuple[dict[str, float], int, int]:
    """A whole round, of which some leave after they shared keys: the server's seconds, and its masks of each kind."""
    layout = layout_of(entries, parties)
    everyone = {member.name: member for member in members(parties, layout, complete)}
    server = SecureSum(next(iter(everyone.values())).context, list(everyone))
    seconds = dict.fromkeys(("pass on", "add", "open"), 0.0)

    def at_server(part: str, run: Callable[[], Any]) -> Any:
        spent, result = timed(run)
        seconds[part] += spent
        return result

    for name, member in everyone.items():
        advert = client.advertise(member)
        at_server("pass on", lambda n=name, a=advert: server.advertised(n, a))
    names, adverts = at_server("pass on", server.share_requests)
    for name in names:
        shares = client.share_keys(everyone[name], names, adverts[name])
        at_server("pass on", lambda n=name, s=shares: server.shared(n, s))
    sharers = at_server("pass on", server.mask_requests)
    numbers = np.random.default_rng(0).normal(0, 0.1, entries).astype(np.float32)
    vector, _ = layout.encode({"backbone": ({"weights": numbers}, 50)})
    answers = {name: Answers() for name in names}
    for name in sharers[leave:]:
        masked = client.mask(everyone[name], names, adverts[name], sharers, vector, answers[name])
        at_server("add", lambda n=name, v=masked: server.masked(n, v))
    survivors = at_server("pass on", server.survivors)
    for name, (sealed, _) in at_server("pass on", server.unmask_requests).items():
        given = client.unmask(everyone[name], names, adverts[name], sharers, survivors, sealed, answers[name])
        at_server("pass on", lambda n=name, g=given: server.unmasked(n, g))
    total = at_server("open", server.result)
    assert layout.decode(total)["backbone"][1] == 50 * len(survivors)
    roster = Roster(server.context, names)
    pairs = sum(len(set(roster.neighbours(name)) & set(survivors)) for name in sharers[:leave])
    return seconds, len(survivors), pairs


def one_mask(entries: int) -> tuple[float, float]:
    """Seconds of adding a vector and of drawing and adding a mask."""
    total, vector = np.zeros(entries, np.uint32), np.ones(entries, np.uint32)
    repeats = 7 if entries < 2_500_000 else 3
    added, _ = timed(lambda: np.add(total, vector, out=total), repeats)
    drawn, _ = timed(lambda: add_masks(total, [(bytes([key]) * 32, True) for key in range(4)]), repeats)
    return added, drawn / 4


def show(parties: int, entries: int, complete: int, rounds: dict[bool, tuple[dict[str, float], int, int]]) -> None:
    party = one_party(parties, entries, complete)
    data = 4 * entries
    seconds = "  ".join(f"{stage} {spent:.4g}" for stage, spent in party["seconds"].items())
    print(f"{parties:,} parties, {data / 1e6:.4g} MB, degree {party['degree']}, threshold {party['threshold']}")
    print(f"  party, s: {seconds}  all {sum(party['seconds'].values()):.4g}")
    up = sum(party["up"])
    print(f"  party, bytes up: {party['up']} = {up:,} = {up / data:.4f} times the data; down: {party['down']:,}")
    added, drawn = one_mask(entries)
    for leaving, (spent, survivors, pairs) in rounds.items():
        vectors = survivors * added + (survivors + pairs) * drawn
        own = sum(spent.values())
        print(
            f"  server, {'30 %' if leaving else 'none'} left: {survivors} own masks and {pairs} pairwise ones at "
            f"{drawn:.4g} s, {added:.4g} s to add a vector, the rest {own:.4g} s: {vectors + own:.4g} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--megabytes", type=float, nargs="*", default=[1, 175])
    parser.add_argument("--complete", type=int, default=100, help="up to so many parties all are neighbours")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--whole", type=int, metavar="PARTIES")
    options = parser.parse_args()
    if options.whole:
        for leave in (0, 3 * options.whole // 10):
            spent, survivors, pairs = round_of(options.whole, 250_000, options.complete, leave)
            print(f"{options.whole} parties, 1 MB, {leave} left: {survivors} + {pairs} masks; server, s: {spent}")
    elif options.published:
        for complete in (100, 1024):
            show(1024, 1 << 20, complete, {})  # they count 2 bytes an entry: twice the times of float32
    else:
        for parties in options.parties:
            rounds = {
                leaving: round_of(parties, 1, options.complete, 3 * parties // 10 if leaving else 0)
                for leaving in (False, True)
            }
            for megabytes in options.megabytes:
                show(parties, int(megabytes * 250_000), options.complete, rounds)


if __name__ == "__main__":
    main()
