"""Looking through a set of face images: what it holds, what is damaged or doubled, and what looks wrong."""

from __future__ import annotations

import array
import collections
import dataclasses
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.text import several, shown
from coalface.data.readers.bin import linked
from coalface.data.readers.headers import check_header
from coalface.data.source import check_image
from coalface.data.stores import Store
from coalface.data.tools.decode_check import StderrCapture, check_whole

SHOWN = 20
"""Damaged images, and sizes, that a report in text names; the counts are of all."""
ALIKE = 0.98
"""From this correlation on two small grey copies show one picture. Of other pictures with equal difference hashes, on
LFW, CFP and 4,262 faces from the web, none came nearer than 0.976."""


@dataclass
class Report:
    """What a set of images holds."""

    path: str
    kind: str
    images: int = 0
    identities: int = 0
    per_identity: dict[str, float] = field(default_factory=dict)
    """Least, median, mean and most images of an identity."""
    single: int = 0
    """Identities with one image."""
    sizes: dict[str, int] = field(default_factory=dict)
    """`width×height` → images, the most frequent first; at most `SHOWN`."""
    different_sizes: int = 0
    channels: dict[str, int] = field(default_factory=dict)
    """`1`, `3` … → images."""
    formats: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    damaged_count: int = 0
    broken: list[str] = field(default_factory=list)
    """What else is damaged: folders that cannot be read or need another name, records that do not fit the images."""
    broken_count: int = 0
    passed_over: list[str] = field(default_factory=list)
    """What lies there and is not among the images: other endings, other places, other parts; in sentences."""
    doubled_within: list[list[str]] = field(default_factory=list)
    """Groups of images of one identity with the same pixels; without decoding, with the same bytes."""
    doubled_within_count: int = 0
    """Images that such groups hold beyond the first of each."""
    doubled_across: list[list[str]] = field(default_factory=list)
    """Groups of images of several identities with the same pixels or bytes."""
    doubled_across_count: int = 0
    alike_within: list[list[str]] = field(default_factory=list)
    """Groups of images of one identity that probably are copies: scaled, or encoded again."""
    alike_within_count: int = 0
    alike_across: list[list[str]] = field(default_factory=list)
    """The same of several identities."""
    alike_across_count: int = 0
    near_names: list[list[str]] = field(default_factory=list)
    """Names of identities that may be one person's, spelt in two ways."""
    wrong_labels: list[dict[str, Any]] = field(default_factory=list)
    """Images that a model finds nearer to another identity, the worst first; [] without a model."""
    notes: list[str] = field(default_factory=list)
    """What the store itself says that does not fit, such as a header that promises other identities."""
    wrong: list[str] = field(default_factory=list)
    """What looks wrong, in sentences."""

    @property
    def sound(self) -> bool:
        """Whether no damage was found."""
        return not (self.damaged_count or self.broken_count)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def inspect(store: Store, *, decode: bool = True, progress: Callable[[int], None] = lambda done: None) -> Report:
    """Look at every image once; one that cannot be read does not end it.

    `decode` decodes each; without it, neither damage beyond the header is found, nor images that probably are copies.
    Images are told apart by 64 bits of a hash of their pixels, so that memory is 32 bytes an image.
    """
    report = Report(str(store.path), store.kind, len(store) + len(store.faults), len(store.names))
    report.notes, report.broken, report.passed_over = store.doubts(), [*store.damage()], store.passed_over()
    report.broken_count = len(report.broken)
    sizes: collections.Counter[tuple[int, int]] = collections.Counter()
    channels: collections.Counter[int] = collections.Counter()
    formats: collections.Counter[str] = collections.Counter()
    hashes, views, labels, looked_at = array.array("Q"), array.array("Q"), array.array("q"), array.array("q")
    with StderrCapture() as capture:
        for number, label in enumerate(store.labels.tolist()):
            where, view = store.where(number), 0
            try:
                content = encoded = bytes(store.encoded(number))
            except (OSError, ValueError) as error:
                problem = shown(disk.explained(error))
                report.damaged.append(problem if problem.startswith(where) else f"{where}: {problem}")
                progress(number + 1)
                continue
            try:
                header, pixels = (
                    check_whole(encoded, where, capture) if decode else (check_header(encoded, where), None)
                )
                sizes[header.width, header.height] += 1
                channels[header.channels] += 1
                formats[header.kind] += 1
                if pixels is not None:
                    content, view = bytes(str(pixels.shape), "ascii") + pixels.tobytes(), _difference_hash(pixels)
            except ValueError as error:
                report.damaged.append(str(error))
            hashes.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))
            views.append(view)
            labels.append(label)
            looked_at.append(number)
            progress(number + 1)
    report.damaged += store.faults
    report.damaged_count = len(report.damaged)
    report.different_sizes = len(sizes)
    report.sizes = {f"{w}×{h}": n for (w, h), n in sizes.most_common(SHOWN)}
    report.channels = {str(c): n for c, n in sorted(channels.items())}
    report.formats = dict(formats.most_common())
    of = np.array(labels, dtype=np.int64)
    counts = np.bincount(of, minlength=len(store.names))
    if len(counts):
        middle = {"median": float(np.median(counts)), "mean": float(counts.mean())}
        report.per_identity = {"least": int(counts.min()), **middle, "most": int(counts.max())}
    report.single = int((counts == 1).sum())

    def report_copies(how: Literal["doubled", "alike"], groups: Iterable[NDArray[np.int64]]) -> None:
        """Groups of copies, the first image's place first."""
        for group in sorted(groups, key=lambda group: int(group[0])):
            key = f"{how}_{'across' if len(set(of[group].tolist())) > 1 else 'within'}"
            getattr(report, key).append([store.where(looked_at[i]) for i in group.tolist()])
            setattr(report, f"{key}_count", getattr(report, f"{key}_count") + len(group) - 1)

    groups = _equal(np.array(hashes, dtype=np.uint64))
    report_copies("doubled", groups)
    first = np.ones(len(of), dtype=bool)
    first[[i for group in groups for i in group[1:]]] = False
    candidates = np.flatnonzero(first & (np.array(views, dtype=np.uint64) != 0))
    equal = (candidates[group] for group in _equal(np.array(views, dtype=np.uint64)[candidates]))
    report_copies("alike", (group for same in equal for group in _alike(same, lambda i: store.encoded(looked_at[i]))))
    report.near_names = near_names(store.names)
    report.wrong = list(_wrong(report, sizes))
    return report


