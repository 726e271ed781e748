"""One ONNX node: the op class that reads it, and the node computed by itself.

ONNX's reference implementation computes it, or, if that lacks it (most older versions of operators), ONNX
Runtime if installed: this defines ops without a class of their own, and those with pages of special cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from iossim.base.errors import GraphError, first_line, warn_once
from iossim.base.registry import PluginError
from iossim.ir.op import OPS, Array, Op, register_all

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto
    from onnxruntime import InferenceSession


#: The domain of ONNX's own operators in a model: empty.
STANDARD = ""

#: Exceptions for inputs or attributes of ranks, counts or values that an operator does not take.
NONSENSE = (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError)
#: Those of the reference implementation, also for a missing library, such as Pillow for images.
_MISTAKES = (*NONSENSE, ImportError, RuntimeError, AssertionError, MemoryError)

_Run = Callable[[Sequence[Array]], list[Array]]


def onnx_class(op_type: str) -> type[Op] | None:
    """The class that reads one of ONNX's own operators; plugin ops are imported if iossim has none."""
    register_all()
    if op_type not in Op.onnx_registry:
        for kind in sorted(OPS.plugins().keys() - Op.registry.keys()):
            try:
                OPS.get(kind)
            except PluginError as error:
                warn_once(str(error))
    return Op.onnx_registry.get(op_type)


def is_product(onnx_type: str) -> bool:
    """True if one of ONNX's own operators multiplies matrices, including convolutions and recurrent layers."""
    found = onnx_class(onnx_type)
    return onnx_type == "Einsum" or (found is not None and found.multiply_adds is not Op.multiply_adds)


def canonical(node: NodeProto) -> bytes:
    """The node without names, serialised: equal nodes have equal bytes in every process.

    Operands are named by their position, ``""`` for an omitted one; attributes are sorted, and their tensors stored
    in one encoding. In a node's subgraphs the :func:`captured_values` are named ``c0``, ``c1`` ... and all others
    numbered. Raises ValueError for graphs with weights or undefined values.
    """
    bare = _bare(node, [f"x{place}" if name else "" for place, name in enumerate(node.input)])
    bare.output.extend(f"y{place}" if name else "" for place, name in enumerate(node.output))
    outer = {name: f"c{place}" for place, name in enumerate(captured_values(node))}
    numbers = count()
    for graph in graphs_in(bare):
        graph.CopyFrom(renamed(graph, outer, lambda _: f"v{next(numbers)}"))
    return bytes(bare.SerializeToString(deterministic=True))


def graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs of a node, mostly none."""
    for attribute in node.attribute:
        yield from _graphs_of(attribute)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in graphs_in(node):
            yield from nodes_within(graph.node)


def operands(node: NodeProto) -> tuple[str, ...]:
    """The operands of a standalone node: its inputs, then its subgraphs' captured values."""
    return (*filter(None, node.input), *captured_values(node))


def captured_values(node: NodeProto) -> list[str]:
    """The outer values that a node's subgraphs read or return, in order of their first use, each once.

    Subgraphs are in the order of their attributes' names, as in :func:`canonical` nodes.
    """
    found: dict[str, None] = {}
    for attribute in sorted(node.attribute, key=lambda each: each.name):
        for graph in _graphs_of(attribute):
            defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            defined.update(name for inner in graph.node for name in inner.output)
            read = [name for inner in graph.node for name in (*inner.input, *captured_values(inner))]
            read += [value.name for value in graph.output]
            found.update((name, None) for name in read if name and name not in defined)
    return list(found)


def since_versions(node: NodeProto, version: int) -> list[int]:
    """The operator sets that define a standard node, and those in its subgraphs; raises SchemaError."""
    import onnx

    return [onnx.defs.get_schema(each.op_type, version).since_version for each in nodes_within([node])]


def _graphs_of(attribute: AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _bare(node: NodeProto, inputs: Sequence[str]) -> NodeProto:
    """The node with other inputs, without outputs and documentation, its attributes sorted."""
    from onnx import NodeProto, TensorProto, numpy_helper

    bare = NodeProto(op_type=node.op_type, domain=node.domain)
    bare.input.extend(inputs)
    for attribute in sorted(node.attribute, key=lambda each: each.name):
        kept = bare.attribute.add()
        kept.CopyFrom(attribute)
        kept.doc_string = ""
        if attribute.HasField("t") and attribute.t.data_type != TensorProto.STRING:
            kept.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t)))
    return bare


