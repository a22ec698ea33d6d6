"""The two baselines of personalisation: a stage that each client spends alone, or taught by everybody's model."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import naive
import pytest
from naive_clients import metrics
from naive_fedfr import COSFACE, EXACT, WORK, followed, joint, own_model, same_as_kept

from coalface.core.local_results import PERSONAL_MODEL
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.methods.fedfr_joint import FedFRJoint, Own
from coalface.methods.finetune import KD, Finetune, Progress

TUNED: dict[str, Any] = {**vars(joint(branch="none")), "tuning_epochs": 2}


FEW: dict[str, Any] = {"sample": 2, "phi_update": "none", "drop_last": True, "epochs": (3,), "decay_after": (1,)}
OWN_BATCHNORM = replace(EXACT, norm=True, policy="local")


@pytest.mark.parametrize(
    ("method", "build"),
    [
        (Finetune(**TUNED), EXACT),
        (Finetune(**{**TUNED, **FEW}), EXACT),
        (KD(**TUNED, weight=0.3, distillation_temperature=2.0), EXACT),
        (KD(**{**TUNED, "public": "none", "sample": 1}), EXACT),
        (KD(**TUNED, weight=0.3, distillation_temperature=2.0), OWN_BATCHNORM),
        (Finetune(**{**TUNED, "sample": 1}), OWN_BATCHNORM),
    ],
    ids=["finetune", "finetune of a few", "kd", "kd alone", "kd with own BatchNorm", "one with own BatchNorm"],
)
def test_the_second_stage_goes_on_from_everybodys_model_with_the_clients_own_classes(
    method: Finetune, build: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, members, theta, phi = followed(method, tmp_path, monkeypatch, build, stage="federate")
    assert naive.furthest(ran.state.backbone, theta) < 1e-10
    total, images, late = 0.0, 0, [name for name, client in members.items() if client.classes is None]
    personal, generic = dict(ran.server.local_results(PERSONAL_MODEL, ran.models)), ran.own_models()
    assert set(generic) == (set(members) if build.policy != "average" else set())
    for name, client in members.items():
        if generic:  # everybody's model is evaluated with the BatchNorm of the first stage
            assert naive.furthest(generic[name], {**theta, **client.kept}) < 1e-10
        # FedFR without a branch and a contrastive term, for `tuning` epochs at the first learning rate.
        client.method = FedFRJoint(
            local=WORK, loss=COSFACE, threshold=method.threshold, public=method.public, contrastive=0.0, branch="none",
            drop_last=method.drop_last,
        )  # fmt: skip
        client.enter("tune")
        client.teaching = (method.weight, method.distillation_temperature) if isinstance(method, KD) else None
        model, _, _ = client.train(1, theta, phi)
        same_as_kept(client, naive.kept(tmp_path, name, Own))
        assert not generic or naive.furthest(generic[name], {**theta, **client.kept}) > 1e-4
        assert naive.furthest(personal[name], own_model(client)) < 1e-10 and naive.furthest(model, theta) > 1e-4
        total, images = total + client.loss * len(client.party.data), images + len(client.party.data)
    line = metrics(tmp_path)[-1]
    assert line["stage"] == "tune" and line["loss"] == pytest.approx(total / images, abs=1e-10)
    assert bool(late) == (method.sample == 1)  # one that was never asked in the first stage takes part in the second


def test_nothing_of_the_second_stage_leaves_but_numbers() -> None:
    assert [(field.name, field.type) for field in fields(Progress)] == [("images", "int"), ("loss", "float")]
    for method in (Finetune(), KD()):
        replies = {name: declared.reply for name, (_, declared) in method.steps.items()}
        assert replies["tune"] is Progress and replies["personal"] is None
        assert [(stage.name, stage.rounds) for stage in method.stages()] == [("federate", 30), ("tune", 1)]


def test_with_a_weight_of_0_the_teacher_says_nothing(tmp_path: Path) -> None:
    plain = run(Finetune(**TUNED), tmp_path / "plain", EXACT)
    untaught = run(KD(**TUNED, weight=0.0), tmp_path / "untaught", EXACT)
    taught = run(KD(**TUNED, weight=0.5), tmp_path / "taught", EXACT)
    models = [dict(ran.server.local_results(PERSONAL_MODEL, ran.models)) for ran in (plain, untaught, taught)]
    for party in EXACT().data:
        assert naive.furthest(models[1][party], models[0][party]) < 1e-13
        assert naive.furthest(models[2][party], models[0][party]) > 1e-5
    assert naive.furthest(taught.state.backbone, plain.state.backbone) == 0
