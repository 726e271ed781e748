"""Explanation of operators on an edge device: what bounds each, other splits, and the saving by linking; and results of
dataflow in words and tables.

The bound of an operator is computed, not guessed: the plan is timed again on devices on which one resource at a time is
free, and the time that an operator saves there is what that resource costs it. Barriers separate operators, so that
each saving is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from rich.table import Table

from iossim.base.display import counted
from iossim.base.errors import OptionError, did_you_mean
from iossim.base.tables import Cell, described_table
from iossim.edge.distributed import Distributed
from iossim.edge.optimize import SplitSearch
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Variant, step_load, unit_work
from iossim.edge.planned import Dataflow
from iossim.edge.simulator.events import simulate
from iossim.edge.splitting import Grid, Partition, partition_words
from iossim.hardware.edge import EdgeDevice
from iossim.ir.types import Precision
from iossim.prediction.published import published_dataflow

#: Factor in speed or size that makes a resource free.
_MUCH = 1e6
#: A resource that costs an operator a smaller part of its time does not bound it.
LEAST_PART = 0.03
#: A resource that costs this part of what two together do bounds alone.
_NEARLY = 0.9
PAIRS = {
    "arithmetic and ports": ("arithmetic", "ports of units"),
    "DMA and external memory": ("DMA", "external memory"),
}


def _free(device: EdgeDevice, precision: Precision) -> dict[str, EdgeDevice]:
    """The device with each resource free: arithmetic, waiting for lines, shared resources, units' ports."""
    known = device.numbers()

    def faster(name: str) -> dict[str, float]:
        return {name: known[name] * _MUCH}

    changes: dict[str, dict[str, float]] = {
        "arithmetic": faster(f"multiply_adds_per_cycle.{precision}"),
        "waiting for lines": {"cache_bytes": 10**15},
        "ports of units": faster("port_gbps"),
        "shared memory": faster("shared.bandwidth_gbps"),
        "external memory": faster("external.bandwidth_gbps"),
        "DMA": faster("dma.channel_gbps") | {"dma.setup_us": 0.0},
    }
    # Those of a pair overlap, so that either alone may hide the other.
    changes |= {pair: changes[one] | changes[other] for pair, (one, other) in PAIRS.items()}
    return {thing: device.changed(each) for thing, each in changes.items()}


@dataclass(frozen=True, slots=True)
class OtherSplit:
    """A partition of the operator, and its time by the closed form that policies compare with."""

    partition: str
    priced_us: float


@dataclass(frozen=True, slots=True)
class Linked:
    """Consumer for which an operator's output is laid out: bytes that its readers move with and without that layout."""

    form: str
    readers: tuple[str, ...]
    bytes: int
    unlinked_bytes: int


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """An operator of the full plan. ``saves_us`` is its saving with one resource free, by resource, the largest first.

    ``priced_us`` is the closed form of its own split, ``others`` those of each axis alone, and of the best of all grids
    if requested. ``linking_us`` is the saving by linking, of its inputs (``reads_linked``: the producers that lay them
    out for it) or of its output. ``chunks`` is the number of parts in which a unit's parameters arrive, the largest of
    ``chunk_bytes``.
    """

    operator: str
    kind: str
    time_us: float
    share: float
    partition: str
    slices: int
    whole: str
    chunks: int
    chunk_bytes: int
    parameter_bytes: int
    saves_us: Mapping[str, float]
    priced_us: float
    others: tuple[OtherSplit, ...]
    linking_us: float
    reads_linked: tuple[str, ...]
    linked: Linked | None

    @property
    def bound(self) -> str:
        """The costliest resource, a single one before two; ``several at once`` if none costs much."""
        most_us = max(self.saves_us.values())
        if most_us < LEAST_PART * self.time_us:
            return "several at once"
        near = [thing for thing, us in self.saves_us.items() if us >= _NEARLY * most_us]
        return min(near, key=lambda thing: thing in PAIRS)


