from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import naive_clients as clients
import numpy as np
import pytest
import torch
from cases import by_default
from naive_clients import EXACT, STEPS, WHOLE, Slopes, heard_run
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Tensors, generator
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.methods import feduv
from coalface.methods.feduv import Code, FedUV, Update
from coalface.privacy.secure import SecureSettings
from coalface.training.bch_codes import BCH

NAMES = sorted(EXACT().data)


def hinge(code: Tensor, scaled: bool) -> Slopes:
    """max(0, 1 − ⟨v, z⟩ / c) by hand, z = W' g, with the slopes of the mean; the codeword has none."""

    def slopes(embeddings: Tensor, leaves: Tensors) -> tuple[list[float], Tensor, Tensors]:
        projection, c, n = leaves["projection"], len(code), len(embeddings)
        losses, by_embeddings, by_own = [], torch.zeros_like(embeddings), torch.zeros_like(projection)
        for j, g in enumerate(embeddings):
            z = [float(projection[b] @ g) for b in range(c)]
            length = math.sqrt(sum(entry * entry for entry in z))
            score = sum(float(code[b]) * z[b] for b in range(c)) / (math.sqrt(c) * length if scaled else c)
            losses.append(max(0.0, 1 - score))
            if score < 1:
                for b in range(c):
                    slope = float(code[b]) / c
                    if scaled:  # of ⟨v, z⟩ / (√c |z|)
                        slope = float(code[b]) / (math.sqrt(c) * length) - score * z[b] / length**2
                    by_embeddings[j] -= slope / n * projection[b]
                    by_own[b] -= slope / n * g
        return losses, by_embeddings, {"projection": by_own}

    return slopes


