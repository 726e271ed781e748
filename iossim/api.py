"""What the command line does, as typed functions: compare, optimize, rewrite, simulate.

Networks and devices may be given as values or by name. Every function raises a subclass of
:class:`iossim.base.errors.IossimError` for a mistake in what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from iossim.base.errors import OptionError, did_you_mean
from iossim.base.memory_size import size_bytes
from iossim.calibration.prediction.left_out import without_network
from iossim.calibration.prediction.schedule_interval import schedule_errors
from iossim.cost.create import create_cost_model
from iossim.cost.model import ChangesSetting, CostModel, PredictsDevice
from iossim.edge.distributed import Distributed, distributed
from iossim.edge.planned import Dataflow
from iossim.edge.planned import dataflow as plan_dataflow
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch
from iossim.schedule.fit import fit
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.ios import STRATEGIES
from iossim.search.measured.budget import Budget
from iossim.search.measured.search import MeasuredProgress
from iossim.search.measured.search import ignore as ignore_measuring
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import Progress, StartProgress, ignore, schedule, scheduler_names
from iossim.tasks.comparison import Comparison, RewrittenSchedule, Way
from iossim.tasks.measured_search import measured_schedule, usable_budget
from iossim.tasks.saved_schedule import network_of
from iossim.transforms.microbatching.micro_batched import MicroBatched, micro_batched
from iossim.transforms.microbatching.micro_batches import of_network, of_table
from iossim.transforms.microbatching.micro_batching import MicroBatching
from iossim.transforms.rewriting.backtracking import ALPHA, RewriteBudget, RewriteProgress
from iossim.transforms.rewriting.backtracking import ignore as ignore_graphs
from iossim.transforms.rewriting.joint import RewriteSearch
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.scheduled import DEFAULT_BUDGET, Rewriting
from iossim.transforms.rewriting.scheduled import rewrite as rewrite_network


def cost_model(
    spec: str = "simulator",
    device: DeviceProfile | str | None = None,
    precision: Precision | str = Precision.FP32,
    engine: str = Engine.PAPER,
    store: Path | str | None = None,
) -> CostModel:
    """A cost model by name for a device, precision and engine.

    ``simulator``, ``random:SEED``, ``table:FILE``; a backend (``onnxruntime_cpu:threads=2``), which measures, and keeps
    measurements in ``store``, by default the user's own; ``replay:STORE``, which takes all from a store.
    """
    profile = load_device(device) if isinstance(device, str) else device
    kept = Path(store) if isinstance(store, str) else store
    return create_cost_model(spec, profile, Precision.named(precision), Engine.named(engine), kept)


def search_options(
    stages: str = "general",
    max_group_size: int | None = None,
    max_groups: int | None = None,
    workspace_limit: int | str | None = None,
) -> SearchOptions:
    """Options of the search: definition of stages, and the pruning r (``max_group_size``) and s (``max_groups``).

    ``workspace_limit``: what kernels that run at the same time may need together besides their tensors, in bytes or as ``64MiB``.
    """
    limit = _limit(workspace_limit, "workspace_limit")
    space = StageSpace(stages, max_group_size, max_groups)  # type: ignore[arg-type]
    return SearchOptions(space, workspace_limit_bytes=limit)


def compare(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    schedulers: Sequence[str] | None = None,
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: Callable[[str], Progress] = lambda scheduler: ignore,
    rewrite: str | Sequence[Rule] | None = None,
    rewrite_search: RewriteSearch = "joint",
    alpha: float = ALPHA,
    rewrite_budget: RewriteBudget | str = DEFAULT_BUDGET,
    unproved: bool = False,
    rewriting: RewriteProgress = ignore_graphs,
) -> Comparison:
    """Schedule a network by several schedulers (default: all), side by side.

    With ``rewrite`` (rules, or the names of sets) the graph is rewritten, too, as :func:`rewrite_model` does for ``ios-both``, or the
    one of these schedulers that searches most: its schedules of the graph that is rewritten first (by backtracking, and by saturation), and
    jointly, stand beside those of the network as given; with another ``rewrite_search`` that one's alone. ``rewriting`` is told of the progress.

    ``progress`` makes for each scheduler what is told of its progress. KeyboardInterrupt ends the comparison with the
    schedules so far, once there is one.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    asked = schedulers or scheduler_names()
    rewritten_for = _rewritten_for(asked) if rewrite is not None else ""
    _warm_up(network, prices)
    found: list[Schedule] = []
    complete = True
    for name in asked:
        try:
            found.append(schedule(network, prices, name, options, progress(name)))
            complete = found[-1].complete
        except KeyboardInterrupt:
            if not found:
                raise
            complete = False
        if not complete:
            break
    identity = prices.identity
    judged = _with_intervals(network, found, prices)
    comparison = Comparison(network, identity.device, engine, identity.to_json(), tuple(judged), complete)
    if not complete:
        return comparison
    comparison = replace(comparison, left_out_us=_left_out(comparison, prices, options))
    if rewrite is None:
        return comparison
    try:
        made = rewrite_model(
            network,
            None,
            rules=rewrite,
            scheduler=rewritten_for,
            cost_model=prices,
            options=options,
            search=rewrite_search,
            alpha=alpha,
            budget=rewrite_budget,
            unproved=unproved,
            progress=rewriting,
        )
        return _with_rewritten(comparison, made, prices, options)
    except KeyboardInterrupt:
        return replace(comparison, complete=False)


