"""When each kernel of a plan runs: what a simulator predicts or a device measures, and what reports draw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Kernel ``name`` of unit ``unit`` runs on ``stream`` from ``start_us`` to ``end_us``, in stage number ``stage``.

    Stages are numbered over the whole schedule, from 0; times are microseconds since the first command was issued. ``sms`` are
    the SMs that it may use, None for all.
    """

    name: str
    unit: str
    stage: int
    stream: int
    start_us: float
    end_us: float
    sms: range | None = None
