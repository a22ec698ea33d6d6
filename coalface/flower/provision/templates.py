"""The scripts and papers of a kit: how a SuperLink, a SuperNode and the operator's commands are started."""

from __future__ import annotations

import datetime
import shlex

import yaml

from coalface.flower.provision.project import LOOPBACK, LOOPBACK_6, ProvisionConfig, bracketed

ANY, ANY_6 = "0.0.0.0", "::"
"""All addresses of a machine."""

HEAD = """#!/bin/sh
set -eu
umask 077
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/flower"
"""

SUPEREXEC = """mkdir -p "$FLWR_HOME"
head -c 32 /dev/urandom > "$FLWR_HOME/secret"  # without one, tasks are given to all who reach the port
coalface flower superexec --runtime-api-address "{address}" {trust} \\
    --superexec-auth-secret-file "$FLWR_HOME/secret" --parent-pid $$ &
"""
"""What starts the tasks of a SuperLink or SuperNode, and ends with it."""

SUPERLINK = """export COALFACE_KEYS="$here/names.json" COALFACE_RUNS="${{COALFACE_RUNS:-$here/runs}}"
{superexec}exec flower-superlink --host {bind} --port {port} --enable-supernode-auth \\
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/superlink.crt" --ssl-keyfile "$here/superlink.key" \\
    --isolation process --superexec-auth-secret-file "$FLWR_HOME/secret" --database "$here/state.db" "$@"
"""

PROXY = """mkdir -p "$here/proxy"
exec nginx -p "$here/proxy" -c "$here/nginx.conf" -e stderr -g "daemon off;" "$@"
"""

NGINX = """# The parties' half of Flower's interface alone, before a SuperLink that listens on this machine alone.
# `proxy.sh` starts it, as any user; for an nginx that is there already, take the server block, with absolute paths.
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxied;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen {listen} ssl;
        server_name {host};
        ssl_certificate superlink.crt;
        ssl_certificate_key superlink.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 0;  # a model is sent in pieces of 5 MB; no limit of the proxy's own
        proxy_request_buffering off;
        location /v1/fleet/ {{
            proxy_pass https://127.0.0.1:{inside};
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_read_timeout 300s;
        }}
        location / {{ return 403; }}
    }}
}}
"""

PARTY = """export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25  # by default a message waits up to a second here
{data}mkdir -p "$here/home"
port={port} before=
for word; do  # `--port N` holds for both
    case $before in --port) port=$word ;; esac
    before=$word
done
{superexec}exec flower-supernode --superlink {address} --root-certificates "$here/ca.crt" --port {port} \\
    --isolation process --superexec-auth-secret-file "$FLWR_HOME/secret" \\
    --auth-supernode-private-key "$here/node.key" --node-config "party=\\"{name}\\" home=\\"$here/home\\" \\
    data=\\"$here/party.yaml\\"{key}" "$@"
"""

KEY = ' key=\\"$here/node.key\\"'
"""What a node whose party encrypts its private state is given beside."""

PARTY_FILE = """# What {name} is and where its images lie; for its own node alone, which tells the server its
# role, how many images and identities it has, and a digest of who is in public images, where it needs some.
# `coalface party check party.yaml` says what is found.
{said}"""

NO_FACES = """# Where the recipe has parties bring images of their own, a path from here or an absolute one:
# data: {kind: folder, path: /srv/faces}
"""

CONFIG = """[superlink]
default = "{name}"

[superlink.{name}]
address = "{address}"
root-certificates = "{root}"
"""

OPERATOR = """# Flower wants the certificate's absolute path: it is written again, for a kit that has moved.
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
{config}END
"""

REGISTER = """# It can be run again: a key that is known is left as it is, and one that was withdrawn stays withdrawn.
failed=0
for party in {parties}; do
    if said=$(flwr supernode register "$here/keys/$party.pub" {name} --name "$party" 2>&1); then
        printf '%s\\n' "$party:" "$said"  # with the number by which Flower's `unregister` knows it
        continue
    fi
    case $said in
        *"code: 23]"*) echo "$party: its key is known already" ;;  # Flower's PUBLIC_KEY_ALREADY_IN_USE
        *)
            printf '%s\\n' "$said" "$party: not registered" >&2
            failed=1
            ;;
    esac
done
exit $failed
"""

RUN = """exec flwr run "$here/project" {name} "$@"
"""

