"""A comparison as JSON values: what ``iossim compare --json`` prints.

:meth:`~iossim.tasks.comparison.Comparison.to_json` finds it by its name, as values find what draws them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.tasks.comparison import ChangedSchedule, Comparison, ComparisonRow


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison's rows and what they have in common; latencies in us."""
    rows = iter(comparison.rows)
    given = [
        _row(
            comparison,
            row,
            found,
            published_us=row.published_us,
            in_sample=comparison.is_in_sample(found.scheduler),
            left_out_us=row.left_out_us,
        )
        for found, row in zip(comparison.schedules, rows, strict=False)
    ]
    streams = [_of_streams(comparison, row, found) for found, row in zip(comparison.streams, rows, strict=False)]
    changed = [
        (each.transform, _of_changed(comparison, row, each)) for each, row in zip(comparison.changed, rows, strict=True)
    ]
    outcomes = {
        one.name: {**one.to_json(), "schedules": [row for name, row in changed if name == one.name]}
        for one in comparison.outcomes
    }
    return {
        "model": comparison.network.name,
        "device": comparison.device,
        "batch": comparison.batch,
        "dtype": str(comparison.network.precision),
        "engine": comparison.engine,
        "cost_model": comparison.cost_model,
        "complete": comparison.complete,
        "schedules": given,
        **({"streams": streams} if streams else {}),
        **dict.fromkeys(("rewriting", "joins", "micro_batches")),
        **outcomes,
        "other_engine": comparison.other_engine and asdict(comparison.other_engine),
    }


def _row(comparison: Comparison, row: ComparisonRow, found: Schedule, **more: Any) -> dict[str, Any]:
    """A row, ``more`` of it, and what the search says of its schedule; bounds and proofs are of sums of stages."""
    in_sums = row.scheduler not in comparison.plans_us
    return {
        "scheduler": found.scheduler,
        "latency_us": row.latency_us,
        "interval_us": row.interval_us and list(row.interval_us),
        "ties": list(row.ties),
        **{name: getattr(row, name) for name in ("speedup", "stages", "streams", "search_s", "lower_bound_us")},
        "relaxed_bound_us": found.relaxed_bound_us if in_sums else None,
        **more,
        "complete": found.complete,
        "proven": found.proven and in_sums,
        "notes": found.notes,
        "remarks": found.remarks,
        **({} if in_sums else {"sum_of_stages_us": found.latency_us}),
    }


def _of_changed(comparison: Comparison, row: ComparisonRow, each: ChangedSchedule) -> dict[str, Any]:
    rules: dict[str, int] = {}
    if "rewriting" in dict(each.network.source.options):
        from iossim.transforms.rewriting.rewritten import applied_rules  # most comparisons do not use it

        rules = applied_rules(each.network)
    values = {"way": each.how, **_row(comparison, row, each.schedule, rules=rules)}
    return {name: value for name, value in values.items() if name != "ties"}


def _of_streams(comparison: Comparison, row: ComparisonRow, found: AnySchedule) -> dict[str, Any]:
    values = {**found.model_dump(mode="json"), "speedup": row.speedup}
    if row.scheduler in comparison.plans_us:
        values |= dict.fromkeys(("interval_us", "lower_bound_us", "relaxed_bound_us"))
        values |= {"latency_us": row.latency_us, "ties": [], "proven": False, "sum_of_stages_us": found.latency_us}
    return values
