"""Dataflow on edge devices as tables and sentences: a plan on one device, on several, and why operators are as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.edge.distributed import Distributed
from iossim.edge.explain import LEAST_PART, PAIRS, DataflowExplanation, ExplainedOperator
from iossim.edge.plan import Variant
from iossim.edge.planned import Dataflow
from iossim.measurements.published_figures import published_dataflow

_KIB = 1 << 10


def dataflow_table(found: Dataflow) -> Table:
    """One row per operator: its split, the consumer that it is laid out for, what it moves, and its three times."""
    rows: list[dict[str, Cell]] = []
    for row in found.operators:
        rows.append({**asdict(row), "linked": row.layout, "moved_kib": row.moved_bytes / _KIB})
        if row.slices == 1:
            del rows[-1]["slices"]
    columns = [
        Column("operator", shortens=True),
        Column("partition", shortens=True),
        Column("slices"),
        Column("linked", shortens=True),
        Column("moved_kib", digits=0),
        *(Column(f"{variant}_us", digits=1) for variant in Variant),
    ]
    return records_table("", rows, columns)


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
    return words


def _change(now_us: float, before_us: float) -> str:
    """Relative change in words: ``12.5% less``, or ``more``."""
    return f"{abs(1 - now_us / before_us):.1%} {'more' if now_us > before_us else 'less'}"


def distribution_table(found: Distributed) -> Table:
    """One row per operator: its division, what is sent for it, how much of that is waited for, and the slowest device's
    time.
    """
    rows = [{**asdict(row), "sent_kib": row.sent_bytes / _KIB} for row in found.rows]
    columns = [
        Column("operator", shortens=True),
        Column("mode", "divided by"),
        Column("sent_kib", digits=0),
        Column("exchange_us", "sending", 1),
        Column("waited_us", "waiting", 1),
        Column("compute_us", "computing", 1),
    ]
    return records_table("", rows, columns)


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
    return words


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
        f"{found.policy}: {total_us / 1e3:,.3f} ms in {len(explained.operators)} operators",
        f"what bounds them, by time: {told}",
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
