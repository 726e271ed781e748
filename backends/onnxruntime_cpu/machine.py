"""The CPU's properties and its other load: read from Linux, and omitted if Linux does not report them.

Other load is the time in which the cores available to this process did other work: the time for which ``/proc/stat``
reports them busy or stolen by a hypervisor, minus the run time of this process. ``/proc/stat`` counts in hundredths of
a second, so that it is meaningful for tenths of a second and more; two hundredths are subtracted as rounding.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from iossim.hardware.host_measuring import SYSTEM, cache_bytes, cpu_facts, system_text

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Busy time that may be due to rounding in ``/proc/stat``.
_ROUNDING_S = 2 / _TICKS_PER_S
#: Assumed if Linux does not report the size of the last-level cache: larger than most.
_UNKNOWN_CACHE_BYTES = 64 << 20


def cpu_model() -> str:
    """The CPU's model with family, model and stepping, which distinguish CPUs of the same name."""
    facts = cpu_facts()
    name = facts.get("model name") or facts.get("Hardware") or os.uname().machine
    numbers = [
        f"{what} {facts[key]}"
        for what, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
        if key in facts
    ]
    return f"{name} ({' '.join(numbers)})" if numbers else name


def last_level_cache_bytes() -> int:
    """The size of the largest cache that the first core sees."""
    return max(map(cache_bytes, SYSTEM.glob("cpu0/cache/index*")), default=0) or _UNKNOWN_CACHE_BYTES


def governor(core: int) -> str:
    """The frequency governor of a core; empty if Linux does not report it, as in most virtual machines."""
    return system_text(SYSTEM / f"cpu{core}/cpufreq/scaling_governor")


def frequency_mhz(core: int) -> float | None:
    """The current frequency of a core, or the nominal one in a virtual machine."""
    current = system_text(SYSTEM / f"cpu{core}/cpufreq/scaling_cur_freq")
    if current.isdigit():
        return int(current) / 1000
    lines = system_text(Path("/proc/cpuinfo")).splitlines()
    frequencies = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    return float(frequencies[min(core, len(frequencies) - 1)]) if frequencies else None


def involuntary_switches() -> int:
    """Number of times that threads of this process lost their core to another one, since the process began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True, slots=True)
class LoadReading:
    """Seconds since boot for which the cores were busy or stolen, and for which this process ran."""

    at_s: float
    busy_s: float | None
    own_s: float

    @staticmethod
    def take(cores: tuple[int, ...]) -> LoadReading:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return LoadReading(time.perf_counter(), _busy_s(cores), own.ru_utime + own.ru_stime)

    def other_load_since(self, before: LoadReading) -> float:
        """Mean number of cores kept busy by others since ``before``; 0 if Linux does not report it."""
        if self.busy_s is None or before.busy_s is None or self.at_s <= before.at_s:
            return 0.0
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s) - _ROUNDING_S
        return max(0.0, others_s / (self.at_s - before.at_s))


def _busy_s(cores: tuple[int, ...]) -> float | None:
    wanted = {f"cpu{core}" for core in cores}
    ticks, found = 0, False
    for line in system_text(Path("/proc/stat")).splitlines():
        name, *counts = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
            ticks += user + nice + system + irq + softirq + steal
            found = True
    return ticks / _TICKS_PER_S if found else None
