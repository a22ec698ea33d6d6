"""Beside the noised sums nothing of a round tells a party what another replied, or who was drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from commands import invoked
from server_runs import metrics, stopped_and_resumed
from toys import Control, Moved, Moves, State, Values

from coalface.core.errors import RecipeError
from coalface.core.method import Federation, Mean, Party, step
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import Tiny, run, workers
from coalface.experiments.plan import on_paper
from coalface.privacy.accountant import Drawn, Mechanism, epsilon
from coalface.privacy.dp import PartyPrivacy
from coalface.training.local_work import LocalTraining

pytestmark = pytest.mark.usefixtures("toy_steps")


@dataclass(frozen=True, kw_only=True)
class Still(Moves):
    """A party's reply may be zero, as in the neighbouring run."""

    still: str = ""

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        moved, control = Moves.move(self, party, own, common)
        if party.name == self.still:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in moved.delta.items()}
            moved = dataclasses.replace(moved, values=common.values, delta=zeros)
        return moved, control


def sent(folder: Path, still: str, **settings: Any) -> list[Request]:
    """The requests of round 2."""
    requests: list[Request] = []

    class Tap(InProcess):
        def exchange(self, asked: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(asked):
                requests.append(request)
                yield request, reply

    run(Still(rounds=2, still=still), folder, transport=Tap, max_update_norm=0.0, **settings)
    return [request for request in requests if request.round == 2]


def test_a_request_tells_of_others_replies_by_what_was_noised_alone(tmp_path: Path) -> None:
    """All but `common`, which is made of noised sums, is byte for byte that of the neighbouring run."""
    for privacy in (PartyPrivacy(), None):
        runs = [sent(tmp_path / f"{privacy is None}-{still}", still, privacy=privacy) for still in ("", "silo-2")]
        assert [request.party for request in runs[0]] == ["silo-0", "silo-1", "silo-2"]
        assert all(own.common != other.common for own, other in zip(*runs, strict=True))
        plain = [[repr(dataclasses.replace(request, common=None)) for request in requests[:2]] for requests in runs]
        assert (plain[0] == plain[1]) == (privacy is not None)


def test_verify_says_that_the_parties_keep_nothing_of_the_receipts(tmp_path: Path) -> None:
    for privacy in ("null", "{noise_multiplier: 1.0}"):
        folder = tmp_path / privacy[:4]
        run(Moves(rounds=2), folder, privacy=None if privacy == "null" else PartyPrivacy())
        (folder / "config.yaml").write_text(f"privacy: {{dp: {privacy}}}\n")
        result = invoked("ledger", "verify", folder)
        assert result.exit_code == 0 and "6 replies of 3 parties" in result.output
        assert ("by privacy.dp the parties keep no hash" in result.output) == (privacy != "null")
        receipts = folder / "receipts.jsonl"
        receipts.write_text("".join(receipts.read_text().splitlines(keepends=True)[:3]))
        assert invoked("ledger", "verify", folder).exit_code == 1


# --- who was drawn ----------------------------------------------------------------------------------------------------

TWELVE = Tiny(parties=12, one_identity=True, each=3)
POISSON: dict[str, Any] = {"sampling": "poisson", "clip": 5.0}


class OnlySeven(InProcess):
    """Nobody but `silo-7` ever answers."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            yield request, reply if request.party == "silo-7" else StepFailed("away")


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_every_round_of_secret_draws_counts_whoever_answers(tmp_path: Path, sampling: Any) -> None:
    """Else a round would count only when `silo-7` was drawn. One of z = 0 leaves the model as it was then."""
    privacy = PartyPrivacy(sampling=sampling, clip=5.0, delta=1e-2)
    rounds: dict[str, Any] = {"transport": OnlySeven, "on_error": "exclude"}
    ran = run(Moves(rounds=12, sample=3), tmp_path / "noised", TWELVE, privacy=privacy, **rounds)
    lines = metrics(tmp_path / "noised")
    assert not any(line["abandoned"] for line in lines) and {line["arrived"] for line in lines} == {0, 1}
    assert ran.server.private is not None
    assert ran.server.private.epsilon() == epsilon({Mechanism(1.0, Drawn(sampling, 3, 12)): 12}, 1e-2)
    silent = PartyPrivacy(sampling=sampling, clip=5.0, noise_multiplier=0.0)
    ran = run(Moves(rounds=12, sample=3), tmp_path / "silent", TWELVE, privacy=silent, **rounds)
    counted = sum(line["arrived"] for line in metrics(tmp_path / "silent"))
    assert ran.state.values["a"].tolist() == pytest.approx([counted * 5.0 / math.sqrt(14) / 3] * 3)


def test_parties_that_are_no_secret_are_counted_as_ever(tmp_path: Path) -> None:
    privacy = PartyPrivacy(sampling="cyclic")
    settings: dict[str, Any] = {"transport": OnlySeven, "on_error": "exclude", "max_abandoned_rounds": 9}
    run(Moves(rounds=4, sample=3), tmp_path, TWELVE, privacy=privacy, **settings)
    assert [line["abandoned"] for line in metrics(tmp_path)].count(False) == 0


@pytest.mark.parametrize("transport", [InProcess, workers(2)])
@pytest.mark.usefixtures("quick_workers")
def test_a_draw_of_nobody_releases_noise_alone(tmp_path: Path, transport: Any) -> None:
    """One party of twelve expected: a third of the rounds draw nobody. All are released, and stand in the accounts."""
    privacy = PartyPrivacy(**POISSON, delta=1e-2)
    ran = run(Moves(rounds=12, sample=1), tmp_path, TWELVE, transport=transport, privacy=privacy)
    lines = metrics(tmp_path)
    empty = [line for line in lines if not line["asked"]]
    assert 1 < len(empty) < 11 and not any(line["abandoned"] for line in lines)
    assert all(line["loss"] is None for line in empty)
    assert len((tmp_path / "opened.jsonl").read_text().splitlines()) == 12
    assert ran.server.private is not None
    assert ran.server.private.epsilon() == epsilon({Mechanism(1.0, Drawn("poisson", 1, 12)): 12}, 1e-2)


def test_a_draw_of_nobody_is_resumed_with_the_same_noise(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"privacy": PartyPrivacy(**POISSON), "checkpoint_every": 3}
    unbroken = run(Moves(rounds=8, sample=1), tmp_path / "unbroken", TWELVE, **settings)
    resumed = stopped_and_resumed(Moves(rounds=8, sample=1), tmp_path / "resumed", 4, TWELVE, **settings)
    assert resumed.bytes() == unbroken.bytes()
    assert 0 in {line["asked"] for line in metrics(tmp_path / "unbroken")}


@pytest.mark.parametrize("name", "fedavg slowmo fedyogi pfm mime mimelite feduv fedfr-joint adafedfr".split())
def test_methods_go_on_where_nobody_is_drawn(tmp_path: Path, name: str) -> None:
    method, build = worlds.recipe(name, rounds=4, sample=1)
    ran = run(method, tmp_path, build, privacy=PartyPrivacy(**POISSON, delta=1e-2), seed=1)
    lines = metrics(tmp_path)
    assert 0 in {line["asked"] for line in lines} and not any(line["abandoned"] for line in lines)
    assert all(tensor.isfinite().all() for tensor in ran.models.shared.values())


def test_a_quorum_of_drawn_parties_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy(Moves):
        def round(self, fed: Federation, state: State) -> State:
            common, means = Values(values=state.values), [Mean("values"), Mean("delta")]
            fed.ask(self.move, to=fed.sample("trainer", 2), common=common, aggregate=means, at_least=1)
            return state

    world = Tiny()()
    for refused in (
        lambda: run(Needy(rounds=1), tmp_path, privacy=PartyPrivacy(**POISSON)),
        lambda: on_paper.plan(Needy(rounds=1), world.by_role(), world.backbone, privacy=PartyPrivacy(**POISSON)),
    ):
        with pytest.raises(RecipeError, match="tells who was drawn"):
            refused()


def test_a_method_whose_state_counts_the_replies_is_refused_where_draws_are_secret() -> None:
    settings: dict[str, Any] = {"weights": "equal", "local": LocalTraining(steps_per_round=2, batch_size=4)}
    method, build = worlds.recipe("scaffold", sample=2, **settings)
    world = build()
    parts: tuple[Any, ...] = (method, world.by_role(), world.backbone, world.public)
    with pytest.raises(RecipeError, match="how many parties answer") as caught:
        on_paper.plan(*parts, privacy=PartyPrivacy(**POISSON))
    assert caught.value.where == "privacy.dp.sampling"
    assert on_paper.plan(*parts, privacy=PartyPrivacy(sampling="cyclic")).noised


# --- what single replies say ------------------------------------------------------------------------------------------


def test_a_method_does_not_see_numbers_of_single_parties(tmp_path: Path) -> None:
    """The metrics have their mean as ever."""
    seen: list[Any] = []

    @dataclass(frozen=True, kw_only=True)
    class Curious(Moves):
        def round(self, fed: Federation, state: State) -> State:
            common, means = Values(values=state.values), [Mean("values"), Mean("delta")]
            answer = fed.ask(self.move, common=common, aggregate=means)
            seen.append(answer.each)
            fed.log(loss=answer.mean("loss"), weighted=answer.mean("loss", by="images"))
            return State(values=answer.aggregated["values"], control=state.control)

    run(Curious(rounds=1), tmp_path / "noised", privacy=PartyPrivacy())
    run(Curious(rounds=1), tmp_path / "open")
    assert [sorted(each) for each in seen] == [[], ["images", "loss"]]
    noised, single = (metrics(tmp_path / name)[0] for name in ("noised", "open"))
    assert (noised["loss"], noised["weighted"]) == (single["loss"], single["weighted"])
