"""A schedule of stages as one of streams: the same work without barriers, with an event wherever data crosses.

Of a stage the groups of most work go first, each to the stream that has least of the stage yet, and of these to the
one that made most of what it reads, so that few events are needed. A stream waits for the last unit of another that
it reads, and for no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.base.errors import OptionError
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import SavedSchedule, Schedule, StreamLaunch, StreamSchedule


def as_streams(schedule: Schedule, network: Network, most: int | None = None) -> StreamSchedule:
    """The streams of a schedule that fits ``network``; at most ``most``, so that groups of a stage share some.

    Its latency is still that of the stages, whose boundaries may cost more than events do. Raises OptionError for
    fewer streams than one.
    """
    if most is not None and most < 1:
        raise OptionError(f"`streams` {most} is not possible; give 1 or more")
    width = min(schedule.streams, most or schedule.streams)
    launches: list[list[StreamLaunch]] = [[] for _ in range(width)]
    stream_of: dict[str, int] = {}
    place: dict[str, int] = {}
    for stage in schedule.stages:
        held = [0] * width
        for group in sorted(stage.groups, key=lambda one: _multiply_adds(network, one), reverse=True):
            near = _bytes_made(network, group, stream_of, width)
            stream = min(range(width), key=lambda one, near=near: (held[one], -near[one], one))  # type: ignore[misc]
            held[stream] += 1 + _multiply_adds(network, group)
            merged = stage.strategy is Strategy.MERGE
            for units in [list(group)] if merged else [[unit] for unit in group]:
                after = _awaited(network, units, stream, stream_of, place)
                variant = "" if merged else stage.variants.get(units[0], "")
                place |= dict.fromkeys(units, len(launches[stream]))
                launches[stream].append(StreamLaunch(units=units, after=after, variant=variant))
                stream_of |= dict.fromkeys(units, stream)
    said = {name: getattr(schedule, name) for name in SavedSchedule.model_fields if name != "format_version"}
    return StreamSchedule(**said, streams=[own for own in launches if own])


def _multiply_adds(network: Network, group: Sequence[str]) -> int:
    graph = network.graph
    nodes = [node for name in group for node in network.unit_nodes(network.units[network.unit_index[name]])]
    return sum(node.op.multiply_adds(graph.input_types(node), graph.output_types(node)) for node in nodes)


def _bytes_made(network: Network, group: Sequence[str], stream_of: dict[str, int], width: int) -> list[int]:
    """By stream the bytes that a group reads and it made."""
    found = [0] * width
    reads = {value for name in group for value in network.units[network.unit_index[name]].inputs}
    for value in reads:
        maker = network.unit_of_value.get(value)
        if maker is not None and (stream := stream_of.get(network.units[maker].name)) is not None:
            found[stream] += network.graph.types[value].bytes
    return found


def _awaited(
    network: Network, units: Sequence[str], stream: int, stream_of: dict[str, int], place: dict[str, int]
) -> list[str]:
    """Of each other stream the last unit that one of ``units`` reads."""
    last: dict[int, str] = {}
    for name in units:
        for index in network.predecessors[network.unit_index[name]]:
            before = network.units[index].name
            other = stream_of[before]
            if other != stream and (other not in last or place[before] > place[last[other]]):
                last[other] = before
    return [last[other] for other in sorted(last)]
