"""Small ONNX files written node by node, as tests of the importer need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper, parser
from onnx_of_op import IR_VERSION

from iossim.ir.op import Array


def nodes_of(text: str) -> list[NodeProto]:
    """Nodes in ONNX's text form, ``[name] output = Operator <attribute=1> (input, input)``, apart by semicolons."""
    return list(parser.parse_graph("graph () => () {" + text.replace(";", "\n") + "}").node)


def write_onnx(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    weights: Mapping[str, Array] | None = None,
    *,
    output: str = "y",
    opset: int = 13,
    domains: Sequence[str] = (),
) -> Path:
    """Write a model of fp32 inputs and outputs (one, or several apart by spaces); returns ``path``."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in output.split()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION).SerializeToString())
    return path
