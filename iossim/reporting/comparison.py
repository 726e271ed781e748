"""One scheduler's result beside the others': what the comparison table and picture show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iossim.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A scheduler's latency, what it is worth, and what bounds it; ``published_us`` is a measured figure, if known."""

    scheduler: str
    latency_us: float
    speedup: float
    stages: int
    streams: int
    search_s: float
    lower_bound_us: float | None = None
    published_us: float | None = None
    #: Where nine of ten measurements are expected, from and to.
    interval_us: tuple[float, float] | None = None
    #: Schedulers whose schedules differ from this one by less than the noise.
    ties: tuple[str, ...] = ()
    #: What a fit without the network's published figures says; None where they took no part in the fit.
    left_out_us: float | None = None

    @staticmethod
    def of_schedule(
        schedule: Schedule,
        sequential_us: float,
        published_us: float | None = None,
        left_out_us: float | None = None,
    ) -> ComparisonRow:
        """``sequential_us`` is the latency of running the units one by one, which speed-ups are against."""
        return ComparisonRow(
            schedule.scheduler,
            schedule.latency_us,
            sequential_us / schedule.latency_us,
            len(schedule.stages),
            schedule.streams,
            schedule.search_s,
            schedule.lower_bound_us,
            published_us,
            None if schedule.interval_us is None else (schedule.interval_us[0], schedule.interval_us[1]),
            tuple(schedule.ties),
            left_out_us,
        )

    @property
    def gap_percent(self) -> float | None:
        """How far the latency is above the lower bound; None without a bound."""
        return 100 * (self.latency_us / self.lower_bound_us - 1) if self.lower_bound_us else None

    @property
    def error_percent(self) -> float | None:
        """How far the latency is from the published one, with its sign; None where none is known."""
        return 100 * (self.latency_us / self.published_us - 1) if self.published_us else None

    @property
    def left_out_percent(self) -> float | None:
        """How far from the published latency a fit is that saw no figure of the network."""
        known = self.published_us and self.left_out_us
        return 100 * (self.left_out_us / self.published_us - 1) if known else None  # type: ignore[operator]


def best_row(rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """The fastest; of equals the last, which searched the larger space; None of none."""
    least_us = min((row.latency_us for row in rows), default=0.0)
    return next((row for row in reversed(rows) if row.latency_us <= least_us * (1 + 1e-9)), None)
