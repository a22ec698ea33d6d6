"""The executor of a party: runs a step at one party, in every engine, and writes one atomic commit of what came of it.

A commit is one file with the private state, the saved reply and the ledger lines, renamed into place. It is *pending*
until a later message names it as the party's last accepted one; what was refused, late or abandoned is never built on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalface.core import codec, compression
from coalface.core.disk import flush_folder
from coalface.core.errors import raised_at
from coalface.core.method import Party, Tensors
from coalface.core.steps import StepDeclaration, plays
from coalface.engine.party.commit_folder import CommitFolder
from coalface.engine.party.commits import DATA, LINES, REPLY, Commit, DamagedCommit, write_commit
from coalface.engine.party.context import COSTLY, ExecutorContext
from coalface.engine.party.data_identity import data_identity, difference
from coalface.engine.party.request import Request, StepBroken, StepFailed, Withheld
from coalface.privacy import ledger
from coalface.privacy.sanitised import SPENT, Releases, sanitised
from coalface.privacy.sanitised import protections as sanitised_protections
from coalface.training.distributed.shards import ShardLost

if TYPE_CHECKING:
    from coalface.engine.party.sums import HiddenReply

log = logging.getLogger(__name__)
_OF_ONE_PARTY = (OSError, ValueError, RuntimeError, MemoryError, ArithmeticError)
"""What a step may raise for a party's images or machine; another error is one of its code."""

Parts = dict[str, bytes | bytearray | memoryview]
"""What a commit holds, by class name of a private state, or as `commits` names the rest."""


