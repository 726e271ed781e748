"""Operands of a plan's run: the graphs of its launches, and inputs, given and checked, or made from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from iossim.base.errors import GraphError, ScheduleError
from iossim.execution.plan import Launch, Plan
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network, subgraph
from iossim.ir.op import Array
from iossim.ir.types import TensorType
from iossim.schedule.batch import Strategy


def check_graph(plan: Plan, network: Network) -> None:
    """Raise ScheduleError, naming the network, if a plan is for another graph."""
    if plan.graph_hash != network.graph.hash:
        raise ScheduleError(f"the plan is for another graph than {network.name!r}; lower the schedule again")


def launch_graph(network: Network, launch: Launch) -> Graph:
    """A launch as a graph of its own: a unit's ops, or one stacked convolution and its activation."""
    units = [network.unit_index[name] for name in launch.units]
    if launch.strategy is Strategy.MERGE:
        return merged_graph(network, units)
    unit = network.units[units[0]]
    return subgraph(network.graph, network.unit_nodes(unit), unit.inputs, unit.outputs)


def merged_graph(network: Network, units: Sequence[int]) -> Graph:
    """The stacked convolution of several units and their activation, as a graph from their input to one output.

    The output has the parts as channel slices in the order of ``units``. Raises as :func:`merged_convolution`.
    """
    merged = merged_convolution(network, units)
    parts = [network.unit_nodes(network.units[unit]) for unit in units]
    arrays = [[network.graph.constants[value].load() for value in nodes[0].inputs[1:]] for nodes in parts]
    weight, bias = merged.stack(arrays)
    name = "merged:" + "+".join(network.units[unit].name for unit in units)
    constants: dict[str, Constant] = {f"{name}.weight": ArrayConstant(weight)}
    if bias is not None:
        constants[f"{name}.bias"] = ArrayConstant(bias)
    activations = [node.op for node in parts[0][1:]]
    first = Node("stacked", merged.op, (merged.input, *constants), (f"{name}.stacked" if activations else name,))
    nodes = [first, *(Node(name, op, first.outputs, (name,)) for op in activations)]
    return Graph.create({merged.input: network.graph.types[merged.input]}, [name], nodes, constants)


def check_inputs(inputs: Mapping[str, Array], types: Mapping[str, TensorType]) -> None:
    """Raise GraphError, naming the input, if one of ``types`` is missing, or has another shape or element type."""
    for name, expected in types.items():
        if name not in inputs:
            raise GraphError(f"no array for input {name!r}; give one of {expected}")
        array = inputs[name]
        if array.shape != expected.shape or array.dtype != expected.dtype.numpy:
            raise GraphError(
                f"input {name!r} is {array.dtype}[{'x'.join(map(str, array.shape))}]; give an array of {expected}"
            )


def made_inputs(plan: Plan, network: Network, seed: int = 0) -> dict[str, Array]:
    """An array for each of the plan's inputs."""
    return made_arrays(plan.inputs, network.graph.types, seed)


def made_arrays(names: Iterable[str], types: Mapping[str, TensorType], seed: int = 0) -> dict[str, Array]:
    """Normal numbers, or small integers for integer types, that depend only on ``seed`` and each name."""
    found: dict[str, Array] = {}
    for name in names:
        wanted = types[name]
        generator = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")])
        if wanted.dtype.is_floating:
            found[name] = generator.standard_normal(wanted.shape, dtype=np.float32).astype(wanted.dtype.numpy)
        else:
            found[name] = generator.integers(0, 2, wanted.shape).astype(wanted.dtype.numpy)
    return found
