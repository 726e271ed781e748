"""The commands of a Markdown document, and a shell that runs them as a reader would paste them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What the first word of a command is called; all other blocks are output, files and grammar.
PROGRAMS = ("iossim", "python", "python3", "pytest", "pip", ".")
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """What tells a reader to type something: the README, and the pages of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def python_blocks(document: Path) -> list[str]:
    return _PYTHON_BLOCK.findall(document.read_text(encoding="utf-8"))


def block_commands(document: Path) -> list[str]:
    """The commands of indented blocks and of fenced ones that are no Python, in order."""
    text = _PYTHON_BLOCK.sub("", document.read_text(encoding="utf-8"))
    found, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and is_command(line):
            found.append(line.strip())
    return found


def is_command(line: str) -> bool:
    """Whether the first word of a line, settings of the environment aside, is a program of a reader's."""
    words = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)]
    return bool(words) and (words[0] if words[0] == "." else Path(words[0]).name) in PROGRAMS


def iossim_arguments(document: Path) -> list[list[str]]:
    """The arguments of every ``iossim ...`` in blocks and between backquotes, each once."""
    text = document.read_text(encoding="utf-8")
    quoted = [one for one in re.findall(r"`([^`\n]+)`", text) if one.startswith("iossim ")]
    found: dict[str, list[str]] = {}
    for command in [*block_commands(document), *quoted]:
        for part in re.split(r"&&|\|", command.split(" #")[0]):
            words = shlex.split(part) if "iossim" in part else []
            if words and Path(words[0]).name == "iossim":
                found[shlex.join(words[1:])] = words[1:]
    return list(found.values())


#: Seconds after which a command of a document is interrupted: CI runs all of them.
LIMIT_S = 60
#: The exit codes of ``timeout`` for a command that it interrupted, and for one that it had to kill.
STILL_AT_WORK = (124, 137)


@dataclass(frozen=True)
class Ran:
    """A command that a shell has run."""

    command: str
    code: int
    seconds: int
    output: str


def run_in_one_shell(commands: Sequence[str], folder: Path, **environment: str) -> list[Ran]:
    """Run commands in order in one fresh shell that stands in a folder, with nobody at the keyboard.

    A command that takes longer than :data:`LIMIT_S` is interrupted, and has an exit code of :data:`STILL_AT_WORK`.
    """
    log = folder.parent / f"{folder.name}.log"
    lines = [f"exec > {shlex.quote(str(log))} 2>&1 < /dev/null"]
    for program in ("iossim", "python"):
        lines.append(f'{program}() {{ timeout --signal=INT --kill-after=20 {LIMIT_S} "$(type -P {program})" "$@"; }}')
    for command in commands:
        lines += ["begin=$SECONDS", command, 'printf "\\n@@ %s %s\\n" "$?" "$((SECONDS - begin))"']
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=folder, env={**os.environ, **environment}, check=False)
    return list(_ran(commands, log.read_text(encoding="utf-8", errors="replace")))


def _ran(commands: Sequence[str], log: str) -> Iterator[Ran]:
    outputs = re.split(r"\n@@ (\d+) (\d+)\n", log)
    told = zip(outputs[::3], outputs[1::3], outputs[2::3], strict=False)
    for command, (output, code, seconds) in zip(commands, told, strict=True):
        yield Ran(command, int(code), int(seconds), output)
