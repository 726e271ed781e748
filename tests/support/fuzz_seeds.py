"""The models that a fuzz of the importer starts from: real ones, of every kind that the importer meets."""

from collections.abc import Sequence

import numpy as np
from exported_networks import NETWORKS, Writer
from onnx import ModelProto, TensorProto, helper
from onnx_backend_cases import LIGHT, frozen, load_cases
from onnx_models import nodes_of

#: Beside each mutant's file lies this one, for weights that say so.
EXTERNAL_FILE, EXTERNAL_BYTES = "weights.bin", bytes(range(256)) * 16
#: Kinds of seeds; generating ONNX's cases a node each takes some seconds.
KINDS = ("exported", "made", "light", "simple", "real", "pytorch-converted", "pytorch-operator", "node")


def seed_models(kinds: Sequence[str] = KINDS, largest_bytes: int = 1 << 18) -> dict[str, bytes]:
    """The files by name, in one order; those larger are left out, since each of their mutants takes long."""
    found: dict[str, bytes] = {}
    for kind in kinds:
        for name, model in _models(kind):
            data = model if isinstance(model, bytes) else bytes(model.SerializeToString())
            if len(data) <= largest_bytes:
                found[f"{kind}/{name}"] = data
    return found


def _models(kind: str) -> list[tuple[str, ModelProto | bytes]]:
    match kind:
        case "exported":
            return [(name, bound(make(), sizes)) for name, (make, sizes) in NETWORKS.items()]
        case "made":
            return [("external", external_weights()), ("functions", functions()), ("branch", branch()), ("old", old())]
        case "light":
            return [(path.stem, path.read_bytes()) for path in sorted(LIGHT.glob("*.onnx"))]
        case "node":
            return [(case.name, frozen(case).model) for case in load_cases("node")]
        case _:
            return [(case.name, case.model) for case in load_cases(kind)]


def bound(model: ModelProto, sizes: dict[str, int]) -> ModelProto:
    """The model with its named dimensions as numbers."""
    for value in model.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in sizes:
                axis.dim_value = sizes[axis.dim_param]
    return model


def external_weights() -> ModelProto:
    """A convolution and a dense layer whose weights stand in a file beside the model."""
    w = Writer()
    x = w.node("Relu", w.conv("image", 4, 3, 3))
    y = w.node("Gemm", w.node("Flatten", w.node("GlobalAveragePool", x)), w.noise(4, 5))
    model = w.model({"image": (TensorProto.FLOAT, (1, 3, 8, 8))}, [y])
    offset = 0
    for tensor in model.graph.initializer:
        length = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", EXTERNAL_FILE), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        offset += length
    return model


def functions() -> ModelProto:
    """Local functions, one that calls another."""
    w = Writer()
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    swish, twice = nodes_of("s = Sigmoid (a); b = Mul (a, s)"), nodes_of("m = own.Swish (a); b = own.Swish (m)")
    y = w.node("Twice", w.conv("image", 4, 3, 3), domain="own")
    model = w.model({"image": (TensorProto.FLOAT, (1, 3, 8, 8))}, [y])
    model.opset_import.append(imports[1])
    for name, nodes in (("Swish", swish), ("Twice", twice)):
        model.functions.append(helper.make_function("own", name, ["a"], ["b"], nodes, imports))
    return model


def branch() -> ModelProto:
    """A branch taken on a shape, around a squeeze, as exporters write it."""
    w = Writer()
    x = w.conv("image", 4, 3, 3)
    size = w.node("Gather", w.node("Shape", x), w.array(np.array(1)), axis=0)
    condition = w.node("Equal", size, w.array(np.array(4)))
    graphs = [
        helper.make_graph(
            [helper.make_node(op_type, [x], [op_type])], op_type, [], [helper.make_empty_tensor_value_info(op_type)]
        )
        for op_type in ("Sigmoid", "Tanh")
    ]
    y = w.node("If", condition, then_branch=graphs[0], else_branch=graphs[1])
    return w.model({"image": (TensorProto.FLOAT, (1, 3, 8, 8))}, [w.node("Relu", y)])


def old() -> ModelProto:
    """An operator set that ONNX's version converter has to raise."""
    w = Writer()
    x = w.node("MaxPool", w.conv("image", 4, 3, 3), kernel_shape=[2, 2], strides=[2, 2])
    y = w.node("Gemm", w.node("Flatten", w.node("Relu", x)), w.noise(64, 5), w.noise(5))
    return w.model({"image": (TensorProto.FLOAT, (1, 3, 8, 8))}, [y], opset=6)
