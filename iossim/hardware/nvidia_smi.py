"""The GPUs of this machine as reported by ``nvidia-smi``: no CUDA library is needed, and none is loaded."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, fields

_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as ``nvidia-smi`` reports it now; unavailable numbers are None."""

    name: str
    driver_version: str
    compute_capability: str
    memory_mib: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None


#: The query of each field of :class:`Gpu`, in order.
_QUERIES = (
    "name", "driver_version", "compute_cap", "memory.total", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw",
    "power.limit", "temperature.gpu",
)  # fmt: skip


def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this machine, in its order; empty if ``nvidia-smi`` is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={','.join(_QUERIES)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse(done.stdout) if done.returncode == 0 else ()


def parse(text: str) -> tuple[Gpu, ...]:
    """GPUs from the output lines of ``nvidia-smi``; lines of another form are skipped."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    whole = (row for row in rows if len(row) == len(fields(Gpu)))
    return tuple(Gpu(name, driver, capability, *map(_number, rest)) for name, driver, capability, *rest in whole)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"
