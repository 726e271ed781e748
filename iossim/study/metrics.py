"""The figures of a row, declared once: each one's name, unit, better direction, and availability.

Questions and conditions name them, answers state them in words, and a report shows them as columns, all by this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iossim.base.tables import Column
from iossim.study.axes import KINDS
from iossim.study.study_kind import Direction, Metric


def _micro_batches(
    name: str, words: str, unit: str, title: str, digits: int = 2, better: Direction = "lowest"
) -> Metric:
    return Metric(name, words, unit, better, Column(name, title, digits), measure="micro_batches")


#: All metrics by name, in the order of a report's columns.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("latency_ms", "latency", " ms", column=Column("latency_ms", digits=3)),
        Metric("low_ms", "lowest expected latency", " ms", column=Column("low_ms", "expected from", 3)),
        Metric("high_ms", "highest expected latency", " ms", column=Column("high_ms", "expected to", 3)),
        Metric("speedup", "speed-up", "x", "highest", Column("speedup_x", "speed-up")),
        Metric("throughput_per_s", "throughput", " samples/s", "highest",
               Column("throughput", "throughput, samples/s", 1)),
        Metric("stages", "number of stages", " stages", column=Column("stages")),
        Metric("streams", "number of streams", " streams", column=Column("streams")),
        Metric("merged_stages", "number of merged stages", " merged stages", column=Column("merged_stages", "merged")),
        Metric("gap", "gap above the bound", column=Column("gap_percent", "above bound", 1)),
        Metric("active_warps", "number of active warps", " active warps", "highest",
               Column("active_warps", "active warps", 0), measure="active_warps"),
        Metric("peak_memory_mib", "peak memory", " MiB", column=Column("peak_memory_mib", "peak memory", 1), per="MiB",
               measure="peak_memory"),
        Metric("weights_mib", "size of the weights", " MiB of weights", column=Column("weights_mib", "weights", 1),
               per="MiB of weights"),
        Metric("kernels", "number of kernels", " kernels", column=Column("kernels")),
        Metric("gmacs", "number of multiply-adds", "e9 multiply-adds", column=Column("gmacs", "10⁹ multiply-adds", 2)),
        Metric("traffic_mib", "memory traffic", " MiB moved", column=Column("traffic_mib", "moved", 1)),
        _micro_batches("convolutions_ms", "time of the convolutions", " ms of convolutions", "convolutions"),
        _micro_batches("undivided_ms", "time of the convolutions undivided", " ms of convolutions undivided",
                       "undivided"),
        _micro_batches("micro_batch_gain", "gain by micro-batches", "x", "by micro-batches", better="highest"),
        _micro_batches("largest_gain", "gain of the kernel that gains most", "x", "of one kernel", better="highest"),
        _micro_batches("workspace_mib", "size of the workspaces", " MiB of workspaces", "workspaces, MiB", 1),
        *(metric for kind in KINDS for metric in kind.metrics),
        Metric("published_ms", "published latency", " ms", column=Column("published_ms", "published", 3)),
        Metric("board_power_w", "board power", " W", per="watt"),
        Metric("peak_tflops", "fp32 peak", " TFLOP/s", "highest", per="TFLOP/s"),
    )
}  # fmt: skip
#: The kind of study that alone has a metric, by the metric's name.
KIND_OF_METRIC = {metric.name: kind for kind in KINDS for metric in kind.metrics}
#: Metrics of a device's size; the first is the default.
DEVICE_SIZES = ("board_power_w", "peak_tflops")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A metric, or one metric per another."""

    metric: str = "latency_ms"
    per: str | None = None

    def of(self, row: Any) -> float | None:
        """Value in a row; None if unknown."""
        over: float | None = getattr(row, self.metric)
        under: float | None = getattr(row, self.per) if self.per else 1.0
        return None if over is None or not under else over / under

    @property
    def words(self) -> str:
        """Name in a sentence."""
        per = "" if self.per is None else METRICS[self.per].per or METRICS[self.per].words
        return METRICS[self.metric].words + (f" per {per}" if per else "")

    def amount(self, value: float) -> str:
        if self.metric == "gap":
            told = f"{100 * value:.2g}% above the bound"
        else:
            told = f"{number(value)}{METRICS[self.metric].unit}"
        return told if self.per is None else f"{told} per {METRICS[self.per].per or self.per}"

    def exact(self, bound: float) -> str:
        """A bound as it was given, with its unit."""
        return f"{bound:,g}{METRICS[self.metric].unit}"

    def span(self, values: list[float]) -> str:
        """Range of several figures: ``1.2 to 1.6x``."""
        low, high = min(values), max(values)
        return self.amount(low) if number(low) == number(high) else f"{number(low)} to {self.amount(high)}"


def number(value: float) -> str:
    """Three significant digits, or all digits before the point: ``0.00123``, ``4.31``, ``1,234``."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
