"""Concurrent kernels: lanes of streams, who slowed whom through which resource, sentences, CSV, picture and trace, and
in a notebook (:mod:`iossim.report.notebook`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from rich.table import Table

from iossim.base.display import Picture
from iossim.base.tables import Cell, csv_text, described_table
from iossim.profiles.corun import Corun, CorunKernel, Through
from iossim.report.colours import REST, text_on
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Spec
from iossim.report.figures.vega import PALETTE, colour_scale, described
from iossim.report.notebook import MOST_ROWS, parts, picture, records, svg
from iossim.report.traces import Event, complete, counters, trace_text

#: Number of letters in a lane, and in a kernel's name in a table.
_LANE_LETTERS, _NAME_LETTERS = 66, 22
#: A number by itself in a phrase, not one within a name such as fp32.
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
#: The table omits slowdowns below this part of a kernel's time alone; files have all of them.
_SMALLEST_PART, _LEAST_SHOWN_US = 0.001, 0.05


def short_name(name: str) -> str:
    """Kernel's name without the types of its return, template and arguments: ``gemm`` for ``void a::gemm<4>(int)``.

    Kernels of CUTLASS are all called ``Kernel``; the argument of their template distinguishes them.
    """
    of_cutlass = re.search(r"\bcutlass::Kernel2?<(\w+)", name)
    if of_cutlass:
        return of_cutlass[1]
    plain = re.sub(r"^(?:void|static|__global__|\s)+", "", name.strip())
    if re.match(r"[\w:~]+[<(]", plain):
        # Only the last part of a template's name is kept; a name that a person wrote is kept as it is.
        plain = re.split(r"[<(]", plain.replace("(anonymous namespace)::", ""), maxsplit=1)[0].rpartition("::")[2]
    return plain or name


def lanes(run: Corun) -> str:
    """One line per stream: kernels as bars with their row's number and name if they fit, dots where one waits."""
    streams = sorted({row.kernel.stream for row in run.kernels})
    label = max(len(f"stream {stream}") for stream in streams)
    scale = _LANE_LETTERS / (run.makespan_us or 1.0)
    lines = []
    for stream in streams:
        lane = [" "] * _LANE_LETTERS
        for number, row in enumerate(run.kernels):
            if row.kernel.stream == stream:
                _draw(lane, number, row, scale)
        lines.append(f"{f'stream {stream}':<{label}} {''.join(lane).rstrip()}")
    end = f"{run.makespan_us:,.1f} us"
    return "\n".join([*lines, f"{'':<{label}} 0{end:>{_LANE_LETTERS - 1}}"])


def _draw(lane: list[str], number: int, row: CorunKernel, scale: float) -> None:
    ready, begin, end = (round(time_us * scale) for time_us in (row.ready_us, row.start_us, row.end_us))
    for place in range(ready, begin):
        if lane[place] == " ":
            lane[place] = "."
    room = end - begin - 2
    if room < 0:
        lane[min(begin, len(lane) - 1)] = "|"
        return
    texts = (f" {number} {short_name(row.kernel.name)} ", f" {number} ", f"{number}", "")
    text = next(each for each in texts if len(each) <= room)
    lane[begin:end] = f"[{text:=<{room}}]"


def corun_table(run: Corun, most: int | None = None) -> Table:
    """A table with one row per kernel or, beyond ``most`` kernels, only for those that lost most time."""
    lost_us = [sum(one.us for one in row.slowed_by) for row in run.kernels]
    shown = frozenset(sorted(range(len(lost_us)), key=lambda number: (-lost_us[number], number))[:most])
    rows: list[dict[str, Cell]] = [
        {
            "row": number,
            "stream": row.kernel.stream,
            "name": _cut(short_name(row.kernel.name)),
            "start_us": row.start_us,
            "end_us": row.end_us,
            "alone_us": row.alone_us,
            "slower_x": slower(row),
            "slowed_by": "\n".join(_slowed_by(row)),
        }
        for number, row in enumerate(run.kernels)
        if number in shown
    ]
    return described_table(__package__, "corun", "", rows)


def slower(row: CorunKernel) -> float:
    """A kernel's slowdown over its time alone, counted from when its stream reached it."""
    return (row.end_us - row.ready_us) / row.alone_us if row.alone_us else 1.0


def _slowed_by(row: CorunKernel) -> list[str]:
    lost: dict[int, dict[Through, float]] = {}
    for one in row.slowed_by:
        if one.us >= _SMALLEST_PART * row.alone_us:
            lost.setdefault(one.by, {})[one.through] = one.us
    order = sorted(lost, key=lambda by: (-sum(lost[by].values()), by))
    lines = []
    for by in order:
        most_first = sorted(lost[by].items(), key=lambda item: -item[1])
        lines.append(f"{by}: {', '.join(f'{through} {us:,.1f}' for through, us in most_first)}")
    return lines


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_LETTERS else f"{name[: _NAME_LETTERS - 3]}..."


