"""Runs a network that is divided among devices with NumPy: every device has arrays of its own, and gets what it is sent.

What a device neither made nor was sent is NaN in its arrays, so that a message too few is seen in the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from iossim.edge.collectives import apply
from iossim.edge.distribution import DistributedStep, Distribution
from iossim.edge.operators import Operator
from iossim.execution.box import Box
from iossim.execution.made_inputs import check_inputs
from iossim.ir.network import Network
from iossim.ir.op import Array


class DeviceValues:
    """The feature maps of one device: arrays of their whole shapes, of which it fills and is sent boxes."""

    def __init__(self, network: Network, inputs: Mapping[str, Array]) -> None:
        graph = network.graph
        check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
        self.network = network
        self.arrays: dict[str, Array] = {name: array.copy() for name, array in inputs.items()}

    def of(self, value: str) -> Array:
        if value in self.network.graph.constants:
            return self.network.graph.constants[value].load()
        if value not in self.arrays:
            kind = self.network.graph.types[value]
            empty = np.nan if np.issubdtype(kind.dtype.numpy, np.floating) else 0
            self.arrays[value] = np.full(kind.shape, empty, kind.dtype.numpy)
        return self.arrays[value]

    def compute(self, step: DistributedStep, device: int) -> None:
        """Fill the boxes that the device computes of a step's outputs."""
        if step.operator.unknown:
            self._whole(step.operator)
            return
        box = step.boxes[device]
        demand = step.operator.demand(box)
        assert demand is not None
        known: dict[tuple[str, Box], Array] = {}
        for call in demand.calls:
            names = zip(call.node.inputs, call.piece.inputs, strict=True)
            arrays = [known[each] if each in known else self.of(each[0])[each[1].selection] for each in names]
            known[call.node.outputs[0], call.box] = call.piece.evaluate(arrays)
        (value,) = step.operator.outputs
        self.of(value)[box.selection] = known[value, box]

    def _whole(self, operator: Operator) -> None:
        known: dict[str, Array] = {}
        for node in operator.nodes:
            made = node.op.evaluate([known[name] if name in known else self.of(name) for name in node.inputs])
            known.update(zip(node.outputs, made, strict=True))
        for value in operator.outputs:
            self.of(value)[...] = known[value]


def run(found: Distribution, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The network's outputs on every device, from arrays for its inputs."""
    values = [DeviceValues(found.network, inputs) for _ in range(found.devices)]
    for step in found.steps:
        for each in step.exchanges:
            apply(each.collective, [one.of(each.value) for one in values])
        for device, one in enumerate(values):
            one.compute(step, device)
    for each in found.gathers:
        apply(each.collective, [one.of(each.value) for one in values])
    return [{name: one.of(name) for name in found.network.graph.outputs} for one in values]
