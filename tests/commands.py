"""Commands, as a person at a shell would give them, in this process."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner, Result

from coalface.cli import main


def invoked(*arguments: object) -> Result:
    """What came of a command, be it an error."""
    return CliRunner().invoke(main.app, [str(a) for a in arguments])


def said(*arguments: object) -> str:
    """What a command that comes to its end prints."""
    return outputs(*arguments)[0]


def outputs(*arguments: object) -> tuple[str, str]:
    """What a command that comes to its end prints on stdout, and on stderr."""
    result = CliRunner().invoke(main.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object, status: int = 1
) -> str:
    """What a command that cannot be carried out prints, as the shell would see it."""
    monkeypatch.setattr(sys, "argv", ["coalface", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == status
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("coalface: ") and "Traceback" not in text
    return text
