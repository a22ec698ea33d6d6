from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coalface.core import codec
from coalface.core.method import Tensors, message
from coalface.privacy import ledger


@message
class Update:
    w: Tensors
    images: int


def encoded(round_: int) -> codec.Encoded:
    return codec.encode(
        Update(w={'a "quoted"': torch.full((3,), float(round_)), "ö": torch.zeros(2, 1)}, images=round_)
    )


def about(round_: int) -> dict[str, str | int]:
    return {"run": "r", "stage": "train", "round": round_, "call": 1, "step": "train", "to": "server"}


def lines_for(round_: int, *context: Any) -> list[str]:
    return ledger.lines_for(encoded(round_).entries, encoded(round_).sums, *context)


def written(path: Path, rounds: int = 4) -> list[str]:
    """A ledger of some rounds, written one by one; returns its lines."""
    for round_ in range(1, rounds + 1):
        head = ledger.read_head(path)
        ledger.append(path, lines := lines_for(round_, about(round_), head), head)
        assert ledger.read_head(path) == head.after(lines)
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def test_every_piece_has_a_line_that_any_reader_understands(tmp_path: Path) -> None:
    lines = [json.loads(text) for text in written(tmp_path / "l.jsonl", rounds=2)]
    assert [entry["line"] for entry in lines] == list(range(6))
    assert [entry["name"] for entry in lines[:3]] == ["header", 'w/a "quoted"', "w/ö"]
    message_bytes = encoded(1)
    assert sum(entry["bytes"] for entry in lines[:3]) == len(message_bytes.data)
    assert lines[1]["sha256"] == hashlib.sha256(np.full(3, 1, dtype=np.float32).tobytes()).hexdigest()
    assert (lines[4]["round"], lines[4]["shape"], lines[4]["dtype"], lines[4]["kind"]) == (2, [3], "F32", "tensor")


def test_the_chain_is_sha256_over_the_line_and_the_hash_before_it(tmp_path: Path) -> None:
    chain = "0" * 64
    for text in written(tmp_path / "l.jsonl"):
        body = text[: text.index('"chain": "') + len('"chain": "')]
        chain = hashlib.sha256((chain + body).encode()).hexdigest()
        assert json.loads(text)["chain"] == chain
    whole = ledger.Head(12, chain, (tmp_path / "l.jsonl").stat().st_size)
    assert ledger.verify(tmp_path / "l.jsonl") == ledger.read_head(tmp_path / "l.jsonl") == whole


def forged(after: str) -> str:
    return lines_for(9, about(9), ledger.Head(3, json.loads(after)["chain"]))[0] + "\n"


CHANGED: dict[str, tuple[int, Callable[[list[str]], list[str]]]] = {
    "a number": (1, lambda lines: [lines[0].replace('"bytes": ', '"bytes": 1'), *lines[1:]]),
    "white space": (6, lambda lines: [*lines[:5], lines[5].replace(", ", ",  ", 1), *lines[6:]]),
    "the first dropped": (1, lambda lines: lines[1:]),
    "one dropped": (5, lambda lines: lines[:4] + lines[5:]),
    "one repeated": (5, lambda lines: lines[:4] + lines[3:]),
    "two swapped": (7, lambda lines: [*lines[:6], lines[7], lines[6], *lines[8:]]),
    "one inserted": (5, lambda lines: [*lines[:3], forged(lines[2]), *lines[3:]]),
    "the last": (12, lambda lines: [*lines[:-1], lines[-1].replace('"round": 4', '"round": 5')]),
    "the last cut": (12, lambda lines: [*lines[:-1], lines[-1][:-9]]),
}
"""What becomes of twelve lines, and the first of them that tells."""


@pytest.mark.parametrize(("line", "tamper"), CHANGED.values(), ids=CHANGED)
def test_what_was_changed_after_it_was_written_is_found(tmp_path: Path, line: int, tamper: Any) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text("".join(tamper(written(path))), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"l.jsonl, line {line}: the hash chain breaks here"):
        ledger.verify(path)
    if path.read_text().endswith("\n"):
        with pytest.raises(ValueError, match=rf"line {line}"):  # what is whole and was changed is not torn
            ledger.follow(path)


@pytest.mark.parametrize("share", [0.01, 0.6, 1.0])
def test_a_line_that_a_crash_cut_off_is_mended(tmp_path: Path, share: float) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    last = lines[-1].rstrip("\n").encode()
    path.write_bytes("".join(lines[:-1]).encode() + last[: int(share * len(last))])
    assert ledger.read_head(path).lines == 11
    ledger.extend(path, [text.rstrip("\n") for text in lines[-3:]], ledger.read_head(path))
    assert path.read_text(encoding="utf-8") == "".join(lines)


