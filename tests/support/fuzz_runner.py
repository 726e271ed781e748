"""Runs the inputs of a fuzz in a process of their own, which is replaced where one takes too long or kills it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_seeds import EXTERNAL_BYTES, EXTERNAL_FILE

#: What a file may take before it is refused, or done.
LIMIT_S = 60.0
_WORKER = Path(__file__).with_name("fuzz_worker.py")
FINE = ("imported", "refused")


@dataclass(frozen=True)
class Outcome:
    """What became of an input.

    ``imported`` and ``refused`` (by an error of one line) are as it should be; ``unclear`` is a refusal whose line is none,
    ``traceback`` any other exception, ``memory`` an allocation beyond the limit; ``timeout`` and ``crash`` are of the
    process. ``kind`` is the class of the error, ``line`` its text. ``grown_bytes`` is the peak of resident memory over what
    the process had before.
    """

    verdict: str
    kind: str = ""
    line: str = ""
    seconds: float = 0.0
    grown_bytes: int = 0

    @property
    def is_fine(self) -> bool:
        return self.verdict in FINE


class Runner:
    """A worker that is kept for many inputs; a context manager, which ends it."""

    def __init__(self, subject: str = "importer", limit_s: float = LIMIT_S) -> None:
        self._subject, self._limit_s = subject, limit_s
        self._folder = tempfile.TemporaryDirectory()
        self._worker: subprocess.Popen[str] | None = None
        self._messages = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in __exit__)
        #: Where inputs are written, and what lies beside them.
        self.folder = Path(self._folder.name)
        (self.folder / EXTERNAL_FILE).write_bytes(EXTERNAL_BYTES)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._worker is not None and self._worker.stdin is not None:
            self._worker.stdin.close()
            self._worker.wait(timeout=30)
        self._messages.close()
        self._folder.cleanup()

    def run(self, data: bytes, name: str = "model.onnx") -> Outcome:
        """What becomes of a file of these contents."""
        path = self.folder / name
        path.write_bytes(data)
        worker = self._worker or self._start()
        assert worker.stdin is not None
        worker.stdin.write(f"{path}\n")
        worker.stdin.flush()
        return self._answer(worker)

    def _start(self) -> subprocess.Popen[str]:
        self._messages.seek(0)
        self._messages.truncate()
        self._worker = subprocess.Popen(
            [sys.executable, str(_WORKER), self._subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        started = self._answer(self._worker, 600.0)  # compiles when the cache is cold
        if started.verdict != "ready":
            raise RuntimeError(f"the worker of the fuzz does not start: {started.line}")
        return self._worker

    def _answer(self, worker: subprocess.Popen[str], limit_s: float | None = None) -> Outcome:
        assert worker.stdout is not None
        limit_s = limit_s or self._limit_s
        readable, _, _ = select.select([worker.stdout], [], [], limit_s)
        line = worker.stdout.readline() if readable else ""
        if line:
            return Outcome(**json.loads(line))
        self._worker = None
        if not readable:
            worker.send_signal(signal.SIGABRT)  # faulthandler writes where it was
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()
        code = worker.wait()
        verdict = "crash" if readable else "timeout"
        return Outcome(verdict, signal.Signals(-code).name if code < 0 else str(code), self._trace(), limit_s)

    def _trace(self) -> str:
        """The innermost places that faulthandler wrote, and the last line."""
        self._messages.seek(0)
        lines = [line.strip() for line in self._messages if line.strip()]
        frames = [line.rsplit("/", 1)[-1] for line in lines if line.startswith("File ")]
        return " < ".join(frames[:6]) or " ".join(lines[-1:])[:300]


@dataclass
class Tally:
    """Outcomes counted, and the most that any took."""

    verdicts: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    grown_bytes: int = 0

    def add(self, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        self.longest_s = max(self.longest_s, outcome.seconds)
        self.grown_bytes = max(self.grown_bytes, outcome.grown_bytes)
