"""The Python API: typed functions that do what the command line does (compare, optimize, simulate).

Networks and devices may be given as values or by name. Every function raises a subclass of
:class:`iossim.base.errors.IossimError` for invalid arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from iossim.base.errors import OptionError, public, takes
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.schedule.schedule_file import read_schedule as read_any
from iossim.schedule.schedule_file import read_stages
from iossim.search.assemble import reprice_any
from iossim.search.scheduler import MeasuredProgress, StartProgress, ignore_measuring, silent, stream_scheduler_names
from iossim.tasks.own_prices import own_prices
from iossim.tasks.requests import (
    ChangeOptions,
    TaskOptions,
    compare,
    cost_model,
    limit_bytes,
    network_of,
    prices_of,
    search_options,
    task,
)
from iossim.tasks.task import judged

__all__ = [
    "compare",
    "cost_model",
    "limit_bytes",
    "network_of",
    "optimize",
    "optimize_any",
    "optimize_streams",
    "own_device",
    "prices_of",
    "read_any_schedule",
    "read_schedule",
    "search_options",
    "simulate",
    "task",
    "with_network",
]


@public
@takes(TaskOptions, task)
def optimize(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    progress: StartProgress = silent,
    measuring: MeasuredProgress = ignore_measuring,
    **asked: Unpack[TaskOptions],
) -> Schedule:
    """The schedule that one scheduler finds; by default the optimal one over both strategies of IOS.

    Takes the arguments of :func:`task`, and raises as it does; ScheduleError for a stage without a price. The
    schedule's ``ties`` say whether it differs from the sequential one by more than the noise.

    KeyboardInterrupt ends the search with the best schedule so far, whose ``complete`` is then False.
    """
    return task(model, device, **asked).run(progress, measuring).schedule


@public
@takes(ChangeOptions, task)
def optimize_streams(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    scheduler: str = "ios-streams",
    progress: StartProgress = silent,
    **asked: Unpack[ChangeOptions],
) -> AnySchedule:
    """The stream schedule that a scheduler finds, or the stages that it started from if no streams are faster.

    The other options are those of :func:`task`: ``search="joint"`` searches streams together with all else, and in turn
    the network is rewritten for ``ios-both`` first. Raises OptionError for a cost model without streams, and for an
    unknown scheduler.
    KeyboardInterrupt ends the search with the best schedule so far, whose ``complete`` is then False.
    """
    from iossim.tasks.stream_explain import judged_beside_sequence, search_streams  # loaded for streams only

    asked.setdefault("choose_joins", False)
    whole = task(model, device, **asked)
    return judged_beside_sequence(*search_streams(whole, scheduler, progress), whole.prices)


def optimize_any(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    scheduler: str = "ios-both",
    **options: Any,
) -> AnySchedule:
    """:func:`optimize_streams` if the scheduler is one of streams, else :func:`optimize`; both also take ``engine``,
    ``cost_model``, ``options`` and ``progress``, and the latter ``choose_joins``.
    """
    if scheduler in stream_scheduler_names():
        options.pop("choose_joins", None)
        return optimize_streams(model, device, scheduler=scheduler, **options)
    return optimize(model, device, scheduler=scheduler, **options)


class _SimulateOptions(TypedDict, total=False):
    network: Network | None
    engine: str | None
    cost_model: str | CostModel


@overload
def simulate(
    saved: Schedule, device: DeviceProfile | str | Path | None = None, **options: Unpack[_SimulateOptions]
) -> Schedule: ...


@overload
def simulate(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | Path | None = None,
    **options: Unpack[_SimulateOptions],
) -> AnySchedule: ...


@public
def simulate(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | Path | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
    cost_model: str | CostModel = "simulator",
) -> AnySchedule:
    """Price a saved schedule on another device, or on its own by default: stage by stage, or streams as a whole.

    The network is loaded from the schedule's record unless given; ``engine`` is by default the schedule's. Raises
    ScheduleError if the schedule does not fit it, OptionError if it was priced for no device and none is given.
    """
    read, network = with_network(saved, network)
    if device is None and cost_model == "simulator":
        device = own_device(read)
    prices = prices_of(cost_model, device, network, engine or read.engine or AUTO)
    return judged(network, [reprice_any(read, network, prices)], prices)[0]


def read_any_schedule(
    path: str | Path, model: str | None = None, batch: int | None = None
) -> tuple[AnySchedule, Network]:
    """A saved schedule of stages or streams, and its network; both for another ``batch`` size, if given."""
    from iossim.transforms.replay import at_batch, network_of

    read = read_any(Path(path))
    return (read, network_of(read, model)) if batch is None else at_batch(read, batch, model)


def read_schedule(path: str | Path, model: str | None = None) -> tuple[Schedule, Network]:
    """A saved schedule of stages and the network that it fits; ``model`` is the model's present path if its file has
    moved. Raises ScheduleError for a schedule of streams.
    """
    from iossim.transforms.replay import network_of

    read = read_stages(Path(path))
    return read, network_of(read, model)


def with_network(saved: AnySchedule | str | Path, network: Network | None) -> tuple[AnySchedule, Network]:
    """A schedule, read if given as a file, and its network, loaded unless given; the two fit."""
    from iossim.transforms.replay import in_units_of

    read = read_any(Path(saved)) if isinstance(saved, str | Path) else saved
    return read, in_units_of(read, network)


def own_device(read: AnySchedule) -> str:
    """The device that a schedule was priced for; raises OptionError if there is none."""
    if own_prices(read) is None:
        reason = f"the schedule was priced by {read.cost_model.get('name')!r}, not for a device"
        raise OptionError(f"{reason}; say which with `device` or `cost_model`")
    return read.device
