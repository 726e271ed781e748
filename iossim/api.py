"""What the command line does, as typed functions: compare, optimize, simulate, dataflow, microbatch.

Networks and devices may be given as values or by name. Every function raises a subclass of
:class:`iossim.base.errors.IossimError` for a mistake in what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from iossim.base.errors import OptionError, did_you_mean, once
from iossim.base.memory_size import size_bytes
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.passes.blocks import narrow_blocks
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.schedule.schedule import read_schedule as read_any
from iossim.search.assemble import reprice, reprice_streams
from iossim.search.ios import STRATEGIES
from iossim.search.options import Budget, SearchOptions, StageSpace
from iossim.search.scheduler import (
    MeasuredProgress,
    Progress,
    StartProgress,
    ignore,
    ignore_measuring,
    schedule_any,
    scheduler_names,
    silent,
    stream_scheduler_names,
)
from iossim.tasks.comparison import Comparison
from iossim.tasks.task import Task, judged
from iossim.tasks.task import compare as compare_schedulers

if TYPE_CHECKING:  # what most calls do not use is loaded by those that do
    from iossim.edge.distributed import Distributed
    from iossim.edge.planned import Dataflow
    from iossim.execution.execution import Execution
    from iossim.hardware.edge import EdgeDevice
    from iossim.transforms.microbatching.kernels_under_limits import MicroBatching
    from iossim.transforms.rewriting.backtracking import RewriteBudget
    from iossim.transforms.rewriting.rule import Rule
    from iossim.transforms.rewriting.scheduled import RewriteSearch
    from iossim.transforms.transform import Transform


class TaskOptions(TypedDict, total=False):
    """The options of :func:`task`, which :func:`optimize` and :func:`compare` take as well."""

    scheduler: str
    engine: str
    cost_model: str | CostModel
    options: SearchOptions | None
    budget: Budget | str | None
    rewrite: str | Sequence[Rule] | None
    rewrite_search: RewriteSearch
    alpha: float
    rewrite_budget: RewriteBudget | str
    unproved: bool
    micro_batch: int | str | None


def cost_model(
    spec: str = "simulator",
    device: DeviceProfile | str | None = None,
    precision: Precision | str = Precision.FP32,
    engine: str = AUTO,
    store: Path | str | None = None,
) -> CostModel:
    """A cost model by name for a device, precision and engine (:meth:`iossim.execution.engine.Engine.named`).

    ``simulator``, ``random:SEED``, ``table:FILE``; a backend (``onnxruntime_cpu:threads=2``), which measures, and
    keeps measurements in ``store``, by default the user's own; ``replay:STORE``, which takes all from a store.
    """
    profile = load_device(device) if isinstance(device, str) else device
    kept = Path(store) if isinstance(store, str) else store
    Engine.named(engine)  # one that is unknown is refused whatever the cost model does with it
    return create_cost_model(spec, profile, Precision.named(precision), engine, kept)


def search_options(
    stages: str = "general",
    max_group_size: int | None = None,
    max_groups: int | None = None,
    workspace_limit: int | str | None = None,
    company: bool = False,
) -> SearchOptions:
    """Options of the search: definition of stages, and the pruning r (``max_group_size``) and s (``max_groups``).

    ``workspace_limit``: what kernels that run at the same time may need together besides their tensors, in bytes or
    as ``64MiB``. ``company`` chooses what units run as for the stage that they are in.
    """
    limit = _limit(workspace_limit, "workspace_limit")
    space = StageSpace(stages, max_group_size, max_groups)  # type: ignore[arg-type]
    return SearchOptions(space, workspace_limit_bytes=limit, company=company)


def task(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    scheduler: str = "ios-both",
    engine: str = AUTO,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    budget: Budget | str | None = None,
    rewrite: str | Sequence[Rule] | None = None,
    rewrite_search: RewriteSearch = "joint",
    alpha: float = 1.05,
    rewrite_budget: RewriteBudget | str = "200",
    unproved: bool = False,
    micro_batch: int | str | None = None,
) -> Task:
    """The task that :func:`optimize`, :func:`compare` and the command line run.

    With ``rewrite`` (sets of rules by name or files, separated by commas, or rules) the graph is rewritten for the
    scheduler: ``joint``, or by ``backtracking`` or ``saturation`` for the least sum of operators, to be scheduled
    then. Graphs that cost up to ``alpha`` times the best are searched on; ``rewrite_budget`` says how many, or for
    how long (``200``, ``30s``, ``all``). Rules that are not proved are left out, unless ``unproved``; what is refuted
    always is.

    With ``micro_batch`` (how many, or ``auto``) the blocks of the network, rewritten or not, run in micro-batches
    that are units of their own; ``auto`` tries 1, 2 and 4 for each block, and is never slower than undivided by the
    same scheduler.

    With a ``budget`` (:class:`Budget`, or its text: ``1000`` measurements, ``60s``, ``all``) the stages of a cost
    model that measures are measured only as far as they matter; the simulator proposes them, on ``device`` or the one
    that is measured. Without a budget every stage is priced, whatever that takes.

    Raises OptionError for what cannot be combined.
    """
    network = _network(model)
    if budget is not None:
        # A search by measurements takes each block as a whole.
        network = narrow_blocks(network)
    transforms: list[Transform] = []
    if rewrite is not None:
        from iossim.transforms.rewriting.backtracking import RewriteBudget
        from iossim.transforms.rewriting.rule_sets import rules_named
        from iossim.transforms.rewriting.scheduled import Rewrite

        rules = rules_named(rewrite) if isinstance(rewrite, str) else tuple(rewrite)
        spend = RewriteBudget.parse(rewrite_budget) if isinstance(rewrite_budget, str) else rewrite_budget
        transforms.append(Rewrite(rules, rewrite_search, alpha, spend, unproved))
    if micro_batch is not None:
        from iossim.transforms.microbatching.blocks_in_micro_batches import MicroBatch

        transforms.append(MicroBatch(micro_batch))
    return Task(
        network,
        _cost_model(cost_model, device, network, engine),
        scheduler,
        options or SearchOptions(),
        tuple(transforms),
        Budget.parse(budget) if isinstance(budget, str) else budget,
        device,
    )


def optimize(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    progress: StartProgress = silent,
    measuring: MeasuredProgress = ignore_measuring,
    **options: Unpack[TaskOptions],
) -> Schedule:
    """The schedule that one scheduler finds; by default the optimal one over both strategies of IOS.

    Takes what :func:`task` does. Its ``ties`` say whether it differs from the sequential schedule by more than the
    noise.

    KeyboardInterrupt ends a search of IOS with the best schedule so far, which then is not ``complete``.
    """
    return task(model, device, **options).run(progress, measuring).schedule


def optimize_streams(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    scheduler: str = "ios-streams",
    engine: str = AUTO,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: StartProgress = silent,
) -> AnySchedule:
    """The streams that a scheduler finds; the stages that it began from where no streams are faster."""
    network = _network(model)
    prices = _cost_model(cost_model, device, network, engine)
    return schedule_any(network, prices, scheduler, options, progress(scheduler))


def optimize_any(
    model: Network | str, device: DeviceProfile | str | None, *, scheduler: str = "ios-both", **options: Any
) -> AnySchedule:
    """:func:`optimize_streams` where the scheduler is one of streams, else :func:`optimize`; both take ``engine``,
    ``cost_model``, ``options`` and ``progress``.
    """
    search: Callable[..., AnySchedule] = optimize_streams if scheduler in stream_scheduler_names() else optimize
    return search(model, device, scheduler=scheduler, **options)


def compare(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    schedulers: Sequence[str] | None = None,
    progress: StartProgress = silent,
    **options: Unpack[TaskOptions],
) -> Comparison:
    """Schedule a network by several schedulers (default: all), side by side.

    Takes what :func:`task` does but for a budget. What ``rewrite`` and ``micro_batch`` make of the network for
    ``ios-both``, or the one of these schedulers that searches most, stands beside the network as given: the graph
    that is rewritten first (by backtracking, and by saturation), and jointly; with another ``rewrite_search`` that
    one's alone.

    ``progress`` starts the progress of each scheduler. KeyboardInterrupt ends the comparison with the schedules so
    far, once there is one.
    """
    asked = once(schedulers or scheduler_names(), "`schedulers`")
    by_streams = [name for name in asked if name in stream_scheduler_names()]
    if by_streams:
        return _with_streams(model, device, asked, by_streams, progress, options)
    changes = any(options.get(name) is not None for name in ("rewrite", "micro_batch"))
    options["scheduler"] = _changed_for(asked) if changes else asked[0]
    return compare_schedulers(task(model, device, **options), asked, progress)


def _with_streams(
    model: Network | str,
    device: DeviceProfile | str | None,
    asked: Sequence[str],
    by_streams: Sequence[str],
    progress: StartProgress,
    options: TaskOptions,
) -> Comparison:
    """A comparison of the schedulers of stages, and the streams of the others beside them."""
    network = _network(model)
    options["cost_model"] = _cost_model(
        options.get("cost_model", "simulator"), device, network, options.get("engine", AUTO)
    )
    of_stages = [name for name in asked if name not in by_streams] or ["ios-both"]
    comparison = compare(network, None, schedulers=of_stages, progress=progress, **options)
    prices, search = options["cost_model"], options.get("options")
    found = []
    for name in by_streams if comparison.complete else ():
        found.append(
            optimize_streams(network, None, scheduler=name, cost_model=prices, options=search, progress=progress)
        )
    return comparison.beside(found, prices)


def _changed_for(schedulers: Sequence[str]) -> str:
    """The scheduler that a comparison changes the network for: of those asked, the one that searches most."""
    for name in ("ios-both", *(name for name in STRATEGIES if name != "ios-both"), "sequential"):
        if name in schedulers:
            return name
    known = ", ".join(("sequential", *STRATEGIES))
    raise OptionError(f"`rewrite` cannot price graphs for any of {', '.join(schedulers)}; add one of {known}")


def dataflow(
    model: Network | str,
    device: EdgeDevice | str,
    *,
    policy: str = "priority",
    parts: bool = False,
    progress: StartProgress = lambda label: ignore,
) -> Dataflow:
    """A network on an edge device: its operators whole, split over the units, and linked besides, with their times.

    ``policy``: ``priority`` (the paper's) or ``exhaustive``. ``parts``: branches side by side on parts of the units,
    too, where that takes less. Raises DeviceError where an operator fits no way.
    """
    from iossim.edge.planned import dataflow as plan_dataflow
    from iossim.hardware.edge import edge_device

    board = edge_device(device) if isinstance(device, str) else device
    return plan_dataflow(_network(model), board, policy, parts, progress)


def distribute(
    model: Network | str,
    device: EdgeDevice | str,
    devices: int,
    *,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    policy: str = "priority",
) -> Distributed:
    """A network over several equal edge devices (d-Xenos): how operators are divided, what is sent, and the time.

    ``link``: one of the device's (its first). ``sync``: ``ring`` or ``server``. ``mix``: ``mix``, or ``outC``,
    ``inH`` or ``inW`` for every operator that can be divided so. Raises DeviceError without such a link.
    """
    from iossim.edge.distributed import distributed
    from iossim.hardware.edge import edge_device

    board = edge_device(device) if isinstance(device, str) else device
    return distributed(_network(model), board, devices, link, sync, mix, policy)


def microbatch(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    engine: str = AUTO,
    cost_model: str | CostModel = "simulator",
    policy: str = "all",
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
    memory_limit: int | str | None = None,
    direction: str = "forward",
    progress: Progress = ignore,
) -> MicroBatching:
    """Divide the batch of a network's convolutions: each under a limit on its workspace, or all under one (``64MiB``,
    or bytes).

    ``memory_limit`` is of activations and workspaces in one arena, units one after another. ``policy``: ``all`` sizes
    of micro-batches, ``power-of-two``, ``undivided``. ``direction``: ``forward``, or ``training`` for the gradients
    as well.
    """
    from iossim.transforms.microbatching.convolutions_in_micro_batches import of_network

    if direction not in ("forward", "training"):
        raise OptionError(f"`pass` {direction!r} is not known; {did_you_mean(direction, ('forward', 'training'))}")
    network = _network(model)
    limits = _limit(workspace, "workspace"), _limit(total_workspace, "total_workspace")
    prices = _cost_model(cost_model, device, network, engine)
    memory = _limit(memory_limit, "memory_limit")
    return of_network(network, prices, policy, *limits, direction == "training", progress, memory)


def microbatch_table(
    path: Path | str,
    *,
    batch: int | None = None,
    policy: str = "all",
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
) -> MicroBatching:
    """The same of a JSON table of benchmarks; of the images of each kernel's largest row, if not of ``batch``."""
    from iossim.transforms.microbatching.convolutions_in_micro_batches import of_table

    limits = _limit(workspace, "workspace"), _limit(total_workspace, "total_workspace")
    return of_table(Path(path), batch, policy, *limits)


