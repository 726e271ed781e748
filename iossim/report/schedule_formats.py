"""The formats of others that a schedule can be written in: each a function from a network and its schedule to text.

Others add formats by entry points ``iossim.outputs`` (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iossim.base.registry import Extension, Group, Plugin
from iossim.ir.network import Network, Unit
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule, Stage

#: Pale colours that black text is legible on; groups beyond them start over.
_GROUP_COLOURS = ("#cfe3f3", "#fbe3b5", "#c5e8dc", "#f1d9e7", "#d9eefa", "#f7d3bd", "#faf6c3", "#e3e3e3")


def dot(network: Network, schedule: Schedule | None = None) -> str:
    """DOT text; equal arguments give equal text."""
    return "\n".join(_lines(network, schedule)) + "\n"


def _lines(network: Network, schedule: Schedule | None) -> Iterator[str]:
    yield f"digraph {quoted(network.name)} {{"
    yield f"  label={quoted(_title(network, schedule))}; labelloc=t; fontname=Helvetica;"
    yield '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];'
    yield "  edge [arrowsize=0.6, color=gray40];"
    graph = network.graph
    for number, name in enumerate(graph.inputs):
        label = quoted(f"{name}\n{graph.types[name]}")
        yield f"  in{number} [label={label}, shape=plaintext, style=solid];"
    if schedule is None:
        for unit in network.units:
            yield f"  {_node(network, unit)}"
    else:
        yield from _clusters(network, schedule)
    inputs = {name: number for number, name in enumerate(graph.inputs)}
    for index, unit in enumerate(network.units):
        for value in unit.inputs:
            if value in inputs:
                yield f"  in{inputs[value]} -> u{index};"
        for before in network.predecessors[index]:
            yield f"  u{before} -> u{index};"
    yield "}"


def _clusters(network: Network, schedule: Schedule) -> Iterator[str]:
    number = 0
    for block in schedule.blocks:
        for stage in block.stages:
            yield f"  subgraph cluster_stage{number} {{"
            dashes = "rounded,dashed" if stage.strategy is Strategy.MERGE else "rounded"
            label = quoted(_stage_label(number, block.name, stage))
            yield f'    label={label}; style="{dashes}"; color=gray50; fontsize=9;'
            for group, names in enumerate(stage.groups):
                colour = _GROUP_COLOURS[group % len(_GROUP_COLOURS)]
                for name in names:
                    yield f"    {_node(network, network.units[network.unit_index[name]], colour)}"
            yield "  }"
            number += 1


def _stage_label(number: int, block: str, stage: Stage) -> str:
    groups = f"{len(stage.groups)} groups" if stage.concurrent else "1 group"
    what = "merge" if stage.strategy is Strategy.MERGE else groups
    return f"stage {number} · {block} · {what} · {stage.latency_us:.1f} us"


def _node(network: Network, unit: Unit, colour: str | None = None) -> str:
    shapes = "\n".join(str(network.graph.types[value]) for value in unit.outputs)
    label = quoted(f"{unit.name}\n{unit.kind}\n{shapes}")
    fill = f', fillcolor="{colour}"' if colour else ""
    return f"u{network.unit_index[unit.name]} [label={label}{fill}];"


def _title(network: Network, schedule: Schedule | None) -> str:
    if schedule is None:
        return f"{network.name}: {len(network.units)} units"
    return (
        f"{schedule.network} on {schedule.device}, batch {schedule.source.batch}, {schedule.scheduler}: "
        f"{len(schedule.stages)} stages, {schedule.latency_us / 1000:.3f} ms"
    )


def quoted(text: str) -> str:
    r"""A DOT string: quotes and backslashes escaped, line ends as ``\n``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


ScheduleFormat = Callable[[Network, Schedule], str]


def ios(network: Network, schedule: Schedule) -> str:
    """A file of the published IOS engine; raises ScheduleError for what it has no words for."""
    from iossim.models.ios_engine.export import ios_file

    return ios_file(schedule, network).text()


def _of_plugin(added: Plugin, found: ScheduleFormat) -> ScheduleFormat:
    def write(network: Network, schedule: Schedule) -> str:
        text = added.guarded(found)(network, schedule)
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
