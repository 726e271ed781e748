"""Runs the command line in this process."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from iossim.cli.main import main


def run(arguments: str | Sequence[str]) -> int:
    """The exit code of a command of iossim's, or of the evidence's, whose first word is ``evidence``."""
    words = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    return main(words[1:], commands="evidence.commands") if words[:1] == ["evidence"] else main(words)


def printed(capsys: pytest.CaptureFixture[str], arguments: str | Sequence[str]) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    code = run(arguments)
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


def printed_json(capsys: pytest.CaptureFixture[str], arguments: str | Sequence[str]) -> Any:
    """What a command prints, read as strict JSON: all of standard output, and no NaN or Infinity."""
    return json.loads(printed(capsys, arguments), parse_constant=_refuse)


def refused(capsys: pytest.CaptureFixture[str], arguments: str | Sequence[str]) -> str:
    """The one line that a command says about its user's mistake."""
    capsys.readouterr()
    code = run(arguments)
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.endswith("\n")
    assert output.err.count("\n") == 1
    return output.err


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