@dataclass(frozen=True)
class DataflowExplanation:
    """All operators of a plan, and the saving of the whole network with each resource free."""

    found: Dataflow
    operators: tuple[ExplainedOperator, ...]
    saves_us: Mapping[str, float]

    @property
    def by_importance(self) -> list[ExplainedOperator]:
        return sorted(self.operators, key=lambda one: -one.time_us)

    def to_json(self) -> dict[str, object]:
        plan = self.found.plans[Variant.FULL]
        return {
            "model": plan.network.source.model or plan.network.name,
            "device": self.found.device.name,
            "policy": self.found.policy,
            "full_us": self.found.total_us(Variant.FULL),
            "saves_us": dict(self.saves_us),
            "operators": [{**asdict(one), "bound": one.bound} for one in self.operators],
        }


def explain_dataflow(found: Dataflow, searched: Sequence[str] = ()) -> DataflowExplanation:
    """Explain the full plan of a network; every grid is priced for operators in ``searched`` (seconds on many units).
    Raises OptionError for an unknown operator.
    """
    names = [row.operator for row in found.operators]
    for name in searched:
        if name not in names:
            raise OptionError(f"`operator` {name!r} is not in the network; {did_you_mean(name, names)}")
    plan, timed = found.plans[Variant.FULL], found.times[Variant.FULL]
    free = {
        thing: simulate(replace(plan, device=device)) for thing, device in _free(found.device, plan.precision).items()
    }
    free_us = {thing: other.steps_us for thing, other in free.items()}
    links = {link.value: link for link in plan.links}
    makers = {value: unit.name for unit in plan.network.units for value in unit.outputs}
    known: dict[object, tuple[float, tuple[OtherSplit, ...]]] = {}
    operators = []
    for index, step in enumerate(plan.steps):
        row = found.operators[index]
        saves_us = {thing: row.full_us - times_us[index] for thing, times_us in free_us.items()}
        works = [unit_work(plan, step, part, 0) for part in step.slices]
        is_searched = row.operator in searched
        key = (step.operator.signature, len(step.slices), plan.lies(step.operator), is_searched)
        if key not in known:
            known[key] = _splits(plan, step, is_searched)
        priced_us, others = known[key]
        link = next((links[value] for value in step.operator.outputs if value in links), None)
        operators.append(
            ExplainedOperator(
                row.operator,
                row.kind,
                row.full_us,
                row.full_us / timed.total_us,
                row.partition,
                row.slices,
                row.whole,
                max(len(own) for own in works),
                max((work.chunk.parameter_bytes for own in works for work in own), default=0),
                sum(plan.network.graph.types[name].bytes for name in step.operator.parameters),
                dict(sorted(saves_us.items(), key=lambda one: -one[1])),
                priced_us,
                others,
                row.horizontal_us - row.full_us,
                tuple(makers[value] for value in step.operator.inputs if value in links),
                None if link is None else Linked(row.layout, link.readers, link.bytes, link.unlinked_bytes),
            )
        )
    whole_us = {thing: timed.total_us - other.total_us for thing, other in free.items()}
    ordered = dict(sorted(whole_us.items(), key=lambda one: -one[1]))
    return DataflowExplanation(found, tuple(operators), ordered)


def _splits(plan: EdgePlan, step: OperatorStep, is_searched: bool) -> tuple[float, tuple[OtherSplit, ...]]:
    """Price of a step's own split, of each axis alone, and of the best of all grids if that is searched."""
    own_us = step_load(plan, step).us
    operator, units = step.operator, plan.device.units.value
    if step.operator.unknown or not operator.axes:
        return own_us, ()

    def along(axis: int, part: OutputSlice) -> Partition:
        space = part.partition.space
        return Grid(space, units, (axis,), (min(units, space.shape[axis]),))

    others = []
    for axis in operator.axes:
        words = f"{operator.axis_name(axis)} {min(units, operator.output.shape[axis])}"
        others.append(OtherSplit(words, step_load(plan, step.split(partial(along, axis))).us))
    if is_searched:
        best = step.split(partial(SplitSearch("exhaustive").split, plan, step, units))
        others.append(OtherSplit(partition_words(operator, best.slices[0].partition), step_load(plan, best).us))
    return own_us, tuple(dict.fromkeys(others))


