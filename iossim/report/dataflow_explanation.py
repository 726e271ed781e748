"""Why operators on an edge device are as they are, as text: a few lines an operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iossim.edge.explain import LEAST_PART, PAIRS, DataflowExplanation, ExplainedOperator
from iossim.edge.plan import Variant

_LISTED = 3


def explanation_overview(explained: DataflowExplanation) -> list[str]:
    """The network as a whole."""
    found = explained.found
    plan = found.plans[Variant.FULL]
    total_us = found.total_us(Variant.FULL)
    bounds: dict[str, float] = {}
    for one in explained.operators:
        bounds[one.bound] = bounds.get(one.bound, 0.0) + one.share
    told = ", ".join(f"{bound} {share:.0%}" for bound, share in sorted(bounds.items(), key=lambda each: -each[1]))
    return [
        f"{plan.network.name} on {found.device.name}, batch {plan.network.source.batch}, {plan.precision}, policy {found.policy}: "
        f"{total_us / 1e3:,.3f} ms in {len(explained.operators)} operators",
        f"what bounds them, by time: {told}",
        _costs(explained.saves_us, total_us),
    ]


def explanation_lines(one: ExplainedOperator) -> list[str]:
    """An operator: how it is split, what bounds it, what else it could have been, what linking did."""
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
    words = (
        f"split by {one.partition}" if one.partition != "whole" else "whole on one unit: nothing of it can be split"
    )
    if one.slices > 1:
        words += f", in {one.slices} slices, since its maps lie outside and come and go in parts"
    if one.parameter_bytes:
        share = "in one part" if one.chunks == 1 else f"in {one.chunks} parts"
        words += f"; of {one.parameter_bytes:,} bytes of parameters a unit takes up to {one.chunk_bytes:,} at a time, {share}"
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
        yield f"linking takes {one.linking_us:,.1f} us off it"
    elif one.linking_us < -LEAST_PART * one.time_us:
        yield f"linking costs it {-one.linking_us:,.1f} us, for others' sake"


def _costs(saves_us: Mapping[str, float], total_us: float) -> str:
    """What would be saved without each thing, the largest; of two together where that is more than without one of them."""
    told: list[str] = []
    covered: list[str] = []
    for thing, us in saves_us.items():
        parts = PAIRS.get(thing, ())
        alone_us = max((saves_us[each] for each in parts), default=0.0)
        if thing not in covered and us >= max(LEAST_PART * total_us, 1.05 * alone_us):
            covered += parts
            told.append(f"without {thing} {us:,.1f} us ({us / total_us:.0%}) less")
    return ", ".join(told[:_LISTED]) or "without any one thing it takes about as long"
