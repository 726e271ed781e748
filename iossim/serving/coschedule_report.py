"""Several models on one device as tables, sentences and a trace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from iossim.base.tables import Cell, described_table
from iossim.report.search_words import expectation
from iossim.report.traces import Event, complete, trace_text
from iossim.serving.arrivals import Served
from iossim.serving.coschedule import Coschedule
from iossim.serving.union import label_of

#: Colours that a Chrome trace event may name: one per model, in turn.
_COLOURS = ("thread_state_running", "thread_state_iowait", "thread_state_runnable", "rail_load", "bad", "good")


#: Longer names of models, in letters together, are in the title alone: their columns have numbers.
_NAMED_LETTERS = 30


def ways_table(found: Coschedule) -> Table:
    """One row per way: its makespan, against running one after another, above the bound, and when each model ends.

    For a weighted objective, gain and gap are those of the weighted latency.
    """
    name, titles = found.network.name, {label: label for label in found.labels}
    if sum(map(len, titles)) > _NAMED_LETTERS:
        titles = {label: str(number) for number, label in enumerate(found.labels, 1)}
        name = " + ".join(f"{number} {label}" for label, number in titles.items())
    objective = found.objective
    base_us = objective.value_us(found.baseline.ends_us)
    value_us = {way.name: objective.value_us(way.ends_us) for way in found.ways}
    rows: list[dict[str, Cell]] = [
        {
            "way": way.name,
            "all_ms": way.makespan_us / 1e3,
            **({"weighted_ms": value_us[way.name] / 1e3} if objective.weights else {}),
            "gain_x": base_us / value_us[way.name] if value_us[way.name] else 1.0,
            "above_bound_percent": 100 * (value_us[way.name] / found.bound_us - 1) if found.bound_us else None,
            "event_by_event_ms": None if way.simulated_us is None else way.simulated_us / 1e3,
            **({"in limits": "no" if objective.over_us(way.ends_us) else "yes"} if objective.limits_us else {}),
            **{f"{label}_ms": way.ends_us.get(label, 0.0) / 1e3 for label in found.labels},
        }
        for way in found.ways
    ]
    ends = {f"{label}_ms": {"title": title, "digits": 3} for label, title in titles.items()}
    title = f"{name} on {found.device}, {found.network.precision}, {found.engine} engine, simulated"
    return described_table(__package__, "ways", title, rows, **ends)


def bound_words(found: Coschedule) -> str:
    """The lower bound beside the best way, and below it the interval of that one's makespan."""
    best, bound_us = found.best, found.bound_us
    best_us = found.objective.value_us(best.ends_us)
    above = f" ({best_us / bound_us - 1:.0%} above)" if bound_us else ""
    bound = "not known" if bound_us is None else f"{bound_us / 1e3:.3f} ms"
    what = "Lower bound of the weighted latency" if found.objective.weights else "Lower bound"
    per_second = f"; {len(found.labels) * 1e6 / best.makespan_us:,.0f} requests a second" if best.makespan_us else ""
    missed = "" if not found.objective.over_us(best.ends_us) else "; no way keeps all limits"
    expected = expectation(best.interval_us) or ""
    of_makespan = " of the makespan" if expected and found.objective.weights else ""
    return (
        f"{what} of all streams of these kernels: {bound}; "
        f"best: {best.name}, {best_us / 1e3:.3f} ms{above}{per_second}{missed}\n"
        f"{expected}{of_makespan}"
    )


def served_table(served: Sequence[Served]) -> Table:
    """One row per load and policy: percentiles of request latencies."""
    rows: list[dict[str, Cell]] = [
        {
            "load_percent": 100 * one.load,
            "policy": one.policy,
            **{f"p{part}_ms": us / 1e3 for part, us in one.percentiles_us.items()},
        }
        for one in served
    ]
    title = "Request latency by load (100% is the most that one after another can serve)"
    return described_table(__package__, "served", title, rows)


def coschedule_trace(found: Coschedule) -> str:
    """The ways one after another as JSON text: one track per stream, one colour per model."""
    events: list[Event] = []
    tracks: dict[int, str] = {}
    first = 1
    colour = {label: _COLOURS[number % len(_COLOURS)] for number, label in enumerate(found.labels)}
    for way in found.ways:
        streams = sorted({span.stream for span in way.spans})
        tracks |= {first + number: f"{way.name}: stream {stream}" for number, stream in enumerate(streams)}
        place = {stream: first + number for number, stream in enumerate(streams)}
        for span in sorted(way.spans, key=lambda span: (span.stream, span.start_us, span.end_us)):
            label = label_of(span.unit)
            ran = place[span.stream], span.start_us, span.end_us
            events.append(complete(span.unit, label, *ran, {"kernel": span.name, "model": label}, colour[label]))
        first += len(streams)
    other = {"device": found.device, "engine": found.engine, "bound_us": found.bound_us}
    return trace_text(f"{found.network.name} on {found.device}", tracks, events, other)
