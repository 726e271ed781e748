"""Formats of other tools that a schedule can be exported to: each a function from a network and its schedule to text.

Other packages add formats by entry points ``iossim.outputs`` (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from iossim.base.display import counted
from iossim.base.errors import ScheduleError
from iossim.base.registry import Extension, Group, Plugin
from iossim.ir.network import Network, Unit
from iossim.ir.shown_names import shown_names
from iossim.report.schedule_tables import heading
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, Schedule, Stage, StreamSchedule

#: Pale colours on which black text is legible; further groups start over.
_GROUP_COLOURS = ("#cfe3f3", "#fbe3b5", "#c5e8dc", "#f1d9e7", "#d9eefa", "#f7d3bd", "#faf6c3", "#e3e3e3")


def dot(network: Network, schedule: AnySchedule) -> str:
    """DOT text: stages, or streams with their waits, as clusters; equal arguments give equal text."""
    network, schedule = shown_names(network)((network, schedule))
    own, noun = (schedule.stages, "stage") if isinstance(schedule, Schedule) else (schedule.streams, "stream")
    label = _quoted(f"{heading(schedule)} in {counted(len(own), noun)}")
    begin = f"digraph {_quoted(network.name)} {{\n  label={label}; labelloc=t; fontname=Helvetica;"
    nodes = '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];'
    return "\n".join([begin, nodes, "  edge [arrowsize=0.6, color=gray40];", *_lines(network, schedule), "}\n"])


def _lines(network: Network, schedule: AnySchedule) -> Iterator[str]:
    graph = network.graph
    for number, name in enumerate(graph.inputs):
        label = _quoted(f"{name}\n{graph.types[name]}")
        yield f"  in{number} [label={label}, shape=plaintext, style=solid];"
    if isinstance(schedule, StreamSchedule):
        yield from _streams(network, schedule)
    else:
        yield from _clusters(network, schedule)
    inputs = {name: number for number, name in enumerate(graph.inputs)}
    for index, unit in enumerate(network.units):
        for value in unit.inputs:
            if value in inputs:
                yield f"  in{inputs[value]} -> u{index};"
        for before in network.predecessors[index]:
            yield f"  u{before} -> u{index};"
    if isinstance(schedule, StreamSchedule):
        yield from _orders(network, schedule)


def _clusters(network: Network, schedule: Schedule) -> Iterator[str]:
    for number, (block, stage) in enumerate(schedule.named_stages):
        yield f"  subgraph cluster_stage{number} {{"
        dashes = "rounded,dashed" if stage.strategy is Strategy.MERGE else "rounded"
        label = _quoted(_stage_label(number, block, stage))
        yield f'    label={label}; style="{dashes}"; color=gray50; fontsize=9;'
        for group, names in enumerate(stage.groups):
            colour = _GROUP_COLOURS[group % len(_GROUP_COLOURS)]
            for name in names:
                yield f"    {_node(network, network.unit(name), colour)}"
        yield "  }"


def _streams(network: Network, schedule: StreamSchedule) -> Iterator[str]:
    """One cluster per stream, in it one more per stacked convolution."""
    for stream, own in enumerate(schedule.streams):
        yield f"  subgraph cluster_stream{stream} {{"
        yield f'    label="stream {stream} · {counted(len(own), "launch")}"; style=rounded; color=gray50; fontsize=9;'
        colour = _GROUP_COLOURS[stream % len(_GROUP_COLOURS)]
        for number, launch in enumerate(own):
            nodes = [_node(network, network.unit(name), colour) for name in launch.units]
            if len(nodes) > 1:
                own_box = f"subgraph cluster_stream{stream}_{number}"
                nodes = [f'{own_box} {{ label=merge; style="rounded,dashed"; fontsize=9; {" ".join(nodes)} }}']
            yield from (f"    {node}" for node in nodes)
        yield "  }"


def _orders(network: Network, schedule: StreamSchedule) -> Iterator[str]:
    """Dashed edges between the launches of a stream, in order; bold ones for the events that launches wait for."""
    index = network.unit_index
    for own in schedule.streams:
        for before, launch in pairwise(own):
            yield f"  u{index[before.units[-1]]} -> u{index[launch.units[0]]} [style=dashed, constraint=false];"
        for launch in own:
            for name in launch.after:
                yield f'  u{index[name]} -> u{index[launch.units[0]]} [style=bold, color="#b2182b", constraint=false];'


def _stage_label(number: int, block: str, stage: Stage) -> str:
    groups = f"{len(stage.groups)} groups" if stage.concurrent else "1 group"
    what = "merge" if stage.strategy is Strategy.MERGE else groups
    return f"stage {number} · {block} · {what} · {stage.latency_us:.1f} us"


def _node(network: Network, unit: Unit, colour: str) -> str:
    shapes = "\n".join(str(network.graph.types[value]) for value in unit.outputs)
    label = _quoted(f"{unit.name}\n{unit.kind}\n{shapes}")
    return f'u{network.unit_index[unit.name]} [label={label}, fillcolor="{colour}"];'


def _quoted(text: str) -> str:
    r"""A DOT string: quotes and backslashes escaped, line ends as ``\n``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


ScheduleFormat = Callable[[Network, AnySchedule], str]


def ios(network: Network, schedule: AnySchedule) -> str:
    """A file of the published IOS engine; raises ScheduleError for what its format cannot express, such as streams."""
    from iossim.models.ios_engine.export import ios_file

    return ios_file(_of_stages(schedule, "`format` ios"), network).text()


def _of_stages(schedule: AnySchedule, writer: str) -> Schedule:
    if isinstance(schedule, StreamSchedule):
        raise ScheduleError(
            f"{writer} holds stages, with a barrier after each, and this schedule has {len(schedule.streams)} streams "
            "without barriers, which would be lost; export the stages that optimize finds by `scheduler` ios-both, or "
            "give `format` dot"
        )
    return schedule


def _of_plugin(added: Plugin, found: ScheduleFormat) -> ScheduleFormat:
    def write(network: Network, schedule: AnySchedule) -> str:
        text = added.guarded(found)(network, _of_stages(schedule, str(added)))
        if not isinstance(text, str):
            raise added.error(f"returns {type(text).__name__}, not text")
        return text

    return write


_FORMATS: dict[str, ScheduleFormat] = {"dot": dot, "ios": ios}
OUTPUTS: Group[ScheduleFormat] = Group(
    "`format` {!r} is not known",
    lambda: _FORMATS,
    _FORMATS.get,
    Extension("iossim.outputs", "a function that returns text", _of_plugin),
)
