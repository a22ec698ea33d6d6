"""The hardest pairs of a run, as the pictures that its folder keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from coalface.evaluation.hardest import FILE, LISTS, MOST
from coalface.experiments.report.runs import as_dicts, mapping, number

LARGEST = 20_000
"""Letters of a picture in base64; a larger one is left out, as are more pairs or lists than are written."""


def read(run: Path) -> list[dict[str, Any]]:
    """Those that a run's folder keeps, which few do; what is damaged is left out.

    The `pictures` of pairs of one `kind`, genuine or impostor, of one list `pairs`, the hardest first: each a `jpeg` in
    base64 with the `cosine` of its faces.
    """
    path = run / FILE
    try:
        kept = mapping(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, RecursionError):
        kept = {}
    groups = []
    for name, by_kind in list(kept.items())[:LISTS]:
        for kind in ("genuine", "impostor"):
            pictures = []
            for pair in as_dicts(mapping(by_kind).get(kind))[:MOST]:
                jpeg, cosine = pair.get("jpeg"), number(pair.get("cosine"))
                if cosine is not None and isinstance(jpeg, str) and len(jpeg) <= LARGEST:
                    pictures += [{"jpeg": jpeg, "cosine": cosine}] if re.fullmatch("[A-Za-z0-9+/]+=*", jpeg) else []
            groups += [{"pairs": name, "kind": kind, "pictures": pictures}] if pictures else []
    return groups
