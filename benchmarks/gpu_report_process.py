"""A section of ``gpu_report.py`` as a separate process: its execution and its outcome."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Exit codes of a section besides 0: it died; items of it failed or were omitted.
FAILED, PARTIAL = 1, 3


@dataclass(frozen=True)
class Outcome:
    """Outcome of a section: ``done``, ``partial`` (items failed or omitted), ``failed``, ``killed`` or ``skipped``."""

    section: str
    outcome: str
    seconds: float
    error: str = ""

    def record(self) -> dict[str, Any]:
        seconds = round(self.seconds, 2)
        found: dict[str, Any] = {"record": "section", "section": self.section, "outcome": self.outcome, "s": seconds}
        return {**found, "error": self.error} if self.error else found


def run_section(
    section: str, command: Sequence[str], seconds: float, kill_s: float, out: Path, environment: Mapping[str, str]
) -> Outcome:
    """Run a section's process, its output at the end of ``log.txt``; it is killed ``kill_s`` after its start."""
    log = out / "log.txt"
    begin_s = time.monotonic()
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"\n== {section}, {seconds:.0f} s\n")
        stream.flush()
        start = stream.tell()
        # It has its own session, so that the processes it started (compilers, pytest) end with it.
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(kill_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    took_s = time.monotonic() - begin_s
    if code == 0:
        return Outcome(section, "done", took_s)
    if code is None:
        return Outcome(section, "killed", took_s, f"not at its end {kill_s:.0f} s after its start")
    said = [line for line in log.read_bytes()[start:].decode(errors="replace").splitlines() if line.strip()]
    reason = said[-1][:500] if said else "it said nothing"
    if code == PARTIAL:
        return Outcome(section, "partial", took_s, reason)
    return Outcome(section, "failed", took_s, f"exit code {code}: {reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the remaining processes of a section's own session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
