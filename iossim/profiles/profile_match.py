"""Matching of a profile's layers to a network's units: by name if they have one, else by order.

Names are those of nodes or of the values that they make, also fused (``conv1 + relu1``), blocked (``value_nchwc``), or
in a range around a kernel. A layer that changes a layout belongs to the next unit. Without names, layers are aligned
with ops in order: products with products, windows with windows, element-wise layers with the op before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.op import Role
from iossim.measurements.profilers.layer_times import TimedLayer

Scores = Floats
Places = NDArray[np.intp]

#: Suffixes that ONNX Runtime appends for blocked channels and fused products, and to make names unique.
_ADDED = re.compile(r"(_nchwc|_token_\d+|/Mat[Mm]ul\w+Fusion/?)+$")
_LAYOUTS = re.compile(r"reorder|reformat|memcpy|copynode|nchwtonhwc|nhwctonchw|gemm_\w+_reshape", re.IGNORECASE)
#: Function of a kernel or operator, by its name; the first match counts.
_CLASSES = {
    "elementwise": re.compile(r"elementwise|triton_poi", re.IGNORECASE),
    "batch norm": re.compile(r"batch_?norm|bn_fw|bn_inf", re.IGNORECASE),
    "window": re.compile(r"pool", re.IGNORECASE),
    "norm": re.compile(r"softmax|_norm|layernorm|(?<!splitk)reduce|lrn|aten::mean|aten::sum", re.IGNORECASE),
    "product": re.compile(
        r"conv|gemm|gemv|cutlass|xmma|nvjet|splitk|winograd|matmul|linear|addmm|bmm|aten::mm|fprop|attention|flash|fmha",
        re.IGNORECASE,
    ),
    "move": re.compile(r"cat|transpose|permute|gather|slice|split|pad|embedding", re.IGNORECASE),
}
#: Kinds of ops that compute nothing, besides concats.
_MOVES = ("slice", "split", "transpose", "gather", "pad")
#: Scores of a layer for an op: the first of its own class, another one, and one that joins any op.
_FIRST, _MORE, _JOINS = 4.0, 0.5, 1.0
#: Score of the first layer of an element-wise op: it is low, since its kernel may be fused and this one another's.
_FIRST_ELEMENTWISE = 1.25
#: Penalty for leaving out an op that multiplies.
LEFT_OUT = 1.0
#: Names suffice if they match this fraction of the time.
_NAMED = 0.5


def matched(
    network: Network, layers: Sequence[TimedLayer], values_of: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[int | None]:
    """The unit of each layer, None if there is none.

    ``values_of`` has the outputs of nodes whose names in the model's file differ from the network's.
    """
    found = by_name(network, layers, values_of)
    if not names_suffice(layers, found):
        return _with_layouts(layers, by_order(network, layers, range(len(network.units))))
    # A layer fused by a runtime has its own name: it belongs to the units that no name matched, in order.
    places = [place for place, unit in enumerate(found) if unit is None and layer_class(layers[place]) != "elementwise"]
    untold = sorted(set(range(len(network.units))).difference(unit for unit in found if unit is not None))
    for place, unit in zip(places, by_order(network, [layers[place] for place in places], untold), strict=True):
        found[place] = unit
    return _with_layouts(layers, found)


def names_suffice(layers: Sequence[TimedLayer], found: Sequence[int | None]) -> bool:
    """True if names match enough of the time; ``found`` is the result of :func:`by_name`."""
    named = sum(layer.duration_us for layer, unit in zip(layers, found, strict=True) if unit is not None)
    return named >= _NAMED * sum(layer.duration_us for layer in layers)


def by_name(
    network: Network, layers: Sequence[TimedLayer], values_of: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[int | None]:
    """Match by the names of layers, or of the ranges around them."""
    graph = network.graph
    of_node = {graph.nodes[node].name: number for number, unit in enumerate(network.units) for node in unit.nodes}
    of_value = network.unit_of_value
    in_file = {name: of_value[value] for name, made in values_of.items() for value in made if value in of_value}
    known = {**in_file, **of_node, **of_value}
    known |= {unit.name: number for number, unit in enumerate(network.units)}
    found: list[int | None] = []
    for layer in layers:
        names = [part for text in (layer.name, *layer.ranges) for part in re.split(r"\s*(?:\+|\.\.\.|\|\|)\s*", text)]
        plain = [_ADDED.sub("", name.strip(" {}[]")) for name in names]
        units = [known[name] for name in plain if name in known]
        found.append(max(units) if units else None)
    return found


def _with_layouts(layers: Sequence[TimedLayer], found: list[int | None]) -> list[int | None]:
    """Assign a layer that changes a layout to the next unit, or to the last one at the end."""
    filled = list(found)
    following = next((unit for unit in reversed(found) if unit is not None), None)
    for place in reversed(range(len(layers))):
        if filled[place] is not None:
            following = filled[place]
        elif _LAYOUTS.search(f"{layers[place].name} {layers[place].kind}"):
            filled[place] = following
    return filled


def by_order(network: Network, layers: Sequence[TimedLayer], units: Iterable[int]) -> list[int | None]:
    """Unit of ``units`` with whose op each layer is aligned, both in order."""
    graph = network.graph
    unit_of = {node: number for number in units for node in network.units[number].nodes}
    classes = {node: op_class(graph, graph.nodes[node]) for node in sorted(unit_of)}
    ops = [node for node, found in classes.items() if found != "view"]
    found = aligned([layer_class(layer) for layer in layers], [classes[node] for node in ops])
    return [None if place is None else unit_of[ops[place]] for place in found]


def aligned(layers: Sequence[str], ops: Sequence[str]) -> list[int | None]:
    """Index of each layer's op, from their classes, both in order; an op may have several layers or none.

    The alignment maximises the sum of :func:`gains`, less the penalties for omitted ops that multiply.
    """
    of_class = {kind: gains(kind, ops) for kind in set(layers)}
    left_out = LEFT_OUT * np.cumsum([0, *(op == "product" for op in ops)])
    # This is the best score with op j - 1 as the last that has a layer (0: none has), and where it came from.
    score = np.full(len(ops) + 1, -np.inf)
    score[0] = 0.0
    numbers = np.arange(len(score))
    steps: list[tuple[Places, Places]] = []
    for layer in layers:
        first, more = of_class[layer]
        # The predecessor may be any op before: those that multiply in between are left out.
        before = score + left_out
        best = np.maximum.accumulate(before)
        is_new = np.append(True, before[1:] > best[:-1])
        source = np.maximum.accumulate(np.where(is_new, numbers, 0))[:-1]
        # The layer belongs to no op, is the first of one, or is another of one.
        of_next, of_same = best[:-1] - left_out[:-1] + first, score[1:] + more
        choices = np.stack([score, np.append(-np.inf, of_next), np.append(-np.inf, of_same)])
        taken = choices.argmax(axis=0)
        came = np.where(taken == 1, np.append(0, source), numbers)
        score = choices.max(axis=0)
        steps.append((came, taken))
    end = int((score + left_out).argmax())
    found: list[int | None] = []
    for came, taken in reversed(steps):
        found.append(end - 1 if taken[end] else None)
        end = int(came[end])
    return found[::-1]


def gains(layer: str, ops: Sequence[str]) -> tuple[Scores, Scores]:
    """Scores of a layer of a class as the first of ops of these classes, and as another one; minus infinity: never."""
    first, more = np.full(len(ops), -np.inf), np.full(len(ops), -np.inf)
    for place, op in enumerate(ops):
        if layer == op == "elementwise":
            first[place], more[place] = _FIRST_ELEMENTWISE, _JOINS
        elif layer == op:
            first[place], more[place] = _FIRST, _MORE
        elif {layer, op} == {"window", "norm"}:  # a mean over whole images
            first[place] = _FIRST / 2
        elif layer == "elementwise" or (layer, op) == ("batch norm", "product"):  # whose weights are applied here
            more[place] = _JOINS
        elif layer == "move":
            more[place] = _MORE
    return first, more


def layer_class(layer: TimedLayer) -> str:
    """Class of a layer, by its kind if the profile gives it, else by its name."""
    text = layer.kind or layer.name
    return next((name for name, pattern in _CLASSES.items() if pattern.search(text)), "elementwise")


def op_class(graph: Graph, node: Node) -> str:
    """Class of an op: a class of layers, ``view`` (nothing), or ``elementwise``."""
    op = node.op
    if op.role is Role.VIEW:
        return "view"
    if "pool" in op.kind:
        return "window"
    if op.kind == "batch_norm":
        return "batch norm"
    if re.search(r"softmax|norm|reduce|lrn", op.kind):
        return "norm"
    if op.has_epilogue or graph.multiply_adds(node):
        return "product"
    return "move" if op.role is Role.CONCAT or op.kind in _MOVES else "elementwise"