def _grey(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """A small grey copy."""
    small = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(small if small.ndim == 2 else small[:, :, :3].mean(axis=2), dtype=np.uint8)


def _difference_hash(pixels: NDArray[np.uint8]) -> int:
    """64 bits: whether, in 8 rows of 9 grey pixels, each is brighter than the one before by more than 2 levels.

    0 for one flat colour. The levels keep flat grounds, which an encoder changes a little, from telling copies apart.
    """
    brighter = np.diff(_grey(pixels, 9, 8).astype(np.int16)) > 2
    return int.from_bytes(np.packbits(brighter).tobytes(), "little")


def _alike(group: NDArray[np.int64], read: Callable[[int], bytes | memoryview]) -> Iterator[NDArray[np.int64]]:
    """Of images with equal difference hashes, the groups in which each is like the first."""
    small = np.array([_grey(check_image(read(i), "")[1], 32, 32).ravel() for i in group.tolist()], dtype=np.float32)
    small -= small.mean(axis=1, keepdims=True)
    small /= np.linalg.norm(small, axis=1, keepdims=True)
    while len(group):
        same = small @ small[0] >= ALIKE
        if same.sum() > 1:
            yield group[same]
        group, small = group[~same], small[~same]


def report_text(report: Report) -> str:
    """The report for a person to read."""
    spread = report.per_identity
    single = f"{report.single:,} {'has' if report.single == 1 else 'have'} one"
    lines = [
        f"{report.path} ({report.kind}): {several(report.images, 'image')} of "
        f"{several(report.identities, 'identity', 'identities')}",
        f"images of an identity: {spread.get('least', 0):,} to {spread.get('most', 0):,}, median "
        f"{spread.get('median', 0):g}, mean {spread.get('mean', 0):.1f}; {single}",
        f"sizes: {_listed(report.sizes)}{' …' if report.different_sizes > len(report.sizes) else ''}",
        f"channels: {_listed(report.channels)}; kinds: {_listed(report.formats)}",
    ]
    for examples, count in ((report.broken, report.broken_count), (report.damaged, report.damaged_count)):
        lines += [f"damaged: {sentence}" for sentence in examples[:SHOWN]]
        lines += [f"damaged: and {count - SHOWN:,} more, which --json lists"] if count > SHOWN else []
    lines += [f"ignored: {sentence}" for sentence in report.passed_over]
    lines += ["", "what looks wrong:", *(f"- {sentence}" for sentence in report.wrong)] if report.wrong else []
    lines += [] if report.wrong else ["nothing looks wrong"]
    return "\n".join(map(shown, lines))  # names can be anything


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{value} ({count:,})" for value, count in counts.items()) or "none"


def _equal(hashes: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Groups of two places or more with equal hashes, each in order."""
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order])) + 1
    return [group for group in np.split(order, starts) if len(group) > 1]


def near_names(names: Sequence[str]) -> list[list[str]]:
    """Groups of names that differ in case, accents, order of words, punctuation, or one letter (of eight or more).

    Numbers, such as `n000123`, are never near each other. Two words differ in one letter where both give the same text
    when one letter is left out of each, so the work is linear in the number of names, however alike they are.
    """
    plain: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if not any(character.isdigit() for character in name):
            plain.setdefault(_spelling(name), []).append(name)
    first: dict[str, int] = {}
    links = []
    for number, word in enumerate(plain):
        shorter = {word[:i] + word[i + 1 :] for i in range(len(word))} if len(word) >= 8 else set()
        links += [(first.setdefault(text, number), number) for text in {word, *shorter} if len(text) >= 7]
    groups: dict[int, list[str]] = {}
    for spelt, group in zip(plain.values(), linked(len(plain), links).tolist(), strict=True):
        groups.setdefault(group, []).extend(spelt)
    return sorted(group for group in groups.values() if len(group) > 1)


def _spelling(name: str) -> str:
    bare = "".join(c for c in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(c))
    return "".join(sorted(re.findall(r"\w+", bare.replace("_", " ")))) or bare


def _wrong(report: Report, sizes: collections.Counter[tuple[int, int]]) -> Iterator[str]:
    """What looks wrong, the gravest first, each with what to do."""
    if report.images == 0:
        yield "it holds no image"
    if report.damaged_count:
        pronoun = "it" if report.damaged_count == 1 else "them"
        yield f"{_are(report.damaged_count, 'image')} damaged: replace or delete {pronoun}: packing stops at the first"
    if report.broken_count and report.kind == "rec":
        beside = several(report.broken_count, "record or file", "records or files")
        yield f"{beside} beside the images do not fit them: write the set anew, or fetch it again"
    elif report.broken_count and report.kind == "pack":
        yield "the pixels are not those that were packed, in which image cannot be told: pack the source again"
    elif report.broken_count:
        yield f"{several(report.broken_count, 'folder or file', 'folders or files')} cannot be used"
    if count := report.doubled_across_count:
        yield (
            f"{_are(count, 'image')} also there under another identity, such as {_pair(report.doubled_across)}: the "
            "labels contradict each other, and one that is evaluated on may be trained on; keep the right one"
        )
    if count := report.alike_across_count:
        yield (
            f"{_are(count, 'image')} probably also there under another identity, scaled or encoded again, such as "
            f"{_pair(report.alike_across)}: keep the right one"
        )
    if report.kind != "bin":  # where an image stands in several pairs
        if count := report.doubled_within_count:
            copies = several(count, "copy", "copies")
            yield f"{copies} of images of the same identity, such as {_pair(report.doubled_within)}: keep one"
        if count := report.alike_within_count:
            copies = "is probably a copy" if count == 1 else "are probably copies"
            pair = _pair(report.alike_within)
            yield f"{several(count, 'image')} {copies} of another of the same identity, such as {pair}: keep one"
    if report.per_identity.get("least") == 0:
        yield "there are identities without an image that can be read"
    if report.identities and report.single and report.kind != "bin":
        share = 100 * report.single / report.identities
        whole = several(report.identities, "identity", "identities")
        yield f"{report.single:,} of {whole} ({share:.0f} %) {'has' if report.single == 1 else 'have'} one image only"
    if len(report.channels) > 1:
        mix = ", ".join(f"{n:,} with {c}" for c, n in report.channels.items())
        yield f"the images differ in their number of channels ({mix})"
    if long := sum(n for (w, h), n in sizes.items() if max(w, h) > 1.5 * min(w, h)):
        yield f"{_are(long, 'image')} far from square: faces are cut to the central square"
    if far_sizes := _other_sizes(sizes):
        (width, height), _ = sizes.most_common(1)[0]
        examples = ", ".join(f"{n:,} of {w}×{h}" for (w, h), n in far_sizes.most_common(3))
        ellipsis = " …" if len(far_sizes) > 3 else ""
        yield (
            f"{_are(far_sizes.total(), 'image')} of quite another size than the commonest, {width}×{height} "
            f"({examples}{ellipsis}): cut the faces out where whole scenes are shown"
        )
    if small := sum(n for (w, h), n in sizes.items() if min(w, h) < 32):
        yield f"{_are(small, 'image')} less than 32 pixels wide or high"
    if count := len(report.near_names):
        are = f"{several(count, 'group')} of identities {'has' if count == 1 else 'have'} nearly the same name"
        yield f"{are}, such as {_pair(report.near_names)}: if they are one person, make one folder of them"
    yield from report.notes


def _other_sizes(sizes: collections.Counter[tuple[int, int]]) -> collections.Counter[tuple[int, int]]:
    """Sizes with a side half as long again as that of the commonest size, or shorter by as much.

    None where no size is common, as in photographs from the web: neither of three quarters of the images, nor one of a
    few sizes, ten at most, that have ten images each on average.
    """
    few = len(sizes) <= 10 and sizes.total() >= 10 * len(sizes)
    if not sizes or not (few or 4 * max(sizes.values()) >= 3 * sizes.total()):
        return collections.Counter()
    (width, height), _ = sizes.most_common(1)[0]
    far = {(w, h): n for (w, h), n in sizes.items() if max(w / width, width / w, h / height, height / h) >= 1.5}
    return collections.Counter(far)


def _pair(groups: Sequence[Sequence[str]]) -> str:
    """An example: the first two of the first group."""
    return " and ".join(groups[0][:2])


def _are(count: int, noun: str) -> str:
    return f"{several(count, noun)} {'is' if count == 1 else 'are'}"
