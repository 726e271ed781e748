"""The record of one measurement: where it was taken, of what, how, and every sample.

A *measured plan* is a stage several times in a row (``copies``), with a synchronise behind each copy or behind the
last alone (``synchronises``), timed as a whole. A copy takes the median, less the synchronises, over the copies.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from iossim.execution.backend import EMPTY_GRAPH, Context, Samples


class Kind(StrEnum):
    """What was measured."""

    UNIT = "unit"  #: one unit alone
    STAGE = "stage"  #: several units: groups side by side, or one group in a row
    MERGE = "merge"  #: several units as one stacked convolution
    ALGORITHM = "algorithm"  #: one unit alone by one of its algorithms, whichever is fastest
    BOUNDARY = "boundary"  #: a unit with and without a synchronise behind each copy


@dataclass(frozen=True, eq=False)
class MeasurementRecord:
    """One measurement.

    ``signature`` says canonically what work was measured: two records of equal signature are of equal work, in
    whatever network. ``algorithm`` names the backend's choices, unit by unit, empty where it has none. ``subject`` is
    for people and for exports: ``words``, and ``groups``, which hold for each unit its ``signature``, its ``kind``,
    and ``operators``: records of the measurement-set format, or None where it has none for them.

    ``date`` is UTC in ISO format; ``host`` and ``process`` say who measured.
    """

    context: Context
    kind: Kind
    signature: str
    copies: int
    synchronises: int
    samples: Samples
    algorithm: str = ""
    is_cold: bool = False
    subject: Mapping[str, Any] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)

    def copy_us(self, boundary_us: float = 0.0) -> float:
        """Microseconds of one copy, where a synchronise takes ``boundary_us``; never negative.

        What an empty graph takes is taken off where it was measured: a network's graph is launched once.
        """
        start_us = float(self.samples.conditions.get(EMPTY_GRAPH, 0.0))
        return max(0.0, (self.samples.median_us - start_us - self.synchronises * boundary_us) / self.copies)

    @property
    def spread_us(self) -> float:
        """90th less 10th percentile, of one copy."""
        return self.samples.spread_us / self.copies

    @property
    def relative_spread(self) -> float:
        """The spread over the median."""
        return self.samples.spread_us / self.samples.median_us

    @property
    def words(self) -> str:
        """What was measured, for people."""
        return str(self.subject.get("words", self.signature))

    @property
    def digest(self) -> str:
        """Hash of all that is recorded: the same measurement has it in every store."""
        return hashlib.sha256(json.dumps(self._fields(), sort_keys=True).encode()).hexdigest()[:32]

    def _fields(self) -> list[Any]:
        context = self.context
        where = [context.backend, context.device, context.precision, context.engine, context.layout, context.driver]
        how = [dict(context.libraries), dict(context.options), self.copies, self.synchronises, self.is_cold]
        what = [self.kind, self.signature, self.algorithm, dict(self.subject)]
        found = [list(self.samples.times_us), self.samples.rejected, dict(self.samples.conditions)]
        return [*where, *how, *what, *found, self.date, self.host, self.process]


def boundary_us(records: Sequence[MeasurementRecord]) -> float | None:
    """What a synchronise between two stages takes, of records of kind ``boundary``; None where none tell it.

    Two plans of the same copies, one with a synchronise behind each copy and one with a single one at the end, differ
    by ``copies - 1`` synchronises. The newest such pair counts; a difference below nothing is nothing.
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