class PartyExecutor:
    """One party's executor. It holds nothing in memory between requests, so ten thousand executors cost nothing."""

    def __init__(self, context: ExecutorContext, name: str) -> None:
        self.context = context
        self.name = name
        self.folder = context.folder / "parties" / name
        self.ledger = context.folder / "ledger" / f"{name}.jsonl"
        processes = context.processes_per_party.get(name, 1)
        self.commits = CommitFolder(self.folder, self.ledger, context.flush, context.vault, context.rank, processes)
        self.head: tuple[int, str] | None = None
        """Lines and last hash of the ledger once it had the lines of the reply that was given last."""

    def answer(self, request: Request) -> codec.Encoded:
        """Run the step that the request names and return its reply; the same request again trains once.

        Raises StepFailed, from its cause, and then leaves the party as it was.
        """
        reply, commit = self.begin(request)
        commit()
        return reply

    def begin(self, request: Request) -> tuple[codec.Encoded, Callable[[], None]]:
        """As `answer`, but the reply may only leave once the function beside it has written the commit.

        So the reply is hashed by a thread of its own while this one runs the step of another party.
        """
        if (request.sum is None) is not (self.context.sums is None):
            raise Withheld(f"{request.where}: one side has privacy.secure and the other has not; run one recipe")
        if request.sum is not None and request.sum.stage != "advertise":
            return self._go_on(request)
        needed, commits, head = self._before(request)
        saved = commits.get(f"{request.id}.commit")
        # A resume with another quorum may accept a round that was abandoned: then the same words meet another state.
        # One without lines is of a client batch that was taken apart.
        if saved is not None and saved.base == request.base and LINES in saved.spans:
            self.head = saved.head.lines, saved.head.chain
            with suppress(DamagedCommit):  # the step is run again, which gives the same bytes
                if (reply := saved.read(REPLY)) is not None:
                    return codec.Encoded(reply), lambda: None
            repeated, _, protections = self._train(request, self.commits.base(request.base, commits))
            if protections:
                self._check_repeated(request, repeated, saved)
            return self._leaving(request, repeated)[0], lambda: None
        self._check_targets(request)
        base = self.commits.base(request.base, commits)
        started = time.perf_counter()
        reply, private_state, protections = self._train(request, base)
        costly = time.perf_counter() - started >= COSTLY
        encoded, hidden = self._leaving(request, reply)
        void = hidden is not None and hidden.void and self.context.group(self.name) is None
        parts = self._parts(base, None if void else private_state)
        if parts:
            parts[DATA] = base.read(DATA) or data_identity(self.context.party(request))
        if hidden is not None:
            parts |= hidden.parts
        if hidden is not None or (costly if self.context.save_replies == "auto" else self.context.save_replies):
            parts[REPLY] = encoded.data
        over = self.commits.prune(commits, request.horizon[0], needed)
        shards = self._shards_of(request, over)

        def commit() -> None:
            lines = ledger.lines_for(encoded.entries, encoded.sums, request.about, head, protections)
            parts[LINES] = "\n".join(lines).encode()
            after, flush = head.after(lines), self.context.flush
            self.head = after.lines, after.chain
            self._write(request, after, parts, over, shards)
            ledger.append(self.ledger, lines, head, flush=flush)
            if flush and not head.size:
                flush_folder(self.ledger.parent)

        return encoded, commit

    def _before(self, request: Request) -> tuple[set[str], dict[str, Commit], ledger.Head]:
        """The commits that a resume may need, those that lie here by file, and the ledger's head, before a step."""
        needed = {f"{name}.commit" for name in (request.base, request.horizon[1])}
        return needed, *self.commits.begin(f"{request.base}.commit", needed, f"{request.id}.commit")

    def _write(
        self, request: Request, after: ledger.Head, parts: Parts, over: Path | None, shards: Sequence[str] = ()
    ) -> None:
        """Write the commit of a request; `over` is one that no resume can need, to be written over."""
        place, flush, vault = self.folder / f"{request.id}.commit", self.context.flush, self.context.vault
        receipts = request.receipts
        write_commit(
            place, request.base, after, parts, flush=flush, over=over, shards=shards, vault=vault, receipts=receipts
        )

    def _train(self, request: Request, base: Commit) -> tuple[Any, Any, dict[str, str]]:
        """As `_run`, with the error in place of the reply where numbers ran out of range and noise hides who replied.

        Whether a party answers then must not depend on its images, and such a reply counts as zero.
        """
        try:
            return self._run(request, base)
        except StepFailed as error:
            sums, cause = self.context.sums, error.__cause__
            alone = self.context.group(self.name) is None  # the others have kept nothing that could be named
            if isinstance(cause, FloatingPointError) and sums is not None and sums.privacy is not None and alone:
                return cause, None, {}
            raise

    def _leaving(self, request: Request, reply: Any) -> tuple[codec.Encoded, HiddenReply | None]:
        """What leaves of a step's reply at once, and what of it the commit keeps: the reply itself, and nothing.

        In a secure sum they are the party's keys for it, and the reply as a vector.
        """
        if (sums := self.context.sums) is None:
            return reply, None
        from coalface.engine.party import sums as secure  # cryptography, which it needs, is an extra

        declaration = self.context.method.steps[request.step][1]
        cls: Any = declaration.reply
        try:
            message = codec.decode(reply.data, cls) if isinstance(reply, codec.Encoded) else reply
            hidden = sums.hide(request, declaration, message, _forms(request, declaration))
        except (ValueError, KeyError) as error:  # the server may ask for the mean of a field that is empty
            raise Withheld(f"{request.where}: {error}") from error
        if hidden.void:
            log.warning("%s: %s; it counts as zero, and the party keeps its state", request.where, hidden.void)
        member = hidden.member(self.name, sums.secret(self.name), request.base)
        return secure.advertise(sums, member), hidden

    def _go_on(self, request: Request) -> tuple[codec.Encoded, Callable[[], None]]:
        """As `begin`, of a later stage of a secure sum: it goes on with what the first one left."""
        from coalface.engine.party import sums as secure

        assert request.sum is not None and self.context.sums is not None
        stage = request.sum.stage
        needed = {f"{name}.commit" for name in (request.base, request.horizon[1])}
        commits, head = self.commits.look(needed)
        commit = commits.get(f"{request.sum.request}.commit")
        if commit is None or commit.base != request.base:
            raise Withheld(f"{request.where}: the party has not run this step from the state that is named")
        try:
            hidden = secure.HiddenReply.read(commit)
            member = hidden.member(self.name, self.context.sums.secret(self.name), request.base)
            reply = secure.answer(self.context.sums, hidden, member, request)
        except ValueError as error:
            raise Withheld(f"{request.where}: {error}") from error

        def write() -> None:
            about = request.about | secure.contained(hidden, stage)
            lines = ledger.lines_for(reply.entries, reply.sums, about, head)
            listed = ledger.find(self.ledger, commit.head, reply.sums)
            if listed is None:
                ledger.append(self.ledger, lines, head, flush=self.context.flush)
            after = listed or head.after(lines)
            self.head = after.lines, after.chain

        return reply, write

    def _check_targets(self, request: Request) -> None:
        """Raise StepFailed where what the step would send may not leave any more: templates, or a vector with noise."""
        templates, sums = self.context.templates, self.context.sums
        if (known := self.context.method.steps.get(request.step)) is None:
            return
        if templates is not None:
            try:
                templates.check_target(known[1].reply, self.ledger)
            except ValueError as error:
                raise StepFailed(f"{request.where}: {error}") from error
        if sums is not None and sums.privacy is not None and sums.privacy.target_epsilon is not None:
            try:
                sums.check_target(request, known[1], _forms(request, known[1]))
            except (ValueError, KeyError) as error:
                raise Withheld(f"{request.where}: {error}") from error

    def _check_repeated(self, request: Request, reply: codec.Encoded, saved: Commit) -> None:
        """Raise Withheld where something would leave again with other noise than the ledger has of the request."""
        left = [json.loads(line)["sha256"] for line in saved.lines()]
        if left != [*reply.sums]:
            raise Withheld(
                f"{request.where}: trained again, its reply is another than the one that has left, so what is noised "
                "in it would have other noise and tell more. Set engine.save_replies=true, so that replies are kept"
            )

    def share(self, request: Request) -> tuple[tuple[str, ...], Callable[[bool], str]]:
        """In another process of the party: run the step on this process's part of the private state.

        Returns the hashes of the reply (none of a model that stays), and what writes the part and names the file; it
        is given whether to flush. Without a commit that names it, the file is rubbish.
        """
        base = self.commits.base(request.base)
        reply, private_state, _ = self._run(request, base)

        def keep(flush: bool) -> str:
            # by the base as well: where a commit is replaced by one from another base, both have parts for a while
            began = hashlib.sha256((request.base or "").encode()).hexdigest()[:8]
            name = f"{request.id}.{self.context.rank}-{began}.shard"
            path, parts = self.folder / name, self._parts(base, private_state)
            write_commit(path, request.base, ledger.Head(), parts, flush=flush, vault=self.context.vault)
            return name

        return reply.sums if isinstance(reply, codec.Encoded) else (), keep

    def local_result(self, request: Request) -> Tensors:
        """Run a step with a local result on the accepted state: what it returns stays at the party."""
        tensors: Tensors = self._run(request, self.commits.base(request.base))[0]
        return tensors

    def _parts(self, base: Commit, private_state: Any) -> Parts:
        """The private states by class name: those that the step started from, and what it keeps."""
        parts = base.states(but=type(private_state).__name__)
        if private_state is not None:
            parts[type(private_state).__name__] = codec.pack(private_state).data
        return parts

    def _shards_of(self, request: Request, over: Path | None) -> tuple[str, ...]:
        """Have the other processes of the party write their parts, once those that no commit names are gone.

        `over` is a commit that is about to be written over.
        """
        group = self.context.group(self.name)
        if group is None:
            return ()
        vault = self.context.vault
        shard_names = {
            n for path in self.folder.glob("*.commit") if path != over for n in Commit.open(path, vault).shards
        }
        for path in self.folder.glob("*.shard"):
            if path.name not in shard_names:
                path.unlink()
        try:
            return group.keep(request, flush=self.context.flush)
        except Exception as error:
            raise StepFailed(f"{request.where}: {error}") from error

    def _run(self, request: Request, base: Commit) -> tuple[Any, Any, dict[str, str]]:
        """(the encoded reply, what the party keeps, how tensors of the reply are protected by name)."""
        where, method = request.where, self.context.method
        if request.step not in method.steps:
            raise StepFailed(f"{where}: {type(method).__name__} has no such step; run one version on both sides.")
        owner, declaration = method.steps[request.step]
        try:
            group = self.context.group(self.name)
        except (ShardLost, OSError) as error:  # not what is wrong with the run, whichever party is asked
            raise StepFailed(f"{where}: {error}") from error
        party = self.context.party(request)
        if group is not None:
            party = replace(party, shards=group.shards)
        if sanitised(declaration.reply):
            spent = self.context.spent or self.context.folder / SPENT
            releases = Releases(self.context.secret, spent / f"{self.name}.jsonl", self.context.flush)
            party = replace(party, releases=releases)
        if not plays(party.role, declaration.role):
            raise StepFailed(f"{where}: the step is for the role {declaration.role!r}, this party is a {party.role!r}.")
        _check_data(request, base, party)
        try:
            with nullcontext() if group is None else group.beside(request):
                arguments = self.arguments(request, base)
                result = declaration.function(owner, party=party, **arguments)
            reply, private_state = result if isinstance(result, tuple) else (result, None)
            if declaration.reply is None:
                return reply, None, {}
            if type(reply) is not declaration.reply or type(private_state) is not (declaration.keeps or type(None)):
                returned = f"{type(reply).__name__} and {type(private_state).__name__}"
                raise TypeError(
                    f"it returned {returned}, which is not what it declares; only what is declared may leave"
                )
            protections = sanitised_protections(owner, reply)
            if (templates := self.context.templates) is not None:
                reply = templates.protect(reply, f"{request.party}/{request.id}")
                protections |= templates.protections(reply)
            sent = [m for name in ("each", "common") if (m := arguments.get(name)) is not None]
            change = compression.narrowing(codec.forms(declaration.reply, sent), self.context.update_dtype)
            encoded = codec.encode(reply, hashed=True, change=change)
            if group is not None:
                group.agree(encoded.sums)
            return encoded, private_state, protections
        except Exception as error:
            failed = StepFailed if isinstance(error, _OF_ONE_PARTY) else StepBroken
            text = f"{where}: {type(error).__name__}: {error}".removesuffix(": ")
            raise failed(text + raised_at(error)) from error

    def base_of(self, request: Request, party: Party) -> Commit:
        """The commit that a step starts from, once it is known to be of the party's data."""
        base = self.commits.base(request.base)
        _check_data(request, base, party)
        return base

    def keep(self, request: Request, base: Commit, party: Party, private_state: Any) -> None:
        """Commit what a step keeps that was computed with other parties: its reply is in no ledger of this one."""
        needed, commits, head = self._before(request)
        parts = self._parts(base, private_state)
        parts[DATA] = base.read(DATA) or data_identity(party)
        self._write(request, head, parts, self.commits.prune(commits, request.horizon[0], needed))

    def arguments(self, request: Request, base: Commit | None = None) -> dict[str, Any]:
        """What the step is given beside its party."""
        declaration, arguments = self.context.method.steps[request.step][1], dict[str, Any]()
        for name in ("common", "each"):
            cls, encoded = getattr(declaration, name), getattr(request, name)
            if cls is not None:
                arguments[name] = encoded.message(cls) if encoded is not None else None
        if declaration.own is not None:
            stored = (base or self.commits.base(request.base)).read(declaration.own.__name__)
            arguments["own"] = codec.decode(stored, declaration.own) if stored is not None else None
        return arguments


