"""A task's token reaches the process that it is for, and stands on no command line."""

from __future__ import annotations

import subprocess
import sys

from coalface.flower.app import superexec

TOLD = """
import os, sys
place = sys.argv.index("--token-file")
assert os.path.isfile(sys.argv[place + 1])
print(open(sys.argv[place + 1]).read(), *sys.argv[1:place], *sys.argv[place + 2:], sep="\\n")
"""


def test_it_is_in_a_file_that_is_in_memory_alone() -> None:
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
