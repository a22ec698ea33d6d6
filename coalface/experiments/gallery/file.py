"""A gallery's file: SQLite, a row for each enrolled image, sealed on request; what is removed leaves its bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import beside, check_free, put_in_place, writing
from coalface.core.errors import DataError, MissingExtra, RecipeError
from coalface.core.parsing import parse_json

APPLICATION, VERSION = 0x436F616C, 1
"""`application_id`, "Coal", and `user_version` of the file."""
WAIT = 10.0
"""Seconds to wait for another process that writes."""
SECRET = 32
"""Bytes of a key's file, at least."""
_SCHEMA = """
CREATE TABLE gallery (about BLOB NOT NULL, mark BLOB NOT NULL);
CREATE TABLE images (id INTEGER PRIMARY KEY, about BLOB NOT NULL, embedding BLOB NOT NULL);
"""


@dataclass(frozen=True)
class Enrolled:
    """Where an embedding comes from; the image itself is not kept."""

    person: str
    file: str = ""
    sha256: str = ""
    """Of the image's file."""

    def encode(self) -> bytes:
        """The fields, with NUL between them. Raises ValueError where one holds it."""
        fields = (self.person, self.file, self.sha256)
        if any("\0" in field for field in fields):
            raise ValueError(f"{self.person!r} or its file has NUL in its name; rename it")
        return "\0".join(fields).encode("utf-8", "surrogateescape")

    @classmethod
    def decode(cls, data: bytes) -> Enrolled:
        """What `encode` gave. Raises ValueError for other bytes."""
        person, file, sha256 = data.decode("utf-8", "surrogateescape").split("\0")
        return cls(person, file, sha256)


class Checksum:
    """What stands in for encryption where there is no key: it detects damage."""

    def seal(self, value: bytes, bound: bytes) -> bytes:
        """The value, followed by 16 bytes of the SHA-256 of `bound` and the value."""
        return value + hashlib.sha256(bound + value).digest()[:16]

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """What `seal` was given. Raises ValueError unless it is as it was written."""
        value = sealed[:-16]
        if self.seal(value, bound) != sealed:
            raise ValueError("it is not as it was written")
        return value


