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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import several, shown
from coalface.data.readers.bin import linked
from coalface.data.readers.headers import check_header
from coalface.data.tools.decode_check import StderrCapture, check_whole

SHOWN = 20
"""Examples of each kind that a report names; the counts are of all."""


@dataclass(frozen=True)
class Item:
    """One image as it lies in its store."""

    identity: int
    encoded: bytes | memoryview | None
    """None where it could not be read."""
    problem: str | None = None
    """Why it could not."""


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
    """Groups of images of one identity with the same bytes."""
    doubled_within_count: int = 0
    """Images that such a group holds beyond its first."""
    doubled_across: list[list[str]] = field(default_factory=list)
    """Groups of images of several identities with the same bytes."""
    doubled_across_count: int = 0
    near_names: list[list[str]] = field(default_factory=list)
    """Names of identities that may be one person's, spelt in two ways."""
    near_names_count: int = 0
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


def inspect(
    items: Iterable[Item],
    names: Sequence[str],
    place: Callable[[int], str],
    *,
    path: str,
    kind: str,
    notes: Sequence[str] = (),
    broken: Sequence[str] = (),
    passed_over: Sequence[str] = (),
    decode: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Look at every image once; `names` are the identities, and `place` says where image i lies.

    `decode` decodes each; without it, damage beyond the header is not found. `broken` is what the store already knows
    to be damaged beside its images, and `passed_over` what lies there and is not among them.

    Images are told apart by 64 bits of a hash of their bytes, so that memory is 24 bytes an image.
    """
    report = Report(path, kind, identities=len(names), notes=list(notes))
    report.broken, report.broken_count = list(broken[:SHOWN]), len(broken)
    report.passed_over = list(passed_over)
    sizes: collections.Counter[tuple[int, int]] = collections.Counter()
    channels: collections.Counter[int] = collections.Counter()
    formats: collections.Counter[str] = collections.Counter()
    hashes, labels, looked_at = array.array("Q"), array.array("q"), array.array("q")
    with StderrCapture() as capture:
        for number, item in enumerate(items):
            problem = item.problem
            if item.encoded is not None:
                try:
                    where = place(number)
                    header = check_whole(item.encoded, where, capture) if decode else check_header(item.encoded, where)
                    sizes[header.width, header.height] += 1
                    channels[header.channels] += 1
                    formats[header.kind] += 1
                except ValueError as error:
                    problem = str(error)
                digest = hashlib.blake2b(item.encoded, digest_size=8).digest()
                hashes.append(int.from_bytes(digest, "little"))
                labels.append(item.identity)
                looked_at.append(number)
            if problem is not None:
                report.damaged_count += 1
                if len(report.damaged) < SHOWN:
                    report.damaged.append(problem)
            report.images = number + 1
            progress(number + 1)
    report.different_sizes = len(sizes)
    report.sizes = {f"{w}×{h}": n for (w, h), n in sizes.most_common(SHOWN)}
    report.channels = {str(c): n for c, n in sorted(channels.items())}
    report.formats = dict(formats.most_common())
    of = np.array(labels, dtype=np.int64)
    counts = np.bincount(of, minlength=len(names))
    if len(counts):
        middle = {"median": float(np.median(counts)), "mean": float(counts.mean())}
        report.per_identity = {"least": int(counts.min()), **middle, "most": int(counts.max())}
    report.single = int((counts == 1).sum())
    _doubles(report, np.array(hashes, dtype=np.uint64), of, lambda i: place(looked_at[i]))
    near = near_names(names)
    report.near_names, report.near_names_count = [group[:SHOWN] for group in near[:SHOWN]], len(near)
    report.wrong = list(_wrong(report, sizes))
    return report


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
    within = report.doubled_within if report.kind != "bin" else []
    groups = [("the same bytes, one identity", g) for g in within]
    groups += [("the same bytes, several identities", g) for g in report.doubled_across]
    groups += [("nearly the same name", g) for g in report.near_names]
    for examples, count in ((report.broken, report.broken_count), (report.damaged, report.damaged_count)):
        lines += [f"damaged: {sentence}" for sentence in examples]
        lines += [f"damaged: and {count - len(examples):,} more"] if count > len(examples) else []
    lines += [f"ignored: {sentence}" for sentence in report.passed_over]
    lines += [f"{title}: {', '.join(group)}" for title, group in groups]
    lines += ["", "what looks wrong:", *(f"- {sentence}" for sentence in report.wrong)] if report.wrong else []
    lines += [] if report.wrong else ["nothing looks wrong"]
    return "\n".join(map(shown, lines))  # names can be anything


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{value} ({count:,})" for value, count in counts.items()) or "none"


def _doubles(
    report: Report, hashes: NDArray[np.uint64], labels: NDArray[np.int64], where: Callable[[int], str]
) -> None:
    """Groups of equal hashes; `where` says where the i-th image that could be read lies."""
    order = np.argsort(hashes, kind="stable")
    sorted_ = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_[1:] != sorted_[:-1]])) if len(order) else order
    lengths = np.diff(starts, append=len(order))
    for start, length in zip(starts[lengths > 1], lengths[lengths > 1], strict=True):
        group = order[start : start + length]
        across = len(set(labels[group].tolist())) > 1
        report.doubled_across_count += (len(group) - 1) * across
        report.doubled_within_count += (len(group) - 1) * (not across)
        examples = report.doubled_across if across else report.doubled_within
        if len(examples) < SHOWN:
            examples.append([where(i) for i in sorted(group.tolist())[:SHOWN]])


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
    if report.doubled_across_count:
        yield (
            f"{_are(report.doubled_across_count, 'image')} also there under another identity: the labels contradict "
            "each other, and one that is evaluated on may be trained on"
        )
    if report.doubled_within_count and report.kind != "bin":  # where an image stands in several pairs
        yield f"{several(report.doubled_within_count, 'copy', 'copies')} of images of the same identity"
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
    if report.near_names_count:
        pairs = several(report.near_names_count, "group")
        yield f"{pairs} of identities with nearly the same name: are they one person?"
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


def _are(count: int, noun: str) -> str:
    return f"{several(count, noun)} {'is' if count == 1 else 'are'}"