def makespan_words(run: Corun) -> str:
    """The makespan, against the longest stream alone and against all streams run one after another."""
    return (
        f"Concurrent: {run.makespan_us:,.1f} us; {_against(run, run.alone_us)} for the longest stream alone, "
        f"{_against(run, run.sequential_us)} for the streams one after another"
    )


def corun_lines(run: Corun) -> list[str]:
    """The makespan, the recorded one, and the time that kernels lost; unknown values are left out."""
    return list(filter(None, (makespan_words(run), recorded_words(run), lost_words(run))))


def recorded_words(run: Corun) -> str:
    """The recorded makespan beside the simulated one; empty where nothing was recorded."""
    if run.recorded_us is None or run.difference_percent is None:
        return ""
    idle = f", {run.idle_us:,.1f} us of it without a kernel" if run.idle_us >= _LEAST_SHOWN_US else ""
    side = "more" if run.difference_percent >= 0 else "less"
    return (
        f"Recorded: {run.recorded_us:,.1f} us from the first start to the last end{idle}; simulated "
        f"{run.makespan_us:,.1f} us, {abs(run.difference_percent):.1f}% {side}"
    )


def _against(run: Corun, other_us: float) -> str:
    """Ratio to another time in words: ``1.20x the 50.0 us``."""
    return f"{run.makespan_us / other_us:.2f}x the {other_us:,.1f} us" if other_us else "against 0 us"


def lost_words(run: Corun) -> str:
    """Time that kernels lost by cause, summed over them; empty where they lost none."""
    lost: dict[Through, float] = defaultdict(float)
    for one in chain.from_iterable(row.slowed_by for row in run.kernels):
        lost[one.through] += one.us
    order = sorted(lost, key=lambda through: (-lost[through], through))
    told = [f"{through} {lost[through]:,.1f} us" for through in order if lost[through] >= _LEAST_SHOWN_US]
    return f"Time lost to contention, summed over kernels: {', '.join(told)}" if told else ""


def inferred_words(run: Corun) -> list[str]:
    """Inferred inputs, one sentence for all rows to which it applies, whatever the numbers."""
    said: dict[str, dict[str, list[int]]] = {}
    for number, row in enumerate(run.kernels):
        for phrase in row.inferred:
            said.setdefault(_NUMBER.sub("...", phrase), {}).setdefault(phrase, []).append(number)
    return [
        f"{general if len(phrases) > 1 else next(iter(phrases))} "
        f"({_rows(sorted(chain.from_iterable(phrases.values())), len(run.kernels))})"
        for general, phrases in said.items()
    ]


def _rows(numbers: Sequence[int], count: int) -> str:
    """Row numbers in words: ``all rows``, or ``row 3``, or ``rows 0-2, 5``."""
    if len(numbers) == count:
        return "all rows" if count > 1 else f"row {numbers[0]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"row{'s' if len(numbers) > 1 else ''} {told}"


@records.register
def _(run: Corun) -> list[dict[str, object]]:
    return [
        {
            "row": number,
            **{name: getattr(row.kernel, name) for name in ("stream", "name")},
            **{name: getattr(row, name) for name in ("ready_us", "start_us", "end_us", "alone_us")},
            "times_alone": slower(row),
            "slowed_by": ";".join(f"{one.by} {one.through} {one.us:.6g}" for one in row.slowed_by),
        }
        for number, row in enumerate(run.kernels)
    ]


def corun_csv(run: Corun) -> str:
    """One line per kernel; who slowed it as ``ROW THROUGH US`` separated by ``;``."""
    rows = records(run)
    return csv_text([rows[0], *(row.values() for row in rows)])


_WIDTH_PIXELS = 1000
#: Names of the resources in use, by cell.
_USES = {"issue_percent": "issue", "l2_percent": "L2", "dram_percent": "DRAM", "power_percent": "power"}
_IN_USE, _WAITS = "#8b939c", "#555555"


