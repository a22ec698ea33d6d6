"""The check of secure sums: the means of a method, or a reason why it cannot have them."""

from __future__ import annotations

import json

import torch

from coalface.core.errors import RecipeError
from coalface.experiments.conformance.subject import Failure, Subject
from coalface.experiments.conformance.tiny_federation import Ran, run
from coalface.experiments.conformance.traffic import all_tensors
from coalface.experiments.plan import on_paper
from coalface.privacy.dp import WHERE as DP
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import WHERE, SecureSettings

SETTINGS = SecureSettings(clip=4096.0, fraction_bits=24, most_images=100)
"""The tiny networks take large steps, and a gradient is no small number."""
CLIPPED = PartyPrivacy(noise_multiplier=0.0, clip=4096.0)
"""Without noise, so that both ways come to one state."""
SLACK = 20.0
"""A state is made of means: of their differences, sums and multiples."""


def check_secure_sums(subject: Subject) -> None:
    """With secure sums a round ends in the same state, but for the rounding, also where each party clips its update for
    `privacy.dp`; or they are refused with a reason.
    """
    method, build = subject.build(**({"rounds": 1} if "rounds" in subject.fields else {}))
    world = build()
    for privacy in (None, CLIPPED):
        try:
            on_paper.plan(method, world.by_role(), world.backbone, world.at_server, privacy=privacy, secure=SETTINGS)
        except RecipeError as error:
            if error.where not in (WHERE, DP if privacy else WHERE) or not error.text:
                raise Failure(
                    f"secure sums are refused for another reason than theirs: {error}", "Plan it first."
                ) from error
            return
        folders = (subject.folder / f"sums-{hides}{'-dp' * bool(privacy)}" for hides in (False, True))
        plain, secure = (
            run(method, folder, build, privacy=privacy, secure=settings)
            for folder, settings in zip(folders, (None, SETTINGS), strict=True)
        )
        _check_same(plain, secure)


def _check_same(plain: Ran, secure: Ran) -> None:
    """Raise Failure unless both states are the same, but for the rounding."""
    error_bound = max(_sum_error(secure), 1e-7)
    for expected, summed in zip(all_tensors(plain.state), all_tensors(secure.state), strict=True):
        tolerance = SLACK * error_bound + 1e-5 * float(expected.abs().max() if expected.numel() else 0.0)
        if expected.shape != summed.shape or not torch.allclose(summed, expected, rtol=0, atol=tolerance):
            raise Failure(
                f"the state differs by up to {float((summed - expected).abs().max()):.1g} with secure sums, and the "
                f"rounding is {error_bound:.1g}",
                "Take what is averaged from answer.aggregated, and losses by answer.mean.",
            )


def _sum_error(ran: Ran) -> float:
    """What the rounds say of their rounding; of a round that cut numbers off, nothing."""
    records = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
    if any(record.get("cut_off") for record in records):
        raise Failure("a party's numbers lie beyond ± 4096", "Send differences or gradients of a usual size.")
    return float(max(record.get("sum_error", 0.0) for record in records))
