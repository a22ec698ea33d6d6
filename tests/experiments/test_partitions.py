"""Every kind of partition: who takes part by name, and who holds which identities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyruns import tiny

from coalface.core.errors import RecipeError
from coalface.experiments.recipe.partitions import PARTITIONS, ByDomain, Partition
from coalface.experiments.setup.parts import Parts

NEEDED: dict[str, dict[str, Any]] = {"shares": {"shares": {"b": 3, "a": 1}}, "file": {"path": "parties.txt"}}
"""Keys without which a kind cannot be."""


def kinds() -> list[Partition]:
    return [cls.model_validate(NEEDED.get(kind, {})) for kind, cls in PARTITIONS.classes.items()]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.kind)
def test_every_kind_assigns_each_identity_once_to_the_parties_that_it_names(
    kind: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faces = {"identities": 24, "images": 3, "domains": ["studio", "street"]}
    data = {"faces": faces, "hold_out": 0, "root": str(tmp_path)}
    everybody = Parts(tiny(data=data)).split.train
    lines = [f"{name}, {'ab'[number % 2]}" for number, name in enumerate(everybody.names)]
    (tmp_path / "parties.txt").write_text("\n".join(lines))
    parts = Parts(tiny(data=data | {"partition": kind.model_dump()}))
    parties = kind.assign(everybody, np.random.default_rng(0), ("studio", "street"))
    assert kind.names() in (None, list(parties))
    assert sorted(name for faces in parties.values() for name in faces.names) == sorted(everybody.names)
    assert sum(len(faces) for faces in parties.values()) == len(everybody) and all(len(f) for f in parties.values())
    again = kind.assign(everybody, np.random.default_rng(0), ("studio", "street"))
    assert {name: faces.names for name, faces in again.items()} == {n: faces.names for n, faces in parties.items()}
    assert list(parts.silos) == list(parties)


def test_domains_can_be_split_further() -> None:
    faces = Parts(tiny(data={"faces": {"identities": 24, "images": 3, "domains": ["studio", "street"]}})).split.train
    parties = ByDomain(split=2).assign(faces, np.random.default_rng(0), ("studio", "street"))
    assert list(parties) == ["street-a", "street-b", "studio-a", "studio-b"]
    assert sorted(name for part in parties.values() for name in part.names) == sorted(faces.names)


def test_a_party_that_would_have_nobody_is_a_fault_of_the_partition() -> None:
    with pytest.raises(RecipeError) as error:
        _ = Parts(tiny(data={"partition": {"parties": 99}})).silos
    assert error.value.where == "data.partition"


@pytest.mark.parametrize(
    "partition",
    [{"parties": 0}, {"kind": "dirichlet", "alpha": 0}, {"kind": "shares"}, {"kind": "by-domain", "split": 0}],
)
def test_each_kind_checks_its_keys(partition: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="data.partition"):
        tiny(data={"partition": partition})
