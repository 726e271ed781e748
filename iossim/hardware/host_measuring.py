"""Profile of this machine's CPU in a few seconds: what Linux reports, and short measurements.

The peak is ``cores x lanes x 2 x clock``, lanes being those of a core's multiply-add vector units.
The nominal clock of a CPU may be far from its actual one, especially in a virtual machine: the clock here is at
least the one at which a measured matrix product would reach :data:`PRODUCT_PART` of the peak, so that no efficiency
needs to exceed 1. If Linux does not report a fact, its source says so.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from iossim.base.errors import DeviceError, note_once
from iossim.base.threads import usable_cores
from iossim.hardware.names import HOST_CPU, host_cpu_path, load_host_cpu
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Provenance
from iossim.hardware.write import save_host_cpu

HOST_PROVENANCE = Provenance(
    kind="hand-set",
    note=(
        "rounded from operators measured with ONNX Runtime on one x86-64 processor with AVX-512; another one "
        "differs, until it is calibrated"
    ),
)

#: Least fraction of the peak that libraries reach in large matrix products.
PRODUCT_PART = 0.85
#: Vector lanes times units of a core, by CPU flag; the first that a CPU has counts.
_LANES = (
    ("avx512f", 32, "two units of 16 lanes"),
    ("avx2", 16, "two units of 8 lanes"),
    ("avx", 8, "one multiplier and one adder of 8 lanes"),
    ("sse2", 4, "one multiplier and one adder of 4 lanes"),
    ("asimd", 8, "two units of 4 lanes"),
)
_UNKNOWN_LANES = 8
_UNKNOWN_CLOCK_GHZ = 1.0
_UNKNOWN_CORE_CACHE_BYTES = 1 << 20
_UNKNOWN_LAST_CACHE_BYTES = 32 << 20
_COPIES = 3
#: The two buffers of a copy take at most this fraction (1/n) of the memory.
_LARGEST_MEMORY_PART = 8
_PRODUCT_SIZE = 512
_PRODUCT_S = 0.8
_PRODUCT = f"""
import time
import numpy as np
a = np.ones(({_PRODUCT_SIZE}, {_PRODUCT_SIZE}), dtype=np.float32)
out = np.empty_like(a)
best = float("inf")
end = time.perf_counter() + {_PRODUCT_S}
while time.perf_counter() < end:
    start = time.perf_counter()
    np.matmul(a, a, out=out)
    best = min(best, time.perf_counter() - start)
print(2e-9 * {_PRODUCT_SIZE}**3 / best)
"""
_ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def ensure_host_cpu(device: str | None) -> None:
    """If ``device`` is this machine's CPU and has no profile yet, measure it in a few seconds and save the profile.

    A notice on standard error reports this, and each use of uncalibrated parameters. Raises DeviceError if the
    profile cannot be saved.
    """
    if device is None or device.partition("+")[0] != HOST_CPU:
        return
    path = host_cpu_path()
    if not path.exists():
        note_once(f"device {HOST_CPU!r}: measuring this machine's arithmetic and memory for about three seconds")
        save_host_cpu(measure_host_cpu())
        note_once(f"described this machine's CPU in {path}")
    if load_host_cpu().provenance == HOST_PROVENANCE:
        note_once(
            f"device {HOST_CPU!r}: arithmetic and memory are measured, what kernels reach of them is taken from "
            "another CPU; docs/hardware.md says how to calibrate it (needs pip install 'iossim[cpu]')"
        )


def measure_host_cpu() -> DeviceProfile:
    """A profile named ``cpu`` of this machine with default parameters; takes a second or two.

    The machine should be idle meanwhile.
    """
    date, says = datetime.date.today().isoformat(), cpu_facts()
    cores = len({_siblings(core) for core in usable_cores()})
    sources = {"affinity": "cores that this process may run on (sched_getaffinity, threads of a core counted once)"}

    lanes, sources["lanes"] = _lanes(says)
    nominal_ghz, nominal_source = _nominal_clock_ghz(says)
    product_gflops = _product_gflops()
    needed_ghz = product_gflops / (2 * lanes * PRODUCT_PART)
    clock_ghz = round(max(nominal_ghz, needed_ghz), 3)
    sources["clock"] = (
        f"the higher of {nominal_ghz:.2f} GHz ({nominal_source}) and of what one core needs for {PRODUCT_PART:.0%} "
        f"of its peak in a product of {_PRODUCT_SIZE} x {_PRODUCT_SIZE} matrices: {product_gflops:.0f} GFLOP/s, "
        f"measured on {date}"
    )
    last_cache, core_cache, sources["caches"] = _caches()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bandwidth_gbps, copied = _copy_gbps(last_cache, memory_bytes, cores)
    sources["copy"] = f"measured on {date}: copies of {copied >> 20} MiB by {cores} threads, bytes read and written"
    sources["system"] = "physical memory as reported by the system"
    sources["computed"] = "cores x lanes x 2 x clock"
    facts: dict[str, tuple[float, str]] = {
        "sm_count": (cores, "affinity"),
        "fp32_lanes_per_sm": (lanes, "lanes"),
        "boost_clock_ghz": (clock_ghz, "clock"),
        "dram_bandwidth_gbps": (round(bandwidth_gbps, 1), "copy"),
        "dram_bytes": (memory_bytes, "system"),
        "l2_bytes": (last_cache, "caches"),
        "core_cache_bytes": (core_cache, "caches"),
        "fp32_tflops": (round(cores * lanes * 2 * clock_ghz / 1e3, 4), "computed"),
    }
    name = says.get("model name") or says.get("Hardware") or os.uname().machine
    return DeviceProfile.model_validate(
        {
            "name": HOST_CPU,
            "kind": "cpu",
            "title": f"{name}, {cores} core{'s' if cores > 1 else ''}",
            "sources": sources,
            "datasheet": {fact: {"value": value, "source": source} for fact, (value, source) in facts.items()},
            "provenance": HOST_PROVENANCE.model_dump(),
        }
    )


SYSTEM = Path("/sys/devices/system/cpu")


def system_text(path: Path) -> str:
    """The text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def cpu_facts() -> dict[str, str]:
    """The fields of ``/proc/cpuinfo`` for the first core."""
    facts: dict[str, str] = {}
    for line in system_text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return facts


