"""One network on several devices: the best schedule of each, its speed-up, and which device is fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rich.table import Table

from iossim.base.tables import Cell, csv_text, described_table
from iossim.tasks.comparison import Comparison, ComparisonRow, best_row

#: Columns of a row that hold a single value.
_PLAIN = [each.name for each in fields(ComparisonRow) if each.name not in ("interval_us", "ties")]


@dataclass(frozen=True)
class DeviceComparison:
    """Comparisons of schedulers, one per device, in the order given.

    ``complete`` is False if it was interrupted: devices may be missing, as may schedulers of the last one.
    """

    comparisons: tuple[Comparison, ...]
    complete: bool = True
    #: Power of the boards that have one, by device, and the latency that was asked for.
    board_power_w: Mapping[str, float] = field(default_factory=dict)
    limit_ms: float | None = None

    @property
    def best(self) -> list[tuple[Comparison, ComparisonRow]]:
        """The fastest schedule on each device."""
        found = ((each, best_row(each.rows)) for each in self.comparisons)
        return [(each, row) for each, row in found if row is not None]

    @property
    def title(self) -> str:
        first = self.comparisons[0]
        where = f"{first.network.name} on {len(self.comparisons)} devices, batch {first.batch}"
        return f"{where}, {first.network.precision}, priced by {first.cost_model['name']}"

    def table(self) -> Table:
        """A table with one row per device; a limit takes the room of the baseline, which the gain tells."""
        records: list[dict[str, Cell]] = [
            {
                "device": each.device,
                "engine": each.engine,
                **({"baseline_ms": each.baseline_us / 1e3} if self.limit_ms is None else {}),
                "best_ms": row.latency_us / 1e3,
                **_interval_ms(row),
                **({} if self.limit_ms is None else {"within": _within(row, self.limit_ms)}),
                "speedup_x": row.speedup,
                **({"power_w": self.board_power_w.get(each.device)} if self.board_power_w else {}),
                "scheduler": row.scheduler,
                "gap_percent": row.gap_percent,
            }
            for each, row in self.best
        ]
        baseline = {"title": self.comparisons[0].baseline.scheduler, "digits": 3}
        return described_table(__package__, "devices", "", records, baseline_ms=baseline)

    def sentences(self) -> list[str]:
        """The fastest device, and where a limit was given, those within it."""
        engines = dict.fromkeys(each.engine for each in self.comparisons)
        mixed = f"Engines differ ({', '.join(engines)}): --engine compares the devices under one"
        within = [] if self.limit_ms is None else [self._within(self.limit_ms)]
        return [self._fastest(), *([mixed] if len(engines) > 1 else []), *within]

    def _fastest(self) -> str:
        """The fastest device, its factor over the next, and whether their intervals overlap."""
        (fastest, row), *others = sorted(self.best, key=lambda item: item[1].latency_us)
        said = f"Fastest: {fastest.device}, {row.latency_us / 1e3:.3f} ms by {row.scheduler}"
        if not others:
            return said
        second, next_row = others[0]
        factor = next_row.latency_us / row.latency_us if row.latency_us else 1.0  # nothing may take time
        said += f", {factor:.2f}x as fast as {second.device}"
        if row.interval_us is None or next_row.interval_us is None:
            return said
        apart = row.interval_us[1] < next_row.interval_us[0]
        return f"{said}; their 90% intervals {'do not overlap' if apart else 'overlap, so that either may be'}"

    def _within(self, limit_ms: float) -> str:
        """The devices within the limit, and of these the one of the least power."""
        within = [each.device for each, row in self.best if _within(row, limit_ms) != "no"]
        said = f"Within {limit_ms:g} ms: {', '.join(within) or 'none of them'}"
        if not within or not all(device in self.board_power_w for device in within):
            return said
        least = min(within, key=lambda device: self.board_power_w[device])
        return f"{said}; the least power is that of {least} ({self.board_power_w[least]:g} W)"

    def to_json(self) -> dict[str, object]:
        """The comparisons as JSON values, and the fastest device."""
        return {
            "devices": [each.to_json() for each in self.comparisons],
            "fastest": min(self.best, key=lambda item: item[1].latency_us)[0].device,
            "complete": self.complete,
            "board_power_w": dict(self.board_power_w),
            "max_latency_ms": self.limit_ms,
        }

    def csv(self) -> str:
        """One line per scheduler and device; latencies in us."""
        lines = [
            [each.device, each.engine, *(getattr(row, name) for name in _PLAIN), *(row.interval_us or (None, None))]
            for each in self.comparisons
            for row in each.rows
        ]
        return csv_text([["device", "engine", *_PLAIN, "low_us", "high_us"], *lines])


def _within(row: ComparisonRow, limit_ms: float) -> str:
    """Answer whether a latency is within the limit: yes if its whole interval is, else likely or no."""
    if row.latency_us > 1e3 * limit_ms:
        return "no"
    return "yes" if row.interval_us is None or row.interval_us[1] <= 1e3 * limit_ms else "likely"


def _interval_ms(row: ComparisonRow) -> dict[str, Cell]:
    low_us, high_us = row.interval_us or (None, None)
    return {name: None if us is None else us / 1e3 for name, us in (("low_ms", low_us), ("high_ms", high_us))}
