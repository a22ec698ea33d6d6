"""Templates that leave with noise: what reaches the server, what is spent, what a ledger says, and a resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from server_runs import metrics, stopped_and_resumed
from torch import Tensor
from toys import CALLS, Moves, State, Values

from coalface.core.errors import RecipeError
from coalface.core.method import Federation, Party, free, message, step
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, Withheld
from coalface.engine.run_state import Numerics
from coalface.engine.sums.templates import TemplateReleases
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run, workers
from coalface.experiments.plan import on_paper, privacy_budget
from coalface.privacy.accountant import Mechanism, epsilon
from coalface.privacy.templates import TemplateNoise, TemplateRelease

NOISE = TemplateNoise(noise_multiplier=2.0)
METHODS = ("fedface", "fedaws", "fedfv", "positive-only", "fedface-multi")


def ran(folder: Path, name: str = "fedface", *, rounds: int = 2, templates: Any = NOISE, **rules: Any) -> Ran:
    sampled = {} if "sample" not in rules else {"sample": rules.pop("sample")}
    method, build = worlds.recipe(name, rounds=rounds, **sampled)
    return run(method, folder, build, templates=templates, **rules)


def released(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "released.jsonl").read_text().splitlines()]


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for path in sorted((folder / "ledger").glob("*")) for x in path.read_text().splitlines()]


@pytest.mark.parametrize("name", METHODS)
def test_class_embeddings_leave_with_noise_and_all_else_as_it_is(tmp_path: Path, name: str) -> None:
    plain, noised = (ran(tmp_path / str(t), name, rounds=1, templates=t) for t in (None, NOISE))
    for key, tensor in plain.state.backbone.items():
        assert torch.equal(tensor, noised.state.backbone[key])
    for party in released(noised.folder)[0]["released"]:
        assert not torch.allclose(noised.state.centres[party], plain.state.centres[party], atol=0.1)
    protections = {(line["name"], line["protection"]) for line in ledger(noised.folder) if line["kind"] != "header"}
    assert {how for what, how in protections if what == "centre"} == {"noise on the sphere, z = 2"}
    assert {how for what, how in protections if what != "centre"} == {"none"}


def test_epsilon_is_that_of_the_party_asked_most_often(tmp_path: Path) -> None:
    done = ran(tmp_path, rounds=4, sample=2)
    counts: dict[str, int] = {}
    for line, told in zip(released(tmp_path), metrics(tmp_path), strict=True):
        for party in line["released"]:
            counts[party] = counts.get(party, 0) + 1
        assert told["template_epsilon"] == NOISE.epsilon(max(counts.values()))
    assert done.server.templates is not None
    assert done.server.templates.summary()["releases"] == max(counts.values()) < 4


def test_the_run_ends_before_a_release_passes_the_target(tmp_path: Path) -> None:
    target = NOISE.epsilon(3) + 1e-6
    done = ran(tmp_path, rounds=5, templates=TemplateNoise(noise_multiplier=2.0, target_epsilon=target))
    assert len(metrics(tmp_path)) == len(released(tmp_path)) == 3
    assert "privacy.templates.target_epsilon" in done.server.ended


@message
class Pair:
    one: Tensor = free("template")
    other: Tensor = free("template")


@dataclass(frozen=True, kw_only=True)
class Pairs(Moves):
    """Two templates of one person leave with each reply."""

    def round(self, fed: Federation, state: State) -> State:
        fed.ask(self.pair, common=Values(values=state.values))
        return state

    @step(role="trainer")
    def pair(self, party: Party, common: Values) -> Pair:
        return Pair(one=torch.ones(8), other=torch.ones(8))


@pytest.mark.usefixtures("toy_steps")
def test_every_field_of_templates_is_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = TemplateNoise(noise_multiplier=2.0, target_epsilon=NOISE.epsilon(5))
    done = run(Pairs(rounds=4), tmp_path / "server", templates=limited)
    assert [line["template_epsilon"] for line in metrics(done.folder)] == [NOISE.epsilon(2), NOISE.epsilon(4)]
    assert done.server.templates is not None and done.server.templates.summary()["releases"] == 4
    world = Tiny()()
    planned = on_paper.plan(Pairs(rounds=4), world.by_role(), world.backbone)
    assert f"{NOISE.epsilon(8):.4g} for a party" in privacy_budget.templates_sentence(NOISE, planned)
    with pytest.raises(RecipeError) as caught:
        privacy_budget.check_templates(TemplateNoise(noise_multiplier=2.0, target_epsilon=NOISE.epsilon(1)), planned)
    assert caught.value.where == "privacy.templates.target_epsilon"
    monkeypatch.setattr(TemplateReleases, "admit", lambda *call: None)
    with pytest.raises(RunFailed, match="its templates have left 4 times"):  # by the party's own count
        run(Pairs(rounds=4), tmp_path / "party", templates=limited)


def test_a_party_counts_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server asks on, it is not answered: what has left stands in the party's own ledger."""
    monkeypatch.setattr(TemplateReleases, "admit", lambda *call: None)
    limited = TemplateNoise(noise_multiplier=2.0, target_epsilon=NOISE.epsilon(2) + 1e-6)
    with pytest.raises(RunFailed, match="its templates have left 2 times"):
        ran(tmp_path, rounds=4, templates=limited)
    assert len(metrics(tmp_path)) == 2