def _siblings(core: int) -> str:
    return system_text(SYSTEM / f"cpu{core}" / "topology" / "thread_siblings_list") or str(core)


def _lanes(says: Mapping[str, str]) -> tuple[int, str]:
    flags = (says.get("flags") or says.get("Features") or "").split()
    for flag, lanes, units in _LANES:
        if flag in flags:
            return lanes, f"/proc/cpuinfo has {flag}: {units} taken for it"
    return _UNKNOWN_LANES, "assumed: /proc/cpuinfo names no vector unit that is known"


def _nominal_clock_ghz(says: Mapping[str, str]) -> tuple[float, str]:
    highest = system_text(SYSTEM / f"cpu{usable_cores()[0]}" / "cpufreq" / "cpuinfo_max_freq")
    if highest.isdigit():
        return int(highest) / 1e6, "cpufreq's highest"
    try:
        return float(says["cpu MHz"]) / 1e3, "/proc/cpuinfo"
    except (KeyError, ValueError):
        return _UNKNOWN_CLOCK_GHZ, "assumed: the system reports no clock"


def _caches() -> tuple[int, int, str]:
    """Bytes of the last-level cache and of the largest private cache of the first core, and their source."""
    core = usable_cores()[0]
    last, own = 0, 0
    for index in sorted((SYSTEM / f"cpu{core}" / "cache").glob("index*")):
        size = cache_bytes(index)
        if not size or system_text(index / "type") == "Instruction":
            continue
        last = max(last, size)
        if system_text(index / "shared_cpu_list") in (_siblings(core), str(core)):
            own = max(own, size)
    source = "/sys/devices/system/cpu"
    if not last:
        return _UNKNOWN_LAST_CACHE_BYTES, _UNKNOWN_CORE_CACHE_BYTES, "assumed: the system reports no caches"
    if not own:
        own, source = min(last, _UNKNOWN_CORE_CACHE_BYTES), f"{source}; which a core has to itself is assumed"
    return last, own, source


def cache_bytes(index: Path) -> int:
    """The size of the cache that a folder of Linux describes; 0 if it does not say."""
    text = system_text(index / "size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[:-1].isdigit() and text[-1] in units else 0


def _product_gflops() -> float:
    """The best rate of a matrix product on one thread, in a process with single-threaded libraries."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRODUCT],
            env={**os.environ, **_ONE_THREAD},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise DeviceError(
            f"cannot measure a matrix product with {sys.executable}: {error}; repair NumPy's installation"
        ) from None


def _copy_gbps(last_cache: int, memory_bytes: int, cores: int) -> tuple[float, int]:
    """The best rate of copies on all cores, and the bytes copied: more than the last-level cache, if possible."""
    import numpy as np

    size = min(max(64 << 20, last_cache * 5 // 4), memory_bytes // _LARGEST_MEMORY_PART // 2) // 4
    source, target = np.ones(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    ends = [size * core // cores for core in range(cores + 1)]
    best_s = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(_COPIES + 1):  # the first iteration touches the memory
            start_s = time.perf_counter()
            list(pool.map(lambda begin, end: np.copyto(target[begin:end], source[begin:end]), ends[:-1], ends[1:]))
            best_s = min(best_s, time.perf_counter() - start_s)
    return 2e-9 * source.nbytes / best_s, source.nbytes
