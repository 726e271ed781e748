"""The record of one measurement: its context, work, method, and every sample.

A *measured plan* is a stage several times in a row (``copies``), with a synchronise after each copy or only after the
last (``synchronises``), timed as a whole. The time of a copy is the median, minus the synchronises, over the copies.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypedDict

from iossim.execution.backend import EMPTY_GRAPH, Context, Samples


class Kind(StrEnum):
    """Kind of measured work."""

    UNIT = "unit"  #: one unit alone
    STAGE = "stage"  #: several units: concurrent groups, or one sequential group
    MERGE = "merge"  #: several units as one stacked convolution
    ALGORITHM = "algorithm"  #: one unit alone by a given algorithm, in older stores
    BOUNDARY = "boundary"  #: a unit with and without a synchronise after each copy


#: ``op`` and the columns of an operator, as in a measurement set.
OperatorRecord = dict[str, int | str]


class UnitSubject(TypedDict):
    """A unit that was measured; ``operators`` is None if the format of measurement sets has no columns for them."""

    signature: str
    kind: str
    operators: list[OperatorRecord] | None


class Subject(TypedDict, total=False):
    """Subject of a measurement: its ``words`` for people, its groups of units for exports."""

    words: str
    groups: list[list[UnitSubject]]


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