def _limit(given: int | str | None, name: str) -> int | None:
    return size_bytes(given, name) if isinstance(given, str) else given


def _network(given: Network | str) -> Network:
    return load(given) if isinstance(given, str) else given


class _SimulateOptions(TypedDict, total=False):
    network: Network | None
    engine: str | None
    cost_model: str | CostModel


@overload
def simulate(
    saved: Schedule, device: DeviceProfile | str | None = None, **options: Unpack[_SimulateOptions]
) -> Schedule: ...


@overload
def simulate(
    saved: AnySchedule | str | Path, device: DeviceProfile | str | None = None, **options: Unpack[_SimulateOptions]
) -> AnySchedule: ...


def simulate(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
    cost_model: str | CostModel = "simulator",
) -> AnySchedule:
    """Price a saved schedule, stage by stage, or streams as a whole: on another device, or on its own where none is
    given.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    read, network = _saved(saved, network)
    if device is None and cost_model == "simulator":
        device = _own_device(read)
    prices = _cost_model(cost_model, device, network, engine or read.engine or AUTO)
    if isinstance(read, StreamSchedule):
        return reprice_streams(read, network, prices)
    return judged(network, [reprice(read, network, prices)], prices)[0]


def simulate_events(
    saved: AnySchedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
) -> Execution:
    """Run a saved schedule as a whole, block by block, on the event-driven simulator, on ``device`` or its own.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    from iossim.backends.simulator.events import run_schedule

    read, network = _saved(saved, network)
    chosen = _own_device(read) if device is None else device
    profile = load_device(chosen) if isinstance(chosen, str) else chosen
    return run_schedule(network, read, profile, engine=Engine.named(engine or read.engine or AUTO, profile))


