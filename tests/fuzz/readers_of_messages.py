"""Readers of what comes over the wire, and of texts that people write: messages, secure sums, JSON, YAML, recipes."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np
import torch
from reader import Reader, joined, of_file, parts, whole_or_within

from coalface.core import codec, compression
from coalface.core.errors import RecipeError
from coalface.core.method import Abandoned, Tensors, Ticket, content, message, private
from coalface.core.parsing import parse_json, parse_yaml
from coalface.experiments.recipe import import_insightface, loader, party_file
from coalface.experiments.recipe.included import locate
from coalface.flower.app import run_config
from coalface.flower.provision import certificates, project
from coalface.privacy.secure_sums import client, messages, signatures
from coalface.privacy.secure_sums.context import SecureSumError, SumContext
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import Member
from coalface.privacy.secure_sums.server import SecureSum

# --- the codec --------------------------------------------------------------------------------------------------------


@message
class Sent:
    w: Tensors = content("weight")
    c: torch.Tensor = content("code")
    maybe: torch.Tensor | None = content("code", default=None)
    images: int = 1
    loss: float = 0.0
    label: str = content("code", default="")
    flag: bool = False


@private
class Kept:
    deep: dict[str, Tensors]
    tickets: tuple[Ticket, ...]
    rows: tuple[int, ...] = ()
    last: Ticket | None = None


GLOBAL = Sent(w={"a": torch.ones(3, 2), "b": torch.zeros(4)}, c=torch.eye(2), loss=0.5, label='a"/\\n', flag=True)
KEPT = Kept(deep={"x": {"y": torch.arange(3)}}, tickets=(), rows=(1, -2))
LIKE = codec.forms(Sent, [GLOBAL])


def with_length(data: bytes) -> bytearray:
    """A header and a body with NUL between them, as an encoding: lengths that fit, which mutation seldom finds."""
    header, _, body = data.partition(b"\0")
    return bytearray(len(header).to_bytes(8, "little") + header + body)


def without_length(data: bytes | bytearray | memoryview) -> bytes:
    """What `with_length` takes."""
    end = 8 + int.from_bytes(data[:8], "little")
    return bytes(data[8:end]) + b"\0" + bytes(data[end:])


def read_sent(data: bytes) -> None:
    sent = codec.decode(with_length(data), Sent)
    again = codec.decode(bytearray(codec.encode(sent).data), Sent)
    assert codec.encode(again).data == codec.encode(sent).data


def read_reply(data: bytes) -> None:
    updates = compression.TYPES
    change = compression.widening(LIKE, list(updates)[data[0] % 3] if data else None)
    reply = codec.decode(with_length(data[1:]), Sent, change=change, like=LIKE)
    codec.validate(reply, LIKE)
    assert all(torch.isfinite(tensor).all() for tensor in (*reply.w.values(), reply.c))


def reply(updates: compression.Updates) -> bytes:
    number = list(compression.TYPES).index(updates)
    return bytes([number]) + without_length(codec.encode(GLOBAL, change=compression.narrowing(LIKE, updates)).data)


# --- secure sums ------------------------------------------------------------------------------------------------------

SUM = SumContext("run", "train", 1, 1, asked=4, dropouts=1, corrupt=0, length=5, bits=32)
NAMES = [f"silo-{number}" for number in range(4)]
MEMBERS = {name: Member(name, hashlib.sha256(name.encode()).digest(), SUM) for name in NAMES}
VECTOR = np.arange(5, dtype=np.uint32)
ADVERTS = {name: client.advertise(member) for name, member in MEMBERS.items()}
FIRST, REST = NAMES[0], NAMES[1:]
SHARES = {name: client.share_keys(member, NAMES, ADVERTS) for name, member in MEMBERS.items()}


def as_rows(rows: dict[str, bytes], order: list[str]) -> bytes:
    return messages.as_bytes(messages.pack_rows(order, rows))


def read_at_party(data: bytes) -> None:
    """What a party is sent, as `engine/party/sums.py` takes it, from stage 2 on."""
    stage = data[0] % 4 if data else 0
    given = [messages.as_tensor(piece) for piece in parts(data[1:], 6)]
    names = messages.unpack_names(given[0])
    adverts = messages.unpack_rows(REST, given[1])
    sharers, survivors = messages.unpack_names(given[2]), messages.unpack_names(given[3])
    sealed, confirmed = messages.unpack_rows(REST, given[4]), messages.unpack_rows(REST, given[5])
    member, answers = MEMBERS[FIRST], Answers()
    if stage == 0:
        client.share_keys(member, names, adverts)
    elif stage == 1:
        client.mask(member, names, adverts, sharers, VECTOR, answers)
    elif stage == 2:
        client.confirm(member, names, sharers, survivors, lambda text: text[:1], answers)
    else:
        shares = client.unmask(
            member, names, adverts, sharers, survivors, sealed, answers, lambda *said: True, confirmed
        )
        assert all(len(share) == 33 for share in shares.values())


def at_party(stage: int) -> bytes:
    names = "\n".join(NAMES).encode()
    sealed = {name: SHARES[name][FIRST][:82] for name in REST}
    signed = as_rows({name: b"s" for name in REST}, REST)
    return bytes([stage]) + joined(names, as_rows(ADVERTS, REST), names, names, as_rows(sealed, REST), signed)


def read_at_server(data: bytes) -> None:
    """One party's four answers, the others' being honest: its own is counted, or it has dropped out."""
    server, given = SecureSum(SUM, NAMES), parts(data, 4)
    refused: list[SecureSumError] = []

    def take(answer: Any) -> None:
        try:
            answer()
        except SecureSumError as error:
            refused.append(error)

    for name in REST:
        server.advertised(name, ADVERTS[name])
    take(lambda: server.advertised(FIRST, given[0]))
    names, adverts = server.share_requests()
    for name in (name for name in REST if name in names):
        server.shared(name, client.share_keys(MEMBERS[name], names, adverts[name]))
    if FIRST in names:
        take(lambda: server.shared(FIRST, messages.unpack_rows(server.holders(FIRST), messages.as_tensor(given[1]))))
    sharers = server.mask_requests()
    for name in (name for name in REST if name in sharers):
        server.masked(name, client.mask(MEMBERS[name], names, adverts[name], sharers, VECTOR, Answers()))
    take(lambda: server.masked(FIRST, np.frombuffer(given[2][: len(given[2]) // 4 * 4], np.int32)))
    survivors = server.survivors()
    requests = server.unmask_requests()
    for name, (sealed, _) in requests.items():
        if name != FIRST:
            sets = (adverts[name], sharers, survivors, sealed, Answers())
            server.unmasked(name, client.unmask(MEMBERS[name], names, *sets))
    if FIRST in requests:
        take(lambda: server.unmasked(FIRST, messages.unpack_rows(server.holders(FIRST), messages.as_tensor(given[3]))))
    total = server.result()
    if FIRST not in survivors:
        assert (total == 3 * VECTOR.astype(np.int32)).all()
    if refused:
        raise refused[0]


def at_server() -> bytes:
    masked = client.mask(MEMBERS[FIRST], NAMES, ADVERTS, NAMES, VECTOR, Answers())
    sealed = {name: SHARES[name][FIRST][:82] for name in REST}
    shares = client.unmask(MEMBERS[FIRST], NAMES, ADVERTS, NAMES, NAMES, sealed, Answers())
    return joined(ADVERTS[FIRST], as_rows(SHARES[FIRST], NAMES), masked.tobytes(), as_rows(shares, NAMES))


# --- texts ------------------------------------------------------------------------------------------------------------


def read_json(data: bytes) -> None:
    parse_json(data, values=1000, any_number=True)
    parse_json(data)


def read_recipe(data: bytes) -> None:
    loader.load(of_path("recipe.yaml", data))


def of_path(name: str, data: bytes) -> Any:
    return of_file(name, lambda path: path)(data)


def included_recipe(name: str) -> bytes:
    return locate(name).read_bytes()


INCLUDED = ("joint/paper", "joint/synthetic", "uda/paper-s", "one-identity/paper-fedfv", "one-identity/synthetic")
RECIPE = b"method: fedavg\nrounds: 2\nlocal: {epochs: 1, batch_size: 8, lr: 0.1}\nloss: {name: cosface, scale: 16}\n"
FACES = b"data: {size: 32, faces: {identities: 20, images: 4}, partition: {kind: equal, parties: 4}}\n"
FEDERATION = (
    b"name: a\nrecipe: a.yaml\nsuperlink: {hosts: [example.org, 10.0.0.7]}\nparties: {london: {role: trainer}}\n"
)
WHOLE_FEDERATION = (
    b"name: a\nrecipe: a.yaml\ndays: 30\nencrypt: true\n"
    b"superlink: {hosts: example.org, port: 443, loopback_port: 8000}\n"
    b"parties:\n"
    b"  london: {role: trainer, data: /srv, faces: {kind: folder, path: faces}, encrypt: false}\n"
    b"  york: {role: validator, faces: faces, pairs: {kind: lfw, path: pairs.txt}}\n"
)
INSIGHTFACE = b"config = edict()\nconfig.network = 'r18'\nconfig.lr = 0.1 * 2\nconfig.margin_list = (1.0, 0.5, 0.0)\n"

CERTIFICATE = base64.b64decode(
    "MIIB/DCCAYKgAwIBAgIUL+WCkeenoeHDBPN4LZLOt3UF770wCgYIKoZIzj0EAwMwEjEQMA4GA1UEAwwHZnV6eiBDQTAeFw0yNTEyMzEyMzU1MDBa"
    "Fw0yNjAxMzEwMDAwMDBaMBkxFzAVBgNVBAMMDmZ1enogU3VwZXJMaW5rMHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEwj/T5VHt2+L5ZnFdlhF/tECL"
    "eOR7XQyLOx20iKd0Crc4OHm2HvGLCi0zfyLiAgBQp/duYvTR4xpTPr+a4apPYkwcyU6Wtn9Bzzg+0JwKzkgKFC7w9LKIyncviNQHa1/io4GRMIGO"
    "MAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMB0GA1UdDgQWBBSE+At2/0xtTXclYxHdVp0gyQTXMjAZBgNVHREEEjAQgg5mbC5leGFtcGxl"
    "Lm9yZzATBgNVHSUEDDAKBggrBgEFBQcDATAfBgNVHSMEGDAWgBTF5yNzSQJmw4ZweGC16hKuUsAhvjAKBggqhkjOPQQDAwNoADBlAjEAsh/22Pk0"
    "i/hEWLUOz1yms0swzXV4LRSmMfNs+DXnS3YaB5X7xHGxoSBLtWFI9qR7AjBvV/vqWEmCdT4hwjWa8DrXIs9PZq16/mzbmKIcqabUNyg1kQ8gIQyo"
    "n0zh8wlmus4="
)


def read_certificate(data: bytes) -> None:
    """A certificate in DER; PEM is its base64."""
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"
    certificates.is_issued(pem, pem)
    refusals = []
    for read in (certificates.public_of_certificate, certificates.host_names, certificates.validity):
        try:
            read(pem)
        except ValueError as error:  # the others read it all the same
            refusals.append(error)
    if refusals:
        raise refusals[0]


MESSAGES = {
    "codec-bytes": Reader(
        lambda data: codec.decode(bytearray(data), Sent), (bytes(codec.encode(GLOBAL).data),), (codec.WireError,)
    ),
    "codec-message": Reader(read_sent, (without_length(codec.encode(GLOBAL).data),), (codec.WireError,)),
    "codec-reply": Reader(
        read_reply, (reply("float16"), reply("bfloat16"), reply("int8")), (codec.WireError, codec.Refused)
    ),
    "codec-private": Reader(
        lambda data: codec.decode(with_length(data), Kept), (without_length(codec.pack(KEPT).data),), (codec.WireError,)
    ),
    "sum-at-party": Reader(read_at_party, tuple(map(at_party, range(4))), (SecureSumError,)),
    "sum-at-server": Reader(read_at_server, (at_server(),), (SecureSumError, Abandoned)),
    "json": Reader(read_json, (b'{"a": [1, -2.5e3, null, true, "x\\u00e9\\""]}',), (ValueError,)),
    "yaml": Reader(
        lambda data: parse_yaml(data.decode("utf-8", "replace")),
        (b"a: &x [1, 2.5, ~]\nb: {c: *x, <<: {d: !!str 1}}\ne: |\n  2026-11-24\n", RECIPE),
        (ValueError,),
    ),
    "recipe": Reader(read_recipe, (RECIPE + FACES, *map(included_recipe, INCLUDED)), (RecipeError,)),
    "party-file": Reader(
        whole_or_within(
            lambda data: party_file.read(of_path("party.yaml", data)),
            lambda data: party_file.read_all(of_path("parties.yaml", data)),
        ),
        (
            b"data: {kind: folder, path: faces}\nrole: validator\npairs: {kind: lfw, path: pairs.txt}\n",
            b"name: london\ndata: {kind: pack, path: /srv/faces}\npairs: {kind: layout, path: rfw, list: Asian}\n",
            b"\0london: {data: {kind: rec, path: faces}}\nyork: {name: york, role: trainer}\n",
        ),
        (RecipeError,),
    ),
    "run-config": Reader(
        whole_or_within(
            lambda data: run_config.read(data.decode("utf-8", "replace")),
            lambda data: run_config.read(str(of_path("run.toml", data))),
        ),
        (b"rounds=3 local.lr=0.01 name='a b' secure=true", b'\0rounds = 3\n[local]\nlr = 0.01\nnames = ["a"]\n'),
        (RecipeError,),
    ),
    "federation": Reader(
        lambda data: project.read(of_path("federation.yaml", data)),
        (FEDERATION, WHOLE_FEDERATION),
        (RecipeError,),
    ),
    "insightface": Reader(
        lambda data: import_insightface.read_config(of_path("config.py", data)), (INSIGHTFACE,), (RecipeError,)
    ),
    "node-keys": Reader(signatures.read_keys, (b'{"london": "00ff"}',), (ValueError,)),
    "certificate": Reader(read_certificate, (CERTIFICATE,), (ValueError,)),
}