CHECKLIST = """# The kits of {name}

Made {made}. The CA and the SuperLink's certificate hold until **{until}**: make new kits before, and hand them out.
Keys of nodes do not expire by themselves; the operator withdraws one by `flwr supernode unregister`.

| kit | who gets it | secret in it |
|---|---|---|
| `superlink/` | who runs the SuperLink at {address} | `superlink.key` |
| `operator/` | who starts runs | none |
{parties}
| `ca/` | nobody: it stays here, to check the kits by | none; the CA's key is in no kit |

1. `coalface provision check` on this folder says that nothing is wrong.
2. Give each its kit, and no other, over a channel that is private and knows both ends: an encrypted disk from hand to
   hand, or a copy over SSH. Never by mail or chat. Unpack so that modes are kept (`tar -p`, `cp -p`, `scp -p`).
3. Compare, over another channel, the SHA-256 of `ca.crt`: `{fingerprint}`
4. {open}
5. The SuperLink starts (`superlink/start.sh`{proxy}), the operator registers
   the keys (`operator/register.sh`, once), the parties start (`start.sh`), and the operator runs (`operator/run.sh`).
6. Who has made the kits has seen every party's key: delete `parties/` here once the kits are handed over. What is left
   can still be checked, and says when it expires.
"""

OPEN = """Open the SuperLink's port {port} for the addresses of the parties and the operator only. Flower's open edition
   does not ask who speaks to its control API, which is at the same port: who reaches it can start runs and register
   nodes.
   Such a node still plays no party of the runs you start, as your server compares names with keys; a run of another's
   is another's app. With `superlink.loopback_port` in federation.yaml a proxy keeps that API from the parties."""

PROXIED = """Open port {port} for the addresses of the parties only: the proxy there passes the parties' half of
   Flower's interface, and not its control API, which asks nobody who they are. That is at {own}, for all users
   of the SuperLink's machine: the operator works on it, and let nobody else log in there."""

SUPERLINK_PAPER = """# The SuperLink of {name}

    ./start.sh            # listens at {bind}; what follows is passed on to flower-superlink
{proxy}
Needs `coalface[flower]` on the PATH, and where the recipe judges on images, COALFACE_DATA. Runs are kept in `runs/`,
Flower's state in `state.db`. `names.json` says which key each party has; a node with another cannot play it.

Keep `superlink.key` to yourself. The certificate holds until {until}.
"""

PARTY_PAPER = """# The kit of {party}, a {role} of {name}

    ./start.sh            # dials {address}; what follows is passed on to flower-supernode

Needs `coalface[flower]` on the PATH, and the data of the recipe below {data}. What is your own (private state, ledger)
lies in `home/`; where others can read it, the party does not take part.{encrypted} Nothing has to be opened in your
firewall for connections from outside; port {port} is used on this machine alone (another: `./start.sh --port N`).

`party.yaml` says what you are, and where your images lie if the recipe has parties bring their own:
`coalface party check party.yaml --recipe RECIPE` tells what is found there, before you start and without sending any.

Keep `node.key` to yourself: who has it is {party} to the server. Where it is lost or seen, tell the operator, who
withdraws it. Compare the SHA-256 of `ca.crt` with what the operator tells you over another channel:
`{fingerprint}`
It holds until {until}; you need a new kit before.
"""

ENCRYPTED = """ The private state is encrypted with
`node.key`: without the key it is lost, and a backup of `home/` should not lie beside one of the key. With a new kit
take `home/` along, and before you start run `coalface party rekey home --from OLD/node.key --to node.key`.
"""

OPERATOR_PAPER = """# The operator's kit of {name}

    ./register.sh                       # when the SuperLink has first started: makes the parties' keys known
    ./run.sh                            # starts the recipe of project/; what follows is passed on to `flwr run`
    ./run.sh --run-config 'rounds=3'

Needs `coalface[flower]` on the PATH. Nothing here is secret, but who can reach {own} can do what you can: let
nobody else. To withdraw a party's key: `FLWR_HOME=$PWD/flower flwr supernode ls`, then `… unregister`.

The SuperLink's certificate holds until {until}.
"""


def superlink(made: ProvisionConfig) -> str:
    bind, port = _bind(made), made.superlink.own[1]
    near = LOOPBACK_6 if ":" in bind else "127.0.0.1"
    superexec = SUPEREXEC.format(address=f"{bracketed(near)}:{port}", trust='--root-certificates "$here/ca.crt"')
    return HEAD + SUPERLINK.format(bind=bind, port=port, superexec=superexec)


