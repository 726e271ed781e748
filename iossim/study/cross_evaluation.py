"""Schedules made for one point, priced at others: the loss of a schedule away from home."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iossim.base.threads import limit_threads
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.study.axes import AXES
from iossim.study.evaluation_context import EvaluationContext, context_of, network_as
from iossim.study.journal import CrossDone
from iossim.study.points import Point
from iossim.study.study_run import CrossPrice, Failures


@dataclass(frozen=True)
class MadeElsewhere:
    """A schedule's text, and the point that it was made for; or the reason why there is none."""

    made_for: int
    scheduler: str
    text: str | None
    reason: str = ""


@dataclass(frozen=True)
class CrossTask:
    """A point, and schedules of others to be priced there; ``own`` are the texts of its own schedules by scheduler."""

    axis: str
    point: Point
    own: dict[str, str]
    others: tuple[MadeElsewhere, ...]
    one_of_many: bool = False


@dataclass(frozen=True)
class CrossResult:
    """Prices of other points' schedules at a point, and tracebacks as in a point's own result."""

    entry: CrossDone
    tracebacks: dict[str, str]


def families(points: Sequence[Point], axis: str) -> Iterator[tuple[Point, ...]]:
    """Points that differ in ``axis`` alone, two or more together, in order."""
    found: dict[str, list[Point]] = {}
    for point in points:
        common = [repr(getattr(point, name)) for name in AXES if name != axis]
        found.setdefault(repr(common), []).append(point)
    yield from (tuple(family) for family in found.values() if len(family) > 1)


def evaluate_cross(task: CrossTask) -> CrossResult:
    """Price the schedules of others at a point; one that cannot be priced has a reason."""
    limit_threads(1 if task.one_of_many else None)
    failures = Failures()
    try:
        context = context_of(task.point)
        own = {name: Schedule.model_validate_json(text) for name, text in task.own.items()}
    except Exception as error:  # any error of a point becomes the reason of its prices, and the others continue
        found: list[_Priced] = [{"reason": failures.reason(error)}] * len(task.others)
    else:
        known: dict[tuple[str, str, str], _Priced] = {}
        found = [_priced(other, context, own.get(other.scheduler), known, failures) for other in task.others]
    prices = [
        CrossPrice(
            axis=task.axis, scheduler=other.scheduler, made_for=other.made_for, run_at=task.point.index, **priced
        )
        for other, priced in zip(task.others, found, strict=True)
    ]
    return CrossResult(CrossDone(axis=task.axis, run_at=task.point.index, prices=prices), failures.tracebacks)


#: Latency and tie of a :class:`CrossPrice`, or the reason why there is none.
_Priced = dict[str, Any]


def _priced(
    other: MadeElsewhere,
    context: EvaluationContext,
    own: Schedule | None,
    known: dict[tuple[str, str, str], _Priced],
    failures: Failures,
) -> _Priced:
    """Price of a schedule; ``known`` are prices by scheduler and stages, since points often share a schedule."""
    if other.text is None:
        return {"reason": other.reason}
    try:
        made = Schedule.model_validate_json(other.text)
        stages = json.dumps([(stage.strategy, stage.groups, stage.variants) for stage in made.stages])
        key = other.scheduler, json.dumps(made.source.options), stages
        if key not in known:
            network = network_as(context, made)
            found = reprice(made, network, context.prices)
            # A network that was rewritten differently has no schedule here to tie with.
            rival = own if network is context.network else None
            tie = rival is not None and context.errors is not None and context.errors.is_tie(found, rival)
            known[key] = {"latency_ms": found.latency_us / 1e3, "tie": tie}
        return known[key]
    except Exception as error:  # likewise, for one schedule
        return {"reason": failures.reason(error)}
