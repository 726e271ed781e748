"""Schedules and baselines of one network, run side by side: the measured counterpart of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from iossim.base.display import counted
from iossim.base.errors import OptionError, PlanError, Progress, did_you_mean, once, silent
from iossim.cost.capabilities import StreamCostModel, VariantCostModel
from iossim.cost.create import create_cost_model
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.model import problems_of
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import Backend, OffersVariants, Samples, Timing
from iossim.execution.engine import Engine
from iossim.execution.measured_run import MeasuredRow, measured_rows, plan_for
from iossim.hardware.load import device as load_device
from iossim.hardware.names import device_names
from iossim.ir.network import Network
from iossim.models.passes.blocks import narrow_blocks
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.fit import with_variants
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.search.assemble import plan_us, reprice_as_known
from iossim.search.measured import Budget
from iossim.search.measured.company import most_alike
from iossim.search.options import SearchOptions
from iossim.search.scheduler import STREAM_SCHEDULER, schedule, schedule_any
from iossim.tasks.comparison import ComparisonRow
from iossim.tasks.own_prices import estimating_model, own_prices
from iossim.tasks.task import Task

#: Schedulers whose stages depend on no price.
PLAIN = ("sequential", "greedy")
#: Providers of baselines, with the module that measures them; a bare provider's name stands for all of its baselines.
BASELINES = {"torch": "iossim.backends.torch_cuda.baselines", "onnxruntime": "iossim.backends.onnxruntime_cpu.backend"}


def plain_schedule(network: Network, name: str) -> Schedule:
    """Schedule by a scheduler that ignores prices; the prices in it are meaningless."""
    return schedule(network, RandomCostModel(), name)


def split_names(text: str, plain: Sequence[str] = PLAIN) -> tuple[list[str], list[str]]:
    """``sequential,torch`` as schedulers (of ``plain``) and baselines; raises OptionError naming the unknown one."""
    names = once(list(filter(None, text.split(","))), "`compare`")
    for name in names:
        owner = name.partition("-")[0]
        if name in plain or name in BASELINES:
            continue
        if owner not in BASELINES:
            raise OptionError(f"`compare` {name!r} is not known; {did_you_mean(name, [*plain, *BASELINES])}")
        known = import_module(BASELINES[owner]).BASELINES
        if name not in known:
            raise OptionError(f"`compare` {name!r} is not known; {did_you_mean(name, known)}")
    return [name for name in names if name in plain], [name for name in names if name not in plain]


def for_backend(schedule: AnySchedule, network: Network, backend: Backend) -> tuple[AnySchedule, str]:
    """The schedule with variants that the backend has, and a remark on those that it lacks (or none).

    Variants name kernels of the device that the schedule was made for, as its libraries call them or as the simulator
    does. Those of the simulator run as the most alike that the backend offers; where it offers none, and on another
    device, units run as what is fastest there. On the same device a backend refuses all others that it does not know.
    """
    is_own = schedule.device == backend.context.device
    if is_own and not isinstance(backend, OffersVariants):
        return schedule, ""
    choices = backend.choices(network)
    foreign: dict[str, str] = {}
    for unit, strategy, variant in _variants(schedule):
        try:
            choices((unit,), strategy, variant)
        except PlanError:
            foreign[unit] = variant
    own = ({} if is_own else dict.fromkeys(foreign, FASTEST)) | _most_alike(schedule, network, backend, foreign)
    if not own:
        return schedule, ""
    lighter = sum(map(bool, own.values()))
    remark = (
        f"{backend.context.backend} runs {counted(len(own), 'unit')} with its own kernels"
        f"{f', {lighter} of them not with the fastest but with the most alike' if lighter else ''}: the schedule names "
        f"some of {schedule.device} for them ({', '.join(sorted({foreign[unit] for unit in own}))})."
    )
    return with_variants(schedule, own), remark


def _variants(schedule: AnySchedule) -> Iterator[tuple[str, Strategy, str]]:
    """The units with a variant, the strategy of their stage, and the variant."""
    if isinstance(schedule, StreamSchedule):
        launches = (launch for launch in schedule.launches if launch.variant)
        yield from ((launch.units[0], Strategy.CONCURRENT, launch.variant) for launch in launches)
    else:
        for stage in schedule.stages:
            yield from ((unit, stage.strategy, variant) for unit, variant in stage.variants.items())


def _most_alike(
    schedule: AnySchedule, network: Network, backend: Backend, foreign: Mapping[str, str]
) -> dict[str, str]:
    """For units with variants of the simulator's, those of the backend's that are most alike."""
    if not foreign or not isinstance(backend, OffersVariants) or schedule.device not in device_names():
        return {}
    simulator = own_prices(schedule, engine=backend.context.engine)
    if not isinstance(simulator, VariantCostModel):
        return {}
    found: dict[str, str] = {}
    for problem in problems_of(network, simulator):
        for unit, known in zip(problem.unit_names, simulator.variants(problem), strict=True):
            named = next((one for one in known if foreign.get(unit) == one.name), None)
            if named is not None:
                offered = backend.variants(network, unit)
                found[unit] = offered[most_alike(named, known[0], offered)].name
    return found


def measure_beside(
    network: Network,
    schedules: Mapping[str, AnySchedule],
    baselines: Sequence[str],
    backend: Backend,
    timing: Timing,
    predicted_us: Mapping[str, float],
    progress: Callable[[str], Progress],
) -> list[MeasuredRow]:
    """One row per schedule, in interleaved rounds, then one per baseline; speed-ups are over the first.

    ``torch`` among the baselines means all of PyTorch's that run on the backend's device, likewise ``onnxruntime``.
    Raises BackendError for one that cannot run here.
    """
    bar = progress(backend.context.backend)
    plans = [plan_for(one, network, backend) for one in schedules.values()]
    taken = backend.measure(network, plans, timing, bar)
    samples: dict[str, Samples] = dict(zip(schedules, taken, strict=True))
    place = "cpu" if backend.context.device == "cpu" else "cuda"
    for owner, names in _by_owner(baselines, place).items():
        samples |= import_module(BASELINES[owner]).measure_baselines(network, names, timing, place, progress(owner))
    return [*measured_rows(samples, predicted_us, timing.seed)]


def predictions(network: Network, schedules: Mapping[str, AnySchedule], device: str, engine: str) -> dict[str, float]:
    """Simulated latency of each schedule on a device, us, with values in place as backends keep them, and with the
    simulator's fastest kernels for those that only the backend knows.
    """
    prices = create_cost_model("simulator:backend", load_device(device), network.precision, Engine.named(engine))
    priced = {name: reprice_as_known(found, network, prices) for name, found in schedules.items()}
    streams = any(isinstance(found, StreamSchedule) for found in priced.values())
    if streams and isinstance(prices, StreamCostModel):
        return {name: plan_us(found, network, prices) for name, found in priced.items()}
    return {name: found.latency_us for name, found in priced.items()}


@dataclass(frozen=True, eq=False)
class MeasuredNetwork:
    """A network measured under several schedules, beside baselines."""

    network: Network
    schedules: Mapping[str, AnySchedule]
    rows: tuple[MeasuredRow, ...]

    @property
    def complete(self) -> bool:
        """True if no search was interrupted; otherwise a schedule may be the best so far."""
        return all(found.complete for found in self.schedules.values())


def measure_network(
    network: Network,
    schedulers: Sequence[str],
    baselines: Sequence[str],
    backend: Backend,
    timing: Timing,
    *,
    budget: Budget,
    device: str | None = None,
    options: SearchOptions | None = None,
    store: Path | None = None,
    progress: Callable[[str], Progress] = silent,
) -> MeasuredNetwork:
    """Find the schedules of a network on a backend, then time them and the baselines.

    Schedulers of IOS search at measured prices within ``budget`` (see :meth:`Budget.parse`), from the simulator's
    estimates for ``device``, by default the measured one; predictions are those of the same simulator. One that is
    interrupted is the last. Schedulers of streams search at these estimates, and what they find is measured as a whole.
    Raises OptionError where that device has no profile.
    """
    found: dict[str, AnySchedule] = {}
    network = narrow_blocks(network)  # a search by measurements takes each block whole
    with MeasurementStore(store) as kept:
        prices = MeasuredCostModel(backend, kept, timing)
        for name in schedulers:
            if name in PLAIN:
                found[name] = plain_schedule(network, name)
                continue
            bar = progress(f"{network.name} {name}")
            if name == STREAM_SCHEDULER:
                estimates = estimating_model(prices, device, network.precision)
                streams = schedule_any(network, estimates, name, options, bar)
                note = f"searched at the estimates of the simulator of {estimates.identity.device}"
                found[name] = streams.model_copy(update={"notes": [*streams.notes, note]})
            else:
                task = Task(network, prices, name, options or SearchOptions(), budget=budget, device=device)
                found[name] = task.search(bar, lambda done, most, best_us, bound_us, bar=bar: bar(done, most or done))
            if not found[name].complete:
                break
    own = backend.context.device
    estimate = device or (own if own in device_names() else None)
    predicted = predictions(network, found, estimate, backend.context.engine) if estimate else {}
    rows = measure_beside(network, found, baselines, backend, timing, predicted, progress)
    return MeasuredNetwork(network, found, tuple(rows))


def comparison_rows(measured: MeasuredNetwork) -> list[ComparisonRow]:
    """Runs as comparisons show them: medians, whiskers from the 10th to the 90th percentile, and ties.

    A run ties with the fastest if their speed-ups' intervals overlap.
    """
    fastest = max(measured.rows, key=lambda row: row.speedup.value)
    ties = tuple(row.name for row in measured.rows if row is not fastest and row.speedup.high >= fastest.speedup.low)
    baseline, rows = ComparisonRow("", 0.0, 1.0, stages=0, streams=1, search_s=0.0), []
    for row in measured.rows:
        schedule = measured.schedules.get(row.name)
        low, high = np.percentile(row.samples.times_us, (10, 90)).tolist()
        own = ComparisonRow.of_schedule(schedule, 0.0) if schedule else baseline
        own = replace(own, scheduler=row.name, latency_us=row.samples.median_us, speedup=row.speedup.value)
        ties_here = ties if row is fastest else ()
        rows.append(replace(own, lower_bound_us=None, interval_us=(low, high), ties=ties_here))
    return rows


def _by_owner(baselines: Sequence[str], place: str) -> dict[str, list[str]]:
    """Baselines by provider; a bare provider's name means all of its baselines."""
    found: dict[str, list[str]] = {}
    for name in baselines:
        owner = name.partition("-")[0]
        names = import_module(BASELINES[owner]).baseline_names(place) if name == owner else [name]
        found.setdefault(owner, []).extend(one for one in names if one not in found.get(owner, []))
    return found