def test_releases_with_other_noise_count_too(tmp_path: Path) -> None:
    """A server that changes z does not begin to count anew: two at z = 2, and a third at z = 3."""
    ran(tmp_path, rounds=2, templates=NOISE)
    path, reply = next((tmp_path / "ledger").iterdir()), worlds.recipe("fedface")[0].own_steps["train"].reply
    enough = epsilon({Mechanism(2.0): 2, Mechanism(3.0): 1}, NOISE.delta)
    for target, ends in (
        (enough * 1.0001, nullcontext()),
        (enough * 0.9999, pytest.raises(ValueError, match="2 times")),
    ):
        louder = TemplateNoise(noise_multiplier=3.0, target_epsilon=target)
        with ends:
            TemplateRelease(louder, b"s" * 32).check_target(reply, path)


@pytest.mark.parametrize("after", [0, 4, 7])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, after: int) -> None:
    method, build = worlds.recipe("fedface", rounds=3)
    unbroken = ran(tmp_path / "unbroken", rounds=3)
    resumed = stopped_and_resumed(method, tmp_path / "resumed", after, build=build, templates=NOISE)
    assert resumed.bytes() == unbroken.bytes()
    assert released(resumed.folder) == released(unbroken.folder)


@pytest.mark.usefixtures("quick_workers")
def test_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    assert ran(tmp_path / "two", transport=workers(2)).bytes() == ran(tmp_path / "one").bytes()


def test_replies_that_are_not_saved_have_the_same_noise_again(tmp_path: Path) -> None:
    assert ran(tmp_path / "new", save_replies=False).bytes() == ran(tmp_path / "saved").bytes()


@message
class Row:
    centre: Tensor = free("template")


@dataclass(frozen=True, kw_only=True)
class Drifting(Moves):
    """The template that a repeated step comes to is `drift` away from the first."""

    drift: float

    def round(self, fed: Federation, state: State) -> State:
        fed.ask(self.row, common=Values(values=state.values))
        return state

    @step(role="trainer")
    def row(self, party: Party, common: Values) -> Row:
        CALLS.append((party.name, "row", party.stage, party.round))
        return Row(centre=torch.ones(8) + self.drift * CALLS.count(CALLS[-1]))


@pytest.mark.usefixtures("toy_steps")
@pytest.mark.parametrize(("drift", "saved", "refused"), [(0.0, False, 0), (1e-6, False, 3), (1e-6, True, 0)])
def test_a_repeated_reply_that_came_out_otherwise_does_not_leave(
    tmp_path: Path, drift: float, saved: bool, refused: int
) -> None:
    """It would have noise of its own, and be counted nowhere: training need not give the same bits again on a GPU."""
    again: list[tuple[Any, Any]] = []

    class Twice(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in InProcess.exchange(self, requests):
                again.extend((reply, repeated) for _, repeated in InProcess.exchange(self, [request]))
                yield request, reply

    run(Drifting(rounds=1, drift=drift), tmp_path, transport=Twice, templates=NOISE, save_replies=saved)
    assert sum(isinstance(repeated, Withheld) for _, repeated in again) == refused
    assert all(reply.data == repeated.data for reply, repeated in again if not isinstance(repeated, Withheld))
    assert len(again) == 3 and {line["protection"] for line in ledger(tmp_path)} > {NOISE.protection}


def test_what_was_spent_cannot_be_taken_back(tmp_path: Path) -> None:
    ran(tmp_path)
    path = tmp_path / "released.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunFailed, match="released.jsonl is not as it was written"):
        ran(tmp_path, rounds=3)


def test_what_was_released_in_another_state_is_not_asked_for_again(tmp_path: Path) -> None:
    """A round of which the lines say that it was asked for from elsewhere is abandoned, and the next one is not."""
    ran(tmp_path, rounds=1)
    shutil.rmtree(tmp_path / "checkpoints")
    line = released(tmp_path)[0] | {"sha256": "0" * 64}
    (tmp_path / "released.jsonl").write_text(json.dumps(line) + "\n")
    ran(tmp_path, rounds=2, max_abandoned_rounds=3)
    assert [told["abandoned"] for told in metrics(tmp_path)] == [True, False]
    assert "released in another state" in metrics(tmp_path)[0]["reason"]


def test_client_batches_and_means_of_templates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        ran(tmp_path / "a", numerics=Numerics(threads=1, client_batch=8))
    assert caught.value.where == "engine.client_batch"
    with pytest.raises(RecipeError) as caught:
        ran(tmp_path / "b", "fedfr-joint")
    assert caught.value.where == "privacy.templates"
    assert not (tmp_path / "b" / "released.jsonl").exists()
