"""Micro-batches as a table, sentences and pictures, and in a notebook. Pictures show the time against the workspace of
one kernel, and the workspace of each kernel (u-cuDNN's figures 10 and 12).
"""

from __future__ import annotations

from functools import partial

from rich.table import Table

from iossim.base.memory import size_text
from iossim.base.tables import Cell, described_table
from iossim.microbatching.division import Configuration
from iossim.microbatching.kernels_under_limits import WORTH_DIVIDING, MicroBatching
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import PALETTE, described
from iossim.report.notebook import parts, records
from iossim.report.search_words import expectation


def micro_batch_table(found: MicroBatching) -> Table:
    """One row per kernel: its micro-batches, its time divided and undivided, its workspace and share of the total."""
    total = found.workspace_bytes
    several = len({one.name.direction for one in found.kernels}) > 1
    rows: list[dict[str, Cell]] = [
        {
            "layer": one.name.layer,
            **({"pass": one.name.direction.replace("_", " ")} if several else {}),
            "configuration": str(one.configuration),
            "undivided_us": None if one.undivided is None else one.undivided.time_us,
            "divided_us": one.configuration.time_us,
            "workspace": size_text(one.configuration.workspace_bytes),
            "share_percent": 100 * one.configuration.workspace_bytes / total if total else 0.0,
        }
        for one in found.kernels
    ]
    table = described_table(__package__, "kernels", "", rows)
    table.columns[-2].justify = "right"
    return table


@parts.register
def _(found: MicroBatching) -> list[str | Table]:
    return [total_words(found), micro_batch_table(found), *trust_lines(found)]


@records.register
def _(found: MicroBatching) -> list[dict[str, object]]:
    return [{**one.to_json(), "configuration": str(one.configuration)} for one in found.kernels]


def total_words(found: MicroBatching) -> str:
    """Total time of all kernels, divided and undivided, their workspace, and how good the choice is."""
    count = len(found.kernels)
    words = f"{count} kernel{'s' * (count > 1)} take{'s' * (count == 1)} {_time_text(found.time_us)}"
    if found.undivided_us is None:
        words += "; undivided some of them do not fit the limit"
    else:
        words += f", undivided {_time_text(found.undivided_us)} under the same limit: {found.gain:.2f} times"
    worth = f"a batch is divided where that gains {1 - WORTH_DIVIDING:.0%}"
    bound = f"no choice takes less than {_time_text(found.lower_bound_us)}"
    if found.arena_bytes is not None:
        words += f". The arena with activations has {size_text(found.arena_bytes)}"
        return f"{words}; {'proved the best' if found.proved else bound} ({worth})."
    if found.total_workspace_limit_bytes is None:
        return f"{words}. Each is the fastest under its limit ({worth})."
    words += f". Their workspaces have {size_text(found.workspace_bytes)} together"
    if found.proved:
        return f"{words}; proved the best under the limit ({worth})."
    return f"{words}; {bound} (gap {found.gap:.2%}; {worth})."


def trust_lines(found: MicroBatching) -> list[str]:
    """The interval of the total, and remarks on it; none where the times are measurements."""
    return [*filter(None, [expectation(found.interval_us)]), *(f"note: {remark}" for remark in found.remarks)]


def _time_text(time_us: float) -> str:
    return f"{time_us:,.1f} us" if time_us < 1e3 else f"{time_us / 1e3:,.3f} ms"


_MIB = 1 << 20
_FRONT, _CHOSEN, _WHOLE = PALETTE[0], PALETTE[5], "#8b939c"


def front_figure(found: MicroBatching, title: str) -> Figure:
    """Configurations of the kernel that gains most: the Pareto front, the chosen one, and the undivided one."""
    gained_us = (one.undivided.time_us - one.configuration.time_us if one.undivided else 0.0 for one in found.kernels)
    _, kernel = max(zip(gained_us, found.kernels, strict=True), key=lambda pair: pair[0])
    records: list[dict[str, Cell]] = [_point("front", one) for one in kernel.front]
    records.append(_point("chosen", kernel.configuration))
    if kernel.undivided is not None:
        records.append(_point("undivided", kernel.undivided))
    limit = found.workspace_limit_bytes
    if limit is not None:
        records.append({"what": "limit", "workspace_mib": limit / _MIB})
    colours = {"front": _FRONT, "chosen": _CHOSEN, "whole": _WHOLE}
    spec = described(__package__, "front", **colours, has_limit=limit is not None)
    gain = "" if kernel.gain is None else f", {kernel.gain:.2f} times as fast as undivided"
    return Figure(
        name="front",
        title=title,
        finding=f"{kernel.name} runs as {kernel.configuration}{gain}.",
        records=tuple(records),
        panels=(Panel("", spec),),
        legend=(
            LegendEntry("no other is faster in less", _FRONT, "line"),
            LegendEntry("chosen", _CHOSEN, "diamond"),
            *([LegendEntry("undivided", _WHOLE, "square")] if kernel.undivided is not None else []),
            *([LegendEntry("limit", "#222222", "dashes")] if limit is not None else []),
        ),
        panel_pixels=720,
    )


def workspace_figure(found: MicroBatching, title: str) -> Figure:
    """Workspace of each kernel, and below it its time, divided and undivided."""
    several = len({one.name.direction for one in found.kernels}) > 1
    names = [str(one.name) if several else one.name.layer for one in found.kernels]
    records: list[dict[str, Cell]] = [
        {
            "kernel": name,
            "configuration": str(one.configuration),
            "workspace_mib": one.configuration.workspace_bytes / _MIB,
            "time_ms": one.configuration.time_us / 1e3,
            "undivided_ms": None if one.undivided is None else one.undivided.time_us / 1e3,
        }
        for name, one in zip(names, found.kernels, strict=True)
    ]
    bars = partial(described, __package__, "workspaces", kernels=names)
    panels = (
        bars(colour=_FRONT, key="workspace_mib", title="workspace, MiB", has_undivided=False),
        bars(colour=_CHOSEN, key="time_ms", title="time, ms", has_undivided=True),
    )
    most = max(found.kernels, key=lambda one: one.configuration.workspace_bytes)
    finding = "No kernel needs a workspace."
    if size := most.configuration.workspace_bytes:
        finding = f"{most.name} has {size_text(size)} of {size_text(found.workspace_bytes)}."
    return Figure(
        name="workspaces",
        title=title,
        finding=finding,
        records=tuple(records),
        panels=tuple(Panel("", spec) for spec in panels),
        legend=(
            LegendEntry("workspace", _FRONT),
            LegendEntry("time divided", _CHOSEN),
            LegendEntry("time undivided", "#222222", "bound"),
        ),
        panel_pixels=460,
    )


def _point(what: str, one: Configuration) -> dict[str, Cell]:
    return {
        "what": what,
        "configuration": str(one),
        "time_ms": one.time_us / 1e3,
        "workspace_mib": one.workspace_bytes / _MIB,
    }
