"""TensorRT's settings for a schedule: the number of auxiliary streams that it may use, and nothing else.

Its builder decides which layers run concurrently. A schedule therefore becomes a limit for ``trtexec``, and a list of
the layers that its profile should show concurrently if it decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iossim.ir.network import Network
from iossim.models.load import source_of
from iossim.models.sources.onnx_file import values_of_nodes
from iossim.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TensorRtAdvice:
    """Streams beside the main one for which a schedule has work, and the nodes that a stage, by its number, runs
    concurrently: the names of each group, in order.
    """

    aux_streams: int
    stages: Mapping[int, list[list[str]]]

    def command(self, model: str) -> str:
        """Command that builds an engine of ``model``, and writes the profile of its layers."""
        return (
            f"trtexec --onnx={model} --maxAuxStreams={self.aux_streams} --profilingVerbosity=detailed "
            "--exportLayerInfo=layers.json --exportProfile=profile.json"
        )


def tensorrt_advice(network: Network, schedule: Schedule) -> TensorRtAdvice:
    """The advice for a schedule that fits ``network``; an engine names layers after nodes of the model's file."""
    file = network.source.model if network.source else ""
    values_of = values_of_nodes(file) if source_of(file) == "onnx_file" else {}
    in_file = {value: name for name, made in values_of.items() for value in made}
    stages = {
        number: [_names(network, group, in_file) for group in stage.groups]
        for number, stage in enumerate(schedule.stages)
        if stage.concurrent
    }
    return TensorRtAdvice(max(0, schedule.streams - 1), stages)


def _names(network: Network, group: Sequence[str], in_file: Mapping[str, str]) -> list[str]:
    units = (network.unit(name) for name in group)
    return [in_file.get(node.outputs[0], node.name) for unit in units for node in network.unit_nodes(unit)]
