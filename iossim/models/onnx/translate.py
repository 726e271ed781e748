"""ONNX models as graphs: static shapes, lazy weights, shape arithmetic folded away.

Operators are read by the op classes of :mod:`iossim.ir.ops`; this module walks the nodes, and reports clearly what
cannot be read. Value names are the model's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx
from onnx import NodeProto

from iossim.base.errors import GraphError, ModelError, first_line
from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Names, Node
from iossim.ir.onnx_node import NONSENSE, nodes_within, onnx_class, operands
from iossim.ir.onnx_spelling import NotCoveredError
from iossim.ir.op import Op
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import TensorType
from iossim.models.onnx import attentions, fused_operators, quantised_operators
from iossim.models.onnx.bodies import OPSET, Written, written_by
from iossim.models.onnx.constants import Known, check_numbers, node_view, op_name, tensor_constant
from iossim.models.onnx.einsum import einsum_written_out
from iossim.models.onnx.file import is_standard, standard_opset
from iossim.models.onnx.folding import OperatorSet, can_fold, declared_types, listed
from iossim.models.onnx.grouped_products import DOMAIN, is_own, op_type
from iossim.models.onnx.inlining import runs_graphs, taken_branch, values_read, with_weights_outside
from iossim.models.onnx.inputs import BoundModel, Rebatching
from iossim.models.onnx.sequences import Sequences, is_empty, may_make_empty, without_empty_parts, without_empty_terms
from iossim.models.onnx.shapes import written_out

#: An op, its data inputs, and the types of its outputs.
_Interpreted = tuple[Op, tuple[str, ...], tuple[TensorType, ...]]
#: The domain of ONNX Runtime's own operators.
RUNTIME_DOMAIN = "com.microsoft"
#: Bodies of operators that are decomposed, by domain: ONNX Runtime's, TensorRT's, and ONNX's own.
_BODIES: dict[str, dict[str, Written]] = {
    RUNTIME_DOMAIN: {**attentions.RUNTIME, **fused_operators.RUNTIME, **quantised_operators.RUNTIME},
    "trt": quantised_operators.TENSORRT,
    "": {**attentions.STANDARD, **fused_operators.STANDARD, **quantised_operators.STANDARD},
}


@dataclass(frozen=True)
class _Reading:
    """A node that is being read, its operator set, and what begins a message about it."""

    node: NodeProto
    name: str
    where: str
    of: OperatorSet


class _Others(NamedTuple):
    """Nodes that replace one, in an operator set."""

    nodes: list[NodeProto]
    opset: int


_ROUTING = "Rows are priced as if they were routed evenly: as many for each expert, of as many experts as have a row."
#: Remarks for the user on operators that are decomposed, by operator.
_REMARKS = {
    "GroupQueryAttention": "Every sequence of a GroupQueryAttention is taken to fill its cache: lengths and masks of "
    "padding are not read.",
    "GroupedMatMul": _ROUTING,
    "MoE": _ROUTING,
}

#: The remedy for operators that iossim cannot take.
WITHOUT_UNKNOWN = "give `static_part` for the part before them, or export the model without them"


def translate(bound: BoundModel, kept: frozenset[str] = frozenset(), static_part: bool = False) -> Graph:
    """The graph of a model with bound inputs; readers of the ``kept`` initialisers are not folded.

    An operator without an op kind is carried whole, as a foreign op, if the types of its outputs can be determined. The
    ``static_part`` leaves out all others, and what depends on them, and returns what they read.

    Raises ModelError for unsupported operators (all of them at once), and for damaged files.
    """
    rebatching = None
    if bound.declared is not None:
        rebatching = Rebatching(translate(bound.declared, kept, static_part), bound.declared.batch, bound.batch)
    return _Importer(bound, rebatching, kept, static_part).graph()


def decomposition_remarks(model: onnx.ModelProto) -> tuple[str, ...]:
    """Remarks on decomposed operators of a model, a sentence each."""
    domains = RUNTIME_DOMAIN, DOMAIN
    kinds = {op_type(node) for node in nodes_within(model.graph.node) if node.domain in domains}
    return tuple(remark for kind, remark in _REMARKS.items() if kind in kinds)


class _Importer:
    """One walk over the nodes of a model, with the types and constants known so far."""

    def __init__(
        self, bound: BoundModel, rebatching: Rebatching | None, kept: frozenset[str], static_part: bool
    ) -> None:
        model, inputs = bound.model.proto, bound.types
        self._proto = model.graph
        self._path = bound.model.path
        given: dict[str, Constant] = {
            name: FilledConstant(value, bound.values.get(name, 0))
            for name, value in inputs.items()
            if name in bound.values or is_empty(value)
        }
        self._inputs = {name: value for name, value in inputs.items() if name not in given}
        self._weights = bound.model.weights
        self._rebatching, self._static_part = rebatching, static_part
        self._opset, self._kept, self._ir_version = standard_opset(model), kept, model.ir_version
        self._versions = {entry.domain: entry.version for entry in model.opset_import if not is_standard(entry.domain)}
        self._declared = {} if bound.sizes is None else declared_types(model.graph, bound.sizes)
        self._sets: dict[int, OperatorSet] = {}
        self._outputs = [value.name for value in model.graph.output]
        self._readers = Counter(values_read(model.graph.node))
        self._readers.update(self._outputs)
        self._types: dict[str, TensorType] = dict(inputs)
        #: Values that depend on the network's inputs; reshaped weights do not.
        self._varying: set[str] = set(self._inputs)
        self._constants = given
        self._known = Known(self._types, self._constants, self._add_constant)
        self._nodes: list[Node] = []
        self._sequences = Sequences()
        #: Number of conditional branches taken so far, used in their names.
        self._branches = 0
        #: Number of nodes in unrolled loops so far.
        self._written_out = 0
        #: Values of unknown type, since an unsupported operator makes them, and what is read for them.
        self._unknown_values: set[str] = set()
        self._read_for_unknown: dict[str, None] = {}
        #: Unsupported operators: type, then the names of their nodes, and the reasons.
        self._unknown_ops: dict[str, list[tuple[str, str]]] = {}

    def graph(self) -> Graph:
        self._add_weights()
        for index, node in enumerate(self._proto.node):
            name = node.name or f"{node.op_type}_{index}"
            try:
                self._read(self._with_weights_outside(node, name), name, self._opset)
                if self._rebatching and not self._static_part:
                    self._refuse_unknown()
            except ModelError:
                if self._rebatching is None:
                    raise
                # The model was readable as declared: any error now is due to the other batch.
                raise self._rebatching.refusal(f"{self._path}: {node.op_type} {name!r}") from None
        if self._static_part:
            self._end_before_unknown()
        self._refuse_unknown()
        for output in self._outputs:
            if output in self._sequences:
                raise ModelError(
                    f"{self._path}: output {output!r} is no tensor; export the model with tensors as outputs"
                )
        names = Names(())  # ONNX allows repeated names, and modules have several ops of a kind
        nodes = [replace(node, name=names.fresh(node.name)) for node in self._nodes]
        try:
            return Graph.create(self._inputs, self._outputs, nodes, self._constants)
        except GraphError as error:
            raise ModelError(f"{self._path}: {error}") from None

    def _add_weights(self) -> None:
        """Add the weights that nodes read to the constants."""
        for name, constant in self._weights.items():
            if self._readers[name]:
                self._add_constant(name, constant)
        for tensor in self._proto.initializer:
            where = f"{self._path}: weight {tensor.name!r}"
            if tensor.name in self._constants:
                raise ModelError(f"{where} is there twice; the file is damaged")
            if self._readers[tensor.name]:
                self._add_constant(tensor.name, tensor_constant(tensor, self._path.parent, where))
        for tensor in self._proto.sparse_initializer:
            if self._readers[tensor.values.name]:
                raise ModelError(f"{self._path}: weight {tensor.values.name!r} is sparse; store it as a dense tensor")

    def _set(self, node: NodeProto, opset: int) -> OperatorSet:
        """The operator set of a node, or a later one for an operator that it lacks.

        ONNX Runtime's optimiser writes a LayerNormalization into files of any operator set.
        """
        if is_standard(node.domain) and onnx.defs.has(node.op_type) and not onnx.defs.has(node.op_type, opset):
            opset = OPSET
        if opset not in self._sets:
            versions = {"": opset, **self._versions}
            self._sets[opset] = OperatorSet(self._path, versions, self._ir_version, self._kept, self._declared)
        return self._sets[opset]

    def _read(self, node: NodeProto, name: str, opset: int) -> None:
        """Import one node of an operator set: as constants if its outputs are known now, else as an op.

        Exceptions for invalid operands become a ModelError that names the node.
        """
        at = _Reading(node, name, f"{self._path}: {node.op_type} {name!r}", self._set(node, opset))
        try:
            self._read_valid(at)
        except GraphError as error:
            raise ModelError(f"{at.where}: {error}") from None
        except NONSENSE as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ModelError(f"{at.where} is not valid: its operands or attributes make no sense ({reason})") from None

    def _read_valid(self, at: _Reading) -> None:
        node, inputs = at.node, operands(at.node)
        check_numbers(node, at.where)
        is_known = is_standard(node.domain) or is_own(node.domain, node.op_type)
        op_class = onnx_class(op_type(node)) if is_known else None
        if self._unknown_values.intersection(inputs):
            # It may be shape arithmetic that would have folded: only nodes that surely would not are unknown too.
            if op_class is None and not can_fold(node):
                self._note_unknown(node, at.name, "it reads what these make")
            self._leave_out(node)
            return
        for value in inputs:
            if value not in self._types and value not in self._sequences:
                raise ModelError(f"{at.where} reads {value!r}, which nothing before it makes; the file is damaged")
        known: Sequence[Constant] | None = ()
        try:
            if (others := self._instead(at, inputs)) is not None:
                self._readers.update(values_read(others.nodes))
                for index, each in enumerate(others.nodes):
                    self._read(each, each.name or f"{at.name}.{each.op_type}_{index}", others.opset)
            elif (known := at.of.known_outputs(node, at.where, self._known)) is None:
                at.of.check(node, at.where)
                self._add_op(*self._interpreted(op_class, at), at)
        except NotCoveredError as error:
            chosen = node.op_type == "If" and node.input[0] in self._inputs
            remedy = f"; bind the input that chooses its branch, with `dimensions` {node.input[0]}=1" if chosen else ""
            reason = str(error).removeprefix(f"{node.op_type} {at.name!r}").lstrip(": ")
            self._note_unknown(node, at.name, f"{reason}{remedy}")
        for value, constant in zip(node.output, known or (), strict=False):
            self._add_constant(value, constant)

    def _instead(self, at: _Reading, inputs: Sequence[str]) -> _Others | None:
        """The nodes that replace a node: those of a body, or that do the same on tensors; None if it stays.

        Raises NotCoveredError if that depends on data.
        """
        node, name, known = at.node, at.name, self._known
        if self._sequences.takes(node, inputs):
            return _Others(self._sequences.taken_apart(node, name, known, at.of.opset), OPSET)
        bodies = _BODIES.get("" if is_standard(node.domain) else node.domain, {})
        made = written_by(bodies, node, name, known, at.of.opset) or without_empty_parts(node, known)
        if made := made or einsum_written_out(node, name, known):
            return _Others(made, OPSET)
        if not runs_graphs(node) or not is_standard(node.domain):
            return None
        if node.op_type == "If" and set(node.input) <= self._constants.keys():
            self._branches += 1
            made = taken_branch(node, known, f"{name}.{self._branches}.", at.where)
        elif not (made := at.of.counted(node, name, at.where, known)):
            made = written_out(node, known, self._written_out, name, at.where)
            self._written_out += len(made)
        return _Others(made, at.of.opset) if made else None

    def _with_weights_outside(self, node: NodeProto, name: str) -> NodeProto:
        """The node with the weights of its subgraphs imported as constants, like all others."""
        if not runs_graphs(node):
            return node
        where = f"{self._path}: {node.op_type} {name!r}"
        kept, weights = with_weights_outside(node, f"{name}.", where)
        for tensor in weights:
            self._add_constant(tensor.name, tensor_constant(tensor, self._path.parent, f"{where}: {tensor.name!r}"))
        return kept

    def _add_constant(self, name: str, constant: Constant) -> None:
        if name in self._types:
            raise ModelError(f"{self._path}: the value {name!r} is made twice; the file is damaged")
        self._constants[name] = constant
        self._types[name] = constant.type

    def _interpreted(self, op_class: type[Op] | None, at: _Reading) -> _Interpreted:
        """A node as an op, with its data inputs and output types; raises NotCoveredError if it is none."""
        uncovered: NotCoveredError | None = None
        if op_class is not None:
            try:
                return self._own(op_class, at.node, at.name, at.of.opset)
            except NotCoveredError as error:
                uncovered = error
            except ModelError as error:
                raise ModelError(f"{self._path}: {error}") from None
        try:
            op = at.of.foreign(at.node, self._known)
        except NotCoveredError:
            if uncovered is not None:
                raise ModelError(f"{self._path}: {uncovered}") from None
            raise
        except (ModelError, GraphError) as error:
            raise ModelError(f"{at.where} is not valid: {error}") from None
        data = operands(at.node)
        return op, data, op.infer(self._known.types_of(data))

    def _own(self, op_class: type[Op], node: NodeProto, name: str, opset: int) -> _Interpreted:
        varies = not self._varying.isdisjoint(node.input)
        adapted = self._rebatching.adapted(node.output[0]) if self._rebatching and varies else None
        if adapted:
            op, data = adapted.op, adapted.inputs
        else:
            op, data = op_class.from_onnx(node_view(node, name, self._known, opset))
        made = op.infer(self._known.types_of(data))
        if len(made) > len(node.output) and not op.may_leave_out_outputs:
            raise ModelError(
                f"{node.op_type} {name!r} makes {len(made)} outputs, but names {len(node.output)}; the file is damaged"
            )
        for value in node.output[len(made) :]:
            if value and self._readers[value]:
                raise NotCoveredError(
                    f"{node.op_type} {name!r}: its output {value!r} is read, which iossim does not compute"
                )
        return op, without_empty_terms(op, data, self._types), made

    def _add_op(self, op: Op, data: tuple[str, ...], made: Sequence[TensorType], at: _Reading) -> None:
        if isinstance(op, Foreign):
            named = [value for value in at.node.output if value]
        else:
            named = [*at.node.output, *[""] * len(made)][: len(made)]
        if any(map(is_empty, made)) and may_make_empty(op, self._known.types_of(data)):
            self._add_empty(named, made, at)
            return
        outputs = tuple(value or f"{at.name}.output{index}" for index, value in enumerate(named))
        varying = not self._varying.isdisjoint(data)
        rebatching = self._rebatching if varying else None
        for value, value_type in zip(outputs, made, strict=True):
            if any(size < 1 for size in value_type.shape):
                raise ModelError(f"{at.where} would make an empty tensor {value_type}; its input is too small for it")
            if rebatching and not rebatching.keeps_batch(op, value, value_type, data[0] in self._varying):
                raise rebatching.refusal(at.where)
            self._types[value] = value_type
        self._varying.update(outputs if varying else ())
        self._nodes.append(Node(op_name(at.node, at.name), op, data, outputs))

    def _add_empty(self, named: Sequence[str], made: Sequence[TensorType], at: _Reading) -> None:
        """Import a node with empty outputs: those are known, and its other outputs get a node of their own."""
        rest = deepcopy(at.node)
        for place, value in enumerate(at.node.output):
            if value in named and is_empty(made[named.index(value)]):
                self._add_constant(value, FilledConstant(made[named.index(value)]))
                rest.output[place] = ""
        if any(rest.output):
            op, data = at.of.foreign(rest, self._known), operands(rest)
            self._add_op(op, data, op.infer(self._known.types_of(data)), replace(at, node=rest))

    def _note_unknown(self, node: NodeProto, name: str, reason: str) -> None:
        op_type = node.op_type if is_standard(node.domain) else f"{node.domain}.{node.op_type}"
        self._unknown_ops.setdefault(op_type, []).append((name, reason))
        self._leave_out(node)

    def _leave_out(self, node: NodeProto) -> None:
        self._unknown_values.update(node.output)
        self._read_for_unknown.update(dict.fromkeys(operands(node)))

    def _end_before_unknown(self) -> None:
        """Make the values that unsupported operators read outputs, in place of those that depend on them.

        Raises ModelError if none is computed before them.
        """
        computed = {value for node in self._nodes for value in node.outputs}
        ends = (*self._outputs, *(value for value in self._read_for_unknown if value in computed))
        self._outputs = list(dict.fromkeys(value for value in ends if value not in self._unknown_values))
        if self._outputs:
            self._unknown_ops.clear()
        if self._rebatching and (*self._outputs,) != self._rebatching.declared.outputs:
            raise self._rebatching.refusal(f"{self._path}: the part before operators that iossim cannot take")

    def _refuse_unknown(self) -> None:
        if self._unknown_ops:
            remedy = WITHOUT_UNKNOWN
            if any(each.startswith(f"{RUNTIME_DOMAIN}.nchwc.") for each in self._unknown_ops):
                remedy = "ONNX Runtime reordered its weights for one processor: optimise at most to ORT_ENABLE_EXTENDED"
            raise ModelError(
                f"{self._path} has operators that iossim cannot take: {listed(self._unknown_ops)}; {remedy}"
            )