def corun_figure(run: Corun, title: str) -> Figure:
    """Picture of a run; resources that are never in use are left out."""
    domain_ms = (0.0, (run.makespan_us or 1.0) * 1.005 / 1e3)
    colours = _colours(run)
    execution = run.execution
    uses = {
        name: values
        for name, values in zip(_USES, (execution.issue, execution.l2, execution.dram, execution.power), strict=True)
        if values.any()
    }
    records: list[dict[str, Cell]] = [{"strip": False, **record} for record in _kernels(run, colours, domain_ms)]
    records += [{"strip": True, **step} for step in timeline.occupancy_steps(execution, **uses)]
    strips = [timeline.occupancy(domain_ms), *(_use(name, domain_ms) for name in uses)]
    waits = any(row.start_us > row.ready_us for row in run.kernels)
    entries = [LegendEntry(name, colour) for name, colour in colours.items() if colour != REST]
    rest = len(colours) - len(entries)
    entries += [LegendEntry(f"{rest} others", REST)] if rest else []
    return Figure(
        name="timeline",
        title=title,
        finding=makespan_words(run),
        records=tuple(records),
        panels=(
            Panel("", _lanes(colours, domain_ms), {"strip": False}),
            *(Panel("", strip, {"strip": True}) for strip in strips),
        ),
        legend=(
            *entries,
            *([LegendEntry("waits", _WAITS, "dashes")] if waits else []),
            *timeline.occupancy_legend(),
            *([LegendEntry("in use, % of the device's", _IN_USE)] if uses else []),
        ),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


def _colours(run: Corun) -> dict[str, str]:
    """Colour of each name: the palette's for those that take most time, grey for the rest."""
    total_us: dict[str, float] = defaultdict(float)
    for row in run.kernels:
        total_us[short_name(row.kernel.name)] += row.end_us - row.start_us
    order = sorted(total_us, key=lambda name: (-total_us[name], name))
    return {name: PALETTE[place] if place < len(PALETTE) else REST for place, name in enumerate(order)}


def _kernels(run: Corun, colours: Mapping[str, str], domain_ms: tuple[float, float]) -> list[dict[str, Cell]]:
    """One record per kernel, per wait, and per label that has room."""
    records: list[dict[str, Cell]] = []
    pixels_per_ms = _WIDTH_PIXELS / domain_ms[1]
    for number, row in enumerate(run.kernels):
        name, stream = short_name(row.kernel.name), row.kernel.stream
        start_ms, end_ms = row.start_us / 1e3, row.end_us / 1e3
        records.append({"what": "kernel", "stream": stream, "kind": name, "start_ms": start_ms, "end_ms": end_ms})
        if row.start_us > row.ready_us:
            records.append({"what": "wait", "stream": stream, "start_ms": row.ready_us / 1e3, "end_ms": start_ms})
        texts = (f"{number} {name}", str(number))
        text = timeline.fitting_label(texts, (end_ms - start_ms) * pixels_per_ms - 4)
        if text:
            label: dict[str, Cell] = {"what": "label", "stream": stream, "text": text, "colour": text_on(colours[name])}
            records.append({**label, "start_ms": (start_ms + end_ms) / 2})
    return records


def _lanes(colours: Mapping[str, str], domain_ms: tuple[float, float]) -> Spec:
    return described(
        __package__,
        "lanes",
        x=timeline.time_channel("start_ms", domain_ms),
        y=timeline.stream_channel("stream"),
        colours=colour_scale(colours),
        waits=_WAITS,
        label_size=timeline.LABEL_PIXELS,
        step=timeline.LANE_PIXELS,
    )


def _use(name: str, domain_ms: tuple[float, float]) -> Spec:
    x, height = timeline.time_channel("start_ms", domain_ms, labels=False), timeline.STRIP_PIXELS
    return described(__package__, "use", x=x, part=name, title=_USES[name], in_use=_IN_USE, height=height)


def corun_trace(run: Corun, title: str) -> str:
    """The trace as JSON text; equal arguments give equal text. Each kernel tells who slowed it, and through what."""
    streams = sorted({row.kernel.stream for row in run.kernels})
    tracks = {stream: track for track, stream in enumerate(streams, 1)}
    order = sorted(run.kernels, key=lambda row: (row.kernel.stream, row.start_us, row.end_us))
    events = [_corun_event(run, row, tracks[row.kernel.stream]) for row in order]
    named = {track: f"stream {stream}" for stream, track in tracks.items()}
    other = {"makespan_us": run.makespan_us, "alone_us": run.alone_us, "sequential_us": run.sequential_us}
    return trace_text(title, named, events + counters(run.execution), other)


def _corun_event(run: Corun, row: CorunKernel, track: int) -> Event:
    raw = row.kernel
    arguments = {
        "blocks": raw.blocks,
        "threads": raw.threads,
        "alone_us": row.alone_us,
        "waited_us": row.start_us - row.ready_us,
        "slowed_by": [
            {"kernel": run.kernels[one.by].kernel.name, "row": one.by, "through": one.through, "us": one.us}
            for one in row.slowed_by
        ],
    }
    return complete(raw.name, "kernel", track, row.start_us, row.end_us, arguments)


@parts.register
def _(run: Corun) -> list[str | Table]:
    first, *rest = corun_lines(run)
    return [first, corun_table(run, MOST_ROWS), *rest, *(f"note: {one}" for one in (*run.notes, *inferred_words(run)))]


@picture.register
def _(run: Corun) -> Picture:
    return svg(corun_figure(run, "Kernels side by side"))