def _forms(request: Request, declaration: StepDeclaration) -> codec.Forms:
    """What the reply to a request looks like."""
    reply: Any = declaration.reply
    pairs = ((request.each, declaration.each), (request.common, declaration.common))
    return codec.forms(reply, [m.message(cls) for m, cls in pairs if m is not None and cls is not None])


def _check_data(request: Request, base: Commit, party: Party) -> None:
    """Raise StepFailed where what the party kept was made from other people's images than it has now."""
    if (before := base.read(DATA)) is not None and (current := data_identity(party)) != before:
        raise StepFailed(f"{request.where}: {difference(before, current)}")


def run_batch(context: ExecutorContext, requests: Sequence[Request]) -> list[Any]:
    """The replies of a step at many parties as one batch; the step has a form for that.

    What each party keeps is written as its pending commit, which has neither the reply nor lines of a ledger.
    """
    owner, declaration = context.method.steps[requests[0].step]
    assert declaration.batched is not None
    parties = [context.party(request) for request in requests]
    asked = [(PartyExecutor(context, request.party), request) for request in requests]
    bases = [executor.base_of(request, party) for (executor, request), party in zip(asked, parties, strict=True)]
    arguments = [executor.arguments(request, base) for (executor, request), base in zip(asked, bases, strict=True)]
    inputs = {name: [a[name] for a in arguments] if name != "common" else first for name, first in arguments[0].items()}
    results = [r if isinstance(r, tuple) else (r, None) for r in declaration.batched(owner, parties=parties, **inputs)]
    expected = declaration.reply, declaration.keeps or type(None)
    if len(results) != len(requests) or any((type(reply), type(kept)) != expected for reply, kept in results):
        raise TypeError(f"step {declaration.name}: its batched form gives what the step declares, for each party")
    if declaration.keeps is not None:
        for (executor, request), base, party, (_, kept) in zip(asked, bases, parties, results, strict=True):
            executor.keep(request, base, party, kept)
    return [reply for reply, _ in results]
