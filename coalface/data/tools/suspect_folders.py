"""Identity folders that look like something other than one person each, and folders that are empty."""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from coalface.core.text import first_few, several
from coalface.data.readers.folders import Folder

_PART_NAMES = frozenset(
    "train training val valid validation dev eval test testing gallery probe probes query images image imgs img photos "
    "photo picture pictures data dataset face faces crops cropped aligned raw original originals frame frames dsc "
    "frontal front profile left right up down cam camera webcam view pose session visit day week batch device light "
    "neutral smiling happy sad dcim".split()
)
"""What parts, views, cameras and sessions are called, and people are not."""
_NUMBERED = frozenset(
    "dsc cam camera webcam view pose session visit day week batch device light img images photos".split()
)
"""Those of them that no person is called with a number behind, as `face_001` may be."""
_DATE = re.compile(r"(?:19|20)\d\d([-_. ]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d)")
_CAMERA = re.compile(r"\d{3}_?(?:canon|nikon|nd|msdcf|apple|gopro|olymp|pana|photo|media)[\d_]*", re.IGNORECASE)
"""What cameras call their folders."""
_LEAD = re.compile(r"([^\W\d_]*\d*)[ _.-]*([^\W\d_]+|\d*)")
"""The letters and number that a file's name begins with, and the letters, or else the number, that follow."""
_PERSON = re.compile(
    r"(?<![^\W_])(?:identity|id|people|person|subj|subject|user|participant|patient|pid)[ _-]?(\d+)", re.IGNORECASE
)
"""What says in the name of a file whom it shows."""
_MANY = 20
"""Images a folder, in the mean, from which on few folders seem to be cameras or days whose files say whom they show."""
_WORDS = 10
"""Words that begin files in folder after folder, and are more than the views that a person is taken from."""
_FEW = 3
"""The fewest people whose images in one folder are no accident."""


def doubts(folder: Folder) -> list[str]:
    """What makes the folders look like something other than one person each: sentences, with what to do, or none."""
    files: dict[str, list[str]] = {}
    for file in folder.files:
        name, _, file_name = file.partition("/")
        files.setdefault(name, []).append(file_name)
    found = _by_files(files) + _by_names(folder.names)
    if not found and (people := _recurring(files)):
        return [
            f"the files of several folders begin with the same {len(people):,} names ({first_few(people)}), as if a "
            "folder were a camera, a session or an expression: if these are people, give each a folder"
        ]
    return found


def _by_files(files: dict[str, list[str]]) -> list[str]:
    """What files tell: those of a folder are called after several people, or those of several after one."""
    total = sum(map(len, files.values()))
    mixed = {name: people for name, file_names in files.items() if (people := _people(name, file_names))}
    if not mixed and total >= _MANY * len(files):
        mixed = {name: people for name, file_names in files.items() if (people := _people(name, file_names, True))}
        if len({person for people in mixed.values() for person in people}) <= len(files):  # each folder counts anew
            mixed = {}
    if mixed and 10 * len(mixed) >= len(files):
        name, people = next(iter(mixed.items()))
        return [
            f"{several(len(mixed), 'folder')} of {len(files):,} {'holds' if len(mixed) == 1 else 'hold'} files called "
            f"after several people, as {name} those of {first_few(people)}: put the images of each person into a folder"
        ]
    shared, number_of = _shared(files)
    if shared and (number_of > 1 or total >= _MANY * len(files)):
        person, names = next(iter(shared.items()))
        more = f", and so for {len(shared) - 1:,} more" if len(shared) > 1 else ""
        return [
            f"every file of {several(len(names), 'folder')} is called after {person} ({first_few(names)}){more}: if "
            "that is one person, put the images into one folder; if the folders are cameras, give each person a folder"
        ]
    return []


def _by_names(names: Sequence[str]) -> list[str]:
    """What the folders' own names tell: some are parts of a set, cameras, sessions or days."""
    numbers = [name for name in names if re.fullmatch(r"\d{8}", name)]
    dates = {name for name in names if _DATE.match(name)}
    dates -= set() if dates.issuperset(numbers) else set(numbers)  # people's numbers, of which some could be days
    parts = [name for name in names if name in dates or _is_part(name)]
    if len(parts) > 1 or 5 * len(parts) > len(names):
        are = "identity is called" if len(parts) == 1 else "identities are called"
        return [
            f"{len(parts):,} {are} as a part of a set, a camera, a session or a day, and not as a person is "
            f"({first_few(parts)}): if several people are in there, give each a folder beside the others"
        ]
    return []