def test_extending_writes_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    commit = [text.rstrip("\n") for text in lines[-3:]]
    for kept in (9, 10, 12):
        path.write_text("".join(lines[:kept]), encoding="utf-8")
        head = ledger.extend(path, commit, ledger.read_head(path))
        assert head == ledger.extend(path, commit, ledger.read_head(path)) == ledger.verify(path)
        assert path.read_text(encoding="utf-8") == "".join(lines)


@pytest.mark.parametrize("length", [8_170, 8_300, 100_000])
def test_a_line_longer_than_what_is_read_at_once_is_read_whole(tmp_path: Path, length: int) -> None:
    path = tmp_path / "l.jsonl"
    written(path, rounds=1)
    head = ledger.read_head(path)
    ledger.append(path, lines_for(2, about(2) | {"step": "s" * length}, head)[:1], head)
    assert ledger.read_head(path) == ledger.verify(path)
    assert ledger.read_head(path).lines == head.lines + 1


def test_lines_are_appended_only_where_they_follow(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines = [text.rstrip("\n") for text in written(path)]
    path.write_text("\n".join(lines[:3]) + "\n")
    head = ledger.read_head(path)
    with pytest.raises(ValueError, match=r"l.jsonl ends after line 3, .* lines 7 to 9: 3 lines are missing after it"):
        ledger.extend(path, lines[6:9], head)
    other = lines_for(7, about(7), ledger.Head(3, "1" * 64, head.size))
    with pytest.raises(ValueError, match=r"l.jsonl ends after line 3, .* lines 4 to 6: these do not follow from it"):
        ledger.extend(path, other, head)
    assert ledger.verify(path) == head == ledger.extend(path, lines[:3], head) == ledger.extend(path, [], head)
    assert ledger.extend(path, lines[2:6], head) == ledger.verify(path)
    assert path.read_text().splitlines() == lines[:6]


@pytest.mark.parametrize(
    "torn", ["", '{"line": 3, "ru', "\0" * 200, "\0" * 200 + '4a"}\n{"line": 4}\n', "[" * 200_000 + "\n"]
)
def test_a_chain_is_followed_to_where_it_is_torn(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    path.write_text("".join(lines[:3]) + torn, encoding="utf-8")
    assert ledger.follow(path) == ledger.Head(3, json.loads(lines[2])["chain"], len("".join(lines[:3]).encode()))
    if torn:
        with pytest.raises(ValueError, match="l.jsonl, line 4: the hash chain breaks here"):
            ledger.verify(path)


@pytest.mark.parametrize("changed", [None, 4])
def test_a_chain_is_followed_so_far_as_is_asked(tmp_path: Path, changed: int | None) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    heads = [ledger.Head(), *(head for head, _ in ledger.lines(path))]
    if changed is not None:
        path.write_text("".join(lines).replace('"line": 4', '"line": 5', 1), encoding="utf-8")
    for most, head in enumerate(heads):
        if changed is None or most <= changed:
            assert ledger.follow(path, most=most) == head
            assert [later for later, _ in itertools.islice(ledger.lines(path, head), (changed or 12) - most)] == heads[
                most + 1 : (changed or 12) + 1
            ]
        else:
            with pytest.raises(ValueError, match="l.jsonl, line 5: the hash chain breaks here"):
                ledger.follow(path, most=most)


def test_a_head_is_held_against_the_line_that_it_speaks_of(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    head = ledger.Head(6, json.loads(lines[5])["chain"], len("".join(lines[:6]).encode()))
    ledger.check_holds(path, head)
    ledger.check_holds(tmp_path / "none", ledger.Head())
    for wrong in (replace(head, chain="0" * 64), replace(head, lines=5), replace(head, size=head.size - 1)):
        with pytest.raises(ValueError, match="l.jsonl, line .*not the line that the party's last accepted commit ends"):
            ledger.check_holds(path, wrong)
    path.write_text("".join(lines[:5]), encoding="utf-8")
    with pytest.raises(ValueError, match="l.jsonl, line 6: .*Restore the file"):
        ledger.check_holds(path, head)
    path.write_bytes(bytes(100) + b"\n")
    with pytest.raises(ValueError, match="l.jsonl: its last line is not a line of a ledger. Restore the file"):
        ledger.read_head(path)


def test_lines_that_are_numbered_otherwise_break_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines = lines_for(1, about(1), ledger.Head(lines=5))  # their hashes hold
    ledger.append(path, lines, ledger.Head())
    with pytest.raises(ValueError, match="line 1"):
        ledger.verify(path)


def test_what_lies_behind_the_head_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines = written(path)
    half = ledger.Head(6, json.loads(lines[5])["chain"], len("".join(lines[:6]).encode()))
    ledger.append(path, [lines[6].rstrip("\n")], half)
    assert path.read_text(encoding="utf-8") == "".join(lines[:7])
