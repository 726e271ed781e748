"""Small ONNX files written node by node, as tests of the importer need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, parser
from onnx_of_op import IR_VERSION

from iossim.ir.op import Array


def nodes_of(text: str) -> list[NodeProto]:
    """Nodes in ONNX's text form, ``[name] output = Operator <attribute=1> (input, input)``, apart by semicolons."""
    return list(parser.parse_graph("graph () => () {" + text.replace(";", "\n") + "}").node)


#: A shape, None if the file states none; of another type than fp32 with ONNX's code before it.
Declared = Sequence[int | str | None] | None | tuple[int, Sequence[int | str | None] | None]


def value_info(name: str, declared: Declared) -> ValueInfoProto:
    is_typed = isinstance(declared, tuple) and len(declared) == 2 and not isinstance(declared[1], int | str)
    code, shape = declared if is_typed else (TensorProto.FLOAT, declared)  # type: ignore[misc]
    return helper.make_tensor_value_info(name, code, shape)


def write_onnx(
    path: Path,
    nodes: Sequence[NodeProto] | str,
    inputs: Mapping[str, Declared],
    weights: Mapping[str, Array | TensorProto] | None = None,
    *,
    output: str | Mapping[str, Declared] = "y",
    opset: int = 13,
    domains: Sequence[str] = (),
    functions: Sequence[FunctionProto] = (),
) -> Path:
    """Write a model of nodes, or of their text (:func:`nodes_of`); returns ``path``.

    ``output`` names fp32 outputs, several apart by spaces, or declares them.
    """
    nodes = nodes_of(nodes) if isinstance(nodes, str) else nodes
    outputs = dict.fromkeys(output.split()) if isinstance(output, str) else output
    tensors = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), name)
        for name, array in (weights or {}).items()
    ]
    declared = [[value_info(*each) for each in values.items()] for values in (inputs, outputs)]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(nodes, "test", *declared, tensors)
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=IR_VERSION)
    path.write_bytes(model.SerializeToString())
    return path
