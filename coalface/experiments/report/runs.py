"""Run folders, read with tolerance, and their numbers and names as written for people."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core.errors import DataError, RecipeError
from coalface.core.parsing import parse_yaml, read_json
from coalface.evaluation.figures import ENROLLED_BY, SERVED_BY, declare_all, figure_name, figure_text
from coalface.evaluation.npz import read_npz

DIGESTS = "digests.json"
"""In the folder of a finished run, the SHA-256 of what is read of it; a version before wrote none."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds, as read; what is missing is empty."""

    path: Path
    label: str
    config: dict[str, Any]
    config_text: str
    metrics: tuple[dict[str, Any], ...]
    events: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    is_shared: bool = False
    """Whether it is as its page may be passed on; then no page shows a face, or reads what else lies in the folder."""

    @property
    def name(self) -> str:
        return str(self.summary.get("name") or self.config.get("name") or self.label)

    @property
    def method(self) -> str:
        return str(self.summary.get("method") or self.config.get("method") or "unknown method")

    @property
    def is_pooled(self) -> bool:
        """Whether all images were in one place."""
        return bool(self.summary.get("pooled"))

    @property
    def figures(self) -> dict[str, float]:
        return flat_figures(self.summary.get("figures"))

    @property
    def is_finished(self) -> bool:
        return bool(self.summary)

    @property
    def evaluated(self) -> list[str]:
        """The figures without their standard errors."""
        return without_errors(self.figures)

    def pairs_digests(self) -> dict[str, str]:
        """List -> SHA-256 of its pairs, of the lists that the run was evaluated on and kept."""
        digests = {}
        for file in sorted((self.path / "judged").glob("*.npz")):
            try:
                digests[file.stem] = str(read_npz(file, "sha256")["sha256"])
            except (ValueError, KeyError) as error:
                raise DataError(f"it is damaged ({error}): evaluate the run again", where=file) from None
        return digests

    @property
    def untrained(self) -> dict[str, float]:
        """The figures of the model that the run starts from; `start` says what that is."""
        return flat_figures(self.summary.get("untrained"))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Figure -> the ends of its 95 % interval over the people of its list, where one model was evaluated."""
        if any(mapping(party.get("judged")) for party in self.parties):  # figures are means over several
            return {}
        return {
            f"{name}/{figure}": (low, high)
            for name, curves in mapping(self.summary.get("curves")).items()
            for figure, ends in mapping(mapping(curves).get("intervals")).items()
            for low, high in [[number(end) for end in [*as_list(ends), None, None][:2]]]
            if low is not None and high is not None
        }

    @property
    def domains(self) -> dict[str, str]:
        """List -> `source` or `target`, of the lists that the recipe says it of."""
        lists = mapping(mapping(self.config.get("evaluation")).get("pairs"))
        return {str(n): str(pairs["domain"]) for n, pairs in lists.items() if mapping(pairs).get("domain")}

    @property
    def clusters(self) -> dict[str, dict[str, float]]:
        """Party -> figure -> value, of the parties that labelled their own images."""
        return {str(party): _finite(figures) for party, figures in mapping(self.summary.get("clusters")).items()}

    @property
    def enrolled(self) -> dict[str, dict[str, float]]:
        """What the run's own clients are verified by -> figure -> percent, where they held back test images."""
        by_kind = mapping(self.summary.get("enrolled"))
        return {kind: _finite(by_kind[kind]) for kind in ENROLLED_BY if mapping(by_kind.get(kind))}

    @property
    def personalised(self) -> dict[str, dict[str, float]]:
        """By which model clients are served -> figure -> percent, the mean over clients."""
        by_kind = mapping(self.summary.get("personalised"))
        return {kind: _finite(by_kind[kind]) for kind in SERVED_BY if mapping(by_kind.get(kind))}

    @property
    def parties(self) -> list[dict[str, Any]]:
        return as_dicts(self.summary.get("parties"))

    @property
    def bytes(self) -> dict[str, Any]:
        """Sent `down` and `up`, over all rounds and parties."""
        return mapping(self.summary.get("bytes"))

    @property
    def start(self) -> str:
        """What the run starts from, in a word."""
        weights = mapping(self.config.get("model")).get("weights")
        return start_name(weights is not None or self.config.get("pretrain") is not None)


def gaps(figures: Mapping[str, float], domains: Mapping[str, str]) -> dict[str, float]:
    """Figure -> the source's less the target's, the mean over a domain's lists, of `list/figure` -> percent.

    >>> gaps({"lfw/eer": 10.0, "street/eer": 25.0, "street/rank-1": 40.0}, {"lfw": "source", "street": "target"})
    {'eer': -15.0}
    """
    sides: dict[str, dict[str, list[float]]] = {"source": {}, "target": {}}
    for key, value in figures.items():
        name, _, figure = key.rpartition("/")
        if name in domains and not figure.endswith("_se"):
            sides[domains[name]].setdefault(figure, []).append(value)
    source, target = sides["source"], sides["target"]
    return {f: sum(v) / len(v) - sum(target[f]) / len(target[f]) for f, v in source.items() if f in target}


