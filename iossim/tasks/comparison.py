"""Schedulers side by side on one network and device: each one's latency, speed-up and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isclose
from typing import Generic, TypeVar

from rich.table import Table

from iossim.base.display import Printed
from iossim.base.errors import OptionError, did_you_mean
from iossim.base.tables import Cell, described_table
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.prediction.published import SEQUENTIAL, comparable_published_us, is_pinned
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.assemble import plan_us
from iossim.transforms.transform import Outcome

#: Marks a scheduler whose schedule differs from the best by less than the noise.
TIE = "≈"

T = TypeVar("T")
Found_co = TypeVar("Found_co", bound=AnySchedule, covariant=True)


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A scheduler's latency, its speed-up and its bounds; ``published_us`` is a measured figure, if known."""

    scheduler: str
    latency_us: float
    speedup: float
    #: None for streams without barriers.
    stages: int | None
    streams: int
    search_s: float
    lower_bound_us: float | None = None
    published_us: float | None = None
    #: Interval of nine in ten measurements, from and to.
    interval_us: tuple[float, float] | None = None
    #: Schedulers whose schedules differ from this one by less than the noise.
    ties: tuple[str, ...] = ()
    #: Latency by a fit without the network's published figures; None where they took no part in the fit.
    left_out_us: float | None = None

    @staticmethod
    def of_schedule(schedule: AnySchedule, sequential_us: float) -> ComparisonRow:
        """Row of a schedule; ``sequential_us``, the latency of the units one by one, is the baseline of speed-ups."""
        interval_us = schedule.interval_us
        return ComparisonRow(
            schedule.scheduler,
            schedule.latency_us,
            schedule.speedup(sequential_us),
            stages=len(schedule.stages) if isinstance(schedule, Schedule) else None,
            streams=schedule.streams if isinstance(schedule, Schedule) else len(schedule.streams),
            search_s=schedule.search_s,
            lower_bound_us=schedule.lower_bound_us,
            interval_us=None if interval_us is None else (interval_us[0], interval_us[1]),
            ties=tuple(schedule.ties),
        )

    @property
    def gap_percent(self) -> float | None:
        """Gap between the latency and the lower bound; None without a bound."""
        return 100 * (self.latency_us / self.lower_bound_us - 1) if self.lower_bound_us else None

    @property
    def error_percent(self) -> float | None:
        """Signed error against the published latency; None where none is known."""
        return 100 * (self.latency_us / self.published_us - 1) if self.published_us else None

    @property
    def left_out_percent(self) -> float | None:
        """Error against the published latency of a fit that held the network's figures out."""
        return 100 * (self.left_out_us / self.published_us - 1) if self.published_us and self.left_out_us else None


def fastest(items: Sequence[T], latency_us: Callable[[T], float]) -> list[T]:
    """The items of least latency, equal but for rounding, in order: the first is the simplest, the last searched the
    largest space.
    """
    least_us = min(map(latency_us, items), default=0.0)
    return [item for item in items if latency_us(item) <= least_us * (1 + 1e-9)]


