"""The element-wise ops of a unit as expressions, each in the kernel that :mod:`iossim.hardware.lowering.unit` prices it
in: one of its own, that of the op which reads it (a prologue), or that of the op before it (an epilogue).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iossim.backends.cupy_cudnn import element_kernels
from iossim.backends.cupy_cudnn.convolution import Epilogue, LibraryStep, activation_name
from iossim.backends.cupy_cudnn.element_kernels import Computed, Operands
from iossim.backends.cupy_cudnn.kernel_text import NAMES
from iossim.backends.cupy_cudnn.unit_calls import Prologue, UnitCalls
from iossim.backends.cupy_cudnn.views import View
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.hardware.lowering.unit import Chain, Fusion
from iossim.ir.attention import attentions_in
from iossim.ir.graph import Node
from iossim.ir.network import Network
from iossim.ir.ops.functions import Nary
from iossim.ir.ops.nary import PRelu
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.quantize import Dequantize, Quantize
from iossim.ir.types import DType

#: Types of operands that a library takes after a product.
_IN_LIBRARY = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


class UnitChains(UnitCalls):
    """The calls of a unit so far, and the expressions of what these compute besides."""

    def __init__(self, network: Network, nodes: Sequence[Node], weights: Weights) -> None:
        graph = network.graph
        super().__init__(graph, weights)
        self.nodes = nodes
        self.inside = {node.name: node for node in nodes}
        self.fused: set[str] = set()  # ops in the epilogue of what is before them
        self.chains: dict[str, Prologue] = {}  # values that are computed of one other, element by element
        self.attentions = attentions_in(graph, nodes)
        apart = [node.name for node in nodes if not self._joins(node)]
        whole = Fusion(network, nodes, False, *apart)
        self.lookup, self.chain_of, self.epilogue_of = whole.lookup, whole.chain_of, whole.epilogue_of
        for end, found in self.attentions.items():
            own = [node for node in nodes if node in found.nodes]
            parts = Fusion(network, own, True, *apart)
            self.chain_of |= parts.chain_of
            self.epilogue_of = {**self.epilogue_of, **parts.epilogue_of}
            self.epilogue_of.pop(end, None)

    def view(self, value: str) -> View:
        """Where a value is; one that a chain makes for the only op that reads it is computed now."""
        node = self.graph.producer.get(value)
        chain = self.chain_of.get(node.name) if node is not None and value not in self.values else None
        if chain is not None and chain[1] == value:
            self.compute(chain, value, self.target(value))
        return super().view(value)

    def compute(self, chain: Chain, value: str, output: View) -> None:
        """One kernel for a value of a chain."""
        operands, lookup, given = Operands(), None, {}
        if self.reads_through(chain):
            assert self.lookup is not None
            x, lookup = element_kernels.looked_up(*self.looked_up(self.lookup))
            given[self.lookup.outputs[0]] = operands.symbol(x)  # the first
        expression = self._expression(chain, value, operands, given)
        made = element_kernels.chain(expression, operands.views, output, lookup)
        self.calls.append(made)
        if lookup is None and [(view.shape, view.dtype) for view in operands.views] == [(output.shape, output.dtype)]:
            self.chains[value] = Prologue(expression, operands.views[0], made)

    def reads_through(self, chain: Chain | None) -> bool:
        """True where the kernel of a chain looks its first operand up, along an axis of its result."""
        if self.lookup is None or chain is None or self.chain_of.get(self.lookup.name) != chain:
            return False
        shapes = {self.graph.types[node.outputs[0]].shape for node in (self.lookup, *self._members(chain))}
        return len(shapes) == 1 and self.read(self.lookup, 1).is_dense

    def before(self, node: Node) -> Computed:
        """The first operand of an op, by the chain of the unit that makes it for this op."""
        operands = Operands()
        expression = self._expression((node.name, node.inputs[0]), node.inputs[0], operands, {})
        return Computed(expression, tuple(operands.views))

    def after(self, node: Node, operands: Sequence[View] = (), expression: str = "") -> tuple[Epilogue, str]:
        """Epilogue of an op's result ``a0``, and the value that it makes: the sum of the result and of ``operands``, or
        an ``expression`` in these, from ``a1`` on, that no library has; then the chain of the unit after it, if all
        that this reads is there.
        """
        known, value = Operands(first=1), node.outputs[0]
        added = [known.symbol(view) for view in operands]
        steps: list[LibraryStep] | None = None if expression else [("add", view) for view in operands]
        expression = expression or " + ".join(["a0", *added])
        chain = self.epilogue_of.get(node.name)
        members = [] if chain is None else self._members(chain)
        made = {value, *(name for member in members for name in member.outputs)}
        read = {name for member in members for name in member.inputs} - made
        if chain is not None and all(name in self.values or self.weights.knows(name) for name in read):
            end = self.inside[chain[0]].outputs[0]
            expression = self._expression(chain, end, known, {value: expression})
            steps = None if steps is None else self._as_steps(value, members, made, steps)
            self.fused.update(member.name for member in members)
            value = end
        computed = Computed(expression, tuple(known.views))
        return Epilogue(computed, None if steps is None else tuple(steps)), value

    def _members(self, chain: Chain) -> list[Node]:
        """The element-wise ops of a chain; it may have a lookup besides."""
        return [node for node in self.nodes if self.chain_of.get(node.name) == chain and node.op.is_elementwise]

    def _expression(self, chain: Chain, value: str, operands: Operands, given: dict[str, str]) -> str:
        """A value of a chain; what several of its ops read is a name in its expression, and is computed once."""
        members, texts, named = self._members(chain), dict(given), list[tuple[str, str]]()
        reads = [name for node in members for name in node.inputs]

        def known(name: str) -> str:
            return texts[name] if name in texts else operands.symbol(self.view(name))

        def keep(name: str, text: str) -> None:
            texts[name] = text
            if name != value and reads.count(name) > 1 and not text.isidentifier():
                texts[name] = f"t{len(named)}"
                named.append((texts[name], text))

        for name, text in given.items():
            keep(name, text if text.isidentifier() else f"({text})")
        for node in members:
            if node.outputs[0] not in texts:
                keep(node.outputs[0], self._of_op(node, known, operands))
        made = known(value)
        for name, text in reversed(named):
            made = f"[&](auto {name}) {{ return {made}; }}({text})"
        return made

    def _of_op(self, node: Node, known: Callable[[str], str], operands: Operands) -> str:
        """The expression of an op in those of its operands."""
        x = node.inputs[0]
        if isinstance(node.op, Quantize | Dequantize):
            value, axis, rank = known(x), node.op.axis, len(self.graph.types[x].shape)
            scale, *zeros = (operands.symbol(self.view(name).along(axis, rank)) for name in node.inputs[1:])
            zero = zeros[0] if zeros else "0.0f"
            if isinstance(node.op, Dequantize):
                return f"(({value} - {zero}) * {scale})"
            return element_kernels.rounded(f"{value} / {scale}", zero, self.graph.types[node.outputs[0]].dtype)
        if isinstance(node.op, BatchNorm):
            terms = [known(x), *map(operands.symbol, self._normalisation(node))]
        else:
            terms = [known(name) for name in node.inputs]
        return element_kernels.op_expression(node.op, terms, self.graph.types[x].dtype in (DType.INT32, DType.INT64))

    def _normalisation(self, node: Node) -> list[View]:
        """Multiplier and shift of a batch normalisation, as they broadcast to its images."""
        places = (1,) * (len(self.graph.types[node.inputs[0]].shape) - 2)
        return [view.with_ones((view.elements, *places)) for view in self.weights.normalisation(node)]

    def _as_steps(
        self, value: str, members: Sequence[Node], made: set[str], steps: list[LibraryStep]
    ) -> list[LibraryStep] | None:
        """The ops of a chain, one after the other, as a library's steps after others; None where some op is none."""
        for node in members:
            function = activation_name(node.op)
            name = node.op.function if isinstance(node.op, Nary) else node.op.kind
            others = [name for name in node.inputs if name != value]
            if isinstance(node.op, BatchNorm):
                steps += zip(("mul", "add"), self._normalisation(node), strict=True)
            elif value not in node.inputs or len(node.inputs) - len(others) != 1 or not made.isdisjoint(others):
                return None
            elif function:
                steps.append((function, None))
            elif name in ("add", "mul") or (name in ("sub", "div") and [value, *others] == [*node.inputs]):
                steps += [(name, self.view(other)) for other in others]
            else:
                return None
            value = node.outputs[0]
        return steps if all(view is None or view.dtype in _IN_LIBRARY for _, view in steps) else None

    def _joins(self, node: Node) -> bool:
        """True where an element-wise op may be part of a chain."""
        match node.op:
            case Quantize() | Dequantize(block=0) if self.graph.types[node.inputs[0]].dtype in NAMES:
                return True
            case BatchNorm():
                return all(self.weights.knows(name) for name in node.inputs[1:])
            case PRelu(per_channel=True) | Dequantize():
                return False
        types = [self.graph.types[name].dtype for name in (*node.inputs, *node.outputs)]
        return element_kernels.is_computed(node.op, types[:-1], types[-1])