def codewords(folder: Path) -> dict[str, Tensor]:
    """The codeword that every client has drawn, from its private state."""
    states = {name: naive.kept(folder, name, Code) for name in NAMES}
    return {name: state.codeword[0] for name, state in states.items() if state is not None}


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        3,
        [
            ({}, EXACT, {}),
            ({"scaled": False}, EXACT, {}),
            ({"local": STEPS, "sample": 3}, replace(EXACT, norm=True), {}),
            (
                {"local": replace(WHOLE, lr=40.0), "rounds": 3, "scaled": False},
                EXACT,
                {},
            ),  # so far that some images cost nothing
            (
                {"sample": 4, "rounds": 4},
                EXACT,
                {"faults": SimulatedFaults(dropout=0.2, lost=0.2), "min_reply_fraction": 0.2},
            ),
        ],
    ),
)
def test_a_round_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, build: Tiny, rules: Any
) -> None:
    """θ and W' are the means by images; then each client's threshold is an order statistic of its own scores."""
    method = FedUV(**{"rounds": 2, "local": WHOLE, "sample": None, "length": 127, "quantile": 0.7} | settings)
    states = naive.watched(FedUV, monkeypatch)
    _, heard = heard_run(method, tmp_path, build, **rules)
    theta, codes = build().backbone.shared(), codewords(tmp_path)
    projection = torch.tensor(generator(0, "server", "train", 0, "projection").standard_normal((127, 8)) / math.sqrt(8))
    lines, members = clients.metrics(tmp_path)[: method.rounds], clients.clients(build, method.local)
    for line, state in zip(lines, states, strict=True):
        when = ("train", line["round"])
        requests = [h for h in heard if h.request.step == "train" and (h.request.stage, h.request.round) == when]
        faults = rules.get("faults", SimulatedFaults())
        came = [h.request.party for h in requests if not faults.after(0, h.request.party, (*when, h.request.call))]
        ends = {
            c: members[c].train(
                line["round"], theta, {"projection": projection}, hinge(codes[c], method.scaled), method.local.lr
            )
            for c in came
        }
        total = sum(members[c].images for c in came)
        shares = [members[c].images / total for c in came]
        theta = naive.mean(shares, [ends[c][0] for c in came])
        projection = naive.mean(shares, [ends[c][1] for c in came])["projection"]
        assert naive.furthest(state.backbone, theta) < 1e-12
        assert naive.furthest({"w": state.projection}, {"w": projection}) < 1e-12
        loss = sum(members[c].images * members[c].loss for c in came) / total
        assert line["loss"] == pytest.approx(loss, abs=1e-12)
    assert naive.furthest(theta, build().backbone.shared()) > 1e-3
    thresholds = 0
    for name in codes:
        value = naive.kept(tmp_path, name, Code).threshold
        z = [projection @ g for g in members[name].embeddings(theta)]
        lengths = [math.sqrt(float(row @ row) / 127) if method.scaled else 1.0 for row in z]
        scores = sorted(
            float(codes[name].double() @ row) / 127 / length for row, length in zip(z, lengths, strict=True)
        )
        missed = (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
        if value is None:
            assert name in missed
        else:
            thresholds += 1
            assert value == pytest.approx(scores[len(scores) - math.ceil(round(0.7 * len(scores), 9))], abs=1e-12)
            assert sum(s >= value - 1e-12 for s in scores) / len(scores) >= 0.7
    assert thresholds >= 2


def test_the_codewords_are_codewords_that_begin_with_the_number_of_the_client(tmp_path: Path) -> None:
    run(FedUV(rounds=1, local=WHOLE, sample=None, length=127), tmp_path, EXACT)
    words = codewords(tmp_path)
    code, secrets = BCH(127, 64), set()
    for place, name in enumerate(NAMES):
        bits = ((words[name] + 1) / 2).to(torch.uint8).numpy()
        assert set(words[name].tolist()) == {-1.0, 1.0}
        assert bits[:3].tolist() == [place >> 2 & 1, place >> 1 & 1, place & 1]
        assert np.array_equal(code.encode(bits[:64]), bits)
        secrets.add(bits[3:64].tobytes())
    assert len(secrets) == 7
    for client in NAMES:
        assert all(
            int((words[client] != words[other_client]).sum()) >= 21 for other_client in NAMES if other_client != client
        )


def forms(code: Tensor) -> set[bytes]:
    """A codeword and its opposite, in the forms in which bits are written."""
    secrets = set()
    for sign in (code, -code):
        secrets |= {sign.to(t).numpy().tobytes() for t in (torch.float64, torch.float32, torch.float16, torch.int8)}
        bits = ((sign + 1) / 2).to(torch.uint8).numpy()
        secrets |= {bits.tobytes(), np.packbits(bits).tobytes(), "".join(map(str, bits)).encode()}
    return secrets


def test_no_codeword_lies_anywhere_but_at_its_client(tmp_path: Path) -> None:
    method = FedUV(rounds=3, local=WHOLE, sample=3, length=127)
    _, heard = heard_run(method, tmp_path, replace(EXACT, double=False), checkpoint_every=1)
    everywhere = [path for path in tmp_path.rglob("*") if path.is_file()]
    words = codewords(tmp_path)
    assert len(words) >= 4
    for name, code in words.items():
        holders = {p for p in everywhere if any(form in p.read_bytes() for form in forms(code))}
        assert {p.parent.name for p in holders} == {name}  # the search finds it where it is
        assert not any(form in h.data for h in heard for form in forms(code))


@pytest.mark.parametrize("scaled", [True, False])
def test_the_change_of_the_shared_matrix_tells_the_codeword(tmp_path: Path, scaled: bool) -> None:
    """What the method's docstring warns of: whoever sees a single update reads v off it."""
    method = FedUV(rounds=1, local=replace(WHOLE, weight_decay=0.0), sample=None, length=127, scaled=scaled)
    _, heard = heard_run(method, tmp_path)
    codes = codewords(tmp_path)
    for h in heard:
        if h.request.step == "train":
            change = codec.decode(bytearray(h.data), Update).projection - h.common.projection
            column = change[:, int(change.norm(dim=0).argmax())]
            guess = column.sign() * column[0].sign() * codes[h.request.party][0]  # its first bit is of its number
            assert torch.equal(guess, codes[h.request.party].double())
            assert scaled or int(torch.linalg.matrix_rank(change, rtol=1e-9)) == 1


def test_who_failed_to_enrol_is_asked_again_when_next_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And trains only once the server has heard that it has a codeword."""
    faults = SimulatedFaults(dropout=0.3, lost=0.3)
    states = naive.watched(FedUV, monkeypatch)
    method = FedUV(rounds=10, local=WHOLE, sample=4, length=127)
    _, heard = heard_run(method, tmp_path, faults=faults, min_reply_fraction=0.01, max_abandoned_rounds=99)
    enrolled, failed, later = set[str](), set[str](), set[str]()
    for line in clients.metrics(tmp_path)[:10]:
        when = ("train", line["round"])
        rng = generator(0, "server", *when)
        chosen = [NAMES[i] for i in sorted(rng.choice(7, size=4, replace=False))]

        def reached(names: list[str], call: int, when: Any = when) -> list[str]:
            return [c for c in names if not faults.before(0, c, (*when, call))]

        def heard_of(names: list[str], call: int, when: Any = when) -> set[str]:
            return {c for c in names if not faults.after(0, c, (*when, call))}

        requests = {
            step: [
                h.request.party for h in heard if (h.request.stage, h.request.round, h.request.step) == (*when, step)
            ]
            for step in ("enrol", "train")
        }
        new = [c for c in chosen if c not in enrolled]
        assert requests["enrol"] == reached(chosen if new else [], 1)
        came = heard_of(requests["enrol"], 1)
        if not line["abandoned"]:
            enrolled |= came
            assert requests["train"] == reached([c for c in chosen if c in enrolled], 1 + bool(new))
            later |= came & failed
            assert set(states.pop(0).enrolled) == enrolled
        failed |= set(new) - came
    assert failed
    assert later
    assert not states


def test_clients_that_are_drawn_anew_each_round_can_be_summed_secretly(tmp_path: Path) -> None:
    """Though one alone is new in a round; whoever has a codeword keeps it, and the model is that of a plain run."""
    method = FedUV(rounds=6, local=WHOLE, sample=4, length=127)
    secure = SecureSettings(clip=64.0, fraction_bits=24, most_images=100)
    plain, hidden = run(method, tmp_path / "plain", EXACT), run(method, tmp_path / "secure", EXACT, secure=secure)
    assert not any(line["abandoned"] for line in clients.metrics(tmp_path / "secure"))
    assert naive.furthest(hidden.state.backbone, plain.state.backbone) < 1e-5
    codes = codewords(tmp_path / "plain")
    assert naive.furthest(codes, codewords(tmp_path / "secure")) == 0


def test_more_clients_than_the_code_can_tell_apart_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(feduv.SIZES, 7, 4)
    method = FedUV(rounds=1, local=WHOLE, length=7)
    with pytest.raises(ValueError, match=r"17 users need 5 bits .* encodes 4"):
        run(method, tmp_path / "many", replace(EXACT, parties=17))
    assert not (tmp_path / "many" / "ledger").exists()
    run(method, tmp_path / "as many as there are", replace(EXACT, parties=16))