def best_row(rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """The first of the :func:`fastest` rows; None without rows."""
    return next(iter(fastest(rows, lambda row: row.latency_us)), None)


def ties_with(best: ComparisonRow | None, row: ComparisonRow) -> bool:
    """True if a row differs from the best one, and by less than the noise."""
    return best is not None and row is not best and row.scheduler in best.ties


@dataclass(frozen=True, eq=False)
class Entry(Generic[Found_co]):
    """A schedule and its network, as given or as a ``transform`` changed it; ``how`` says that in a word or two."""

    network: Network
    schedule: Found_co
    transform: str = ""
    how: str = ""

    @property
    def label(self) -> str:
        """Name of its row."""
        return f"{self.schedule.scheduler}, {self.how}" if self.how else self.schedule.scheduler


@dataclass(frozen=True)
class OtherEngine:
    """Latencies under ``engine``: of the same schedule, of one op after another, and of the best of a quick search."""

    engine: str
    same_schedule_us: float
    sequential_us: float
    best_us: float
    max_group_size: int
    max_groups: int

    def sentence(self) -> str:
        return (
            f"With `engine` {self.engine} it takes {self.same_schedule_us / 1e3:.3f} ms; the best there: "
            f"{self.best_us / 1e3:.3f} ms, speed-up {self.sequential_us / self.best_us:.2f}x"
        )


@dataclass(frozen=True)
class Comparison(Printed):
    """Schedules of one network on one device, one per scheduler, in the order given.

    Where transforms changed the network as well, ``outcomes`` reports each, and ``changed`` are the schedules of the
    results. ``complete`` is False if the comparison was interrupted: some schedulers may be missing, and the last one's
    schedule may be the best that it had found so far. Where the device was fitted to published figures of the network,
    ``left_out_us`` is the latency by a fit without them, by scheduler; the sequential latency is then in-sample
    (:meth:`is_in_sample`).
    """

    network: Network
    device: str
    engine: str
    cost_model: dict[str, str]
    schedules: tuple[Schedule, ...]
    complete: bool = True
    left_out_us: Mapping[str, float] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    changed: tuple[Entry[Schedule], ...] = ()
    #: Results of schedulers of streams: streams, or stages where no streams are faster.
    streams: tuple[AnySchedule, ...] = ()
    other_engine: OtherEngine | None = None
    #: Latency of stages as a whole plan by row label, us: it is comparable to latencies of streams, and is not the sum
    #: of the stages. Bounds, ties and intervals apply to sums, and are left out then.
    plans_us: Mapping[str, float] = field(default_factory=dict)
    #: Largest noise between the best schedule of the network as given and one that ties with it; 0 without ties.
    noise: float = 0.0

    def beside(self, streams: Sequence[AnySchedule], prices: CostModel) -> Comparison:
        """The comparison extended by what schedulers of streams found for its network at the same prices."""
        both = replace(self, streams=tuple(streams))
        if not isinstance(prices, StreamCostModel) or all(isinstance(one, Schedule) for one in streams):
            return both
        stages = [entry for entry in both.entries if isinstance(entry.schedule, Schedule)]
        plans_us = {one.label: plan_us(one.schedule, one.network, prices) for one in stages}
        # They add up under the graph engine, for instance.
        add_up = all(isclose(plans_us[one.label], one.schedule.latency_us) for one in stages)
        return both if add_up else replace(both, plans_us=plans_us)

    def __repr__(self) -> str:
        best = f"best {self.best_of_all.label}, {self.best_us / 1e3:.3f} ms" if self.schedules else "nothing"
        return f"<Comparison {self.title}: {best} of {len(self.schedules)} schedulers>"

    @property
    def remarks(self) -> list[str]:
        """Notes on the meaning of the table's marks and latencies."""
        best = best_row(self.rows)
        which = f"differences of up to {self.noise:.0%} are" if self.noise else "the difference is"
        tied = [f"{TIE} tied with the best: {which} within the noise"] if best and best.ties else []
        if not self.plans_us:
            return tied
        in_plans = (entry for entry in self.entries if entry.label in self.plans_us)
        sums = ", ".join(f"{one.label} {one.schedule.latency_us / 1e3:.3f} ms" for one in in_plans)
        return [
            f"Latencies are those of whole plans, as streams have no stages to add up; sums of stages: {sums}",
            *tied,
        ]

    def __getitem__(self, scheduler: str) -> Schedule:
        for found in self.schedules:
            if found.scheduler == scheduler:
                return found
        named = (found.scheduler for found in self.schedules)
        raise OptionError(f"the comparison has no schedule by {scheduler!r}; {did_you_mean(scheduler, named)}")

    @property
    def batch(self) -> int:
        return self.network.source.batch

    @property
    def title(self) -> str:
        """Title: network, device, and all else that latencies depend on."""
        where = f"{self.network.name} on {self.device}, batch {self.batch}, {self.network.precision}"
        engine = f", {self.engine} engine" if self.engine else ""
        return f"{where}{engine}, priced by {self.cost_model['name']}"

    @property
    def entries(self) -> list[Entry[AnySchedule]]:
        """The schedules with their networks, in the order of the rows; those of changed networks last."""
        return [*self._of_given(self.schedules), *self._of_given(self.streams), *self.changed]

    def _of_given(self, schedules: Sequence[Found_co]) -> list[Entry[Found_co]]:
        return [Entry(self.network, found) for found in schedules]

    @property
    def rows(self) -> list[ComparisonRow]:
        """A row for each entry, with speed-ups; those of stages of the network as given with published latencies."""
        return list(map(self._row, self.entries))

    def _row(self, entry: Entry[AnySchedule]) -> ComparisonRow:
        row, name = ComparisonRow.of_schedule(entry.schedule, self.baseline_us), entry.label
        if any(entry.schedule is found for found in self.schedules):
            row = replace(row, published_us=self.published_us(name), left_out_us=self.left_out_us.get(name))
        if (us := self.plans_us.get(name)) is not None:
            row = replace(row, latency_us=us, speedup=self.baseline_us / us if us else 1.0, ties=())
            row = replace(row, lower_bound_us=None, interval_us=None, left_out_us=None)
        return replace(row, scheduler=name)

    def latency_us(self, entry: Entry[AnySchedule]) -> float:
        """Latency of an entry as the table defines it, us."""
        return self.plans_us.get(entry.label, entry.schedule.latency_us)

    @property
    def baseline(self) -> Schedule:
        """Baseline of speed-ups: the sequential schedule, or the slowest where that was not requested."""
        sequential = (found for found in self.schedules if found.scheduler == "sequential")
        return next(sequential, max(self.schedules, key=lambda found: self.latency_us(Entry(self.network, found))))

    @property
    def baseline_us(self) -> float:
        return self.latency_us(Entry(self.network, self.baseline))

    @property
    def best_of_stages(self) -> Entry[Schedule]:
        """The fastest of stages; of equals the first, so that the network as given comes before changed ones."""
        return self.fastest_of_stages[0]

    @property
    def fastest_of_stages(self) -> list[Entry[Schedule]]:
        """The entries of stages as fast as the fastest, all of one network: the given one if it has any."""
        found = fastest([*self._of_given(self.schedules), *self.changed], self.latency_us)
        return [each for each in found if each.network is found[0].network]

    @property
    def best_of_all(self) -> Entry[AnySchedule]:
        """The fastest entry: streams only if faster than all stages."""
        entries: list[Entry[AnySchedule]] = [self.best_of_stages, *self._of_given(self.streams)]
        return fastest(entries, self.latency_us)[0]

    @property
    def best(self) -> Schedule:
        """The schedule of :attr:`best_of_stages`."""
        return self.best_of_stages.schedule

    @property
    def best_us(self) -> float:
        """Latency of the fastest of all, as the table defines it."""
        return self.latency_us(self.best_of_all)

    def published_us(self, scheduler: str) -> float | None:
        """Measured latency published for this point, if known; None at random prices, which predict none."""
        return comparable_published_us(self[scheduler], self.network.source.model)

    def is_in_sample(self, scheduler: str) -> bool:
        """True if the published figure took part in the fit, or determined a number of the simulator."""
        fitted = scheduler == SEQUENTIAL and scheduler in self.left_out_us
        return fitted or (self.published_us(scheduler) is not None and is_pinned(self.network.source.model, scheduler))

    def to_json(self) -> dict[str, object]:
        """The comparison as JSON values; latencies in us."""
        streams = list(map(self._streams_json, self._of_given(self.streams)))
        changed = [(one.transform, self._changed_json(one)) for one in self.changed]
        return {
            "model": self.network.name,
            "device": self.device,
            "batch": self.batch,
            "dtype": str(self.network.precision),
            "engine": self.engine,
            "cost_model": self.cost_model,
            "complete": self.complete,
            "schedules": list(map(self._given_json, self._of_given(self.schedules))),
            **({"streams": streams} if streams else {}),
            **dict.fromkeys(("rewriting", "joins", "micro_batches")),
            **{
                one.name: {**one.to_json(), "schedules": [made for name, made in changed if name == one.name]}
                for one in self.outcomes
            },
            "other_engine": self.other_engine and asdict(self.other_engine),
        }

    def _given_json(self, entry: Entry[Schedule]) -> dict[str, object]:
        """The row of stages of the network as given, beside what was published of it."""
        row, in_sample = self._row(entry), self.is_in_sample(entry.schedule.scheduler)
        return self._json(entry, published_us=row.published_us, in_sample=in_sample, left_out_us=row.left_out_us)

    def _changed_json(self, entry: Entry[Schedule]) -> dict[str, object]:
        """The row of a changed network, with the way in a word or two, and the rules that rewrote it."""
        rules: dict[str, int] = {}
        if "rewriting" in dict(entry.network.source.options):
            from iossim.transforms.rewriting.rewritten import applied_rules  # most comparisons do not use it

            rules = applied_rules(entry.network)
        values = {"way": entry.how, **self._json(entry, rules=rules)}
        return {name: value for name, value in values.items() if name != "ties"}

    def _streams_json(self, entry: Entry[AnySchedule]) -> dict[str, object]:
        """The whole schedule that a scheduler of streams found."""
        found, row = entry.schedule, self._row(entry)
        values = {**found.model_dump(mode="json"), "speedup": row.speedup}
        if entry.label in self.plans_us:
            values |= dict.fromkeys(("interval_us", "lower_bound_us", "relaxed_bound_us"))
            values |= {"latency_us": row.latency_us, "ties": [], "proven": False, "sum_of_stages_us": found.latency_us}
        return values

    def _json(self, entry: Entry[AnySchedule], **more: object) -> dict[str, object]:
        """A row, ``more`` of it, and what the search says of its schedule: bounds and proofs are of sums of stages."""
        found, row, in_sums = entry.schedule, self._row(entry), entry.label not in self.plans_us
        return {
            "scheduler": found.scheduler,
            "latency_us": row.latency_us,
            "interval_us": row.interval_us and list(row.interval_us),
            "ties": list(row.ties),
            **{name: getattr(row, name) for name in ("speedup", "stages", "streams", "search_s", "lower_bound_us")},
            "relaxed_bound_us": found.relaxed_bound_us if in_sums else None,
            **more,
            "complete": found.complete,
            "proven": found.proven and in_sums,
            "notes": found.notes,
            "remarks": found.remarks,
            **({} if in_sums else {"sum_of_stages_us": found.latency_us}),
        }


def comparison_table(rows: Sequence[ComparisonRow]) -> Table:
    """Schedulers side by side; ties with the best are marked. Bounds and published figures appear where known: the
    error of a sequential figure may be in-sample; then that of a fit without the network is shown beside it.
    """
    best = best_row(rows)
    records: list[dict[str, Cell]] = [
        {
            "scheduler": f"{row.scheduler}{TIE}" if ties_with(best, row) else row.scheduler,
            "latency_ms": row.latency_us / 1000,
            "speedup_x": row.speedup,
            **{name: getattr(row, name) for name in ("stages", "streams", "search_s")},
            "bound_ms": None if row.lower_bound_us is None else row.lower_bound_us / 1000,
            "gap_percent": row.gap_percent,
            "published_ms": None if row.published_us is None else row.published_us / 1000,
            **{name: getattr(row, name) for name in ("error_percent", "left_out_percent")},
        }
        for row in rows
    ]
    return described_table(__package__, "comparison", "", records)
