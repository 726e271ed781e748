"""Tasks as they are asked for: by names or values of networks and devices, and options as users write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, get_args

from iossim.base.errors import OptionError, StartProgress, did_you_mean, once, public, silent, takes
from iossim.base.registry import needed_part
from iossim.cost.capabilities import DeviceCostModel, VariantCostModel
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.passes.blocks import narrow_blocks
from iossim.models.passes.unit_fusion import MODEL
from iossim.search.ios import STRATEGIES
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import STREAM_SCHEDULER, schedule_any, scheduler_names
from iossim.tasks.comparison import Comparison
from iossim.tasks.task import Task
from iossim.tasks.task import compare as compare_schedulers
from iossim.transforms.fused_joins import ChooseJoins
from iossim.transforms.transform import SearchOrder, Transform

if TYPE_CHECKING:  # most calls need none of these; those that do import them
    from iossim.search.measured import Budget
    from iossim.transforms.rewriting.backtracking import RewriteBudget
    from iossim.transforms.rewriting.rule import Rule
    from iossim.transforms.rewriting.scheduled import RewriteSearch


@public
def cost_model(
    spec: str = "simulator",
    device: DeviceProfile | str | Path | None = None,
    precision: Precision | str = Precision.FP32,
    engine: str = AUTO,
    store: Path | str | None = None,
) -> CostModel:
    """The cost model ``spec`` for a device, precision and engine (:meth:`iossim.execution.engine.Engine.named`).

    ``simulator``, ``random:SEED``, ``table:FILE``; a backend (``onnxruntime_cpu:threads=2``), which measures and keeps
    its measurements in ``store`` (by default the user's own); ``replay:STORE``, which reads every time from a store.
    Raises OptionError for an unknown name, DeviceError for a ``precision`` that the device lacks.
    """
    profile = None if device is None else load_device(device)
    kept = Path(store) if isinstance(store, str) else store
    Engine.named(engine)  # an unknown engine is refused, whether or not the cost model uses it
    return create_cost_model(spec, profile, Precision.named(precision), engine, kept)


@public
def search_options(
    stages: str = "general",
    max_group_size: int | None = None,
    max_groups: int | None = None,
    workspace_limit: int | str | None = None,
    company: bool = False,
) -> SearchOptions:
    """Options of the search: ``stages`` (``general``, or ``paper``: each group has one root), and the pruning r
    (``max_group_size``, in units) and s (``max_groups``).

    ``workspace_limit``: total workspace of the kernels that run concurrently, in bytes or as ``64MiB``. ``company``
    chooses each unit's kernel for the stage that the unit is in. Raises OptionError for other values.
    """
    space = StageSpace(stages, max_group_size, max_groups)  # type: ignore[arg-type]
    limit = None
    if workspace_limit is not None:
        from iossim.base.memory import limit_bytes  # few searches have one

        limit = limit_bytes(workspace_limit, "workspace_limit")
    return SearchOptions(space, workspace_limit_bytes=limit, company=company)


class ChangeOptions(TypedDict, total=False):
    """Prices, search and changes of the network, as :func:`task` explains them."""

    engine: str
    cost_model: str | CostModel
    options: SearchOptions | None
    rewrite: str | Sequence[Rule] | None
    rewrite_search: RewriteSearch
    alpha: float
    rewrite_budget: RewriteBudget | str
    unproved: bool
    micro_batch: int | str | None
    search: SearchOrder
    choose_joins: bool | None


class TaskOptions(ChangeOptions, total=False):
    """All options of :func:`task`."""

    scheduler: str
    budget: Budget | str | None


@public
def task(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
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
    search: SearchOrder = "in-turn",
    choose_joins: bool | None = None,
) -> Task:
    """The task that :func:`optimize`, :func:`compare` and the command line run.

    ``rewrite`` (names or files of rule sets, separated by commas, or rules) rewrites the graph for the scheduler.
    ``rewrite_search``: ``joint`` searches graphs and schedules together; ``backtracking`` and ``saturation`` minimise
    the sum of operator times first, and the result is scheduled. The search continues from graphs that cost up to
    ``alpha`` times the best; ``rewrite_budget`` limits their number or the time (``200``, ``30s``, ``all``). Unproved
    rules are left out unless ``unproved`` is set; refuted rules always are.

    ``micro_batch`` (a number, or ``auto``) runs the blocks of the network, rewritten or not, in micro-batches that are
    units of their own; ``auto`` tries 1, 2 and 4 for each block, and is never slower than the undivided network with
    the same scheduler.

    ``choose_joins``, the default for a model given by name, decides for each sum or other join of branches whether it
    is fused into a product, whichever makes the schedule faster (:class:`~iossim.transforms.fused_joins.ChooseJoins`).
    It needs prices from a device profile and a search without a limit in ``seconds``. A network given as a value keeps
    its units by default.

    ``search="joint"`` searches all of these together (:class:`~iossim.transforms.joint.JointSearch`): rewritings by the
    rules of ``rewrite`` (default: all shipped rules), joins, micro-batches, and, where the prices know several, kernels
    chosen for concurrency.

    A ``budget`` (:class:`Budget`, or its text: ``1000`` measurements, ``60s``, ``all``) has a measuring cost model
    measure only the stages that can change the result; the simulator proposes them, on ``device`` or on the profile of
    the measured device. Without a budget every stage is priced, however long that takes.

    Raises OptionError for options that cannot be combined.
    """
    network = network_of(model)
    if budget is not None:
        from iossim.search.measured import Budget

        budget = Budget.parse(budget) if isinstance(budget, str) else budget
        # A measured search treats each block as a whole.
        network = narrow_blocks(network)
    prices, options = prices_of(cost_model, device, network, engine), options or SearchOptions()
    transforms: list[Transform] = []
    if search not in get_args(SearchOrder):
        raise OptionError(f"`search` {search!r} is not known; {did_you_mean(search, get_args(SearchOrder))}")
    if search == "joint":
        if micro_batch not in (None, "auto") or rewrite_search != "joint":
            raise OptionError(
                "`search` joint chooses micro-batches and how to rewrite; leave `micro_batch` and `rewrite_search` out"
            )
        rewrite, micro_batch, choose_joins = "default" if rewrite is None else rewrite, None, False
        if isinstance(prices, VariantCostModel) and options.workspace_limit_bytes is None:
            options = replace(options, company=True)
    if rewrite is not None:
        from iossim.transforms.joint import JointSearch
        from iossim.transforms.rewriting.backtracking import RewriteBudget
        from iossim.transforms.rewriting.rule import Rule
        from iossim.transforms.rewriting.rule_sets import rules_named
        from iossim.transforms.rewriting.scheduled import Rewrite

        rules = rules_named(rewrite) if isinstance(rewrite, str) else tuple(rewrite)
        if not all(isinstance(each, Rule) for each in rules):
            raise OptionError(f"`rewrite` {rewrite!r} are no rules; give their names as one text, with commas")
        spend = RewriteBudget.parse(rewrite_budget) if isinstance(rewrite_budget, str) else rewrite_budget
        rewriting = Rewrite(rules, rewrite_search, alpha, spend, unproved)
        transforms.append(JointSearch(rewriting) if search == "joint" else rewriting)
    chooses = isinstance(model, str | Path) if choose_joins is None else choose_joins
    if chooses and isinstance(prices, DeviceCostModel) and options.seconds is None:
        transforms.append(ChooseJoins())
    if micro_batch is not None:
        transforms.append(needed_part("transform", "micro_batches", "MicroBatch", "micro_batch")(micro_batch))
    return Task(network, prices, scheduler, options, tuple(transforms), budget, device)


@public
@takes(ChangeOptions, task)
def compare(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    schedulers: Sequence[str] | str | None = None,
    progress: StartProgress = silent,
    **asked: Unpack[ChangeOptions],
) -> Comparison:
    """Schedule a network by several schedulers (a list, or names separated by commas; default: all), side by side.

    Takes the arguments of :func:`task` except a budget. With ``rewrite`` or ``micro_batch`` the network is also changed
    for ``ios-both``, or for the given scheduler that searches most, and listed beside the network as given: rewritten
    first (by backtracking, and by saturation), and jointly; another ``rewrite_search`` lists that one only.

    ``progress`` starts the progress of each scheduler. Raises as :func:`optimize`. KeyboardInterrupt ends the
    comparison with the schedules so far, which include at least the first scheduler's.
    """
    given = schedulers.split(",") if isinstance(schedulers, str) else schedulers
    names = once(given or scheduler_names(), "`schedulers`")
    of_stages = [name for name in names if name != STREAM_SCHEDULER] or ["ios-both"]
    changes = asked.get("rewrite") is not None or asked.get("micro_batch") is not None or asked.get("search") == "joint"
    scheduler = _changed_for(of_stages, None if changes else of_stages[-1])
    whole = task(model, device, scheduler=scheduler, **asked)
    comparison = compare_schedulers(whole, of_stages, progress)
    if STREAM_SCHEDULER not in names or not comparison.complete:
        return comparison
    bar = progress(STREAM_SCHEDULER)
    found = schedule_any(whole.network, whole.prices, STREAM_SCHEDULER, asked.get("options"), bar)
    return replace(comparison.beside([found], whole.prices), complete=found.complete)


def _changed_for(schedulers: Sequence[str], other: str | None) -> str:
    """The scheduler that a comparison changes the network for: the most thorough of the requested ones, or ``other``.
    Raises OptionError if there is neither.
    """
    for name in ("ios-both", *(name for name in STRATEGIES if name != "ios-both"), "sequential"):
        if name in schedulers:
            return name
    if other is not None:
        return other
    known = ", ".join(("sequential", *STRATEGIES))
    raise OptionError(f"`rewrite` cannot price graphs for any of {', '.join(schedulers)}; add one of {known}")


def network_of(given: Network | str | Path, units: str = MODEL) -> Network:
    """The given network, or the one that a name or file denotes."""
    return load(given, units=units) if isinstance(given, str | Path) else given


def prices_of(
    given: str | CostModel, device: DeviceProfile | str | Path | None, network: Network, engine: str
) -> CostModel:
    """The given cost model, or the one of that name in the network's precision."""
    return cost_model(given, device, network.precision, engine) if isinstance(given, str) else given
