"""A task's token reaches the process that it is for, and stands on no command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coalface.flower.app import superexec

TOLD = """
import os, sys
place = sys.argv.index("--token-file")
assert os.path.isfile(sys.argv[place + 1])
print(open(sys.argv[place + 1]).read(), *sys.argv[1:place], *sys.argv[place + 2:], sep="\\n")
"""


@pytest.mark.parametrize("in_memory", [True, False])
def test_it_is_in_a_file_without_a_name(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:  # as on macOS
        monkeypatch.delattr(os, "memfd_create")
    words = [sys.executable, "-c", TOLD, "--runtime-api-address", "127.0.0.1:1", "--token", "s3cret", "--insecure"]
    with superexec._Silent(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().decode().split() == [
            "s3cret",
            "--runtime-api-address",
            "127.0.0.1:1",
            "--insecure",
        ]
    assert process.returncode == 0 and "s3cret" not in process.args