def renamed(graph: GraphProto, outer: Mapping[str, str], named: Callable[[str], str]) -> GraphProto:
    """The bare graph, outer values renamed by ``outer``, and its own as ``named`` says, in their order; ValueError."""
    from onnx import GraphProto

    if graph.initializer or graph.sparse_initializer:
        raise ValueError(f"its graph {graph.name!r} holds weights")
    names = {"": "", **outer}
    bare = GraphProto(name="graph")
    for value in graph.input:
        names[value.name] = named(value.name)
        bare.input.add(name=names[value.name]).type.CopyFrom(value.type)
    try:
        for node in graph.node:
            kept = _bare(node, [names[name] for name in node.input])
            for inner in graphs_in(kept):
                inner.CopyFrom(renamed(inner, names, named))
            for name in filter(None, node.output):
                names[name] = named(name)
            kept.output.extend(names[name] for name in node.output)
            bare.node.append(kept)
        for value in graph.output:
            bare.output.add(name=names[value.name]).type.CopyFrom(value.type)
    except KeyError as error:
        raise ValueError(f"its graph {graph.name!r} reads {error}, which nothing makes") from None
    return bare


def compute(node: bytes, version: int, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a :func:`canonical` node, from its inputs and captured values, excluding omitted ones.

    ``version`` is that of the operator set of the node's domain. Raises GraphError for invalid operands, and if
    neither the reference nor an installed ONNX Runtime computes it.
    """
    return _runner(node, version)(inputs)


def compute_standard(op_type: str, version: int, inputs: Sequence[Array | None], attributes: dict[str, Any]) -> Array:
    """The output of one of ONNX's own operators; None is an omitted input. Raises as :func:`compute`."""
    from onnx import helper

    names = ["" if array is None else "x" for array in inputs]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    return compute(canonical(node), version, [array for array in inputs if array is not None])[0]


@lru_cache(maxsize=256)
def _runner(node: bytes, version: int) -> _Run:
    from onnx import NodeProto, helper
    from onnx.reference import ReferenceEvaluator

    proto = NodeProto.FromString(node)
    names = operands(proto)
    try:
        reference = ReferenceEvaluator(_model(proto, version, map(helper.make_empty_tensor_value_info, names)))
    except Exception:  # it raises anything for an operator that it lacks
        return _onnxruntime(proto, version)
    is_of_version = re.search(r"_\d+$", type(reference.rt_nodes_[0]).__name__) is not None
    is_newer = not is_of_version and _has_changed(proto, version)
    prefers_runtime = is_newer or any(True for _ in graphs_in(proto))
    runtime = _onnxruntime(proto, version) if prefers_runtime and find_spec("onnxruntime") else None

    def run(inputs: Sequence[Array]) -> list[Array]:
        if runtime is not None:
            try:
                return runtime(inputs)
            except GraphError:
                pass  # ONNX Runtime has fewer operators and element types
        try:
            with np.errstate(all="ignore"):
                made = reference.run(None, dict(zip(names, inputs, strict=True)))
        except _MISTAKES as error:
            raise GraphError(f"cannot be computed: {first_line(error)}") from None
        return [np.asarray(array) for array in made]

    return run


def _model(node: NodeProto, version: int, inputs: Iterable[ValueInfoProto]) -> ModelProto:
    """The node as a model, in an IR version that every supported runtime reads."""
    from onnx import helper

    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "one_node", list(inputs), outputs)
    imports = [helper.make_opsetid(domain, known) for domain, known in {STANDARD: 21, node.domain: version}.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _has_changed(node: NodeProto, version: int) -> bool:
    """True if a later operator set has another version of the operator."""
    import onnx

    name = node.op_type, node.domain
    return onnx.defs.has(*name) and bool(onnx.defs.get_schema(*name).since_version > version)


def _onnxruntime(node: NodeProto, version: int) -> _Run:
    """Sessions of ONNX Runtime, one for each combination of operand types."""
    try:
        import onnxruntime
    except ImportError:
        raise GraphError(
            f"{node.op_type} is not in ONNX's reference implementation; install iossim[cpu] to compute it"
        ) from None
    from onnx import defs, helper

    if node.domain == STANDARD:
        try:
            version = max(since_versions(node, version))  # it refuses operator sets newer than itself
        except defs.SchemaError as error:
            raise GraphError(f"cannot be computed: {first_line(error)}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    names = operands(node)

    @cache
    def session(types: tuple[tuple[np.dtype[np.generic], tuple[int, ...]], ...]) -> InferenceSession:
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
            for name, (dtype, shape) in zip(names, types, strict=True)
        ]
        model = _model(node, version, declared)
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Array]) -> list[Array]:
        try:
            found = session(tuple((array.dtype, array.shape) for array in inputs))
            made = found.run(None, dict(zip(names, inputs, strict=True)))
        except Exception as error:  # its exceptions have no base class of their own
            raise GraphError(f"cannot be computed: {first_line(error)}") from None
        return [np.asarray(array) for array in made]

    return run