def _rewritten_for(schedulers: Sequence[str]) -> str:
    """The scheduler that a comparison rewrites the graph for: of those asked that rewriting takes, the one that searches most."""
    for name in ("ios-both", *(name for name in STRATEGIES if name != "ios-both"), "sequential"):
        if name in schedulers:
            return name
    known = ", ".join(("sequential", *STRATEGIES))
    raise OptionError(f"`rewrite` knows no cost of graphs for any of {', '.join(schedulers)}; add one of {known}")


def _with_rewritten(
    comparison: Comparison, made: Rewriting, prices: CostModel, options: SearchOptions | None
) -> Comparison:
    """The comparison with the schedules of the rewritten networks beside it."""
    ways: dict[RewriteSearch, Way] = {"backtracking": "rewritten", "saturation": "saturated", "joint": "jointly"}
    networks = {ways[each.search]: each.network for each in made.first} | {ways[made.search]: made.network}
    beside = [(way, network, made.scheduler) for way, network in networks.items()]
    if made.scheduler != "sequential" and "sequential" in (found.scheduler for found in comparison.schedules):
        way, network = next(iter(networks.items()))
        beside.insert(0, (way, network, "sequential"))
    rewritten = []
    for way, network, name in beside:
        found = schedule(network, prices, name, options)
        rewritten.append(RewrittenSchedule(way, network, _with_intervals(network, [found], prices)[0]))
        if not found.complete:
            break
    complete = not made.interrupted and all(each.schedule.complete for each in rewritten)
    return replace(comparison, rewriting=made, rewritten=tuple(rewritten), complete=complete)


def _left_out(comparison: Comparison, prices: CostModel, options: SearchOptions | None) -> dict[str, float]:
    """What a fit without the network's published figures says of the schedulers that have one; nothing of other networks."""
    network = comparison.network
    published = [each.scheduler for each in comparison.schedules if comparison.published_us(each.scheduler)]
    if not published or not isinstance(prices, PredictsDevice) or not isinstance(prices, ChangesSetting):
        return {}
    profile = without_network(prices.profile, network.source.model)
    if profile is None:
        return {}
    other = prices.at(profile)
    try:
        return {name: schedule(network, other, name, options).latency_us for name in published}
    except KeyboardInterrupt:
        return {}


