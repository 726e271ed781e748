"""The light models of the onnx wheel with real weights: seeded noise where they have constant fills.

With the fills every class gets the same score whatever the network does, so that any output looks right.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from iossim.ir.op import Array

LIGHT_MODELS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def write_seeded(source: Path, target: Path, seed: int = 0) -> Path:
    """Write ``source`` with every floating-point ``ConstantOfShape`` as a weight of noise; returns ``target``.

    The weights go to a file beside it, and a last softmax is left out, so that the output tells more. Scales are
    those of trained networks: weights keep the variance (He et al., 2015), variances are positive.
    """
    model = onnx.load(source)
    graph = model.graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    generator = np.random.default_rng(seed)
    kept: list[NodeProto] = []
    weights = target.with_suffix(".weights")
    with weights.open("wb") as stream:
        for node in graph.node:
            if node.op_type != "ConstantOfShape" or node.attribute[0].t.data_type != TensorProto.FLOAT:
                kept.append(node)
                continue
            name = node.output[0]
            readers = [
                (reader.op_type, list(reader.input).index(name)) for reader in graph.node if name in reader.input
            ]
            array = _noise(generator, [int(size) for size in arrays[node.input[0]]], readers)
            tensor = graph.initializer.add(name=name, dims=array.shape, data_type=TensorProto.FLOAT)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", weights.name), ("offset", stream.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            stream.write(array.tobytes())
    if kept[-1].op_type == "Softmax":
        last = kept.pop()
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
    del graph.node[:]
    graph.node.extend(kept)
    model.ir_version = 4  # the first in which a weight need not be listed among the inputs
    target.write_bytes(model.SerializeToString())
    return target


def _noise(generator: np.random.Generator, shape: Sequence[int], readers: Sequence[tuple[str, int]]) -> Array:
    if len(shape) > 1:
        limit = (6 / max(1, int(np.prod(shape[1:])))) ** 0.5
        return (generator.random(shape, dtype=np.float32) * 2 - 1) * np.float32(limit)
    positive = any(reader in (("BatchNormalization", 1), ("BatchNormalization", 4)) for reader in readers)
    values = generator.random(shape, dtype=np.float32)
    return values + np.float32(0.5) if positive else (values - np.float32(0.5)) * np.float32(0.2)