_KIB = 1 << 10


def dataflow_table(found: Dataflow) -> Table:
    """One row per operator: its split, the consumer that it is laid out for, what it moves, and its three times."""
    rows: list[dict[str, Cell]] = [
        {
            "operator": row.operator,
            "partition": row.partition,
            **({"slices": row.slices} if row.slices > 1 else {}),
            "linked": row.layout,
            "moved_kib": row.moved_bytes / _KIB,
            **{name: getattr(row, name) for name in (f"{variant}_us" for variant in Variant)},
        }
        for row in found.operators
    ]
    return described_table(__package__, "dataflow", "", rows)


def dataflow_words(found: Dataflow) -> str:
    """The three times, what each step saves, and which operators ran whole."""
    vanilla, horizontal, full = (found.total_us(variant) for variant in Variant)
    words = (
        f"vanilla {vanilla / 1e3:,.3f} ms; split over {found.device.units.value} units {horizontal / 1e3:,.3f} ms "
        f"({_change(horizontal, vanilla)}); linked too {full / 1e3:,.3f} ms (a further {_change(full, horizontal)}). "
        f"Found in {found.optimise_s:.3f} s by policy {found.policy}."
    )
    if found.was_interrupted:
        words += " The search was interrupted: operators that it did not come to are split by the priority."
    for step, taken, name in (
        ("horizontal", 1 - horizontal / vanilla, "splitting"),
        ("vertical", 1 - full / horizontal, "linking"),
    ):
        low, high = published_dataflow(found.device.name).get(step, (-1e9, 0))
        if 100 * taken < low:
            words += f"\nXenos (figure 7) measured that {name} takes {low:g} to {high:g}% off on this device."
            words += " This model does not reproduce that here."
    if (parts := found.parts) is not None:
        part_ms = f"{parts.total_us / 1e3:,.3f} ms ({_change(parts.total_us, full)})"
        words += f"\nBranches side by side on parts of the units: {part_ms}, "
        words += f"{len(parts.rows)} of {parts.proposed} stages that the search found."
        for stage in parts.rows:
            beside = zip(stage.operators, stage.units, strict=True)
            lanes = "; ".join(f"{', '.join(names)} on {units}" for names, units in beside)
            words += f"\n  {stage.parts_us / 1e3:,.3f} for {stage.whole_us / 1e3:,.3f} ms: {lanes}."
    whole = {row.whole: row.operator for row in found.operators if row.whole}
    for why, operator in whole.items():
        words += f" Whole on one unit for {why}: {operator}."
    return f"{words}\n{trust_words(found.device)}"


def trust_words(device: EdgeDevice) -> str:
    """Why times on an edge device have no interval."""
    return f"No interval: no time was measured on a {device.name}, so that the error of these is unknown."


def _change(now_us: float, before_us: float) -> str:
    """Relative change in words: ``12.5% less``, or ``more``."""
    return f"{abs(1 - now_us / before_us):.1%} {'more' if now_us > before_us else 'less'}"


def distribution_table(found: Distributed) -> Table:
    """One row per operator: its division, what is sent for it, how much of that is waited for, and the slowest device's
    time.
    """
    rows: list[dict[str, Cell]] = [
        {
            **{name: getattr(row, name) for name in ("operator", "mode")},
            "sent_kib": row.sent_bytes / _KIB,
            **{name: getattr(row, name) for name in ("exchange_us", "waited_us", "compute_us")},
        }
        for row in found.rows
    ]
    return described_table(__package__, "distribution", "", rows)


def distribution_words(found: Distributed) -> str:
    """One device against all of them, each mode alone, and what was sent."""
    distribution = found.distribution
    alone = ", ".join(f"{mode} {found.one_us / us:.2f}x" for mode, us in found.by_mode_us.items())
    sent = distribution.sent_bytes / _KIB
    words = (
        f"one device {found.one_us / 1e3:,.3f} ms; {distribution.devices} of them {found.latency_us / 1e3:,.3f} ms, "
        f"{found.speedup:.2f}x: {found.compute_us / 1e3:,.3f} ms computing, {found.waited_us / 1e3:,.3f} ms waiting "
        f"for {sent:,.0f} KiB over {found.link} by {found.sync}.\n"
    )
    if found.mix == "mix":
        words += f"Every operator divided alike: {alone}.\n"
    words += f"Found in {found.optimise_s:.2f} s" + ("." if distribution.exact else ", not all choices followed.")
    return f"{words}\n{trust_words(found.device)}"