def optimize(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    scheduler: str = "ios-both",
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    budget: Budget | str | None = None,
    measuring: MeasuredProgress = ignore_measuring,
    rewrite: str | Sequence[Rule] | None = None,
    rewrite_search: RewriteSearch = "joint",
    alpha: float = ALPHA,
    rewrite_budget: RewriteBudget | str = DEFAULT_BUDGET,
    unproved: bool = False,
    micro_batch: int | str | None = None,
) -> Schedule:
    """The schedule that one scheduler finds; by default the optimal one over both strategies of IOS.

    With ``rewrite`` (rules, or the names of sets) the graph is rewritten for it, as :func:`rewrite_model` does; the schedule
    says how.

    With ``micro_batch`` (how many, or ``auto``) the blocks of the network, rewritten or not, run in micro-batches, as
    :func:`divide_batch` makes them.

    Its ``ties`` say whether it differs from the sequential schedule by more than the noise.

    With a ``budget`` (:class:`Budget`, or its text: ``1000`` measurements, ``60s``, ``all``) the stages of a cost model that
    measures are measured only as far as they matter; the simulator proposes them, on ``device`` or the one that is
    measured, and ``measuring`` is told of the progress. Without a budget every stage is priced, whatever that takes.

    KeyboardInterrupt ends a search of IOS with the best schedule so far, which then is not ``complete``.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    budget = None if budget is None else usable_budget(budget, prices)
    if budget is not None and options is not None and options.workspace_limit_bytes is not None:
        raise OptionError(
            "`workspace_limit` does not go with a `budget`: what measures knows no workspaces; leave one out"
        )
    if rewrite is not None:
        rewriting = rewrite_model(
            network,
            None,
            rules=rewrite,
            scheduler=scheduler,
            cost_model=prices,
            options=options,
            search=rewrite_search,
            alpha=alpha,
            budget=rewrite_budget,
            unproved=unproved,
        )
        again = optimize(
            rewriting.network,
            device if budget is not None else None,
            scheduler=scheduler,
            cost_model=prices,
            options=options,
            progress=progress,
            budget=budget,
            measuring=measuring,
            micro_batch=micro_batch,
        )
        return rewriting.told(again)
    if micro_batch is not None:
        divided = divide_batch(
            network, None, micro_batch=micro_batch, scheduler=scheduler, cost_model=prices, options=options
        )
        again = optimize(
            divided.network,
            device if budget is not None else None,
            scheduler=scheduler,
            cost_model=prices,
            options=options,
            progress=progress,
            budget=budget,
            measuring=measuring,
        )
        return divided.told(again)
    if budget is not None and scheduler in STRATEGIES:
        return measured_schedule(network, prices, scheduler, budget, device, options, measuring)
    _warm_up(network, prices)
    found = schedule(network, prices, scheduler, options, progress)
    if scheduler == "sequential" or not found.complete:
        return _with_intervals(network, [found], prices)[0]
    return _with_intervals(network, [found], prices, "sequential")[0]


def divide_batch(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    micro_batch: int | str = "auto",
    scheduler: str = "ios-both",
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    progress: Callable[[int], None] = lambda seen: None,
) -> MicroBatched:
    """A network whose blocks run in micro-batches that are units of their own, for a scheduler to run side by side.

    ``micro_batch``: into how many each block is divided that computes images one by one, or ``auto``: for each block 1, 2 or 4, as the
    whole schedule is the fastest; never slower than undivided by the same scheduler. ``progress`` is told how many ways were tried.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    return micro_batched(network, prices, micro_batch, scheduler=scheduler, options=options, progress=progress)


def dataflow(
    model: Network | str,
    device: EdgeDevice | str,
    *,
    policy: str = "priority",
    parts: bool = False,
    progress: StartProgress = lambda label: ignore,
) -> Dataflow:
    """A network on an edge device: its operators whole, split over the units, and linked besides, with their times.

    ``policy``: ``priority`` (the paper's) or ``exhaustive``. ``parts``: branches side by side on parts of the units, too, where
    that takes less. Raises DeviceError where an operator fits no way.
    """
    network = load(model) if isinstance(model, str) else model
    board = edge_device(device) if isinstance(device, str) else device
    return plan_dataflow(network, board, policy, parts, progress)


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
    """A network over several equal edge devices (d-Xenos): how each operator is divided among them, what is sent, and the time.

    ``link``: one of the device's (its first). ``sync``: ``ring`` or ``server``. ``mix``: ``mix``, or ``outC``, ``inH`` or ``inW``
    for every operator that can be divided so. Raises DeviceError without such a link.
    """
    network = load(model) if isinstance(model, str) else model
    board = edge_device(device) if isinstance(device, str) else device
    return distributed(network, board, devices, link, sync, mix, policy)


def microbatch(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    policy: str = "all",
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
    memory_limit: int | str | None = None,
    direction: str = "forward",
    progress: Progress = ignore,
) -> MicroBatching:
    """Divide the batch of a network's convolutions: each under a limit on its workspace, or all under one (``64MiB``, or bytes).

    ``memory_limit`` is of activations and workspaces in one arena, units one after another.
    ``policy``: ``all`` sizes of micro-batches, ``power-of-two``, ``undivided``. ``direction``: ``forward``, or ``training`` for the
    gradients as well.
    """
    if direction not in ("forward", "training"):
        raise OptionError(f"`pass` {direction!r} is not known; {did_you_mean(direction, ('forward', 'training'))}")
    network = load(model) if isinstance(model, str) else model
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
    """The same of the kernels of a table of benchmarks (JSON); of as many images as the largest row of each, if not of ``batch``."""
    limits = _limit(workspace, "workspace"), _limit(total_workspace, "total_workspace")
    return of_table(Path(path), batch, policy, *limits)


def _limit(given: int | str | None, name: str) -> int | None:
    return size_bytes(given, name) if isinstance(given, str) else given


