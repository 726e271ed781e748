"""The process that a fuzz runs inputs in: one after another, each within a limit of memory, until it is killed.

Reads paths, a line each, and answers with a JSON object a line: what became of the file, how long it took, and by how much the
process grew meanwhile. Whoever started it (:mod:`fuzz_runner`) keeps the time, and starts another where it dies.
"""

import contextlib
import faulthandler
import inspect
import io
import json
import math
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

#: Address space that an input may take besides what the process has when it is warm.
MEMORY_BYTES = 4 << 30
#: A line that nobody reads to its end is not a clear one.
LONGEST_LINE = 2000
#: A file of this name is read for another batch than its own.
REBATCHED = "batch2.onnx"


def main(subject: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what native code prints is no answer
    faulthandler.enable()
    warnings.simplefilter("ignore")
    drive = SUBJECTS[subject]()
    limit = _status_bytes("VmSize") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(json.dumps({"verdict": "ready"}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_outcome(drive, Path(line.rstrip("\n")))) + "\n")


def _outcome(drive: Callable[[Path], object], path: Path) -> dict[str, Any]:
    from iossim.base.errors import IossimError

    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before, started = _status_bytes("VmRSS"), perf_counter()
    verdict, kind, line = "imported", "", ""
    try:
        drive(path)
    except IossimError as error:
        verdict, kind, line = "refused", type(error).__name__, str(error)
        if not line or not line.isprintable() or len(line) > LONGEST_LINE:
            verdict = "unclear"
    except MemoryError as error:
        verdict, kind, line = "memory", type(error).__name__, _where(error)
    except BaseException as error:
        verdict, kind, line = "traceback", type(error).__name__, f"{str(error)[:300]} at {_where(error)}"
    seconds = perf_counter() - started
    grown = max(0, _status_bytes("VmHWM") - before)
    if grown > MEMORY_BYTES:
        verdict = "memory"
    return {"verdict": verdict, "kind": kind, "line": line, "seconds": seconds, "grown_bytes": grown}


def _where(error: BaseException) -> str:
    """The innermost places of an error, those of iossim first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "iossim" in frame.filename or "backends" in frame.filename][-2:]
    places = dict.fromkeys(f"{Path(frame.filename).name}:{frame.lineno}" for frame in [*own, *frames[-1:]])
    return " ".join(places)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {field}")


def importer() -> Callable[[Path], object]:
    """All that is done with a model before a search: load, every block a problem, the sequential price, what show tells."""
    import iossim
    from iossim.api import cost_model
    from iossim.base.errors import IossimError
    from iossim.cli import models
    from iossim.schedule.problem import ScheduleProblem
    from iossim.search.scheduler import schedule

    prices = cost_model("simulator", "v100-sxm2")
    warm = iossim.load("squeezenet")
    schedule(warm, prices, "sequential")

    def drive(path: Path) -> None:
        try:
            network = iossim.load(path, batch=2 if path.name == REBATCHED else None)
        except IossimError as error:
            if str(path) not in str(error):
                raise AssertionError(f"does not name the file: {error}") from error
            raise
        for block in network.blocks:
            ScheduleProblem.of_block(network, block)
        latency_us = schedule(network, prices, "sequential").latency_us
        if not (math.isfinite(latency_us) and latency_us >= 0):  # what only views its input takes no time
            raise AssertionError(f"a latency of {latency_us} us")
        shown = io.StringIO()
        read = SimpleNamespace(network=lambda _: network)  # loading is most of the time, and was done
        with contextlib.redirect_stdout(shown):
            inspect.unwrap(models.show_model)(str(path), read, as_json=True)
        json.loads(shown.getvalue(), parse_constant=_refuse)

    return drive


def command_line() -> Callable[[Path], object]:
    """A command: the file holds its arguments as JSON, and the command runs in the file's folder.

    A refusal is exit code 2, one line on standard error, nothing on standard output, and no file that was not there.
    """
    from iossim.base.errors import IossimError
    from iossim.cli.main import main as run

    def drive(path: Path) -> None:
        arguments: list[str] = json.loads(path.read_text())
        os.chdir(path.parent)
        before = _files(path.parent)
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = run(arguments)
        left = sorted(set(_files(path.parent)) - set(before))
        said = errors.getvalue()
        if code == 2:
            # The report of a validation says what is off.
            printed = "" if arguments[:2] == ["devices", "validate"] else output.getvalue()
            if left or printed or not said.startswith("error: ") or said.count("\n") != 1:
                raise AssertionError(f"left {left}, printed {printed[-200:]!r}, said {said[-300:]!r}")
            raise IossimError(said.strip())
        if code not in (0, 1):
            raise AssertionError(f"exit code {code}")
        for name in left:
            (path.parent / name).unlink()

    return drive


def _files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()]


def probe() -> Callable[[Path], object]:
    """What goes wrong, on purpose: the file says what."""
    from iossim.base.errors import IossimError

    def drive(path: Path) -> None:
        match path.read_text():
            case "refuse":
                error = IossimError()
                error.args = ("two\nlines",)
                raise error
            case "raise":
                raise ValueError("not for a user")
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                threading.Event().wait()
            case "take":
                bytearray(2 * MEMORY_BYTES)

    return drive


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


SUBJECTS: dict[str, Callable[[], Callable[[Path], object]]] = {
    "importer": importer,
    "command": command_line,
    "probe": probe,
}

if __name__ == "__main__":
    main(sys.argv[1])