def read(path: Path, label: str | None = None) -> Run:
    """Read a run folder.

    Raises FileNotFoundError where `path` is not a run folder, ValueError where one of its files cannot be read. A last
    line of a `.jsonl` file that was cut off (the run was killed while it wrote) is left out.
    """
    if not any((path / name).is_file() for name in ("summary.json", "metrics.jsonl", "config.yaml")):
        raise FileNotFoundError(
            f"{path} is not a run folder (it has no summary.json, metrics.jsonl or config.yaml); "
            "give a folder that a run wrote"
        )
    check(path)
    config_text = _text(path / "config.yaml")
    try:
        config = parse_yaml(config_text) or {}
    except ValueError as error:
        raise DataError(f"not YAML ({error}); restore it from the recipe", where=path / "config.yaml") from error
    if not isinstance(config, dict):
        raise DataError(
            f"a {type(config).__name__}, not keys and values; is it a run's file?", where=path / "config.yaml"
        )
    summary: dict[str, Any] = {}
    if (path / "summary.json").is_file():
        summary = read_json(path / "summary.json", "resume the run to write it again")
    declare_all(summary.get("own_figures"))
    return Run(
        path=path,
        label=label or path.resolve().name,
        config=config,
        config_text=config_text,
        metrics=read_metrics(path),
        events=read_events(path)[0],
        summary=summary,
    )


def read_all(paths: Sequence[Path]) -> list[Run]:
    """Read several run folders; each is labelled by its folder's name, with parents where two would be the same.

    Raises ValueError where a folder is given twice.
    """
    whole = [path.resolve() for path in paths]
    for path in whole:
        if whole.count(path) > 1:
            raise RecipeError(f"given {whole.count(path)} times; a run cannot be compared with itself", where=path)
    depth = 1
    while len({path.parts[-depth:] for path in whole}) < len(whole):
        depth += 1
    return [read(as_given, "/".join(path.parts[-depth:])) for as_given, path in zip(paths, whole, strict=True)]


def flat_figures(by_list: object) -> dict[str, float]:
    """{"devtest": {"accuracy": 81.2}} → {"devtest/accuracy": 81.2}; what is not a finite number is left out."""
    by_name = {name: _finite(figures) for name, figures in mapping(by_list).items()}
    return {f"{name}/{key}": value for name, figures in by_name.items() for key, value in figures.items()}


def _finite(figures: object) -> dict[str, float]:
    return {str(key): n for key, value in mapping(figures).items() if (n := number(value)) is not None}


def without_errors(names: Iterable[str]) -> list[str]:
    """The names of figures, each once, without those of standard errors."""
    return [name for name in dict.fromkeys(names) if not name.endswith("_se")]


def below_start(summary: Mapping[str, Any]) -> str:
    """Of a run whose accuracy ends below that before the first round, by two standard errors or more: so, and why."""
    end, start = flat_figures(summary.get("figures")), flat_figures(summary.get("untrained"))
    for key in (key for key in end if key.endswith("/accuracy") and {key, f"{key}_se"} <= start.keys()):
        if start[key] - end[key] > 2 * math.hypot(start[f"{key}_se"], end.get(f"{key}_se", 0.0)):
            fallen = f"{figure_name(key)} fell from {figure_text(start, key)} before the first round to"
            noised = number(mapping(summary.get("privacy")).get("noise_multiplier"))
            cause = "the noise of privacy.dp" if noised else "most often local.lr or loss.scale is too high"
            return f"{fallen} {figure_text(end, key)}; {cause}"
    return ""


def start_name(trained: bool) -> str:
    """What a run starts from: pre-trained or untrained."""
    return "pre-trained" if trained else "untrained"


def duration(seconds: float) -> str:
    """Seconds as a clock.

    >>> duration(7.6), duration(65), duration(3_725)
    ('0:08', '1:05', '1:02:05')
    """
    whole = max(0, round(seconds))
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def number(value: object) -> float | None:
    """A finite number, else None: JSON may hold null, NaN, text or true where a number is expected."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a JSON integer may be larger than any float
        return None


def whole_number(value: object) -> int | None:
    finite = number(value)
    return None if finite is None else int(finite)


def mapping(value: object) -> dict[str, Any]:
    """`value` where it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dicts(value: object) -> list[dict[str, Any]]:
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested keys as `a.b.c`, values as text.

    >>> flatten({"data": {"size": 112, "flip": True}})
    {'data.size': '112', 'data.flip': 'true'}
    """
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def keep_digests(path: Path) -> None:
    """Write the digests of a finished run's files."""
    files = [path / name for name in ("metrics.jsonl", "summary.json", "evidence.json", "hardest.json")]
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()}
    (path / DIGESTS).write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


def check(path: Path) -> None:
    """Raise ValueError where a file of a finished run is not as it was written; an older version kept no digests."""
    if not (path / DIGESTS).is_file():
        return
    again = f"`coalface resume {shlex.quote(str(path))}` writes it anew"
    for name, digest in read_json(path / DIGESTS, again).items():
        file = path / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            mend = f"put it back from a copy, or if there is none, {again} as far as a checkpoint allows it"
            mend = mend if name == "metrics.jsonl" else again
            raise DataError(f"it is not as it was written, its SHA-256 is another: {mend}", where=file)


def read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    """The lines of a run's metrics. Raises ValueError for one that is damaged, but for a last one that was cut off."""
    lines, broken = _lines(path / "metrics.jsonl")
    if broken:
        raise DataError("resume the run to repair it", where=broken[0])
    return lines


def read_events(path: Path) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The lines of a run's events, which are a diary; and which of them are damaged, and left out."""
    return _lines(path / "events.jsonl")


def _lines(path: Path) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    lines = [(place, line) for place, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
    records, broken = [], []
    for place, line in lines:
        try:
            record = mapping(json.loads(line))
        except (ValueError, RecursionError) as error:
            if place < lines[-1][0]:
                broken.append(f"{path}, line {place} is not JSON ({error})")
            continue
        if isinstance(record.get("stage", ""), str) and isinstance(record.get("round", 0), int):
            records.append(record)
        else:
            broken.append(f"{path}, line {place}: its stage is no text, or its round no whole number")
    return tuple(records), tuple(broken)
