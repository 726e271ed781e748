"""A comparison as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.tasks.comparison import ChangedSchedule, Comparison
from iossim.transforms.transform import Outcome


def comparison_json(compared: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; latencies in us."""
    return {
        "model": compared.network.name,
        "device": compared.device,
        "batch": compared.batch,
        "dtype": str(compared.network.precision),
        "engine": compared.engine,
        "cost_model": compared.cost_model,
        "complete": compared.complete,
        "schedules": [_given(compared, found) for found in compared.schedules],
        **({"streams": [_streams(compared, found) for found in compared.streams]} if compared.streams else {}),
        **dict.fromkeys(("rewriting", "joins", "micro_batches")),
        **{outcome.name: _outcome(compared, outcome) for outcome in compared.outcomes},
        "other_engine": compared.other_engine and asdict(compared.other_engine),
    }


def _given(compared: Comparison, found: Schedule) -> dict[str, Any]:
    """A schedule of the network as given."""
    told = {
        **_fields(found, "scheduler", "latency_us", "interval_us", "ties"),
        **_worth(compared, found),
        "published_us": compared.published_us(found.scheduler),
        "in_sample": compared.is_in_sample(found.scheduler),
        "left_out_us": compared.left_out_us.get(found.scheduler),
        **_search_json(found),
    }
    return _in_plans(compared, found.scheduler, told)


def _streams(compared: Comparison, found: AnySchedule) -> dict[str, Any]:
    told = {**found.model_dump(mode="json"), "speedup": found.speedup(compared.baseline_us)}
    return _in_plans(compared, found.scheduler, told)


def _outcome(compared: Comparison, outcome: Outcome) -> dict[str, Any]:
    """A transform, and the schedules of the networks that it made."""
    made = [each for each in compared.changed if each.transform == outcome.name]
    return {**outcome.to_json(), "schedules": [_changed(compared, each) for each in made]}


def _changed(compared: Comparison, each: ChangedSchedule) -> dict[str, Any]:
    told = {
        "way": each.how,
        **_fields(each.schedule, "scheduler", "latency_us", "interval_us"),
        **_worth(compared, each.schedule),
        "rules": _rules_of(each.network),
        **_search_json(each.schedule),
    }
    return _in_plans(compared, each.label, told)


def _in_plans(compared: Comparison, label: str, told: dict[str, Any]) -> dict[str, Any]:
    """The values of a row, at the latency of its whole plan where that is what the table shows."""
    if label not in compared.plans_us:
        return told
    us = compared.plans_us[label]
    of_sums = dict.fromkeys(("interval_us", "lower_bound_us", "relaxed_bound_us", "left_out_us"))
    speedup = compared.baseline_us / us if us else 1.0
    said: dict[str, Any] = {"latency_us": us, "speedup": speedup, "ties": [], "proven": False, **of_sums}
    return {**{name: said.get(name, value) for name, value in told.items()}, "sum_of_stages_us": told["latency_us"]}


def _worth(compared: Comparison, found: Schedule) -> dict[str, Any]:
    figures = _fields(found, "streams", "search_s", "lower_bound_us", "relaxed_bound_us")
    return {"speedup": found.speedup(compared.baseline_us), "stages": len(found.stages), **figures}


def _rules_of(network: Network) -> dict[str, int]:
    if "rewriting" not in dict(network.source.options):
        return {}
    from iossim.transforms.rewriting.rewritten import applied_rules  # most comparisons do not use it

    return applied_rules(network)


def _search_json(found: Schedule) -> dict[str, Any]:
    return _fields(found, "complete", "proven", "notes", "remarks")


def _fields(found: Schedule, *names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}