def read_any_schedule(
    path: str | Path, model: str | None = None, batch: int | None = None
) -> tuple[AnySchedule, Network]:
    """As :func:`read_schedule`, for schedules of stages and of streams; both for another ``batch`` size, if given."""
    from iossim.transforms.replay import at_batch, network_of

    read = read_any(Path(path))
    return (read, network_of(read, model)) if batch is None else at_batch(read, batch, model)


def read_schedule(path: str | Path, model: str | None = None) -> tuple[Schedule, Network]:
    """A saved schedule and its network, which it fits; ``model`` is where the model is now, if its file has moved.
    Raises ScheduleError for one of streams.
    """
    from iossim.transforms.replay import network_of

    read = Schedule.read(Path(path))
    return read, network_of(read, model)


def _saved(saved: AnySchedule | str | Path, network: Network | None) -> tuple[AnySchedule, Network]:
    """A schedule, read where it is a file, and its network, loaded where it is not given; the two fit."""
    read = read_any(Path(saved)) if isinstance(saved, str | Path) else saved
    if network is None:
        from iossim.transforms.replay import network_of

        return read, network_of(read)
    fit(read, network)
    return read, network


def _own_device(read: AnySchedule) -> str:
    if (priced_by := read.cost_model.get("name")) != "simulator":
        reason = f"the schedule was priced by {priced_by!r}, not for a device"
        raise OptionError(f"{reason}; say which with `device` or `cost_model`")
    return read.device


def _cost_model(given: str | CostModel, device: DeviceProfile | str | None, network: Network, engine: str) -> CostModel:
    return cost_model(given, device, network.precision, engine) if isinstance(given, str) else given
