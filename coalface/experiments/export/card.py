"""The card of an exported model, with the Hub's front matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coalface.evaluation.figures import figure_name, figure_of
from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.verification import THRESHOLD
from coalface.evaluation.verification import read_lists
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.comparison import paired
from coalface.models.pretrained.input import convention_of

_LOADED = {
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{file}")
embeddings = session.run(["embeddings"], {{"images": images}})[0]  # (n, {d}), of length one
cosine = embeddings[0] @ embeddings[1]""",
    "torch": """import torch

tensors = torch.load("{file}", weights_only=True)  # of {backbone}, by Coalface's names""",
    "safetensors": """import coalface as cf

model = cf.FaceModel.from_pretrained(".")
cosine = model.similarity("a.png", "b.png")""",
    "insightface": """import torch
from backbones import get_model  # insightface's arcface_torch

model = get_model("{insightface}")
model.load_state_dict(torch.load("{file}", weights_only=True))""",
}
_SAID_OF_RUN = ("- method:", "- backbone:", "- data:", "- weights:", "- teacher:", "- privacy:")
_INTENDED = """\
## Use

Intended: research on face recognition and on federated training; verification and identification of people who have
agreed to it, with thresholds that were chosen on images like those of the use, and with a person who decides.

Forbidden: to identify or track people without their knowledge and a legal ground; to infer feelings, health, origin,
orientation or beliefs; to decide about a person where no other person checks. Error rates differ between groups of
people, and were not measured by group unless the figures say so."""


def write_card(
    model: FaceModel, place: Path, party: str | None, to: str, file: str, *, uint8: bool, licence: str | None
) -> str:
    """The text of README.md; what the run around the model says of data, method and figures is part of it."""
    run = place.parent if place.name == "model" else place
    summary = json.loads((run / "summary.json").read_text("utf-8")) if (run / "summary.json").exists() else {}
    figures = _figures(run, summary, model, party)
    evaluated = {on for on, *_ in figures}
    figures += [
        (on, key, value, None)
        for on, of_list in model.measured.items()
        for key, value in of_list.items()
        if on not in evaluated and not key.startswith(THRESHOLD.name)
    ]
    name = summary.get("name", place.resolve().name) + (f", {party}" if party else "")
    channels = "grey" if model.grey else "RGB"
    side = f"{model.size}×{model.size}"
    convention = None if to == "onnx" else convention_of(model.about)  # an ONNX graph has it within
    takes = "(x − 127.5) / 127.5" if convention is None else str(convention)
    form = (
        f"bytes (n, {model.size}, {model.size}, {model.about['channels']})"
        if uint8
        else (f"float32 (n, {model.about['channels']}, {model.size}, {model.size}), {takes}")
    )
    lines = [
        "---",
        yaml.safe_dump(_front_matter(name, model, summary, figures, to, licence), sort_keys=False).strip(),
        "---",
    ]
    lines += [f"# {name}", "", f"{model.about['backbone']}: {side} {channels} → {model.embedding_size} numbers.", ""]
    lines += _of_run(run, party)
    if weights := model.about.get("weights"):
        lines += [
            f"- weights: of others, from `{weights['file']}`, SHA-256 {weights['sha256']}",
            "- training data not known",
        ]
    lines += [f"- input: aligned faces, {side}, {channels}; {form}", "- compare embeddings by cosine"]
    lines += [f"- fingerprint: {model.fingerprint}", ""]
    if licence is None:
        lines += ["The licence is not stated. Choose one that the terms of the images allow (`--licence`).", ""]
    insightface = model.about["backbone"].replace("ir", "r")
    code = _LOADED[to].format(
        file=file, d=model.embedding_size, backbone=model.about["backbone"], insightface=insightface
    )
    lines += ["```python", code, "```", "", "## Figures", ""]
    if figures:
        has_intervals = any(interval for *_, interval in figures)
        lines += ["| evaluated on | figure | value |" + " 95 % interval |" * has_intervals]
        lines += ["|---|---|---:|" + "---:|" * has_intervals]
        for on, key, value, interval in figures:
            unit = figure_of(key).unit
            texts = [f"{number:.{unit.digits}f}{unit.sign}" for number in (value, *(interval or ()))]
            cells = [on, figure_name(key), texts[0], *[" to ".join(texts[1:]) or "not known"] * has_intervals]
            lines.append(f"| {' | '.join(cells)} |")
        if has_intervals:
            lines += ["", "Intervals: bootstrap over identities."]
    elif model.thresholds:
        lines += ["No figures are kept beside these thresholds: `coalface evaluate --calibrate` keeps them."]
    else:
        lines += ["No figure is known of this model by itself; `coalface evaluate --calibrate` measures some."]
    lines += ["", "## Thresholds", ""]
    if thresholds := model.thresholds:
        lines += ["| cosine | FAR | chosen on | by |", "|---:|---:|---|---:|"]
        lines += [f"| {one.cosine:.6f} | {one.rate:g} | {one.on} | {one.basis} |" for one in thresholds if one.rate]
        least = min(one.rate for one in thresholds if one.rate)
        lines += [
            "",
            "They hold for images like those that they were chosen on. The smaller the FAR, the fewer impostor",
        ]
        lines += [f"pairs a threshold rests on; these pairs carry none below {least:g}."]
    else:
        lines += [
            "No threshold is known, since nobody has measured how this model scores pairs of two people's images."
        ]
        lines += [
            "Choose one on images like those of the use; beside the model, in `calibration.json`, it is kept:",
            "",
        ]
        lines += ["```sh", f"coalface evaluate {file if to == 'onnx' else '.'} --on PAIRS --calibrate", "```"]
    return "\n".join([*lines, "", _INTENDED, ""])


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
    text = path.read_text("utf-8").splitlines() if path.exists() else []
    lines = [line for line in text if line.startswith(_SAID_OF_RUN)]
    return lines + [f"- {line}" for line in text if line.startswith("In training,") and party is None]


def _figures(
    run: Path, summary: dict[str, Any], model: FaceModel, party: str | None
) -> list[tuple[str, str, float, tuple[float, float] | None]]:
    """List, figure, value and 95 % interval of what the run evaluated: its one model, or a party's own."""
    by_list, number = summary.get("figures", {}), 0
    if party is not None:
        judged = {member["name"]: member["judged"] for member in summary.get("parties", ()) if member.get("judged")}
        by_list, number = judged.get(party, {}), list(judged).index(party) if party in judged else 0
    intervals = {}
    evidence = json.loads((run / "evidence.json").read_text("utf-8")) if (run / "evidence.json").exists() else {}
    for on, identities in read_lists(run / "judged") if by_list else ():
        models = evidence.get(on, ())
        for key, drawn in paired.resampled(models[number : number + 1], bootstrap_of(identities), seed=0).items():
            low, high = drawn[0].scale * np.nanpercentile(drawn[0].values, [2.5, 97.5])
            intervals[on, key] = (float(low), float(high))
    return [
        (on, key, value, intervals.get((on, key)))
        for on, figures in by_list.items()
        for key, value in figures.items()
        if not key.endswith("_se")
    ]
