"""The roofline of the ops: the rate of each unit alone under the limits of the device (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell, Column, number_of
from iossim.hardware.lowering.unit import main_kind, unit_bytes
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.report.colours import kind_colours
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import coloured, layer, log_ticks, need_altair, specification
from iossim.report.study.plots import Plot
from iossim.report.study.plots.timeline import ChosenPoint, chosen_points
from iossim.study.study_run import StudyRun

_HEIGHT_PIXELS = 340

_NAME = "roofline"


def draw(run: StudyRun) -> Figure | None:
    chosen = chosen_points(run)
    units = [record for point in chosen for record in _units(point)]
    drawn = [record for record in units if record["gflops"]]
    if not drawn:
        return None
    missing = len(units) - len(drawn)
    left_out = f" Not drawn, and in the data alone: {missing} without arithmetic." if missing else ""
    colours = kind_colours([str(record["kind"]) for record in drawn])
    records = (*units, *(record for point in chosen for record in _roofs(point, units)))
    return Figure(
        name=_NAME,
        title="Roofline of the ops",
        finding=_finding(chosen[0], units),
        caption=(
            "Each mark is a unit (a fused op) that runs alone, as the simulator prices it: its arithmetic over its "
            "time, against arithmetic over the bytes that it must move; the area of a mark is its share of the "
            "sequential time. The lines are the peaks of the device's datasheet. What lies far below them fills the "
            "device badly, and is what running side by side helps. Above them may be Winograd convolutions, which need "
            f"less arithmetic than is counted, and ops whose data stays in the L2 cache.{left_out}"
        ),
        alt="Scatter of arithmetic rate against arithmetic intensity of each op, under the lines of memory bandwidth "
        "and peak.",
        columns=(
            *((Column("point"),) if len(chosen) > 1 else ()),
            Column("unit"),
            Column("kind"),
            Column("intensity", "flop per byte", digits=1),
            Column("gflops", "GFLOP/s", digits=0),
            Column("time_us", digits=2),
            Column("share_percent", "share", digits=2),
            Column("of_roof_percent", "of the roof", digits=0),
        ),
        records=records,
        printed=tuple(sorted(units, key=lambda unit: -number_of(unit["share_percent"]))),
        panels=(Panel("", _specification(colours, records)),),
        choices=(Column("point"),) if len(chosen) > 1 else (),
        legend=tuple(LegendEntry(kind, colour, "circle") for kind, colour in colours.items()),
    )


def peak_gflops(profile: DeviceProfile, network: Network) -> float:
    """The peak of the device at the network's precision."""
    return 1e3 * (profile.reduced_precision_tflops(network.precision) or profile.fp32_tflops)


def _units(point: ChosenPoint) -> list[dict[str, Cell]]:
    network, profile = point.network, point.profile
    alone_us = {stage.units[0]: stage.latency_us for stage in point.sequential.stages if len(stage.units) == 1}
    total_us = sum(alone_us.values())
    peak = peak_gflops(profile, network)
    records: list[dict[str, Cell]] = []
    for unit in network.units:
        time_us = alone_us.get(unit.name)
        if time_us is None:
            continue
        flops = sum(network.graph.work(node).flops for node in network.unit_nodes(unit))
        moved = unit_bytes(network, unit)
        counts = bool(flops and moved and time_us)
        intensity = flops / moved if counts else None
        gflops = flops / time_us / 1e3 if counts else None
        roof = min(peak, intensity * profile.dram_bandwidth_gbps) if intensity else None
        records.append(
            {
                "what": "unit",
                "point": point.label,
                "unit": unit.name,
                "kind": main_kind(network, unit),
                "intensity": intensity,
                "gflops": gflops,
                "time_us": time_us,
                "share_percent": 100 * time_us / total_us if total_us else 0.0,
                "of_roof_percent": 100 * gflops / roof if gflops and roof else None,
            }
        )
    return records


def _roofs(point: ChosenPoint, units: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """The two lines, from the leftmost unit to the rightmost, or beyond their corner."""
    own = [
        float(unit["intensity"])
        for unit in units
        if unit["point"] == point.label and isinstance(unit["intensity"], float)
    ]
    if not own:
        return []
    peak, bandwidth = peak_gflops(point.profile, point.network), point.profile.dram_bandwidth_gbps
    corner = peak / bandwidth
    places = (min(*own, corner) / 2, corner, max(*own, corner) * 2)
    said = f"{bandwidth:,.0f} GB/s and {peak / 1e3:,.1f} TFLOP/s of {point.profile.name}"
    return [
        {
            "what": "roof",
            "point": point.label,
            "unit": f"roof: {said}",
            "kind": None,
            "intensity": place,
            "gflops": min(peak, place * bandwidth),
            "text": f"roof: {said}" if place == places[-1] else None,
        }
        for place in places
    ]


def _specification(colours: Mapping[str, str], records: Sequence[Mapping[str, Cell]]) -> dict[str, Any]:
    alt = need_altair()
    ticks = {key: log_ticks([number_of(record[key]) for record in records]) for key in ("intensity", "gflops")}
    x = alt.X(
        "intensity:Q", title="arithmetic intensity (flop per byte), log scale", scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks["intensity"], format="~g"),
    )  # fmt: skip
    y = alt.Y(
        "gflops:Q", title="attained arithmetic rate (GFLOP/s), log scale", scale=alt.Scale(
            type="log", nice=False, padding=12), axis=alt.Axis(values=ticks["gflops"], format="~s"),
    )  # fmt: skip
    roofs = layer().transform_filter("datum.what == 'roof'")
    units = layer().transform_filter("datum.what == 'unit' && isValid(datum.gflops)")
    return specification(
        roofs.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=alt.value("#8b939c")),
        units.mark_point(opacity=0.78, stroke="#ffffff", strokeWidth=0.5).encode(
            x=x,
            y=y,
            color=coloured("kind", colours, sort=list(colours)),
            size=alt.Size("share_percent:Q", scale=alt.Scale(range=[18, 420], zero=True), legend=None),
            tooltip=[
                alt.Tooltip("unit:N", title="unit"),
                alt.Tooltip("kind:N", title="kind"),
                alt.Tooltip("gflops:Q", title="GFLOP/s", format=",.4~r"),
                alt.Tooltip("intensity:Q", title="flop per byte", format=",.3~r"),
                alt.Tooltip("time_us:Q", title="time, us", format=",.4~r"),
                alt.Tooltip("share_percent:Q", title="share, %", format=".1f"),
                alt.Tooltip("of_roof_percent:Q", title="of the roof, %", format=".0f"),
            ],
        ),
        # Above the picture, where no mark is.
        roofs.transform_filter("isValid(datum.text)")
        .mark_text(align="left", baseline="bottom")
        .encode(x=alt.value(0), y=alt.value(-5), text="text:N"),
        height=_HEIGHT_PIXELS,
    )


def _finding(point: ChosenPoint, units: Sequence[Mapping[str, Cell]]) -> str:
    own = [unit for unit in units if unit["point"] == point.label and unit["of_roof_percent"] is not None]
    low = sum(number_of(unit["share_percent"]) for unit in own if number_of(unit["of_roof_percent"]) < 50)
    told = "ops that attain less than half of what the roofline allows"
    return f"{point.label}: {told} take {low:.0f} % of the sequential time."


PLOTS = (Plot(_NAME, 100, lambda run: bool(chosen_points(run)), draw),)
