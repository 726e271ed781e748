"""A comparison as JSON values: what ``iossim compare --json`` prints.

:meth:`~iossim.tasks.comparison.Comparison.to_json` finds it by its name, as values find what draws them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from iossim.schedule.schedule import AnySchedule
from iossim.tasks.comparison import Comparison, ComparisonRow, Entry


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison's rows and what they have in common; latencies in us."""
    pairs = list(zip(comparison.entries, comparison.rows, strict=True))
    first, last = len(comparison.schedules), len(comparison.schedules) + len(comparison.streams)
    streams = [_of_streams(comparison, *pair) for pair in pairs[first:last]]
    outcomes = {
        one.name: {
            **one.to_json(),
            "schedules": [_of_changed(comparison, *pair) for pair in pairs[last:] if pair[0].transform == one.name],
        }
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
        "schedules": [_of_given(comparison, *pair) for pair in pairs[:first]],
        **({"streams": streams} if streams else {}),
        **dict.fromkeys(("rewriting", "joins", "micro_batches")),
        **outcomes,
        "other_engine": comparison.other_engine and asdict(comparison.other_engine),
    }


def _row(comparison: Comparison, entry: Entry[AnySchedule], row: ComparisonRow, **more: Any) -> dict[str, Any]:
    """A row, ``more`` of it, and what the search says of its schedule; bounds and proofs are of sums of stages."""
    found, in_sums = entry.schedule, row.scheduler not in comparison.plans_us
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


def _of_given(comparison: Comparison, entry: Entry[AnySchedule], row: ComparisonRow) -> dict[str, Any]:
    known = {"published_us": row.published_us, "in_sample": comparison.is_in_sample(entry.schedule.scheduler)}
    return _row(comparison, entry, row, **known, left_out_us=row.left_out_us)


def _of_changed(comparison: Comparison, entry: Entry[AnySchedule], row: ComparisonRow) -> dict[str, Any]:
    rules: dict[str, int] = {}
    if "rewriting" in dict(entry.network.source.options):
        from iossim.transforms.rewriting.rewritten import applied_rules  # most comparisons do not use it

        rules = applied_rules(entry.network)
    values = {"way": entry.how, **_row(comparison, entry, row, rules=rules)}
    return {name: value for name, value in values.items() if name != "ties"}


def _of_streams(comparison: Comparison, entry: Entry[AnySchedule], row: ComparisonRow) -> dict[str, Any]:
    values = {**entry.schedule.model_dump(mode="json"), "speedup": row.speedup}
    if row.scheduler in comparison.plans_us:
        values |= dict.fromkeys(("interval_us", "lower_bound_us", "relaxed_bound_us"))
        values |= {"latency_us": row.latency_us, "ties": [], "proven": False}
        values |= {"sum_of_stages_us": entry.schedule.latency_us}
    return values
