from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import tinyruns
import torch
from commands import said
from safetensors.torch import load_file
from torch import Tensor

from coalface.core import codec
from coalface.core.local_results import OWN_SCORES
from coalface.core.method import DeclarationError, Party, Tensors, step
from coalface.data.faceset import FaceSet
from coalface.engine import checkpoint
from coalface.engine.party.commits import REPLY, Commit
from coalface.evaluation.metrics.enrolled import verify
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods import METHODS
from coalface.methods.feduv import Code, FedUV, Projection, State

ALL = sorted(name for name, cls in METHODS.items() if cls.scenario != "domains" and not cls.taught)
DEVICES: dict[str, Any] = {
    "method": "feduv",
    "data": {"faces": {"images": 5}, "test": {"images": 2}, "scenario": "devices"},
    "methods": {"feduv": {"sample": 4, "length": 127}},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.5},
}


SILOS = {"scenario": "silos", "partition": {"parties": 2}}


def recipe(**changes: Any) -> Recipe:
    """Eight people of five images, two of them to test on; a device each unless it is said otherwise."""
    return loader.parse(loader.merged(loader.merged(tinyruns.TINY, DEVICES), changes))


def rows(faces: FaceSet | None) -> set[int]:
    assert faces is not None
    return set(faces.rows.tolist())


# --- the test images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_no_party_of_any_method_holds_a_test_image(method: str) -> None:
    validators = {"evaluation": {"kind": "balanced", "identities": 2, "pairs": 10}}
    public = METHODS[method].scenario == "private-public"
    at_parties = public and not METHODS[method].public_at_server
    data = {"scenario": "devices"} if METHODS[method].scenario == "devices" else dict[str, Any](SILOS)
    data |= {"scenario": "private-public", "private": {"identities": 4}} if public else {}
    tiny_recipe = recipe(method=method, data=data, validators=validators)
    train = splits.split(tiny_recipe).train
    test, federated = splits.split(tiny_recipe).test, Parts(tiny_recipe).data
    assert (
        test is not None
        and test.counts().tolist() == [2] * len(train.names)
        and train.counts().tolist() == [3] * len(train.names)
    )
    rows_of = {party: rows(faces) for party, faces in federated.data.items()}
    assert not rows(test) & set.union(*rows_of.values()) and (federated.public is not None) is at_parties
    if at_parties:
        assert federated.public is not None and not {*federated.public.names} & {*train.names}
        assert not rows(federated.public) & (rows(test) | rows(train))
    trainers = [rows_of[name] for name, member in federated.members().items() if member.role == "trainer"]
    assert set.union(*trainers) == rows(train) and sum(map(len, trainers)) == len(train)


# --- a run of FedUV, from the command line ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    folder: Path
    encoded: list[bytes]
    """Everything that was made a message."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A run in which three people never enrol."""
    place, encoded = tmp_path_factory.mktemp("enrolled"), list[bytes]()
    encode = codec.encode

    def noted(*arguments: Any, **options: Any) -> codec.Encoded:
        message = encode(*arguments, **options)
        encoded.append(bytes(message.data))
        return message

    tinyruns.write(place / "tiny.yaml", **DEVICES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "encode", noted)
        said("run", place / "tiny.yaml", "--out", place / "run")
    yield Observed(place / "run", encoded)


def codes(folder: Path) -> dict[str, Code]:
    """What each device that has enrolled keeps."""
    kept_codes = {path.name: naive.kept(folder, path.name, Code) for path in (folder / "parties").iterdir()}
    return {name: code for name, code in kept_codes.items() if code is not None}


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def by_hand(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[int], list[int]]:
    """(cosines to templates, scores by codewords, the people of these, whose probes) of a run, one image at a time."""
    run_recipe = loader.load(folder / "config.yaml")
    network, train, test = first_backbone(run_recipe), splits.split(run_recipe).train, splits.split(run_recipe).test
    network.load(load_file(folder / "model" / "backbone.safetensors"))
    last = checkpoint.load(folder / "checkpoints")
    assert last is not None and test is not None
    projection = checkpoint.unpack_state(last.state, State).projection.double()

    def embedded(faces: FaceSet) -> list[Tensor]:
        return [naive.embedding(network.module, pixels) for pixels in faces.take(np.arange(len(faces)))]

    probes, trained = embedded(test), embedded(train)
    cosines, scores, people = [], [], []
    for number in range(len(train.names)):
        embeddings = [g for g, label in zip(trained, train.labels, strict=True) if label == number]
        template = sum((g / g.norm() for g in embeddings), torch.zeros_like(embeddings[0]))
        cosines.append([float(template @ g / template.norm() / g.norm()) for g in probes])
    for party, code in sorted(codes(folder).items()):
        people.append(int(party.removeprefix("device-")))  # a device for each identity, in their order
        z = [projection @ g for g in probes]
        scores.append([float(code.codeword[0].double() @ embedding / embedding.norm()) / 127**0.5 for embedding in z])
    return np.array(cosines), np.array(scores), people, test.labels.tolist()


