"""The file format in which the published IOS engine saves a network with its schedule: its nodes, read and written.

A file is JSON: ``name``, ``input`` and ``blocks``. A block has the node that it starts from (``enter_node``, from
the block before), its other nodes in execution order, the last of them as ``exit_node``, and ``stages``:
for each stage its groups, for each group the names of nodes. A node has ``inputs``: terms that are concatenated along
channels, each the sum of slices ``[node, begin, end]`` of channels. Shapes exclude the batch: a file fits any batch.

A merged stage has no flag. A merged convolution is one node whose ``hint_name`` lists the names of the
convolutions that it replaces, and consumers of one of those read a slice of its channels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from iossim.base.errors import ScheduleError
from iossim.base.user_files import read_text
from iossim.base.values import Value, validated

_Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Name = Annotated[str, Field(min_length=1)]
_Pair = tuple[_Size, _Size]
_Padding = tuple[_Offset, _Offset]
#: Channels, height, width.
Shape = tuple[_Size, _Size, _Size]
#: Channels ``begin`` to ``end`` of a node's output.
Read = tuple[_Name, _Offset, _Size]
#: Slices to be summed.
Term = Annotated[list[Read], Field(min_length=1)]
#: Terms to be concatenated along the channels.
Terms = Annotated[list[Term], Field(min_length=1)]


class Placeholder(Value):
    """The network's input."""

    type: Literal["placeholder"]
    name: _Name
    hint_name: str
    output_shape: Shape


class ConvNode(Value):
    """A convolution with bias and symmetric padding, and its activation."""

    type: Literal["conv"] = "conv"
    name: _Name
    hint_name: str
    inputs: Terms
    out_channels: _Size
    kernel: _Pair
    stride: _Pair
    padding: _Padding
    groups: _Size
    act: Literal["relu", "identity"]
    output_shape: Shape


class PoolNode(Value):
    """Pooling over windows, padding included in averages, or over whole images."""

    type: Literal["pool"] = "pool"
    name: _Name
    hint_name: str
    inputs: Terms
    pool_type: Literal["max", "avg", "global_max", "global_avg"]
    kernel: _Pair
    stride: _Pair
    padding: _Padding
    output_shape: Shape


class IdentityNode(Value):
    """Its inputs unchanged: a concat, a sum, or a concat of sums."""

    type: Literal["identity"] = "identity"
    name: _Name
    hint_name: str
    inputs: Terms
    output_shape: Shape


class ReluNode(Value):
    """A separate ReLU."""

    type: Literal["relu"] = "relu"
    name: _Name
    hint_name: str
    inputs: Terms
    output_shape: Shape


class SequentialNode(Value):
    """Nodes that are scheduled as one, each reading its predecessor (ReLU, depthwise, pointwise)."""

    type: Literal["sequential"] = "sequential"
    name: _Name
    hint_name: str
    nodes: list[Annotated[ConvNode | PoolNode | ReluNode, Field(discriminator="type")]] = Field(min_length=1)
    output_shape: Shape
    inputs: Terms


Node = ConvNode | PoolNode | IdentityNode | ReluNode | SequentialNode
_AnyNode = Annotated[Node, Field(discriminator="type")]
_EnterNode = Annotated[Placeholder | Node, Field(discriminator="type")]
#: Groups of names.
StageNames = list[list[_Name]]


class FileBlock(Value):
    """A block: its input node, its nodes in execution order, and its stages."""

    enter_name: _Name
    enter_node: _EnterNode
    inner_nodes: list[_AnyNode]
    exit_node: _AnyNode
    stages: list[StageNames]

    @property
    def nodes(self) -> list[Node]:
        return [*self.inner_nodes, self.exit_node]


class IosFile(Value):
    """A network and its schedule."""

    name: _Name
    input: Placeholder
    blocks: list[FileBlock] = Field(min_length=1)

    def nodes(self) -> Iterator[Node]:
        """All nodes, block by block."""
        for block in self.blocks:
            yield from block.nodes

    def text(self) -> str:
        """The file's text, as the engine writes it."""
        return json.dumps(self.model_dump(mode="json"), indent=2)


#: Suffix that the engine adds to a network's name, by the scheduler here that searches the same stages.
_SUFFIXES = {
    "ios-both": "_dp_parallel_merge",
    "ios-parallel": "_dp_parallel",
    "ios-merge": "_dp_merge",
    "sequential": "_sequential",
    "greedy": "_greedy",
}
#: The scheduler of a file that does not name one.
UNKNOWN_SCHEDULER = "ios-file"


def file_name(network: str, scheduler: str) -> str:
    """The ``name`` of a file: the network's, and a suffix for the scheduler."""
    return network + _SUFFIXES.get(scheduler, "")


def network_and_scheduler(name: str) -> tuple[str, str]:
    """The inverse of :func:`file_name`; :data:`UNKNOWN_SCHEDULER` if the name has no known suffix."""
    for scheduler, suffix in _SUFFIXES.items():
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix), scheduler
    return name, UNKNOWN_SCHEDULER


def read_ios_file(path: Path) -> IosFile:
    """Read a file; raises ScheduleError naming it and the invalid field."""
    text = read_text(path, "IOS schedule", "give a file that the IOS engine saved", ScheduleError)
    if '"graph_hash"' in text:
        raise ScheduleError(f"{path} is no model but a schedule of iossim's; 'iossim explain' reads it")
    remedy = "give a file of the IOS engine, or a model"
    return validated(IosFile, text, f"IOS schedule {path} is not valid", remedy, ScheduleError)