_THINGS_LISTED = 3


def explanation_overview(explained: DataflowExplanation) -> list[str]:
    found = explained.found
    plan = found.plans[Variant.FULL]
    total_us = found.total_us(Variant.FULL)
    bounds: dict[str, float] = {}
    for one in explained.operators:
        bounds[one.bound] = bounds.get(one.bound, 0.0) + one.share
    told = ", ".join(f"{bound} {share:.0%}" for bound, share in sorted(bounds.items(), key=lambda each: -each[1]))
    return [
        f"{plan.network.name} on {found.device.name}, batch {plan.network.source.batch}, {plan.precision}, policy "
        f"{found.policy}: {total_us / 1e3:,.3f} ms in {counted(len(explained.operators), 'operator')}",
        f"what bounds them, by time: {told}",
        trust_words(found.device),
        _costs(explained.saves_us, total_us),
    ]


def explanation_lines(one: ExplainedOperator) -> list[str]:
    """Explanation of an operator: its split, its bound, its alternatives, and the effect of linking."""
    lines = [f"{one.operator} ({one.kind}): {one.time_us:,.1f} us, {one.share:.1%} of all", f"  {_split(one)}"]
    if one.bound == "several at once":
        lines.append("  bound by several things at once: without any one of them it takes as long")
    else:
        lines.append(f"  bound by {one.bound}: {_costs(one.saves_us, one.time_us)}")
    if others := [each for each in one.others if each.partition != one.partition]:
        told = ", ".join(f"{each.partition} {each.priced_us:,.1f}" for each in others)
        lines.append(f"  by the closed form {one.priced_us:,.1f} us; split otherwise {told}")
    lines += [f"  {words}" for words in _linking(one)]
    return lines


def _split(one: ExplainedOperator) -> str:
    if one.whole:
        return f"whole on one unit: {one.whole}"
    words = f"split by {one.partition}" if one.partition != "whole" else "whole on one unit: it cannot be split"
    if one.slices > 1:
        words += f", in {one.slices} slices, since its maps are in external memory and staged in parts"
    if one.parameter_bytes:
        share = "in one part" if one.chunks == 1 else f"in {one.chunks} parts"
        words += f"; of {one.parameter_bytes:,} bytes of parameters a unit takes up to {one.chunk_bytes:,} at a time, "
        words += share
    return words


def _linking(one: ExplainedOperator) -> Iterable[str]:
    if one.reads_linked:
        yield f"reads in sequence what {', '.join(one.reads_linked)} wrote for it"
    if one.linked is not None:
        readers = ", ".join(one.linked.readers)
        yield (
            f"writes for {readers} ({one.linked.form}): a unit moves {one.linked.bytes:,} bytes of it instead of "
            f"{one.linked.unlinked_bytes:,}"
        )
    if (one.reads_linked or one.linked) and one.linking_us > LEAST_PART * one.time_us:
        yield f"linking saves {one.linking_us:,.1f} us"
    elif one.linking_us < -LEAST_PART * one.time_us:
        yield f"linking costs this operator {-one.linking_us:,.1f} us, and saves time in others"


def _costs(saves_us: Mapping[str, float], total_us: float) -> str:
    """The largest savings from removing one cause, or two together where that saves more than either alone."""
    told: list[str] = []
    covered: list[str] = []
    for thing, us in saves_us.items():
        parts = PAIRS.get(thing, ())
        alone_us = max((saves_us[each] for each in parts), default=0.0)
        if thing not in covered and us >= max(LEAST_PART * total_us, 1.05 * alone_us):
            covered += parts
            told.append(f"without {thing} {us:,.1f} us ({us / total_us:.0%}) less")
    return ", ".join(told[:_THINGS_LISTED]) or "no single cause explains much of the time"