def test_the_summary_has_what_a_plain_loop_finds(observed: Observed) -> None:
    enrolled, (cosines, scores, people, owners) = summary(observed.folder)["enrolled"], by_hand(observed.folder)
    codes_of = codes(observed.folder)
    assert 0 < len(people) < 8 and enrolled["never enrolled"] == 8 - len(people)
    thresholds = [code.threshold for _, code in sorted(codes_of.items())]
    by_features = verify(cosines, np.arange(8), np.array(owners)).figures()
    by_codes = verify(scores, np.array(people), np.array(owners), thresholds).figures()
    assert enrolled["features"] == pytest.approx(by_features, abs=1e-9)
    assert enrolled["codewords"] == pytest.approx(by_codes, abs=1e-9)
    assert {"tar@far=0.1", "tar@far=0.01", "eer"} == set(by_features)
    assert {"tar@far=0.1", "eer", "accepted", "accepted of others"} == set(by_codes)  # fewer trials carry no 0.01
    assert enrolled["clients"] == 8 and enrolled["trials"] == {"genuine": 16, "impostor": 16 * 7}
    assert enrolled["trials of codewords"] == {"genuine": 2 * len(people), "impostor": 14 * len(people)}


@pytest.mark.slow
@pytest.mark.ci
def test_workers_change_no_byte_of_it(observed: Observed, tmp_path: Path) -> None:
    said("run", observed.folder.parent / "tiny.yaml", "engine.workers=2", "--out", tmp_path / "two")
    assert json.dumps(summary(tmp_path / "two")["enrolled"]) == json.dumps(summary(observed.folder)["enrolled"])
    assert tinyruns.model_bytes(tmp_path / "two") == tinyruns.model_bytes(observed.folder)


def test_a_finished_run_is_verified_again_alike(observed: Observed) -> None:
    before, ledgers = summary(observed.folder), {p: p.read_bytes() for p in (observed.folder / "ledger").iterdir()}
    said("resume", observed.folder)
    assert summary(observed.folder)["enrolled"] == before["enrolled"]
    assert {p: p.read_bytes() for p in (observed.folder / "ledger").iterdir()} == ledgers


def test_codewords_and_thresholds_are_in_no_message_and_no_file_but_the_clients_own(observed: Observed) -> None:
    codes_of = codes(observed.folder)
    secrets = [code.codeword.numpy().tobytes() for code in codes_of.values()]
    secrets += [code.codeword.double().numpy().tobytes() for code in codes_of.values()]
    for code in codes_of.values():  # as text, whatever the brackets; its numbers would stand in this order
        signs = [int(v) for v in code.codeword[0]]
        secrets += [sep.join(map(kind, signs[:24])).encode() for kind in (str, _float) for sep in (",", ", ", "\n   ")]  # type: ignore[operator]
        secrets.append(repr(code.threshold).encode())

    def tells(data: bytes) -> bool:
        return any(secret in data for secret in secrets)

    assert observed.encoded and not any(map(tells, observed.encoded))
    verified = [data for data in observed.encoded if b"embeddings" in data]
    assert len(verified) == 1  # for all of the clients, and it is no reply
    contains_secret = []
    for path in observed.folder.rglob("*"):
        if path.suffix == ".commit":
            contains_secret.append(tells(path.read_bytes()))
            assert not tells(bytes(Commit.open(path).read(REPLY) or b""))
        elif path.is_file():
            assert not tells(path.read_bytes()), path
    assert any(contains_secret)  # where they are, they are found


def _float(value: int) -> str:
    return f"{value}.0"


# --- what a method may say --------------------------------------------------------------------------------------------


def test_a_step_that_verifies_takes_probes() -> None:
    with pytest.raises(DeclarationError, match="take `each: Probes`"):

        class _Blind(FedUV):
            @step(role="trainer", local=OWN_SCORES)
            def verify(self, party: Party, own: Code | None, common: Projection) -> Tensors:
                return {"scores": torch.zeros(1)}
