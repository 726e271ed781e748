"""The record of one measurement: its context, work, method, and every sample.

A *measured plan* is a stage several times in a row (``copies``), with a synchronise after each copy or only after the
last (``synchronises``), timed as a whole. The time of a copy is the median, minus the synchronises, over the copies.

:func:`measurement_set` makes records a measurement set, as ``calibrate`` reads it. A unit of one operator is a
measurement of that operator, merged units one of the stacked convolution; a unit of several operators is a stage.
Latencies are of one copy among many in sequence, with the host ahead, gaps included; cold ones are of a single call,
and include the host's overhead, except in a graph. A stage of several groups includes its boundaries to stages of one
group: its fork and join (graph), or two synchronises (paper).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypedDict

from iossim._version import __version__
from iossim.execution.backend import EMPTY_GRAPH, Context, Samples
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, StageMeasurement
from iossim.measurements.operator_kinds import read_record


class Kind(StrEnum):
    """Kind of measured work."""

    UNIT = "unit"  #: one unit alone
    STAGE = "stage"  #: several units: concurrent groups, or one sequential group
    MERGE = "merge"  #: several units as one stacked convolution
    ALGORITHM = "algorithm"  #: one unit alone by a given algorithm
    BOUNDARY = "boundary"  #: a unit with and without a synchronise after each copy


#: ``op`` and the columns of an operator, as in a measurement set.
OperatorRecord = dict[str, int | str]


class UnitSubject(TypedDict):
    """A unit that was measured; ``operators`` is None if the format of measurement sets has no columns for them."""

    signature: str
    kind: str
    operators: list[OperatorRecord] | None


class Subject(TypedDict, total=False):
    """Subject of a measurement: its ``words`` for people, its groups of units for exports, an algorithm's workspace."""

    words: str
    groups: list[list[UnitSubject]]
    workspace_bytes: int


@dataclass(frozen=True, eq=False)
class MeasurementRecord:
    """One measurement.

    ``signature`` identifies the measured work canonically: two records of equal signature are of equal work, in
    any network. ``algorithm`` names the backend's choices, unit by unit, empty if it has none. ``subject`` says
    what was measured.

    ``date`` is UTC in ISO format; ``host`` and ``process`` identify the measuring process.
    """

    context: Context
    kind: Kind
    signature: str
    copies: int
    synchronises: int
    samples: Samples
    algorithm: str = ""
    is_cold: bool = False
    subject: Subject = field(default_factory=Subject)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)

    def copy_us(self, boundary_us: float = 0.0) -> float:
        """Microseconds of one copy, if a synchronise takes ``boundary_us``; never negative.

        The time of an empty graph is subtracted if it was measured: a network's graph is launched once.
        """
        start_us = float(self.samples.conditions.get(EMPTY_GRAPH, 0.0))
        return max(0.0, (self.samples.median_us - start_us - self.synchronises * boundary_us) / self.copies)

    @property
    def spread_us(self) -> float:
        """90th minus 10th percentile, of one copy."""
        return self.samples.spread_us / self.copies

    @property
    def relative_spread(self) -> float:
        """The spread over the median."""
        return self.samples.spread_us / self.samples.median_us

    @property
    def words(self) -> str:
        """Description of the measured work for people."""
        return str(self.subject.get("words", self.signature))

    @property
    def digest(self) -> str:
        """Hash of the whole record: the same measurement has the same hash in every store."""
        return hashlib.sha256(json.dumps(self._fields(), sort_keys=True).encode()).hexdigest()[:32]

    def _fields(self) -> list[object]:
        context = self.context
        where = [context.backend, context.device, context.precision, context.engine, context.layout, context.driver]
        how = [dict(context.libraries), dict(context.options), self.copies, self.synchronises, self.is_cold]
        what = [self.kind, self.signature, self.algorithm, dict(self.subject)]
        found = [list(self.samples.times_us), self.samples.rejected, dict(self.samples.conditions)]
        return [*where, *how, *what, *found, self.date, self.host, self.process]


def boundary_us(records: Sequence[MeasurementRecord]) -> float | None:
    """Time of a synchronise between two stages, from records of kind ``boundary``; None if they do not determine it.

    Two plans of the same copies, one with a synchronise after each copy and one with a single one at the end, differ
    by ``copies - 1`` synchronises. The newest such pair counts; a negative difference counts as 0.
    """
    plain: dict[tuple[str, str, int], MeasurementRecord] = {}
    newest: tuple[str, float] | None = None
    ordered = sorted(records, key=lambda record: (record.date, record.synchronises))
    for record in ordered:
        if record.kind is Kind.BOUNDARY and record.synchronises == 1:
            plain[record.signature, record.algorithm, record.copies] = record
    for record in ordered:
        other = plain.get((record.signature, record.algorithm, record.copies))
        if record.kind is Kind.BOUNDARY and record.synchronises == record.copies > 1 and other is not None:
            difference_us = record.samples.median_us - other.samples.median_us
            newest = record.date, max(0.0, difference_us / (record.copies - 1))
    return newest and newest[1]


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
