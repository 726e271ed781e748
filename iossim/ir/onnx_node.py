"""One ONNX node computed by itself: by ONNX's own reference implementation, or by ONNX Runtime where that lacks it.

The reference has most operators in their newest version only, so that ONNX Runtime, if it is installed, computes older ones.

It is the meaning of ops that iossim has no class of its own for, and of those whose definition is a page of cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from iossim.errors import GraphError
from iossim.ir.op import Array

if TYPE_CHECKING:
    from onnx import NodeProto

#: What ONNX's own operators are called in a model: the empty domain.
STANDARD = ""

#: Raised by the reference implementation for operands that an operator cannot take.
_MISTAKES = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    RuntimeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    NotImplementedError,
)

_Run = Callable[[Sequence[Array]], list[Array]]


def canonical(node: NodeProto) -> bytes:
    """The node without names, serialised: equal nodes are equal bytes, in every process.

    Operands are named by their place, ``""`` where one is left out; attributes are sorted, and the tensors in them stored
    one way. Raises ValueError for attributes that are graphs.
    """
    from onnx import NodeProto, TensorProto, numpy_helper

    bare = NodeProto(op_type=node.op_type, domain=node.domain)
    bare.input.extend(f"x{place}" if name else "" for place, name in enumerate(node.input))
    bare.output.extend(f"y{place}" if name else "" for place, name in enumerate(node.output))
    for attribute in sorted(node.attribute, key=lambda each: each.name):
        if attribute.HasField("g") or attribute.graphs:
            raise ValueError(f"its attribute {attribute.name!r} is a graph")
        kept = bare.attribute.add()
        kept.CopyFrom(attribute)
        kept.doc_string = ""
        if attribute.HasField("t") and attribute.t.data_type != TensorProto.STRING:
            kept.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t)))
    return bytes(bare.SerializeToString(deterministic=True))


def compute(node: bytes, version: int, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a :func:`canonical` node that are not left out, from its inputs that are not.

    ``version`` is that of the operator set of the node's domain. Raises GraphError for operands that it cannot take, and
    where neither the reference nor an installed ONNX Runtime computes it.
    """
    return _runner(node, version)(inputs)


def compute_standard(
    op_type: str, version: int, inputs: Sequence[Array | None], attributes: dict[str, Any], outputs: int = 1
) -> list[Array]:
    """The outputs of one of ONNX's own operators; None is an input that is left out. Raises as :func:`compute`."""
    from onnx import helper

    names = ["" if array is None else "x" for array in inputs]
    node = helper.make_node(op_type, names, ["y"] * outputs, **attributes)
    return compute(canonical(node), version, [array for array in inputs if array is not None])


@lru_cache(maxsize=256)
def _runner(node: bytes, version: int) -> _Run:
    from onnx import NodeProto, helper
    from onnx.reference import ReferenceEvaluator

    proto = NodeProto.FromString(node)
    names = [name for name in proto.input if name]
    graph = helper.make_graph(
        [proto],
        "one_node",
        [helper.make_empty_tensor_value_info(name) for name in names],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )
    imports = [helper.make_opsetid(proto.domain, version)]
    if proto.domain != STANDARD:
        imports.append(helper.make_opsetid(STANDARD, 21))
    model = helper.make_model(graph, opset_imports=imports)
    try:
        reference = ReferenceEvaluator(model)
    except Exception:  # whatever it raises for an operator that it does not have
        return _onnxruntime(proto, version)
    is_of_version = re.search(r"_\d+$", type(reference.rt_nodes_[0]).__name__) is not None
    is_newer = not is_of_version and _has_changed(proto, version)
    runtime = _onnxruntime(proto, version) if is_newer and find_spec("onnxruntime") else None

    def run(inputs: Sequence[Array]) -> list[Array]:
        if runtime is not None:
            try:
                return runtime(inputs)
            except GraphError:
                pass  # it has fewer operators and element types than the reference
        try:
            with np.errstate(all="ignore"):
                made = reference.run(None, dict(zip(names, inputs, strict=True)))
        except _MISTAKES as error:
            raise GraphError(f"cannot be computed: {_first_line(error)}") from None
        return [np.asarray(array) for array in made]

    return run


def _has_changed(node: NodeProto, version: int) -> bool:
    """Whether a later operator set has another version of the operator: the reference knows most in the newest only."""
    import onnx

    if not onnx.defs.has(node.op_type, node.domain):
        return False
    newest: int = onnx.defs.get_schema(node.op_type, node.domain).since_version
    return newest > version


def _onnxruntime(node: NodeProto, version: int) -> _Run:
    """Sessions of ONNX Runtime, one for each combination of operand types."""
    try:
        import onnxruntime
    except ImportError:
        raise GraphError(
            f"{node.op_type} is not in ONNX's reference implementation; install iossim[cpu] to compute it"
        ) from None
    from onnx import helper

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    names = [name for name in node.input if name]
    sessions: dict[tuple[tuple[str, tuple[int, ...]], ...], Any] = {}

    def session(inputs: Sequence[Array]) -> Any:
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, inputs, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "one_node", declared, outputs)
        imports = [helper.make_opsetid(node.domain, version)]
        if node.domain != STANDARD:
            imports.append(helper.make_opsetid(STANDARD, 21))
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Array]) -> list[Array]:
        key = tuple((array.dtype.name, array.shape) for array in inputs)
        try:
            if key not in sessions:
                sessions[key] = session(inputs)
            made = sessions[key].run(None, dict(zip(names, inputs, strict=True)))
        except Exception as error:  # its exceptions have no base class of their own
            raise GraphError(f"cannot be computed: {_first_line(error)}") from None
        return [np.asarray(array) for array in made]

    return run


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
