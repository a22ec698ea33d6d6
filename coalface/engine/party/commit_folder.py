"""The folder of a party's commits, with the ledger beside it: what is pending, what a crash cut off, what may go."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coalface.core.disk import flush_folder
from coalface.engine.party import permissions
from coalface.engine.party.commits import Commit, DamagedCommit
from coalface.privacy import ledger
from coalface.privacy.ledger import Head

if TYPE_CHECKING:
    from coalface.engine.party.encryption import Vault


@dataclass(frozen=True)
class CommitFolder:
    """The commits of one party. It holds nothing in memory, so ten thousand of them cost nothing."""

    folder: Path
    ledger: Path
    flush: bool
    vault: Vault | None
    rank: int
    """Of this process among those that play the party."""
    processes: int

    def base(self, name: str | None, commits: Mapping[str, Commit] | None = None) -> Commit:
        """What this process keeps of a commit, which may be one of those that were looked at."""
        if name is None:
            return Commit()
        file = f"{name}.commit"
        commit = (commits or {}).get(file) or Commit.open(self.folder / file, self.vault)
        return commit.part(self.rank, self.processes)

    def begin(self, base: str, needed: Collection[str], place: str) -> tuple[dict[str, Commit], Head]:
        """What `look` gives, before a step from the commit in the file `base` writes one in the file `place`.

        Where nothing is pending the last commit is the base, and the ledger ends with it: then the commits that are not
        needed are named and not opened.
        """
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".commit"))
            if names and names[-1] == base and place not in names:
                vault = self.vault
                commits = {n: Commit.whole(self.folder / n, vault) if n in needed else Commit() for n in names}
                head = commits[base].head
                if not head.size or os.stat(self.ledger).st_size == head.size:
                    return commits, head
        except FileNotFoundError:
            pass
        return self.look(needed)

    def look(
        self, needed: Collection[str], *, doubt: bool = False, whole: bool = False
    ) -> tuple[dict[str, Commit], Head]:
        """The commits that lie here by file, oldest first, and the ledger's head; what a crash cut off is mended first.

        A ledger as long as the last commit says is taken to be whole; in `doubt` if its last line is right, and with
        `whole` only once the chain has been followed.

        After a power cut any of the files that were not flushed may be torn, or gone. A commit that is damaged is
        dropped, since its work will be asked for again, but one of those `needed` raises DamagedCommit. One that does
        not open with the party's key raises LockedCommit, needed or not.
        """
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".commit"))
        except FileNotFoundError:
            names = []
        if not names or not self.ledger.exists():  # a kill may have come between these folders
            permissions.make_folder(self.folder)
            permissions.make_folder(self.ledger.parent)
            for parent in (self.folder.parent, self.folder.parent.parent) if self.flush else ():
                flush_folder(parent)
        commits: dict[str, Commit] = {}
        for name in names:
            try:
                commits[name] = Commit.whole(self.folder / name, self.vault)
                if doubt:
                    commits[name].check()
            except (DamagedCommit, FileNotFoundError):
                if name in needed:
                    raise
                (self.folder / name).unlink()
        size = self.ledger.stat().st_size if self.ledger.exists() else 0
        # The commit written last, which a resume may have named before others, has the most lines behind it.
        newest = max((commit.head for commit in commits.values()), key=lambda head: head.lines, default=Head())
        if size == newest.size and not whole and (not doubt or ledger.ends(self.ledger, newest)):
            return commits, newest
        # After its commit's lines stand those of the later stages of a secure sum.
        known = newest if not whole and not doubt and ledger.ends(self.ledger, newest, at=newest.size) else Head()
        head = ledger.follow(self.ledger, known) if size else Head()
        for name in sorted(commits, key=lambda name: commits[name].head.lines):
            if commits[name].head.lines > head.lines:
                lines = commits[name].lines()
                try:
                    head = ledger.extend(self.ledger, lines, head, flush=self.flush)
                except ValueError:  # the commits before it are lost, and their lines
                    if name in needed or self.flush:
                        raise
                    (self.folder / name).unlink()
                    del commits[name]
        if size > head.size:
            os.truncate(self.ledger, head.size)
        return commits, head

    def prune(self, commits: Iterable[str], ordinal: int, needed: Collection[str]) -> Path | None:
        """Remove the commits that no resume can need, but one, which is returned to be written over."""
        spare = [self.folder / name for name in commits if int(name[:7]) <= ordinal and name not in needed]
        for path in spare[1:]:
            path.unlink()
        return spare[0] if spare else None

    def finalize(self, accepted: str | None, ordinal: int) -> None:
        """Forget every commit up to the round `ordinal` but the accepted one: nothing of them is pending after it.

        Later ones stay: where a resume settles a stage again, they are work of the next stage that was done already.
        """
        if accepted is None and not self.folder.exists():
            return
        name = f"{accepted}.commit"
        commits = self.look({name})[0]
        stays = {name, *commits[name].shards} if name in commits else set()
        for entry in list(os.scandir(self.folder)) if commits else ():
            if entry.name not in stays and int(entry.name[:7]) <= ordinal:
                os.unlink(entry.path)

    def check(self, accepted: str | None, *, whole: bool) -> None:
        """Mend what a crash cut off; then see that the ledger has the lines that the accepted commit says.

        All that the commits hold is held against its digests, what is larger than 4 MiB here alone. With `whole` the
        chain is followed from its start. Raises FileNotFoundError or ValueError, with what to do.
        """
        if accepted is None and not self.folder.exists():
            return
        commits, head = self.look({f"{accepted}.commit"}, doubt=True, whole=whole)
        if accepted is not None:
            file = f"{accepted}.commit"
            commit = commits.get(file) or Commit.whole(self.folder / file, self.vault)
            if commit.head != head:  # of which a look has just found that the ledger has it
                ledger.check_holds(self.ledger, commit.head)
        if whole and self.ledger.exists():
            ledger.verify(self.ledger)