def proxy(made: ProvisionConfig) -> dict[str, str]:
    """Name -> text of the files of a reverse proxy, in the SuperLink's kit; none where there is to be none."""
    link = made.superlink
    if link.loopback_port is None:
        return {}
    outside = _outside(made)
    listen = str(link.port) if outside == ANY else f"{bracketed(outside)}:{link.port}"
    text = NGINX.format(listen=listen, host=bracketed(link.hosts[0]), inside=link.loopback_port)
    return {"nginx.conf": text, "proxy.sh": HEAD + PROXY}


def party(made: ProvisionConfig, name: str) -> str:
    at = made.parties[name].data
    data = f"export COALFACE_DATA={shlex.quote(at)}\n" if at is not None else ""
    address = shlex.quote(made.superlink.address)
    key = KEY if made.encrypts(name) else ""
    superexec = SUPEREXEC.format(address="127.0.0.1:$port", trust="--insecure")
    return HEAD + PARTY.format(
        data=data, address=address, port=_port(made, name), name=name, key=key, superexec=superexec
    )


def party_file(made: ProvisionConfig, name: str) -> str:
    """The party's `party.yaml`."""
    said = made.parties[name].file(name)
    text = PARTY_FILE.format(name=name, said=yaml.safe_dump(said, sort_keys=False, allow_unicode=True))
    return text if "data" in said else text + NO_FACES


def config(made: ProvisionConfig, root: str) -> str:
    """Flower's configuration; `root` is where the CA's certificate lies."""
    return CONFIG.format(name=made.name, address=made.superlink.own_address, root=root)


def register(made: ProvisionConfig) -> str:
    return _operator(made) + REGISTER.format(parties=" ".join(made.parties), name=made.name)


def run(made: ProvisionConfig) -> str:
    return _operator(made) + RUN.format(name=made.name)


def papers(made: ProvisionConfig, now: datetime.datetime, fingerprint: str) -> dict[str, str]:
    """Path -> text of the checklist and of each kit's README."""
    until = f"{now + datetime.timedelta(days=made.days):%Y-%m-%d}"
    link = made.superlink
    plain = {"name": made.name, "until": until, "address": link.address, "fingerprint": fingerprint}
    proxied = link.loopback_port is not None
    opened = (PROXIED if proxied else OPEN).format(port=link.port, own=link.own_address)
    beside = f"    ./proxy.sh            # nginx at {link.port}, for the parties; needs nginx on the PATH\n"
    rows = [f"| `parties/{name}/` | {name}, a {one.role} | `node.key` |" for name, one in made.parties.items()]
    found = {
        "README.md": CHECKLIST.format(
            **plain,
            made=f"{now:%Y-%m-%d}",
            open=opened,
            proxy=" and `superlink/proxy.sh`" if proxied else "",
            parties="\n".join(rows),
        ),
        "superlink/README.md": SUPERLINK_PAPER.format(
            **plain, bind=f"{bracketed(_bind(made))}:{link.own[1]}", proxy=beside if proxied else ""
        ),
        "operator/README.md": OPERATOR_PAPER.format(**plain, own=link.own_address),
    }
    for name, one in made.parties.items():
        data = f"`{one.data}`" if one.data is not None else "what COALFACE_DATA names"
        found[f"parties/{name}/README.md"] = PARTY_PAPER.format(
            **plain,
            party=name,
            role=one.role,
            data=data,
            port=_port(made, name),
            encrypted=ENCRYPTED if made.encrypts(name) else "",
        )
    return found


def _operator(made: ProvisionConfig) -> str:
    return HEAD + OPERATOR.format(config=config(made, "$here/ca.crt"))


def _bind(made: ProvisionConfig) -> str:
    """Where the SuperLink listens."""
    return _outside(made) if made.superlink.loopback_port is None else "127.0.0.1"


def _outside(made: ProvisionConfig) -> str:
    """Where parties are answered: at all addresses, unless only this machine can dial it; of the kind that they dial,
    as a socket for all of IPv6 takes no IPv4 in Flower's server.
    """
    link = made.superlink
    if set(link.hosts) <= {*LOOPBACK, LOOPBACK_6}:
        return LOOPBACK_6 if link.over_6 else "127.0.0.1"
    return ANY_6 if link.over_6 else ANY


def _port(made: ProvisionConfig, name: str) -> int:
    """Where a SuperNode speaks with its own processes: one of its own, so that several can run on a machine."""
    place = 9100 + list(made.parties).index(name) % 50000
    return place + 50000 if place in (made.superlink.port, made.superlink.loopback_port) else place
