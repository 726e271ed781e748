"""Unit policies: units as drawn in the papers, and those of an inference engine.

The papers' are patterns of a few ops: a pattern ends with one op, the unit's *last*, and the outputs of its other ops
are read only inside it. An engine's are the ops that one call, or one kernel, of its libraries computes.

Such a unit is grown backwards from its last op, from the end of the graph to its beginning:

- element-wise ops before it of its shape, as far as nothing else reads them;
- the one product or convolution before them, in whose epilogue they are fused: bias, activation, residual. Of two
  branches that are added it takes the one with more ops before it, since the other is available earlier;
- before a pointwise convolution the depthwise one whose only consumer it is, with the activation and the sum before;
- before the last product of an attention all of it: scores, scale, mask, softmax (:mod:`iossim.ir.attention`);
- before a normalisation or softmax the element-wise ops that are in no epilogue;
- views, which cost nothing, at the end and at the beginning.

A concat takes the sums that only it reads, but no rotation: that is one kernel, which writes its term in place. The
outputs of all ops but the last are read only inside the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from iossim.ir.attention import spelt_attention
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Unit, make_unit
from iossim.ir.op import Role
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.unary import Relu
from iossim.models.passes.joins import joins_apart
from iossim.models.passes.unit_kinds import unit_kind

#: The unit's kind and its nodes besides the last, or None if a pattern does not match.
Match = tuple[str, list[Node]] | None
Pattern = Callable[[Graph, Node], Match]


def _fuse(graph: Graph, patterns: Sequence[Pattern]) -> tuple[Unit, ...]:
    """Units by the first pattern that matches an op and finds its ops free; an unmatched op is a unit alone."""
    taken: set[str] = set()
    units: list[Unit] = []
    for pattern in patterns:
        for node in graph.nodes:
            match = pattern(graph, node) if node.name not in taken else None
            if match is not None and taken.isdisjoint(other.name for other in match[1]):
                kind, others = match
                members = [node, *others]
                taken.update(member.name for member in members)
                units.append(make_unit(graph, node.name, kind, [graph.position[member.name] for member in members]))
    units += [
        make_unit(graph, node.name, node.op.unit_kind, [index])
        for index, node in enumerate(graph.nodes)
        if node.name not in taken
    ]
    return tuple(sorted(units, key=lambda unit: unit.nodes[-1]))


def relu_separable_convolution(graph: Graph, node: Node) -> Match:
    """[Sum,] ReLU, depthwise, pointwise."""
    separable = separable_convolution(graph, node)
    if separable is None:
        return None
    (depthwise,) = separable[1]
    relu = graph.private_producer(depthwise.inputs[0])
    if relu is None or not isinstance(relu.op, Relu):
        return None
    return "Relu-SepConv", [depthwise, relu, *private_sums(graph, relu)]


def separable_convolution(graph: Graph, node: Node) -> Match:
    """Depthwise, pointwise."""
    if not (isinstance(node.op, Conv) and node.op.groups == 1 and set(graph.types[node.inputs[1]].shape[2:]) == {1}):
        return None
    depthwise = graph.private_producer(node.inputs[0])
    if depthwise is None or not isinstance(depthwise.op, Conv):
        return None
    channels = graph.types[depthwise.inputs[0]].shape[1]
    filters = graph.types[depthwise.inputs[1]].shape[0]
    is_depthwise = depthwise.op.groups == channels == filters and channels > 1
    return ("SepConv", [depthwise]) if is_depthwise else None


def attention_before(graph: Graph, node: Node) -> Match:
    """The ops of a fused attention kernel that ends with a product, or with the transpose that joins its heads."""
    attention = spelt_attention(graph, node)
    return ("Attention", list(attention.nodes[1:])) if attention else None


def _conv_activation(graph: Graph, node: Node) -> Match:
    is_activation = node.op.role is Role.ACTIVATION
    producer = graph.private_producer(node.inputs[0]) if is_activation else None
    if producer is None or producer.op.kind not in ("conv", "conv_transpose", "conv_nhwc"):
        return None
    return f"{producer.op.unit_kind}-{node.op.unit_kind}", [producer]


def _relu_conv(graph: Graph, node: Node) -> Match:
    producer = graph.private_producer(node.inputs[0]) if isinstance(node.op, Conv) else None
    return ("Relu-Conv", [producer]) if producer is not None and isinstance(producer.op, Relu) else None


def _concat_of_adds(graph: Graph, node: Node) -> Match:
    return ("Concat", private_sums(graph, node)) if isinstance(node.op, Concat) else None


def private_sums(graph: Graph, node: Node) -> list[Node]:
    """The sums of values of one shape that only ``node`` reads."""
    producers = (graph.private_producer(value) for value in dict.fromkeys(node.inputs))
    return [producer for producer in producers if producer is not None and _is_plain_sum(graph, producer)]


def _is_plain_sum(graph: Graph, node: Node) -> bool:
    """True if this is a sum without broadcasting, of values computed at run time."""
    shapes = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
    return isinstance(node.op, Add) and len(shapes) == 1 and graph.constants.keys().isdisjoint(node.inputs)


#: Each op a unit of its own.
no_fusion = partial(_fuse, patterns=())
#: Conv-Relu (or another activation) and concat-of-adds: the units of Inception and SqueezeNet.
conv_relu = partial(_fuse, patterns=(_conv_activation, _concat_of_adds))
#: Relu-SepConv with the sum before it, Relu-Conv and concat-of-adds: the units of NasNet and RandWire.
relu_sepconv = partial(_fuse, patterns=(relu_separable_convolution, _relu_conv, _concat_of_adds))


def fused(graph: Graph) -> tuple[Unit, ...]:
    """Units with everything fused that an inference engine fuses, in topological order."""
    growth = _Growth(graph)
    units = []
    for node in reversed(graph.nodes):
        if node.name not in growth.taken:
            members = growth.unit(node)
            kind = node.op.unit_kind if isinstance(node.op, Concat) else unit_kind(graph, members)
            units.append(make_unit(graph, node.name, kind, [growth.position[member.name] for member in members]))
    return tuple(reversed(units))


def apart(graph: Graph) -> tuple[Unit, ...]:
    """The same as :func:`fused`, except that joins of branches that a product would have to wait for are separate."""
    return joins_apart(graph, fused(graph))


class _Growth:
    """Grows units; an op that is ``taken`` is already in one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = graph.position
        self.taken: set[str] = set()
        self.depth: dict[str, int] = {}
        for node in graph.nodes:
            before = (graph.producer.get(value) for value in node.inputs)
            self.depth[node.name] = 1 + max((self.depth[one.name] for one in before if one is not None), default=0)

    def unit(self, last: Node) -> list[Node]:
        """The unit that ends with ``last``, in topological order; its ops become taken."""
        members = {last.name: last}
        if isinstance(last.op, Concat):
            self._add(members, [one for one in private_sums(self.graph, last) if not self._rotates(members, one)])
        else:
            end = self._views_at_end(members, last)
            if end.op.is_elementwise:
                end = self._chain(members, end)
            self._before_anchor(members, end)
            if not isinstance(end.op, Slice | Split):  # alone they only move data, and may launch no kernel
                self._add(members, self._grown(members, members.values(), _is_view))
        self.taken.update(members)
        return sorted(members.values(), key=lambda node: self.position[node.name])

    def _views_at_end(self, members: dict[str, Node], last: Node) -> Node:
        """Take the views at the unit's end; returns their source, or the first one that can be taken."""
        end = last
        while _is_view(end):
            before = self._private(members, end.inputs[:1])
            if not before or isinstance(before[0].op, Concat | Slice | Split):
                break
            end = before[0]
            members[end.name] = end
        return end

    def _chain(self, members: dict[str, Node], end: Node) -> Node:
        """Take the element-wise ops up to ``end`` and the product before them; returns the product, else ``end``."""
        chain = self._elementwise_before(members, end, looks_up=True)
        products = self._products(chain, end)
        if products:
            product = max(products, key=lambda node: (self.depth[node.name], self.position[node.name]))
            chain = self._elementwise_before(members, end, self._after(chain, products, product), looks_up=True)
        self._add(members, chain.values())
        if not products or product not in self._products(chain, end):
            return end
        members[product.name] = product
        return product

    def _before_anchor(self, members: dict[str, Node], anchor: Node) -> None:
        """Take the ops before an anchor that are computed together with it."""
        for pattern in (relu_separable_convolution, separable_convolution, attention_before):
            match = pattern(self.graph, anchor)
            if match is not None and self.taken.isdisjoint(node.name for node in match[1]):
                self._add(members, match[1])
                return
        if anchor.op.has_prologue:
            for before in self._private(members, anchor.inputs[:1]):
                if before.op.is_elementwise:
                    chain = self._elementwise_before(members, before)
                    dependent = self._after(chain, self._products(chain, before), None)
                    if before.name not in dependent:
                        self._add(members, self._elementwise_before(members, before, dependent).values())

    def _elementwise_before(
        self, members: Mapping[str, Node], end: Node, without: Container[str] = (), looks_up: bool = False
    ) -> dict[str, Node]:
        """``end`` and the preceding element-wise ops of its shape that are read only in the unit; among them, if asked,
        lookups that permute.
        """

        def fits(node: Node) -> bool:
            is_computed = node.op.is_elementwise or (looks_up and self._permutes(node))
            return is_computed and self._shape(node) == self._shape(end) and node.name not in without

        found = self._grown({**members, end.name: end}, [end], fits)
        return {end.name: end, **{node.name: node for node in found}}

    def _grown(self, members: Mapping[str, Node], ends: Iterable[Node], fits: Callable[[Node], bool]) -> list[Node]:
        """Ancestors of ``ends`` among free ops that fit, each read only by members and ops found so far."""
        inside = dict(members)
        found: list[Node] = []
        pending = [value for node in ends for value in node.inputs]
        while pending:
            for node in self._private(inside, [pending.pop()]):
                if fits(node):
                    inside[node.name] = node
                    found.append(node)
                    pending += node.inputs
        return found

    def _products(self, chain: Mapping[str, Node], end: Node) -> list[Node]:
        """The products whose epilogue a chain may be: of its shape, and read only in it, without a lookup."""
        makers = self._private(chain, [value for one in chain.values() for value in one.inputs])
        moved = {value for one in chain.values() if self._permutes(one) for value in one.inputs}
        fits = (node for node in makers if node.op.has_epilogue and self._shape(node) == self._shape(end))
        return [node for node in fits if moved.isdisjoint(node.outputs)]

    def _rotates(self, members: Mapping[str, Node], total: Node) -> bool:
        """True for a sum in one kernel with a lookup that permutes, as of rotary positions."""
        return any(map(self._permutes, self._elementwise_before(members, total, looks_up=True).values()))

    def _permutes(self, node: Node) -> bool:
        return node.op.permutes(self.graph.input_types(node))

    def _after(self, chain: Mapping[str, Node], products: Iterable[Node], kept: Node | None) -> set[str]:
        """The ops of a chain that depend on one of the products, but not on the one that is kept."""
        dependent = {node.name for node in products}
        on_kept = {kept.name} if kept else set()
        for node in sorted(chain.values(), key=lambda node: self.position[node.name]):
            before = {self.graph.producer[value].name for value in node.inputs if value in self.graph.producer}
            for names in (dependent, on_kept):
                if not names.isdisjoint(before):
                    names.add(node.name)
        return (dependent - on_kept) & chain.keys()

    def _private(self, members: Container[str], values: Iterable[str]) -> list[Node]:
        """The free producers of ``values`` with a single output that only members read; each once."""
        found: dict[str, Node] = {}
        for value in values:
            node = self.graph.producer.get(value)
            if (
                node is not None
                and node.name not in members
                and node.name not in self.taken
                and len(node.outputs) == 1
                and value not in self.graph.returned
                and all(reader.name in members for reader in self.graph.consumers[value])
            ):
                found[node.name] = node
        return list(found.values())

    def _shape(self, node: Node) -> tuple[int, ...]:
        return self.graph.types[node.outputs[0]].shape

    @staticmethod
    def _add(members: dict[str, Node], nodes: Iterable[Node]) -> None:
        members.update({node.name: node for node in nodes})


def _is_view(node: Node) -> bool:
    return node.op.role is Role.VIEW
