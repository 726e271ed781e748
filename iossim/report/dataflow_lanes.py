"""What each part of an edge device was at while a plan ran: a lane a unit, DMA transfers that overlap apart, and both memories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iossim.edge.simulator.events import BusySpan, Timed
from iossim.hardware.edge import EdgeDevice

#: Of more units every nth is shown.
MOST_UNITS = 16
_MEMORIES = ("shared", "external")


@dataclass(frozen=True, slots=True)
class DataflowLane:
    """Spans that do not overlap, in order; ``resource`` is ``units``, ``dma``, ``shared`` or ``external``."""

    name: str
    resource: str
    spans: tuple[BusySpan, ...]


def dataflow_lanes(timed: Timed, device: EdgeDevice, most_units: int = MOST_UNITS) -> list[DataflowLane]:
    """The lanes of a plan from top to bottom."""
    found = []
    for unit in shown_units(device, most_units):
        own = (span for span in timed.spans if span.lane == "units" and unit in span.units)
        found.append(DataflowLane(f"unit {unit}", "units", _in_order(own)))
    for number, spans in enumerate(_apart(_in_order(span for span in timed.spans if span.lane == "dma")), 1):
        found.append(DataflowLane(f"DMA {number}", "dma", spans))
    for memory in _MEMORIES:
        own = (span for span in timed.spans if span.lane == memory)
        found.append(DataflowLane(f"{memory} memory", memory, _in_order(own)))
    return found


def shown_units(device: EdgeDevice, most_units: int = MOST_UNITS) -> range:
    """All units, or every nth of many."""
    units = device.units.value
    return range(0, units, -(-units // most_units))


def _in_order(spans: Iterable[BusySpan]) -> tuple[BusySpan, ...]:
    return tuple(sorted(spans, key=lambda span: (span.start_us, span.end_us)))


def _apart(spans: Iterable[BusySpan]) -> list[tuple[BusySpan, ...]]:
    """Spans in as few lanes as keep them apart: each goes to the first that is free."""
    lanes: list[list[BusySpan]] = []
    for span in spans:
        lane = next((each for each in lanes if each[-1].end_us <= span.start_us), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return [tuple(lane) for lane in lanes]
