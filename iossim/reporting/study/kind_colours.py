"""Kinds of ops get colours by how much of a study's time they take: the same ones in every figure of a report."""

from __future__ import annotations

from collections.abc import Iterable

from iossim.ir.network import Network, Unit
from iossim.lowering.unit import unit_steps
from iossim.reporting.figures import PALETTE, REST
from iossim.study.study_run import StudyRun

#: What stands between stages, among the kinds of ops.
BOUNDARIES = "boundaries"
_BETWEEN = "#6b7280"


def op_kind(network: Network, unit: Unit) -> str:
    """The kind of a unit's op that works most: that by which time is dealt to kinds."""
    steps = unit_steps(network, unit)
    most = max(steps, key=lambda step: (step.flops, step.activation_bytes + step.bytes_written), default=None)
    return unit.kind if most is None else most.op.kind


def kind_colours(run: StudyRun, kinds: Iterable[str] | None = None) -> dict[str, str]:
    """A colour for each kind, the one that takes most first, boundaries last; those beyond the palette share grey.

    With ``kinds`` for these alone.
    """
    total_us: dict[str, float] = {}
    for row in run.results.rows:
        for kind, time_us in row.time_by_kind_us.items():
            total_us[kind] = total_us.get(kind, 0.0) + time_us
    wanted = set(total_us if kinds is None else kinds)
    for kind in wanted:
        total_us.setdefault(kind, 0.0)
    ordered = sorted((kind for kind in total_us if kind != BOUNDARIES), key=lambda kind: (-total_us[kind], kind))
    colours = {kind: PALETTE[place] if place < len(PALETTE) else REST for place, kind in enumerate(ordered)}
    return {kind: colour for kind, colour in {**colours, BOUNDARIES: _BETWEEN}.items() if kind in wanted}
