"""The rule for names from outside that become files, folders or parties."""

from __future__ import annotations

import os
import re
import unicodedata

LONGEST = 200
"""Bytes in UTF-8. Most disks take 255, and files are called `NAME.safetensors.new` as well."""
KITS = "COALFACE_KITS"
"""The environment variable that names the folder of kits in the processes of a federation on this machine."""
_PARTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_JOINERS = "\u200c\u200d"
"""Letters that cannot be seen and belong to names in Persian and in languages of India."""


def broken_rule(name: str, longest: int = LONGEST, *, given: bool = True) -> str:
    """What keeps a name from being that of a file or a folder, as the end of a sentence; empty where nothing does.

    Such a name lies where it should, and a person can read it. One that is `given` to us may also stand on a command
    line; what lies on a disk already may begin with `-`.
    """
    if not name:
        return "is empty"
    if name[0] == ".":
        return "begins with a dot, as hidden files do"
    if given and name[0] == "-":
        return "begins with `-`, as options do"
    if separator := next((letter for letter in name if letter in "/\\"), ""):
        return f"has a `{separator}` in it, which leads to another folder"
    if not name.isprintable() and (odd := next((letter for letter in name if not _is_printed(letter)), "")):
        return f"has {odd!r} in it, which cannot be printed"
    length = len(os.fsencode(name))
    return f"has {length:,} bytes in UTF-8, and {longest} are the most" if length > longest else ""


def is_plain(name: str) -> bool:
    """Whether a name that is given to us can be that of a file or a folder."""
    return not broken_rule(name)


def quoted(name: str) -> str:
    """A name as an error shows it: in quotes, with escapes, of a long one the first 80 letters."""
    return repr(name if len(name) <= 80 else f"{name[:80]}…")


def check_name(name: str) -> str:
    """The name. Raises ValueError unless it is plain."""
    if broken := broken_rule(name):
        raise ValueError(f"{quoted(name)} is not a plain name: it {broken}; choose another")
    return name


def check_party(name: str) -> str:
    """The name. Raises ValueError unless a party can be called so: in scripts, in TOML, and as an argument."""
    if not _PARTY.fullmatch(name):
        raise ValueError(
            f"{quoted(name)} cannot be the name of a party; use at most 100 ASCII letters, digits, '-' and '_', "
            "beginning with a letter or a digit"
        )
    return name


def made_plain(text: str) -> str:
    """A plain name that tells what the text does: `_` for each letter that none can have, cut where it is too long.

    >>> made_plain("path=faces/web")
    'path=faces_web'
    """
    letters = "".join(letter if is_plain(f"x{letter}") else "_" for letter in text)
    letters = "_" + letters[1:] if letters[:1] in ("", ".", "-") else letters
    return letters.encode()[:LONGEST].decode(errors="ignore")


def _is_printed(letter: str) -> bool:
    """Whether a letter can stand in a line; as a space, it may be any, such as that of a Mac's screenshots (U+202F)."""
    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"
