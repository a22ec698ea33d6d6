"""Names that come from outside and become files, folders or parties: one rule, checked where they come in."""

from __future__ import annotations

import os
import re
import unicodedata

LONGEST = 200
"""Bytes in UTF-8. Most disks take 255, and files are called `NAME.safetensors.new` as well."""
RULE = (
    "letters in UTF-8 that can be printed, at most {longest} bytes, without a backslash, and does not begin with a dot "
    "(such files are hidden)"
)
"""What a plain name is, in words; of folders within each other, each is one."""
_PARTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_JOINERS = "\u200c\u200d"
"""Letters that cannot be seen and belong to names in Persian and in languages of India."""


def is_plain(name: str, longest: int = LONGEST) -> bool:
    """Whether a name can be that of a file or a folder, so that it lies where it should and a person can read it."""
    plain = name != "" and name[0] != "." and "/" not in name and "\\" not in name
    plain = plain and (name.isprintable() or all(map(_is_printed, name)))
    return plain and len(os.fsencode(name)) <= longest


def check_name(name: str) -> str:
    """The name. Raises ValueError unless it is plain."""
    if not is_plain(name):
        raise ValueError(f"{name[:80]!r} is no plain name, which has no `/` and is {RULE.format(longest=LONGEST)}")
    return name


def check_party(name: str) -> str:
    """The name. Raises ValueError unless a party can be called so: in scripts, in TOML, and as an argument."""
    if not _PARTY.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} cannot be the name of a party: use ASCII letters, digits, '-' and '_', 100 at most, "
            "beginning with a letter or a digit"
        )
    return name


def made_plain(text: str) -> str:
    """A plain name that tells what the text does: `_` for each letter that none can have, cut where it is too long.

    >>> made_plain("path=faces/web")
    'path=faces_web'
    """
    letters = "".join(letter if is_plain(f"x{letter}") else "_" for letter in text)
    letters = "_" + letters[1:] if letters[:1] in ("", ".") else letters
    return letters.encode()[:LONGEST].decode(errors="ignore")


def _is_printed(letter: str) -> bool:
    """Whether a letter can stand in a line; as a space, it may be any, such as that of a Mac's screenshots (U+202F)."""
    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"
