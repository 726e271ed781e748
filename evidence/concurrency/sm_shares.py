"""Kernels and networks on a part of a device's SMs: curves against the number of SMs, and concurrent networks on
shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evidence.concurrency.microbenchmarks import Microbenchmark
from evidence.concurrency.tables import read_rows
from iossim.measurements.text_files import NumberedRow, RowError, number, optional_count, optional_number

CURVES_FILE, RATES_FILE = "a100_latency_vs_sm_count.csv", "throughput_by_sm_count.csv"
NETWORKS_FILE, PAIRS_FILE = "v100_networks_by_sm_share.csv", "v100_network_pairs.csv"
#: Experiment name of a copy with as many blocks as SMs in use.
BANDWIDTH_EXPERIMENT = "dram_bandwidth_vs_blocks"
CURVES_DEVICE, NETWORKS_DEVICE = "a100-sxm-80gb", "v100-sxm2"
#: Device names in the table of rates.
_DEVICES = {"RTX A6000 (84 SMs)": "rtx-a6000"}

_MS = 1e3


@dataclass(frozen=True, slots=True)
class SmCurve:
    """A kernel (or a few) on parts of a device: its time on ``sms[i]``, rising, and its bandwidth there, GB/s, if
    recorded.
    """

    kernel: str
    batch: int | None
    sms: tuple[int, ...]
    latency_us: tuple[float, ...]
    dram_gbps: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class BandwidthCurve:
    """DRAM bandwidth of streaming kernels on ``sms[i]``, rising; GB/s."""

    device: str
    sms: tuple[int, ...]
    dram_gbps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NetworkShare:
    """A network alone on a part of the SMs, copies of input and output included. ``l2`` and ``dram`` are throughput
    over the peak, None where they were not measured.
    """

    network: str
    batch: int
    percent: int
    latency_us: float
    l2: float | None
    dram: float | None


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A network on its part of the SMs while another runs on the rest."""

    network: str
    batch: int
    percent: int
    other: str
    other_batch: int
    other_percent: int
    alone_us: float
    together_us: float


def read_curves(path: Path) -> list[SmCurve]:
    """Kernels on 14 to 108 SMs of an A100; raises MeasurementError."""
    rows = read_rows(path, _point)
    found = []
    for kernel, batch in dict.fromkeys((row[0], row[1]) for row in rows):
        own = sorted(row[2:] for row in rows if row[:2] == (kernel, batch))
        rates = tuple(rate for _, _, rate in own if rate is not None)
        found.append(
            SmCurve(
                kernel,
                batch,
                tuple(sms for sms, _, _ in own),
                tuple(us for _, us, _ in own),
                rates if len(rates) == len(own) else None,
            )
        )
    return found


def read_bandwidths(path: Path) -> list[BandwidthCurve]:
    """DRAM bandwidth by number of SMs, for the recorded devices; raises MeasurementError."""
    points: dict[str, list[tuple[int, float]]] = {}
    for device, sms, rate in filter(None, read_rows(path, _rate)):
        points.setdefault(device, []).append((sms, rate))
    return [_bandwidth(device, own) for device, own in points.items()]


def block_bandwidth(rows: Iterable[Microbenchmark]) -> list[BandwidthCurve]:
    """DRAM bandwidth by microbenchmarks with one block per SM; the last is that of all SMs, or nearest to it."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        blocks = row.kernels[0].blocks
        if row.experiment == BANDWIDTH_EXPERIMENT and blocks is not None and row.bandwidth_gbps is not None:
            points.setdefault(row.device, []).append((blocks, row.bandwidth_gbps))
    return [_bandwidth(device, own) for device, own in points.items()]


def fastest_draw(curves: Iterable[SmCurve], device: str) -> list[BandwidthCurve]:
    """DRAM bandwidth by the kernel that draws most from the fewest SMs, of those with recorded bandwidth; empty
    without.
    """
    known = [(curve.dram_gbps[0], curve.sms, curve.dram_gbps) for curve in curves if curve.dram_gbps]
    if not known:
        return []
    _, sms, dram_gbps = max(known)
    return [BandwidthCurve(device, sms, dram_gbps)]


def _bandwidth(device: str, points: Iterable[tuple[int, float]]) -> BandwidthCurve:
    rising = sorted(points)
    return BandwidthCurve(device, tuple(sms for sms, _ in rising), tuple(rate for _, rate in rising))


def read_network_shares(path: Path) -> list[NetworkShare]:
    """Networks on shares of a V100; raises MeasurementError."""
    return read_rows(path, _share)


def read_network_pairs(path: Path) -> list[SharedRun]:
    """Two concurrent networks on shares of a V100, each a run; raises MeasurementError."""
    return [run for pair in read_rows(path, _pair) for run in pair]


def _point(row: NumberedRow) -> tuple[str, int | None, int, float, float | None]:
    cells = row.cells
    rate = optional_number(cells, "achieved_bandwidth_GB_per_s")
    return (
        str(cells["kernel"]),
        optional_count(cells, "batch"),
        _count(row, "sm_count"),
        _MS * number(cells, "latency_ms"),
        rate,
    )


def _rate(row: NumberedRow) -> tuple[str, int, float] | None:
    cells = row.cells
    if cells["device"] not in _DEVICES or not str(cells["what"]).startswith("DRAM read bandwidth"):
        return None
    return _DEVICES[str(cells["device"])], _count(row, "sm_or_blocks"), number(cells, "value")


def _share(row: NumberedRow) -> NetworkShare:
    cells = row.cells
    l2, dram = (optional_number(cells, f"{name}_throughput_pct_of_peak") for name in ("l2", "dram"))
    return NetworkShare(
        str(cells["network"]),
        _count(row, "batch"),
        _count(row, "mps_active_thread_percentage"),
        _MS * number(cells, "latency_ms"),
        None if l2 is None else l2 / 100,
        None if dram is None else dram / 100,
    )


def _pair(row: NumberedRow) -> tuple[SharedRun, SharedRun]:
    def run(own: str, other: str) -> SharedRun:
        return SharedRun(
            str(row.cells[f"network_{own}"]),
            _count(row, f"batch_{own}"),
            _count(row, f"percentage_{own}"),
            str(row.cells[f"network_{other}"]),
            _count(row, f"batch_{other}"),
            _count(row, f"percentage_{other}"),
            _MS * number(row.cells, f"alone_{own}_ms"),
            _MS * number(row.cells, f"together_{own}_ms"),
        )

    return run("a", "b"), run("b", "a")


def _count(row: NumberedRow, name: str) -> int:
    found = optional_count(row.cells, name)
    if found is None:
        raise RowError(f"{name} is empty")
    return found
