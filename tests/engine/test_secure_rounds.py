"""Secure sums in a run: the same means, nothing of a single party at the server, and dropouts at every stage."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from secure_runs import STAGES, WIDE, away, changing, hidden_vectors, opened_totals, ring_sum, stage_of
from server_runs import controls, listed, metrics
from toys import Control, Lagged, Moved, Moves, Values

from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Party, step
from coalface.engine.faults import SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.sums.hidden import IMAGES, HiddenMeans, Opened
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import Tiny, run, workers
from coalface.experiments.conformance.traffic import Heard, listening
from coalface.experiments.plan import on_paper
from coalface.privacy.secure import SecureSettings
from coalface.privacy.secure_sums import messages
from coalface.training.local_work import LocalTraining

pytestmark = pytest.mark.usefixtures("toy_steps")

FIVE, TWENTY, FORTY = (Tiny(parties=n, each=3) for n in (5, 20, 40))
LOSE: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.0, "max_abandoned_rounds": 9}


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_mean_is_that_without_secure_sums_but_for_the_rounding_that_is_told(tmp_path: Path) -> None:
    method, build = worlds.recipe("fedavg", rounds=1)
    plain = run(method, tmp_path / "plain", build)
    secure = run(method, tmp_path / "secure", build, secure=WIDE)
    (record,) = metrics(secure.folder)
    assert record["cut_off"] == 0 and 0 < record["sum_error"] < 1e-5
    for name, tensor in secure.state.backbone.items():
        torch.testing.assert_close(tensor, plain.state.backbone[name], rtol=1e-6, atol=record["sum_error"])
    assert record["loss"] == pytest.approx(metrics(plain.folder)[0]["loss"], abs=1e-3) and record["losses"] == {}


def test_what_lies_beyond_the_clip_is_cut_off_and_counted(tmp_path: Path) -> None:
    """Party i moves 7 values by i + 1, and says so in 7 deltas: at a clip of 2 a third of all numbers is cut off."""
    ran = run(Moves(rounds=1), tmp_path, secure=SecureSettings(clip=2.0, most_images=100))
    assert metrics(tmp_path)[0]["cut_off"] == pytest.approx(1 / 3, abs=1e-6)
    assert ran.state.control["a"].tolist() == pytest.approx([5, 5, 5])  # 1 + 2 + 2


def test_a_party_of_many_images_counts_as_one_of_the_most(tmp_path: Path) -> None:
    images = [len(faces) for faces in Tiny().data().values()]
    bound = min(images)
    assert max(images) > bound
    ran = run(Moves(rounds=1), tmp_path, secure=SecureSettings(clip=64.0, most_images=bound))
    assert ran.state.values["a"].tolist() == pytest.approx([2, 2, 2], abs=1e-4)


@pytest.mark.slow
@pytest.mark.ci
def test_the_same_bytes_from_one_worker_and_from_several(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"secure": WIDE, "faults": SimulatedFaults(stages={"mask": 0.2}), **LOSE}
    ran = [
        run(Moves(rounds=3), tmp_path / str(n), FIVE, transport=transport, **rules)
        for n, transport in enumerate((InProcess, workers(2)))
    ]
    assert ran[0].bytes() == ran[1].bytes()
    assert any(record["failed"] for record in metrics(ran[0].folder))


@pytest.mark.parametrize("most", [1000, 1])
def test_the_totals_of_two_rounds_tell_a_count_unless_every_party_counts_as_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """silo-1 is away in round 2. What docs/secure-sums.md says the server learns."""
    opened: list[Opened] = []
    decode = HiddenMeans.decode
    monkeypatch.setattr(HiddenMeans, "decode", lambda *arguments: opened.append(decode(*arguments)) or opened[-1])
    settings = SecureSettings(clip=64.0, dropouts=0.3, most_images=most)
    transport = away({"mask": ["silo-1"]}, rounds=[2])
    run(Moves(rounds=2), tmp_path, FIVE, transport=transport, secure=settings, **LOSE)
    first, second = (means.means[IMAGES][1] for means in opened)
    assert first - second == (len(FIVE().data["silo-1"]) if most > 1 else 1)
    errors = {record["sum_error"] for record in metrics(tmp_path)}
    assert len(errors) == 1  # it does not follow the total


# --- dropouts ---------------------------------------------------------------------------------------------------------


def names(*places: int) -> list[str]:
    return [f"silo-{place}" for place in places]


SLOW = [pytest.mark.slow, pytest.mark.ci]
ONE_STAGE = [pytest.param({stage: names(*range(0, 36, 3))}, id=stage, marks=SLOW) for stage in STAGES]
AT_ONCE = pytest.param(
    {
        "advertise": names(*range(3)),
        "share": names(*range(3, 6)),
        "mask": names(*range(6, 9)),
        "unmask": names(*range(9, 12)),
    },
    id="at once",
)


@pytest.mark.parametrize("gone", [*ONE_STAGE, AT_ONCE])
def test_of_forty_parties_twelve_drop_out_and_the_sum_of_the_others_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: dict[str, list[str]]
) -> None:
    """Exact in the ring, of all whose vectors came; these alone have moved on, the others stay where they were."""
    totals = opened_totals(monkeypatch)
    ran = run(Moves(rounds=1), tmp_path, FORTY, transport=away(gone), secure=WIDE, **LOSE)
    before = {party for stage, parties in gone.items() if stage != "unmask" for party in parties}
    counted = [party for party in ran.server.at.party_stats if party not in before]
    (record,), vectors = metrics(tmp_path), hidden_vectors(tmp_path)
    assert not record["abandoned"] and record["failed"].keys() == before and record["arrived"] == len(counted)
    np.testing.assert_array_equal(totals[0], ring_sum(vectors[party] for party in counted))
    assert ran.server.at.accepted.keys() == set(counted)
    moved = sum(float(party[-1]) + 1 for party in counted)
    assert ran.state.control["a"].tolist() == pytest.approx([moved] * 3, rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_with_one_dropout_more_the_round_is_abandoned_and_nothing_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    totals, heard = opened_totals(monkeypatch), Heard()
    gone = {stage: names(*range(7))}
    run_heard = type("Both", (listening_to(heard, away(gone)),), {})
    with pytest.raises(RunFailed, match="abandoned"):
        run(Moves(rounds=1), tmp_path, TWENTY, transport=run_heard, secure=WIDE, **{**LOSE, "max_abandoned_rounds": 1})
    assert not totals and metrics(tmp_path)[0]["abandoned"]
    asked = {stage_of(request) for request, _ in heard.replies}
    assert asked == set(STAGES[: STAGES.index(stage) + 1])  # no share of any secret is asked for before


def listening_to(heard: Heard, transport: type[InProcess]) -> type[InProcess]:
    class Hearing(transport):  # type: ignore[misc, valid-type]
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                heard.replies.append((request, bytes(reply.data) if isinstance(reply, codec.Encoded) else b""))
                yield request, reply

    return Hearing


def test_who_drops_out_stays_where_it_was_and_goes_on_in_the_next_round(tmp_path: Path) -> None:
    """silo-1 is away at a stage of round 1, and silo-2 when shares are asked for, when its vector counts already."""
    transport = away({"mask": ["silo-1"], "unmask": ["silo-2"]}, rounds=[1])
    ran = run(
        Moves(rounds=2),
        tmp_path,
        FIVE,
        transport=transport,
        secure=SecureSettings(clip=64.0, dropouts=0.4, corrupt=0.0),
        **LOSE,
    )
    kept = controls(ran)
    assert [kept[f"silo-{i}"].rounds for i in range(5)] == [2, 1, 2, 2, 2]
    assert ran.state.control["a"].tolist() == pytest.approx([2 * (1 + 3 + 4 + 5) + 2] * 3, rel=1e-5)


def test_simulated_faults_reach_every_stage(tmp_path: Path) -> None:
    faults = SimulatedFaults(dropout=0.1, lost=0.05, stages=dict.fromkeys(["share", "mask", "unmask"], 0.1))
    settings = SecureSettings(clip=64.0, dropouts=0.4, corrupt=0.0)
    run(Moves(rounds=12), tmp_path, FIVE, secure=settings, faults=faults, **LOSE)
    reasons = {why for record in metrics(tmp_path) for why in record["failed"].values()}
    assert {f"dropped out before stage {stage} of a secure sum" for stage in ("share", "mask")} <= reasons
    assert "dropped out" in reasons and "the reply was lost" in reasons


# --- what the server sees ---------------------------------------------------------------------------------------------


def masked(heard: Heard) -> list[np.ndarray]:
    replies = [data for request, data in heard.replies if stage_of(request) == "mask"]
    return [codec.decode(bytearray(data), messages.Masked).vector.numpy() for data in replies]


def test_a_masked_vector_is_uniform_and_the_vector_itself_is_not(tmp_path: Path) -> None:
    from scipy.stats import kstest

    heard = Heard()
    method, build = worlds.recipe("fedavg", rounds=2)
    run(method, tmp_path, build, transport=listening(heard), secure=WIDE)

    def uniform(vector: np.ndarray) -> float:
        return float(kstest(vector.view("<u4") / 2.0**32, "uniform").pvalue)

    vectors = masked(heard)
    assert len(vectors) == 6 and len(vectors[0]) > 4000
    assert min(map(uniform, vectors)) > 1e-4
    assert uniform(vectors[0] - vectors[3]) > 1e-4  # of one party in two rounds: masks are never used twice
    assert max(map(uniform, hidden_vectors(tmp_path).values())) < 1e-9


CANARY = 104_729_003
"""So many digits as no time and no hash has by chance."""


@dataclass(frozen=True, kw_only=True)
class Counts(Moves):
    """One party counts a number of images that nobody else has."""

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        moved, control = Moves.move(self, party, own, common)
        return dataclasses.replace(moved, images=CANARY) if party.name == "silo-1" else moved, control


def test_a_partys_count_and_loss_are_in_nothing_that_the_server_is_sent_or_writes(tmp_path: Path) -> None:
    """Nor is the number of images that it has, which it would say when it joins."""

    def shown(folder: Path, heard: Heard) -> bool:
        own = ("parties", "ledger", "answers")
        files = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] not in own]
        seen = [data for _, data in heard.replies] + [path.read_bytes() for path in files]
        assert {"metrics.jsonl", "receipts.jsonl", "events.jsonl"} <= {path.name for path in files}
        numbers = [str(CANARY).encode(), *(CANARY.to_bytes(size, "little") for size in (4, 8))]
        return any(number in data for data in seen for number in numbers)

    for name, settings in (("plain", None), ("secure", SecureSettings(clip=64.0, most_images=1 << 27))):
        heard, folder = Heard(), tmp_path / name
        bound = {"max_share": None} if settings else {}
        ran = run(Counts(rounds=2), folder, transport=believing(listening(heard)), secure=settings, **bound)
        assert shown(folder, heard) is (settings is None)
        if settings is not None:
            assert {member.images for member in ran.server.transport.members.values()} == {0}
            assert {ran.server.images(party) for party in ran.server.parties("trainer")} == {settings.most_images}


def believing(transport: type[InProcess]) -> type[InProcess]:
    """The parties say that they have as many images as they will count."""

    class Believing(transport):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            images = {name: CANARY if name == "silo-1" else m.images for name, m in self.members.items()}
            self.members = {
                n: dataclasses.replace(m, images=images[n] * bool(m.images)) for n, m in self.members.items()
            }

    return Believing


def test_the_ledgers_list_the_bytes_of_all_stages_and_what_is_in_the_vector(tmp_path: Path) -> None:
    heard = Heard()
    ran = run(Moves(rounds=2), tmp_path, transport=listening(heard), secure=WIDE)
    sent = {party: 0 for party in ran.server.at.party_stats}
    for request, data in heard.replies:
        sent[request.party] += len(data)
    assert listed(tmp_path) == sent
    assert ran.server.at.totals["up"] == sum(sent.values())
    down = sum(len(common) + len(each) for _, common, each in heard.requests)
    assert ran.server.at.totals["down"] == down
    lines = [json.loads(line) for line in (tmp_path / "ledger" / "silo-0.jsonl").read_text().splitlines()]
    assert {line["protection"] for line in lines} == {"secure sum"}
    assert [line["sum"] for line in lines if line["name"] != "header"] == 2 * list(STAGES)
    assert {line["of"] for line in lines if line["sum"] == "mask"} == {"values, delta, images, loss"}
    assert not any("rows" in line for line in lines)


def test_rows_that_one_party_alone_may_change_are_named_in_its_ledger(tmp_path: Path) -> None:
    method, build = worlds.recipe("fedfr-joint", rounds=1)
    run(method, tmp_path, build, secure=WIDE)
    lines = [json.loads(line) for line in (tmp_path / "ledger" / "silo-0.jsonl").read_text().splitlines()]
    assert {line["rows"] for line in lines if line["sum"] == "mask"} == {"classifier"}


# --- bad parties ------------------------------------------------------------------------------------------------------


def nonsense(stage: str, kind: str) -> type[InProcess]:
    """`silo-1` sends something else at a stage."""

    def spoil(request: Request, reply: Reply) -> Reply:
        if request.party != "silo-1" or stage_of(request) != stage:
            return reply
        assert isinstance(reply, codec.Encoded)
        if kind == "torn":
            return codec.Encoded(bytearray(reply.data[:-1]))
        if kind == "failed":
            return StepFailed("no")
        if kind == "other class":
            return codec.encode(messages.Confirmation(signature=messages.as_tensor(b"x")))
        cls = {"advertise": messages.Advert, "mask": messages.Masked}.get(stage, messages.Rows)
        (field,) = codec.hints(cls)
        tensor = getattr(codec.decode(bytearray(reply.data), cls), field)
        other = {"short": tensor[:-1], "type": tensor.to(torch.bfloat16), "shape": tensor[None]}[kind]
        return codec.encode(cls(**{field: other.clone()}))

    return changing(spoil)


@pytest.mark.parametrize("kind", ["torn", "failed", "other class", "short", "type", "shape"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_party_that_sends_nonsense_drops_out_at_that_stage(tmp_path: Path, stage: str, kind: str) -> None:
    settings = SecureSettings(clip=64.0, dropouts=0.3)
    ran = run(Moves(rounds=1), tmp_path, FIVE, transport=nonsense(stage, kind), secure=settings, **LOSE)
    (record,) = metrics(tmp_path)
    assert record["failed"].keys() == (set() if stage == "unmask" else {"silo-1"})
    moved = 15 if stage == "unmask" else 13
    assert ran.state.control["a"].tolist() == pytest.approx([moved] * 3, rel=1e-5)


@dataclass(frozen=True, kw_only=True)
class Spoils(Moves):
    """`silo-1` gives a reply that cannot be summed."""

    what: str

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        moved, control = Moves.move(self, party, own, common)
        if party.name != "silo-1":
            return moved, control
        changes: dict[str, Any] = {
            "nan": {"values": moved.values | {"a": torch.full((3,), torch.nan)}},
            "shape": {"values": moved.values | {"a": torch.zeros(4)}},
            "count": {"images": 0},
            "loss": {"loss": float("nan")},
        }
        return dataclasses.replace(moved, **changes[self.what]), control


@pytest.mark.parametrize("what", ["nan", "shape", "count", "loss"])
def test_what_cannot_be_summed_its_party_holds_back_and_the_run_goes_on(tmp_path: Path, what: str) -> None:
    """Also where a step that fails would stop the run: nobody but the party can look at its reply."""
    settings = SecureSettings(clip=64.0, dropouts=0.3)
    ran = run(Spoils(rounds=2, what=what), tmp_path, FIVE, secure=settings)
    assert [record["failed"].keys() for record in metrics(tmp_path)] == [{"silo-1"}] * 2
    assert not list((tmp_path / "parties" / "silo-1").glob("*.commit"))
    assert ran.state.control["a"].tolist() == pytest.approx([26] * 3, rel=1e-5)


def test_a_step_that_fails_ends_a_run_or_takes_its_party_out(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no"):
        run(Moves(rounds=1), tmp_path / "stop", FIVE, transport=nonsense("advertise", "failed"), secure=WIDE)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedface", "fedfr-uda", "pfm-fv", "centralized"])
def test_a_method_that_needs_single_replies_is_refused(tmp_path: Path, name: str) -> None:
    method, build = worlds.recipe(name, rounds=1)
    with pytest.raises(RecipeError) as refused:
        run(method, tmp_path, build, secure=WIDE)
    assert refused.value.where == "privacy.secure"


def test_weights_by_images_that_the_server_would_have_to_know_are_refused_before_a_run() -> None:
    for weights, refused in (("images", True), ("equal", False)):
        method, build = worlds.recipe("scaffold", weights=weights, local=LocalTraining(steps_per_round=2))
        world = build()
        with pytest.raises(RecipeError) if refused else nullcontext() as error:
            on_paper.plan(method, world.by_role(), world.backbone, secure=WIDE)
        assert not refused or error.value.where == "privacy.secure"


def test_posted_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        run(Lagged(rounds=2), tmp_path, secure=WIDE)
    assert refused.value.where == "privacy.secure"


def test_two_parties_are_too_few_to_hide_one(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="fewer than two honest ones"):
        run(Moves(rounds=1), tmp_path, Tiny(parties=2), secure=WIDE, max_abandoned_rounds=1)
    method, build = worlds.recipe("fedavg")
    world = replace(build, parties=2)()
    with pytest.raises(RecipeError) as refused:  # before a run
        on_paper.plan(method, world.by_role(), world.backbone, secure=WIDE)
    assert refused.value.where == "privacy.secure"


def test_a_party_gives_no_reply_singly_whoever_asks_it(tmp_path: Path) -> None:
    """A server without the setting asks as always: no party whose recipe has it answers."""

    class Plain(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            yield from super().exchange(dataclasses.replace(request, sum=None) for request in requests)

    with pytest.raises(RunFailed):
        run(Moves(rounds=1), tmp_path, transport=Plain, secure=WIDE, on_error="exclude", max_abandoned_rounds=1)
    assert "privacy.secure" in metrics(tmp_path)[0]["failed"]["silo-0"]
