"""From the measurement store to a measurement set: a backend's measurements as ``calibrate`` reads them.

A unit of one operator is a measurement of that operator, merged units one of the stacked convolution; a unit of several
operators is a stage. Latencies are of one copy among many in sequence, with the host ahead, gaps included; cold ones
are of a single call, and include the host's overhead, except in a graph. A stage of several groups includes its
boundaries to stages of one group: its fork and join (graph), or two synchronises (paper).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from iossim._version import __version__
from iossim.cost.measured.record import Kind, MeasurementRecord, boundary_us
from iossim.execution.backend import EMPTY_GRAPH
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, StageMeasurement
from iossim.measurements.operator_kinds import read_record


def measurement_set(records: Sequence[MeasurementRecord], is_cold: bool = False) -> MeasurementSet:
    """Newest record of each stage (and algorithm) of one context, warm or cold, as a measurement set.

    At least one record is required. Notes list what could not be expressed, one line per reason.
    """
    taken = [record for record in records if record.is_cold == is_cold]
    context = taken[0].context
    between_us = (boundary_us(taken) or 0.0) if Engine(context.engine).synchronises else 0.0
    newest: dict[tuple[str, str], MeasurementRecord] = {}
    for record in sorted(taken, key=lambda record: record.date):
        if record.kind in (Kind.UNIT, Kind.STAGE, Kind.MERGE):
            newest[record.signature, record.algorithm] = record
    kept = list(newest.values())
    alone_us = {
        record.subject["groups"][0][0]["signature"]: record.copy_us(between_us)
        for record in kept
        if record.kind is Kind.UNIT and "groups" in record.subject
    }
    measurements: list[Measurement] = []
    stages: list[StageMeasurement] = []
    left_out: Counter[str] = Counter()
    for row, record in enumerate(kept):
        found = _expressed(record, between_us, alone_us)
        if isinstance(found, Measurement):
            measurements.append(replace(found, row=row))
        elif isinstance(found, StageMeasurement):
            stages.append(replace(found, row=row))
        else:
            left_out[found] += 1
    notes = tuple(f"{count:,} left out: {reason}" for reason, count in sorted(left_out.items()))
    return MeasurementSet(_header(taken, is_cold), tuple(measurements), tuple(stages), notes)


def _header(records: Sequence[MeasurementRecord], is_cold: bool) -> Header:
    context = records[0].context
    settings = "".join(f", {name}={value}" for name, value in context.options)
    hosts = sorted({record.host for record in records})
    driver = {"driver": context.driver} if context.driver else {}
    return Header(
        device=context.device,
        data_set=f"{context.backend} {context.engine}{' cold' if is_cold else ''} {', '.join(hosts)}",
        libraries=dict(context.libraries) | driver,
        host=", ".join(hosts),
        precision=Precision(context.precision),
        issue=Engine(context.engine).issue_alone,
        channels_last=context.layout == "nhwc",
        includes_host_overhead=is_cold and not all(EMPTY_GRAPH in record.samples.conditions for record in records),
        date=max(record.date for record in records)[:10],
        source=f"iossim {__version__}, backend {context.backend}, {context.engine} engine{settings}",
    )


def _expressed(
    record: MeasurementRecord, between_us: float, alone_us: dict[str, float]
) -> Measurement | StageMeasurement | str:
    """A record in the format's terms, or the reason why that is impossible."""
    if "groups" not in record.subject:
        return "they do not say of which operators they are"
    several = len(record.subject["groups"]) > 1
    latency_us = record.copy_us(between_us) + (2 * between_us if several else 0.0)
    if not latency_us > 0:
        return "no longer than their boundaries"
    units = [unit for group in record.subject["groups"] for unit in group]
    unknown = next((unit["kind"] for unit in units if unit["operators"] is None), None)
    if unknown is not None:
        return f"the format has no columns for units of kind {unknown}"
    precision = Precision(record.context.precision)
    try:
        groups = [
            tuple(read_record(operator, precision) for unit in group for operator in unit["operators"] or ())
            for group in record.subject["groups"]
        ]
    except RecordError as error:
        return f"the format cannot say them: {error}"
    samples = len(record.samples.times_us)
    if len(groups) == 1 and len(groups[0]) == 1:
        (operator,) = groups[0]
        return Measurement(
            operator,
            latency_us,
            spread_us=record.spread_us,
            samples=samples,
            algorithm=record.algorithm,
            is_cold=record.is_cold,
        )
    if record.is_cold:
        return "stages of several operators that were taken cold"
    serial = [alone_us.get(unit["signature"]) for unit in units]
    serial_us = sum(us for us in serial if us is not None) if several and None not in serial else None
    return StageMeasurement(tuple(groups), latency_us, spread_us=record.spread_us, samples=samples, serial_us=serial_us)
