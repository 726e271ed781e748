"""Kernels and networks on a part of a device's SMs: curves against the number of SMs, and concurrent networks on
shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas

from evidence.concurrency.microbenchmarks import Microbenchmark
from evidence.concurrency.tables import read_table

CURVES_FILE, RATES_FILE = "a100_latency_vs_sm_count.csv", "throughput_by_sm_count.csv"
NETWORKS_FILE, PAIRS_FILE = "v100_networks_by_sm_share.csv", "v100_network_pairs.csv"
#: Experiment name of a copy with as many blocks as SMs in use.
BANDWIDTH_EXPERIMENT = "dram_bandwidth_vs_blocks"
CURVES_DEVICE, NETWORKS_DEVICE = "a100-sxm-80gb", "v100-sxm2"
#: Device in the table of rates that has bandwidths, by its name there.
_BANDWIDTHS_OF = ("RTX A6000 (84 SMs)", "rtx-a6000")


@dataclass(frozen=True, slots=True)
class SmCurve:
    """A kernel (or a few) on parts of a device: its time on ``sms[i]``, rising, and its bandwidth there, GB/s, if
    recorded.
    """

    kernel: str
    sms: tuple[int, ...]
    latency_us: tuple[float, ...]
    dram_gbps: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class BandwidthCurve:
    """DRAM bandwidth of streaming kernels on ``sms[i]``, rising; GB/s."""

    device: str
    sms: tuple[int, ...]
    dram_gbps: tuple[float, ...]


def read_curves(path: Path) -> list[SmCurve]:
    """Kernels on 14 to 108 SMs of an A100; raises MeasurementError."""
    rates = "achieved_bandwidth_GB_per_s"
    table = read_table(path, ["sm_count"], ["latency_ms"], ["batch", rates])
    found = []
    for (kernel, batch), own in table.groupby(["kernel", "batch"], sort=False, dropna=False):
        rising = own.sort_values("sm_count")
        name = kernel if pandas.isna(batch) else f"{kernel}, batch {batch:g}"
        dram_gbps = None if rising[rates].isna().any() else tuple(rising[rates].tolist())
        found.append(SmCurve(name, tuple(rising["sm_count"].tolist()), tuple(rising["latency_us"].tolist()), dram_gbps))
    return found


def read_bandwidths(path: Path) -> list[BandwidthCurve]:
    """DRAM bandwidth by number of SMs, for the recorded devices; raises MeasurementError."""
    called, device = _BANDWIDTHS_OF
    table = read_table(
        path,
        ["sm_or_blocks"],
        ["value"],
        among=lambda cells: cells["device"] == called and str(cells["what"]).startswith("DRAM read bandwidth"),
    )
    return [_bandwidth(device, zip(table["sm_or_blocks"].tolist(), table["value"].tolist(), strict=True))]


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
    return [BandwidthCurve(device, *max(known)[1:])] if known else []


def _bandwidth(device: str, points: Iterable[tuple[int, float]]) -> BandwidthCurve:
    sms, rates = zip(*sorted(points), strict=True)
    return BandwidthCurve(device, sms, rates)


def read_network_shares(path: Path) -> pandas.DataFrame:
    """Networks alone on a ``percent`` of a V100's SMs: ``latency_us`` of a ``batch``, copies of input and output
    included, and ``l2``, throughput over the peak, nan where it was not measured. Raises MeasurementError.
    """
    percent, l2 = "mps_active_thread_percentage", "l2_throughput_pct_of_peak"
    table = read_table(path, ["batch", percent], ["latency_ms"], [l2]).rename(columns={percent: "percent", l2: "l2"})
    return table.assign(l2=table["l2"] / 100)


def read_network_pairs(path: Path) -> pandas.DataFrame:
    """Two concurrent networks on shares of a V100, two rows each: ``alone_us`` and ``together_us`` of a ``network``,
    its ``batch`` and ``percent``, and those of the ``other``. Raises MeasurementError.
    """
    counts = [f"{name}_{side}" for name in ("batch", "percentage") for side in "ab"]
    times = [f"{name}_{side}_ms" for name in ("alone", "together") for side in "ab"]
    table = read_table(path, counts, times)

    def seen_from(own: str, other: str) -> pandas.DataFrame:
        names = {"network": f"network_{own}", "batch": f"batch_{own}", "percent": f"percentage_{own}"}
        names |= {f"{name}_us": f"{name}_{own}_us" for name in ("alone", "together")}
        names |= {"other": f"network_{other}", "other_batch": f"batch_{other}", "other_percent": f"percentage_{other}"}
        return pandas.DataFrame({name: table[column] for name, column in names.items()})

    return pandas.concat([seen_from("a", "b"), seen_from("b", "a")]).sort_index(kind="stable", ignore_index=True)
