"""Schedules as sentences, for terminal, pages and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iossim.report.search_words import expectation, interval_words
from iossim.schedule.schedule import AnySchedule, SavedSchedule, Schedule

if TYPE_CHECKING:
    from iossim.execution.execution import Execution


def heading(schedule: AnySchedule) -> str:
    """Network, setup, scheduler and latency of a schedule."""
    where = f"{schedule.network} on {schedule.device or schedule.cost_model.get('name', '')}"
    setup = ", ".join(setup_words(schedule))
    return f"{where}, {setup}: {schedule.latency_us / 1e3:.3f} ms"


def setup_words(schedule: SavedSchedule) -> list[str]:
    engine = [f"{schedule.engine} engine"] if schedule.engine else []
    return [f"batch {schedule.source.batch}", schedule.precision, *engine, schedule.scheduler]


def headline(found: AnySchedule, sequential_us: float | None = None) -> str:
    """Latency, its origin, the expected interval and, if known, the speed-up."""
    name = found.cost_model.get("name")
    told = [f"{found.latency_us / 1e3:.3f} ms {'simulated' if name == 'simulator' else f'priced by {name}'}"]
    if found.interval_us is not None:
        told.append(f"{interval_words(found.interval_us)} expected on hardware (90% interval)")
    if sequential_us and found.scheduler != "sequential":
        told.append(speedup_words(found, sequential_us))
    return ", ".join(told)


def speedup_words(found: SavedSchedule, sequential_us: float) -> str:
    noise = ", within the noise" if "sequential" in found.ties else ""
    return f"speed-up {found.speedup(sequential_us):.2f}x over sequential{noise}"


def schedule_facts(found: AnySchedule) -> str:
    """Setup of a schedule, and its numbers of stages, or of launches and waits, and of streams."""
    if isinstance(found, Schedule):
        counts, streams, several = [f"{len(found.stages)} stages"], found.streams, "at most "
    else:
        waits = sum(len(launch.after) for launch in found.launches)
        counts, streams, several = [f"{len(found.launches)} launches, {waits} waits"], len(found.streams), ""
    return " · ".join([*setup_words(found), *counts, f"{several}{streams} streams" if streams > 1 else "1 stream"])


def number_words(numbers: Sequence[int]) -> str:
    """Numbers as ranges: ``3-5`` for ``3, 4, 5``."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def expectation_lines(found: SavedSchedule) -> list[str]:
    """The interval, and a tie with the units one by one."""
    tie = "Tied with sequential: the difference is within the noise" if "sequential" in found.ties else None
    return [line for line in (expectation(found), tie) if line]


def run_words(run: Execution, analytic_us: float | None = None) -> str:
    """Time and use of resources of an event-driven run, beside the analytic latency if that is known."""
    off = f" ({run.latency_us / analytic_us - 1:+.1%})" if analytic_us else ""
    return (
        f"Event-driven simulator: {run.latency_us / 1e3:.3f} ms{off}. Mean active warps: {run.mean_active_warps:,.0f}. "
        f"Mean utilisation: issue {run.mean_issue:.0%}, L2 {run.mean_l2:.0%}, DRAM {run.mean_dram:.0%}, "
        f"power {run.mean_power:.0%}"
    )