def _shared(files: dict[str, list[str]]) -> tuple[dict[str, list[str]], int]:
    """(who two folders or more are all called after -> these folders, how many people any folder is all called after).

    Where all folders are called after one, it may be a word that all files have; unless they hold many images each.
    """
    folders: dict[int, list[str]] = {}
    words: dict[int, str] = {}
    for name, file_names in files.items():
        persons = [_PERSON.search(file) for file in file_names]
        numbers = {int(person[1]) for person in persons if person}
        if len(persons) > 1 and all(persons) and len(numbers) == 1 and persons[0]:
            words.setdefault(number := numbers.pop(), persons[0][0])
            folders.setdefault(number, []).append(name)
    return {words[number]: names for number, names in folders.items() if len(names) > 1}, len(folders)


def _recurring(files: dict[str, list[str]]) -> list[str]:
    """Who the files of all folders together are called after, where a folder seems to be a condition and no person.

    So it is where most files begin with names that come back in half of the folders or more, these names outnumber the
    folders, and either what follows a name tells the folder, as in `happy/subject01.happy.png` (of bare numbers,
    `neutral/001_03.jpg`, it is a code, and each folder has most of them), or the names are words, ten and twice as many
    as the folders, as in `indoor/ann_1.jpg`. People's own images, counted anew in each folder, are neither.
    """
    leads = {
        name: collections.Counter(_LEAD.findall(os.path.splitext(file)[0])[0] for file in file_names)
        for name, file_names in files.items()
    }
    often = collections.Counter(lead for counts in leads.values() for lead in {lead for lead, _ in counts})
    back = {lead for lead, n in often.items() if n > 1 and 2 * n >= len(files)}
    back = {lead for lead in back if lead and lead.rstrip("0123456789").lower() not in _PART_NAMES}
    covered = sum(n for counts in leads.values() for (lead, _), n in counts.items() if lead in back)
    if len(back) <= max(len(files), _FEW - 1) or 4 * covered < 3 * sum(map(len, files.values())):
        return []
    if sum(map(str.isalpha, back)) >= max(_WORDS, 2 * len(files)):
        return sorted(back)
    codes = {}
    for name, counts in leads.items():
        by_code = collections.Counter(code for _, code in counts.elements())
        codes[name], most = by_code.most_common(1)[0]
        whole = 4 * len(back & {lead for lead, _ in counts}) >= 3 * len(back) and codes[name].lstrip("0") not in name
        if not codes[name] or 10 * most < 9 * len(files[name]) or not (whole or not all(map(str.isdecimal, back))):
            return []
    return sorted(back) if len(set(codes.values())) == len(files) else []


def _is_part(name: str) -> bool:
    """Whether a folder's name is made of what parts, views, cameras and sessions are called."""
    words = re.findall(r"[^\W\d_]+", name.lower())
    if _CAMERA.fullmatch(name):
        return True
    return bool(words) and (_NUMBERED if re.search(r"\d", name) else _PART_NAMES).issuperset(words)


def _people(name: str, files: Iterable[str], anywhere: bool = False) -> list[str]:
    """Who the files in the folder of this name are called after, where these are several and not the folder's own.

    `Ann_Lee_0003.jpg` is called after Ann_Lee; `017_frontal_02.jpg` after 017, if others are as well; `person01_1.jpg`
    after person01, and if `anywhere` is set, so is `IMG_person01_1.jpg`.
    """
    folder_words, total = _words(name), 0
    full_names, numbered, persons = (collections.Counter[str]() for _ in range(3))
    for file in files:
        if person := _PERSON.search(file) if anywhere else _PERSON.match(file):
            persons[person[0]] += int(person[1]) not in [int(word) for word in re.findall(r"[0-9]+", name)]
        words = _words(os.path.splitext(file)[0])
        while len(words) > 1 and words[-1].isdecimal():
            words.pop()
        total += 1
        if words[0].isdecimal() and any(word.isalpha() for word in words[1:]):
            numbered[words[0]] += int(words[0]) not in [int(word) for word in re.findall(r"[0-9]+", name)]
        elif all(word.isalpha() for word in words) and sum(word[0].isupper() for word in words) > 1:
            full_names["_".join(words)] += not {word.lower() for word in words} & {
                word.lower() for word in folder_words
            }
    for counts, per_person in ((+persons, 2), (+full_names, 1), (+numbered, 2)):
        if len(counts) >= _FEW and 2 * counts.total() >= total and counts.total() >= per_person * len(counts):
            return list(counts)
    return []


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[ _.-]+", name) if word] or [name]


def empty_folders(root: Path) -> list[str]:
    """The folders below `root` that hold nothing but names that begin with a dot; not those within them."""
    empty: set[str] = set()
    for place, folders, files in os.walk(root, topdown=False):
        inside = [name for name in files if not name.startswith(".")]
        inside += [name for name in folders if not name.startswith(".") and os.path.join(place, name) not in empty]
        if not inside:
            empty = {folder for folder in empty if os.path.dirname(folder) != place} | {place}
    below = (os.path.relpath(place, root) for place in empty)
    return sorted(place for place in below if not any(part.startswith(".") for part in place.split(os.sep)))
