"""Local functions of an ONNX model, written out where they are called.

Functions that call functions twice each double with every one: a file of a few lines can stand for more nodes than there is
memory. So what writing out would make is counted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from onnx import NodeProto

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import nodes_within

#: Nodes and bytes (names, and tensors in attributes) that functions may add to a model.
MOST_NODES, MOST_BYTES = 1 << 18, 1 << 28

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Extent:
    """What writing out a body makes."""

    nodes: int
    bytes: int


def inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model without functions; raises ModelError for those that call themselves, are too large, or cannot be inlined."""
    _check(model, path)
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises what C++ did
        raise ModelError(
            f"{path} has functions that cannot be inlined: {last_line(error)}; export the model without"
        ) from None


def _check(model: onnx.ModelProto, path: Path) -> None:
    bodies = {_key(each.domain, each.name, each): each for each in model.functions}
    calls = {key: Counter(_called(body.node, bodies)) for key, body in bodies.items()}
    extents: dict[_Key, _Extent] = {}
    for key in _innermost_first(calls, path):
        own = _Extent(sum(1 for _ in nodes_within(bodies[key].node)), bodies[key].ByteSize())
        extents[key] = _with_calls(own, calls[key], extents)
    made = _with_calls(_Extent(0, 0), Counter(_called(model.graph.node, bodies)), extents)
    if made.nodes > MOST_NODES or made.bytes > MOST_BYTES:
        raise ModelError(
            f"{path} has functions that stand for {made.nodes:,} nodes and {made.bytes:,} bytes; iossim takes at most "
            f"{MOST_NODES:,} and {MOST_BYTES:,}: export the model without functions"
        )


def _with_calls(own: _Extent, calls: Counter[_Key], extents: dict[_Key, _Extent]) -> _Extent:
    return _Extent(
        own.nodes + sum(count * extents[key].nodes for key, count in calls.items()),
        own.bytes + sum(count * extents[key].bytes for key, count in calls.items()),
    )


def _innermost_first(calls: dict[_Key, Counter[_Key]], path: Path) -> Iterator[_Key]:
    """Functions, each behind all that it calls; raises ModelError where one calls itself."""
    done: set[_Key] = set()
    for first, within in calls.items():
        opened: dict[_Key, Iterator[_Key]] = {} if first in done else {first: iter(within)}
        while opened:
            key = next(reversed(opened))
            called = next((each for each in opened[key] if each not in done), None)
            if called is None:
                del opened[key]
                done.add(key)
                yield key
            elif called in opened:
                raise ModelError(f"{path}: function {called[1]!r} calls itself; the file is damaged")
            else:
                opened[called] = iter(calls[called])


def _called(nodes: Sequence[NodeProto], bodies: dict[_Key, onnx.FunctionProto]) -> Iterator[_Key]:
    for node in nodes_within(nodes):
        key = _key(node.domain, node.op_type, node)
        if key in bodies:
            yield key


def _key(domain: str, name: str, of: onnx.FunctionProto | NodeProto) -> _Key:
    """What tells functions apart; the oldest supported onnx has no overloads."""
    return "" if domain == "ai.onnx" else domain, name, getattr(of, "overload", "")
