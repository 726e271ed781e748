"""The rows of a comparison as JSON values, as ``iossim compare --json`` prints them; latencies in us.

``row`` has the fields of a :class:`~iossim.tasks.comparison.ComparisonRow`. ``in_sums``: its latency is the sum of its
stages, which bounds and proofs are of, and not that of a whole plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule


def given_row(found: AnySchedule, row: Mapping[str, Any], in_sums: bool, in_sample: bool) -> dict[str, Any]:
    """The row of stages of the network as given, beside what was published of it."""
    published = {"published_us": row["published_us"], "in_sample": in_sample, "left_out_us": row["left_out_us"]}
    return _row(found, row, in_sums, **published)


def changed_row(
    found: AnySchedule, row: Mapping[str, Any], in_sums: bool, network: Network, way: str
) -> dict[str, Any]:
    """The row of a changed network, with the way in a word or two, and the rules that rewrote it."""
    rules: dict[str, int] = {}
    if "rewriting" in dict(network.source.options):
        from iossim.transforms.rewriting.rewritten import applied_rules  # most comparisons do not use it

        rules = applied_rules(network)
    values = {"way": way, **_row(found, row, in_sums, rules=rules)}
    return {name: value for name, value in values.items() if name != "ties"}


def streams_row(found: AnySchedule, row: Mapping[str, Any], in_sums: bool) -> dict[str, Any]:
    """The whole schedule that a scheduler of streams found."""
    values = {**found.model_dump(mode="json"), "speedup": row["speedup"]}
    if not in_sums:
        values |= dict.fromkeys(("interval_us", "lower_bound_us", "relaxed_bound_us"))
        values |= {"latency_us": row["latency_us"], "ties": [], "proven": False}
        values |= {"sum_of_stages_us": found.latency_us}
    return values


def _row(found: AnySchedule, row: Mapping[str, Any], in_sums: bool, **more: Any) -> dict[str, Any]:
    """A row, ``more`` of it, and what the search says of its schedule."""
    return {
        "scheduler": found.scheduler,
        "latency_us": row["latency_us"],
        "interval_us": row["interval_us"] and list(row["interval_us"]),
        "ties": list(row["ties"]),
        **{name: row[name] for name in ("speedup", "stages", "streams", "search_s", "lower_bound_us")},
        "relaxed_bound_us": found.relaxed_bound_us if in_sums else None,
        **more,
        "complete": found.complete,
        "proven": found.proven and in_sums,
        "notes": found.notes,
        "remarks": found.remarks,
        **({} if in_sums else {"sum_of_stages_us": found.latency_us}),
    }