class Cipher(Checksum):
    """AES-256-GCM under HKDF-SHA256 of a secret and the gallery's own 32 random bytes.

    Each value has a random nonce of 96 bits in front. An embedding is bound to the sealed name in its row,
    and both by the key to the gallery: rows that are put together of two, or taken from another file, do not open.
    """

    def __init__(self, secret: bytes, salt: bytes) -> None:
        try:
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError:
            raise MissingExtra("a gallery with a key", "privacy") from None
        self._aead = AESGCM(HKDF(hashes.SHA256(), 32, salt, b"coalface gallery 1").derive(secret))

    def seal(self, value: bytes, bound: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._aead.encrypt(nonce, value, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(sealed[:12], sealed[12:], bound)
        except (InvalidTag, ValueError):
            raise ValueError("it is not as it was written under this key") from None


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a key's file. Raises RecipeError for one that is too short to be a key."""
    secret = Path(path).read_bytes()
    if len(secret) < SECRET:
        make = f"`head -c {SECRET} /dev/urandom > gallery.key` makes one"
        raise RecipeError(
            f"{path} has {len(secret)} bytes, and a key is {SECRET} random bytes or more; {make}", where="--key"
        )
    return secret


class GalleryFile:
    """The file at a path, opened anew for each use, so that other processes and threads may use it as well.

    `about` is what it says of itself. That is not encrypted, but bound to the key: a changed threshold does not open.
    """

    def __init__(self, path: Path, secret: bytes | None = None) -> None:
        """Raises FileNotFoundError, and DataError for what is no gallery, or opens with another key."""
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; `coalface gallery create` makes a gallery")
        if path.is_dir():
            raise DataError("a folder, and a gallery is one file; `coalface gallery create` makes one", where=path)
        self.path = path
        with self._open() as database:
            text, mark = self._read_about(database)
        try:
            self.about: dict[str, Any] = parse_json(text)
            salt = bytes.fromhex(self.about["salt"]) if "salt" in self.about else None
        except (TypeError, ValueError) as error:
            raise self._damaged(error) from None
        if (salt is None) != (secret is None):
            is_not = "is not encrypted: leave it out" if salt is None else "is encrypted: give the file of its key"
            raise RecipeError(f"{path} {is_not}", where="--key")
        self._sealer = Checksum() if salt is None or secret is None else Cipher(secret, salt)
        try:
            self._sealer.open(mark, text)
        except ValueError as error:
            if salt is None:
                raise self._damaged(error) from None
            raise RecipeError(f"{path} was encrypted with another key, or was changed", where="--key") from None

    @classmethod
    def create(cls, path: Path, about: dict[str, Any], secret: bytes | None = None) -> GalleryFile:
        """A new file without images, for its owner alone. `about` says at least the `embedding_size`."""
        check_free(path)
        sealer = Checksum()
        if secret is not None:
            salt = os.urandom(32)
            about, sealer = {**about, "salt": salt.hex()}, Cipher(secret, salt)
        text = json.dumps(about).encode()
        with beside(path) as partial:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(partial)) as database:
                database.executescript(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}; {_SCHEMA}")
                database.execute("INSERT INTO gallery VALUES (?, ?)", (text, sealer.seal(b"", text)))
                database.commit()
            put_in_place(partial, path)
        return cls(path, secret)

    def state(self) -> tuple[int, bytes]:
        """Changes whenever the file does: its place on the disk, and SQLite's count of changes."""
        with open(self.path, "rb") as file:
            return os.fstat(file.fileno()).st_ino, file.read(28)[24:]

    def read(self) -> tuple[list[Enrolled], NDArray[np.float32]]:
        """Where each row comes from, and (n, d) their embeddings. Raises DataError for a damaged one."""
        with self._open() as database:
            _, enrolled, embeddings = self._read(database)
        return enrolled, embeddings

    def add(self, enrolled: Sequence[Enrolled], embeddings: NDArray[np.float32]) -> None:
        """Add rows; all of them, or none where this is cut short."""
        rows = []
        for image, embedding in zip(enrolled, embeddings, strict=True):
            about = self._sealer.seal(image.encode(), b"about")
            rows.append((about, self._sealer.seal(embedding.astype("<f4").tobytes(), about)))
        with self._write() as database:
            database.executemany("INSERT INTO images (about, embedding) VALUES (?, ?)", rows)

    def remove(self, person: str) -> int:
        """Remove a person's rows, from the file's bytes too; how many there were."""
        with self._write() as database:
            numbers, enrolled, _ = self._read(database)
            chosen = [(number,) for number, image in zip(numbers, enrolled, strict=True) if image.person == person]
            database.executemany("DELETE FROM images WHERE id = ?", chosen)
        if chosen:
            with self._open() as database:
                database.execute("VACUUM")
        return len(chosen)

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process shares."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.rollback()
                raise
            database.commit()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection. What SQLite says of the file is a DataError, of a disk an OSError that names the file."""
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with writing(self.path), closing(sqlite3.connect(uri, WAIT, uri=True, isolation_level=None)) as database:
                # No log beside the file, no copy of it in a temporary one, zeros where a row was.
                for setting in ("trusted_schema=OFF", "secure_delete=ON", "temp_store=MEMORY", "journal_mode=DELETE"):
                    database.execute(f"PRAGMA {setting}")
                yield database
        except sqlite3.Error as error:
            raise self._explained(error) from error
        except UnicodeDecodeError as error:  # a text of the file, or in what SQLite says of it
            raise self._damaged(error) from error

    def _explained(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            text = f"another process is writing to it, and this one has waited {WAIT:g} s; try again when that is done"
            return DataError(text, where=self.path)
        if code == sqlite3.SQLITE_NOTADB:
            text = "no gallery, or its first bytes are damaged: `coalface gallery create` makes one"
            return DataError(text, where=self.path)
        of_the_disk = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EACCES}
        of_the_disk[sqlite3.SQLITE_CANTOPEN] = errno.EACCES
        if number := of_the_disk.get(code):
            return OSError(number, os.strerror(number), str(self.path))
        return self._damaged(error)

    def _damaged(self, error: Exception | str) -> DataError:
        return DataError(f"not a whole gallery ({error}): take a copy of it, or enroll anew", where=self.path)

    def _read_about(self, database: sqlite3.Connection) -> tuple[bytes, bytes]:
        """What it says of itself, and the mark that shows that it says so still."""
        application, version = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise DataError("not a gallery; `coalface gallery create` makes one", where=self.path)
        if version != VERSION:
            raise DataError(f"a gallery of version {version}, this program reads version {VERSION}", where=self.path)
        row = database.execute("SELECT about, mark FROM gallery").fetchone()
        if row is None or not all(isinstance(value, bytes) for value in row):
            raise self._damaged("it says nothing of itself")
        return row[0], row[1]

    def _read(self, database: sqlite3.Connection) -> tuple[list[int], list[Enrolled], NDArray[np.float32]]:
        numbers, enrolled = [], []
        try:
            size = 4 * int(self.about["embedding_size"])
        except (KeyError, TypeError, ValueError):
            raise self._damaged("it does not say its embedding_size") from None
        block = bytearray()
        for number, about, embedding in database.execute("SELECT id, about, embedding FROM images ORDER BY id"):
            try:
                if not isinstance(about, bytes) or not isinstance(embedding, bytes):
                    raise ValueError("it holds no bytes")
                values = self._sealer.open(embedding, about)
                if len(values) != size:
                    raise ValueError(f"its embedding has {len(values)} bytes, not {size}")
                enrolled.append(Enrolled.decode(self._sealer.open(about, b"about")))
            except (TypeError, ValueError) as error:
                raise self._damaged(f"image {number}: {error}") from None
            numbers.append(number)
            block += values
        return numbers, enrolled, np.frombuffer(block, dtype="<f4").reshape(len(numbers), size // 4)
