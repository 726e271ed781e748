"""Runs the command line in this process, and programs in processes of their own."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from iossim.cli.main import main

_NOUNS = "block|graph|group|launche|measurement|node|operator|op|point|round|row|run|stage|stream|unit|wait"
#: One of several is no mistake: ``1 of 1 launches``.
PLURAL_OF_ONE = re.compile(rf"(?<!of )(?<![\w.,:/-])1 ({_NOUNS})s\b")


def run(arguments: str | Sequence[str]) -> int:
    """The exit code of a command of iossim's, or of the evidence's, whose first word is ``evidence``."""
    words = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    return main(words[1:], commands="evidence.commands") if words[:1] == ["evidence"] else main(words)


def output_of(arguments: str | Sequence[str]) -> tuple[int, str, str]:
    """The exit code of a command, and what it writes to standard output and standard error."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = run(arguments)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return code, out, err


def printed(arguments: str | Sequence[str], code: int = 0) -> str:
    """Standard output of a command that succeeds, or whose check fails (``code`` 1)."""
    ended, out, err = output_of(arguments)
    assert ended == code, err
    assert PLURAL_OF_ONE.findall(out + err) == []
    return out


def printed_json(arguments: str | Sequence[str], code: int = 0) -> Any:
    """Standard output of a command, all of it read as strict JSON: no NaN or Infinity."""
    return json.loads(printed(arguments, code), parse_constant=_refuse)


def refused(arguments: str | Sequence[str], *words: str) -> str:
    """The one line that a command says about its user's mistake, which has all of these ``words``."""
    code, out, err = output_of(arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert [word for word in words if word not in err] == [], err
    return err


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def printed_everywhere(program: str) -> str:
    """Output of a Python program, which is the same under two seeds of Python's hash."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(texts) == 1
    return texts.pop()
