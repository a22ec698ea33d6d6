"""A SuperLink behind the kit's reverse proxy: parties pass, and nobody reaches the control API."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import FACES, SILOS, Standing, digests
from tinyruns import Silent

from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.provision import project


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    with Standing.build(tmp_path, proxied=True).taken_down() as federation:
        yield federation


def answer(port: int, path: str, trusted: Path) -> int:
    """The status of a request over TLS."""
    context = ssl.create_default_context(cafile=str(trusted))
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", data=b"", context=context, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def listens(port: int) -> bool:
    with socket.socket() as dialled:
        return dialled.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.ci
def test_without_the_proxy_nothing_is_started(standing: Standing) -> None:
    code, printed = standing.finish(standing.up())
    assert code == 1 and "a reverse proxy does. Start " in printed and "superlink/proxy.sh" in printed, printed
    assert not standing.processes()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_parties_pass_and_nobody_reaches_the_control_api(standing: Standing, tmp_path: Path) -> None:
    link, kit = project.read_kits(standing.kits).superlink, standing.kits / "superlink"
    assert link.loopback_port is not None
    proxy = subprocess.Popen([kit / "proxy.sh"])
    try:
        standing.wait(lambda: listens(link.port), 20)
        code, printed = standing.finish(standing.up())
        assert code == 0, printed
        local = experiment.run(loader.parse(FACES), tmp_path / "local", Silent())
        assert standing.digests("faces") == digests(local, dict.fromkeys(SILOS, local))
        trusted = standing.kits / "operator" / "ca.crt"
        for path in ("/", "/v1/control/list-runs", "/v1/control/start-run", "/v1/fleet/../control/list-runs"):
            assert answer(link.port, path, trusted) == 403
        assert answer(link.loopback_port, "/v1/control/list-runs", trusted) != 403
        passed = re.findall(r'"POST (\S+) HTTP/[\d.]+" (\d+)', (kit / "proxy" / "access.log").read_text())
        let = {(path.split("/")[2], status) for path, status in passed if status != "403"}
        assert let == {("fleet", "200")}, let
    finally:
        proxy.terminate()
        proxy.wait(20)
