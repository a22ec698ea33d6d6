"""The card of an exported model, with the Hub's front matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from coalface.evaluation.figures import figure_name, figure_of
from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.verification import THRESHOLD
from coalface.evaluation.verification import read_lists
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.comparison import paired
from coalface.experiments.report import runs
from coalface.models.pretrained.input import convention_of

_SAID_OF_RUN = ("- method:", "- backbone:", "- data:", "- weights:", "- teacher:", "- privacy:")
_TEMPLATES = Environment(
    loader=PackageLoader("coalface.experiments.export"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def write_card(
    model: FaceModel, place: Path, party: str | None, to: str, file: str, *, uint8: bool, licence: str | None
) -> str:
    """The text of README.md; what the run around the model says of data, method and figures is part of it."""
    run = place.parent if place.name == "model" else place
    summary = runs.read(run).summary if (run / "summary.json").exists() else {}
    figures = _figures(run, summary, model, party)
    evaluated = {on for on, *_ in figures}
    figures += [
        (on, key, value, None)
        for on, of_list in model.measured.items()
        for key, value in of_list.items()
        if on not in evaluated and not key.startswith(THRESHOLD.name)
    ]
    name = str(summary.get("name", place.resolve().name)) + (f", {party}" if party else "")
    side = f"{model.size}×{model.size}"
    convention = None if to == "onnx" else convention_of(model.about)  # an ONNX graph has it within
    takes = "(x − 127.5) / 127.5" if convention is None else str(convention)
    if uint8:
        form = f"bytes (n, {model.size}, {model.size}, {model.about['channels']})"
    else:
        form = f"float32 (n, {model.about['channels']}, {model.size}, {model.size}), {takes}"
    has_intervals = any(interval for *_, interval in figures)
    rows = []
    for on, key, value, interval in figures:
        unit = figure_of(key).unit
        texts = [f"{number:.{unit.digits}f}{unit.sign}" for number in (value, *(interval or ()))]
        rows.append([on, figure_name(key), texts[0], *[" to ".join(texts[1:]) or "not known"] * has_intervals])
    text: str = _TEMPLATES.get_template("card.md.j2").render(
        front_matter=yaml.safe_dump(_front_matter(name, model, summary, figures, to, licence), sort_keys=False).strip(),
        name=name,
        model=model,
        side=side,
        colour="grey" if model.grey else "RGB",
        of_run=_of_run(run, party),
        weights=model.about.get("weights"),
        form=form,
        licence=licence,
        to=to,
        file=file,
        figures=rows,
        has_intervals=has_intervals,
        thresholds=[threshold for threshold in model.thresholds if threshold.rate],
    )
    return text.encode(errors="backslashreplace").decode()  # names of a file from elsewhere may not be UTF-8


def _front_matter(
    name: str, model: FaceModel, summary: dict[str, Any], figures: list[Any], to: str, licence: str | None
) -> dict[str, Any]:
    """What the Hugging Face Hub reads."""
    tags = ["face-recognition", "face-verification"]
    tags += [] if "weights" in model.about else ["federated-learning", *filter(None, [summary.get("method")])]
    matter: dict[str, Any] = {
        "license": licence or "unknown",
        "library_name": "onnx" if to == "onnx" else "coalface",
        "pipeline_tag": "image-feature-extraction",
        "tags": tags,
    }
    results = [
        {
            "task": {"type": "face-verification"},
            "dataset": {"name": on, "type": "pairs"},
            "metrics": [
                {"type": key, "name": figure_name(key), "value": round(value, 3)}
                for list_name, key, value, _ in figures
                if list_name == on
            ],
        }
        for on in dict.fromkeys(row[0] for row in figures)
    ]
    return matter | ({"model-index": [{"name": name, "results": results}]} if results else {})


def _of_run(run: Path, party: str | None) -> list[str]:
    """What the card that the run left says of method and data, but for the figures."""
    path = run / "model" / "README.md" if (run / "model").exists() else run / "README.md"
    text = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    lines = [line for line in text if line.startswith(_SAID_OF_RUN)]
    return lines + [f"- {line}" for line in text if line.startswith("In training,") and party is None]


def _figures(
    run: Path, summary: dict[str, Any], model: FaceModel, party: str | None
) -> list[tuple[str, str, float, tuple[float, float] | None]]:
    """List, figure, value and 95 % interval of what the run evaluated: its one model, or a party's own."""
    by_list, number = runs.mapping(summary.get("figures")), 0
    if party is not None:
        members = runs.as_dicts(summary.get("parties"))
        judged = {str(member.get("name")): member["judged"] for member in members if member.get("judged")}
        by_list, number = runs.mapping(judged.get(party)), list(judged).index(party) if party in judged else 0
    intervals = {}
    evidence = paired.read_evidence(run)
    for on, identities in read_lists(run / "judged") if by_list else ():
        models = evidence.get(on, ())
        for key, drawn in paired.resampled(models[number : number + 1], bootstrap_of(identities), seed=0).items():
            low, high = drawn[0].scale * np.nanpercentile(drawn[0].values, [2.5, 97.5])
            intervals[on, key] = (float(low), float(high))
    return [
        (on, key, value, intervals.get((on, key)))
        for on, figures in by_list.items()
        for key, value in runs.mapping(figures).items()
        if not key.endswith("_se") and runs.number(value) is not None
    ]
