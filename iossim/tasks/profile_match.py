"""Which unit of a network each layer of a profile is of: by name where it has one, else by order.

Names are those of nodes or of the values that they make, also fused (``conv1 + relu1``), blocked (``value_nchwc``), or
in a range around a kernel. What changes a layout is of the unit that runs next. Without names, the layers are aligned
with the units in order: products with products, windows with windows, and what is element-wise with what is before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from iossim.ir.network import Network
from iossim.ir.op import Role
from iossim.measurements.profilers.layer_times import TimedLayer

#: Behind names: what ONNX Runtime adds for blocked channels, and to tell nodes apart.
_ADDED = re.compile(r"(_nchwc|_token_\d+)+$")
_LAYOUTS = re.compile(r"reorder|reformat|memcpy|copynode|nchwtonhwc|nhwctonchw", re.IGNORECASE)
#: What a kernel or operator does, by its name; the first that is found.
_CLASSES = {
    "batch norm": re.compile(r"batch_?norm|bn_fw|bn_inf", re.IGNORECASE),
    "window": re.compile(r"pool", re.IGNORECASE),
    "norm": re.compile(r"softmax|_norm|layernorm|reduce|lrn|aten::mean|aten::sum", re.IGNORECASE),
    "product": re.compile(
        r"conv|gemm|gemv|cutlass|xmma|winograd|matmul|linear|addmm|bmm|aten::mm|fprop|attention", re.IGNORECASE
    ),
    "move": re.compile(r"cat|transpose|permute|gather|slice|split|pad|embedding", re.IGNORECASE),
}
#: Kinds of ops that compute nothing, besides concats.
_MOVES = ("slice", "split", "transpose", "gather", "pad")
#: Scores of a layer in a unit: its first of the unit's own class, one more, and what joins any unit.
_FIRST, _MORE, _JOINS = 4.0, 0.5, 1.0
#: What it costs to leave out a unit that multiplies.
_LEFT_OUT = 1.0
#: Names suffice if they tell this part of the time.
_NAMED = 0.5


def matched(network: Network, layers: Sequence[TimedLayer]) -> list[int | None]:
    """For each layer the unit that it is of, None where there is none."""
    found = by_name(network, layers)
    total = sum(layer.duration_us for layer in layers)
    named = sum(layer.duration_us for layer, unit in zip(layers, found, strict=True) if unit is not None)
    return _with_layouts(layers, found if named >= _NAMED * total else by_order(network, layers))


def by_name(network: Network, layers: Sequence[TimedLayer]) -> list[int | None]:
    """By the names of layers, or of the ranges around them."""
    graph = network.graph
    of_node = {graph.nodes[node].name: number for number, unit in enumerate(network.units) for node in unit.nodes}
    known = {**of_node, **network.unit_of_value}
    known |= {unit.name: number for number, unit in enumerate(network.units)}
    found: list[int | None] = []
    for layer in layers:
        names = [part for text in (layer.name, *layer.ranges) for part in re.split(r"\s*(?:\+|\.\.\.|\|\|)\s*", text)]
        plain = [_ADDED.sub("", name.strip(" {}[]")) for name in names]
        units = [known[name] for name in plain if name in known]
        found.append(max(units) if units else None)
    return found


def _with_layouts(layers: Sequence[TimedLayer], found: list[int | None]) -> list[int | None]:
    """What changes a layout is of the unit that is next; of the last where none is."""
    filled = list(found)
    following = next((unit for unit in reversed(found) if unit is not None), None)
    for place in reversed(range(len(layers))):
        if filled[place] is not None:
            following = filled[place]
        elif _LAYOUTS.search(f"{layers[place].name} {layers[place].kind}"):
            filled[place] = following
    return filled


def by_order(network: Network, layers: Sequence[TimedLayer]) -> list[int | None]:
    """The alignment of layers with units, both in order, of the best score; a unit may have several layers or none."""
    units = [unit_class(network, unit) for unit in range(len(network.units))]
    products = [0]
    for one in units:
        products.append(products[-1] + (one == "product"))
    # The best score with unit j as the last that has a layer (0: none has), and where it came from.
    score = [-_LEFT_OUT * products[j] if j == 0 else float("-inf") for j in range(len(units) + 1)]
    steps: list[list[tuple[int, bool]]] = []
    for layer in layers:
        kind = layer_class(layer)
        made = list(score)  # the layer is of no unit
        came = [(j, False) for j in range(len(score))]
        best, best_from = float("-inf"), 0
        for j in range(1, len(score)):
            # From any unit before j: those that multiply in between are left out.
            if score[j - 1] + _LEFT_OUT * products[j - 1] > best:
                best, best_from = score[j - 1] + _LEFT_OUT * products[j - 1], j - 1
            first, more = _gains(kind, units[j - 1])
            for value, source in ((best - _LEFT_OUT * products[j - 1] + first, best_from), (score[j] + more, j)):
                if value > made[j]:
                    made[j], came[j] = value, (source, True)
        score = made
        steps.append(came)
    end = max(range(len(score)), key=lambda j: score[j] - _LEFT_OUT * (products[-1] - products[j]))
    found: list[int | None] = []
    for came in reversed(steps):
        source, taken = came[end]
        found.append(end - 1 if taken else None)
        end = source
    return found[::-1]


def _gains(layer: str, unit: str) -> tuple[float, float]:
    """What a layer of a class scores as the first of a unit of a class, and behind others; less than 0 if never."""
    never = float("-inf")
    if layer == unit:
        return _FIRST, _JOINS if unit == "elementwise" else _MORE
    if (layer, unit) == ("window", "norm"):  # a mean of whole images
        return _FIRST / 2, never
    if layer == "elementwise" or (layer, unit) == ("batch norm", "product"):  # whose weights have it here
        return never, _JOINS
    return (never, _MORE) if layer == "move" else (never, never)


def layer_class(layer: TimedLayer) -> str:
    """What a layer does, by its name: a class of units."""
    text = f"{layer.name} {layer.kind}"
    return next((name for name, pattern in _CLASSES.items() if pattern.search(text)), "elementwise")


def unit_class(network: Network, unit: int) -> str:
    """What a unit does: a class of layers, ``view`` (nothing), or ``elementwise``."""
    graph = network.graph
    nodes = [node for node in network.unit_nodes(network.units[unit]) if node.op.role is not Role.VIEW]
    if not nodes:
        return "view"
    kinds = {node.op.kind for node in nodes}
    if any("pool" in kind for kind in kinds):
        return "window"
    if any(node.op.has_epilogue for node in nodes):
        return "product"
    if "batch_norm" in kinds:
        return "batch norm"
    if any(re.search(r"softmax|norm|reduce|lrn", kind) for kind in kinds):
        return "norm"
    if any(node.op.multiply_adds(graph.input_types(node), graph.output_types(node)) for node in nodes):
        return "product"
    moves = any(
        node.op.role is Role.CONCAT or node.op.kind in ("slice", "split", "transpose", "gather", "pad")
        for node in nodes
    )
    return "move" if moves else "elementwise"
