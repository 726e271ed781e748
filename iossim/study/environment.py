"""Where and how a study was run: all that may differ between two runs with equal results."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

from iossim._version import __version__
from iossim.base.cores import usable_cores

#: Packages that results or their speed may depend on.
_PACKAGES = ("numpy", "numba", "scipy", "simpy", "pydantic", "onnx", "joblib", "distributed", "pyarrow")


@dataclass
class Attempt:
    """One call of ``run_study`` on a folder; the first, or one that went on."""

    command: Sequence[str]
    executor: str
    workers: int
    #: Points that earlier attempts had done.
    taken_over: int
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _begin_s: float = field(default_factory=perf_counter)

    def to_json(self, done: int | None = None) -> dict[str, Any]:
        """``done``: points of this attempt, once it has come to its end."""
        told: dict[str, Any] = {
            "command": list(self.command),
            "executor": self.executor,
            "workers": self.workers,
            "started": self.started.isoformat(timespec="seconds"),
            "points_taken_over": self.taken_over,
        }
        if done is None:
            return told
        return {**told, "points_done": done, "elapsed_s": round(perf_counter() - self._begin_s, 3)}


def environment(attempts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Versions and machine of this process, and the attempts."""
    return {
        "iossim": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": len(usable_cores()),
        "attempts": list(attempts),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