def rewrite_model(
    model: Network | str,
    device: DeviceProfile | str | None,
    *,
    rules: str | Sequence[Rule] = "default",
    scheduler: str = "ios-both",
    engine: str = Engine.PAPER,
    cost_model: str | CostModel = "simulator",
    options: SearchOptions | None = None,
    search: RewriteSearch = "joint",
    alpha: float = ALPHA,
    budget: RewriteBudget | str = DEFAULT_BUDGET,
    unproved: bool = False,
    progress: RewriteProgress = ignore_graphs,
) -> Rewriting:
    """Search the graph substitutions after which a scheduler's schedule is the fastest: its ``network`` is the rewritten one.

    ``search``: ``joint``, or ``backtracking`` or ``saturation`` for the least sum of operators, to be scheduled then.
    ``rules`` are sets by name or files, separated by commas, or rules. Graphs that cost up to ``alpha`` times the best are searched
    on; ``budget`` says how many, or for how long (``200``, ``30s``, ``all``). Rules that are not proved are left out, unless
    ``unproved``; what is refuted always is. KeyboardInterrupt ends the search with the best so far.
    """
    network = load(model) if isinstance(model, str) else model
    prices = _cost_model(cost_model, device, network, engine)
    known = rules_named(rules) if isinstance(rules, str) else rules
    spend = RewriteBudget.parse(budget) if isinstance(budget, str) else budget
    return rewrite_network(
        network,
        prices,
        known,
        scheduler=scheduler,
        options=options,
        search=search,
        alpha=alpha,
        budget=spend,
        unproved=unproved,
        progress=progress,
    )


def simulate(
    saved: Schedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
    cost_model: str | CostModel = "simulator",
) -> Schedule:
    """Price a saved schedule, stage by stage: on another device, or on its own where none is given.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    read, network = _saved(saved, network)
    if device is None and cost_model == "simulator":
        device = _own_device(read)
    prices = _cost_model(cost_model, device, network, engine or read.engine or Engine.PAPER)
    return _with_intervals(network, [reprice(read, network, prices)], prices)[0]


def simulate_events(
    saved: Schedule | str | Path,
    device: DeviceProfile | str | None = None,
    *,
    network: Network | None = None,
    engine: str | None = None,
) -> Execution:
    """Run a saved schedule as a whole, block by block, on the event-driven simulator: on another device, or on its own.

    The network is loaded as the schedule says, unless given. Raises ScheduleError if the schedule does not fit it.
    """
    from iossim.backends.simulator.events import run_schedule

    read, network = _saved(saved, network)
    chosen = _own_device(read) if device is None else device
    profile = load_device(chosen) if isinstance(chosen, str) else chosen
    return run_schedule(network, read, profile, engine=engine or read.engine or Engine.PAPER)


def read_schedule(path: str | Path, model: str | None = None) -> tuple[Schedule, Network]:
    """A saved schedule and its network, which it fits; ``model`` is where the model is now, if its file has moved."""
    return _saved(path, None, model)


def _saved(
    saved: Schedule | str | Path, network: Network | None, model: str | None = None
) -> tuple[Schedule, Network]:
    """A schedule, read where it is a file, and its network, loaded where it is not given; the two fit."""
    read = saved if isinstance(saved, Schedule) else Schedule.read(Path(saved))
    if network is None:
        return read, network_of(read, model)
    fit(read, network)
    return read, network


def _own_device(read: Schedule) -> str:
    priced_by = read.cost_model.get("name")
    if priced_by != "simulator":
        raise OptionError(
            f"the schedule was priced by {priced_by!r}, not for a device; say which with `device` or `cost_model`"
        )
    return read.device


def _with_intervals(
    network: Network, schedules: Sequence[Schedule], prices: CostModel, beside: str = ""
) -> list[Schedule]:
    """The schedules with their intervals, and with the others that differ from them by less than the noise.

    Another scheduler's may be looked at ``beside`` them. Prices that predict no device have no noise.
    KeyboardInterrupt leaves intervals and ties out: schedules that were found are kept.
    """
    try:
        errors = schedule_errors(network, prices)
        if errors is None:
            return list(schedules)
        return errors.judged(schedules, [schedule(network, prices, beside)] if beside else [])
    except KeyboardInterrupt:
        return list(schedules)


def _warm_up(network: Network, prices: CostModel) -> None:
    """Price one unit: loading compiled code, say, is part of no scheduler's search time."""
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    prices.price_stages(StageBatch.concurrent(problem, np.ones(1, dtype=np.uint64)))


def _cost_model(
    given: str | CostModel, device: DeviceProfile | str | None, network: Network, engine: str
) -> CostModel:
    if not isinstance(given, str):
        return given
    return cost_model(given, device, network.precision, engine)
