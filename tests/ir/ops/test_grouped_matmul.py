"""Rows are multiplied by the weights of their experts: by NumPy, PyTorch and ONNX Runtime, and at a price."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_of_op import run_onnxruntime, types_of

from iossim.base.errors import GraphError, ModelError
from iossim.hardware.load import device
from iossim.hardware.lowering import cpu
from iossim.hardware.lowering.unit import lower_unit, unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import DType, TensorType
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx


@st.composite
def routed(draw: st.DrawFn) -> list[Array]:
    """Rows, weights and the ends of groups, some of them empty; rows may be left after all."""
    rows, experts, dtype = draw(st.integers(1, 12)), draw(st.integers(1, 16)), draw(st.sampled_from(["f4", "f8"]))
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=experts, max_size=experts)))
    (size, width), random = draw(st.sampled_from([(4, 8), (3, 5)])), np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(dtype) for shape in ((rows, size), (experts, size, width))]
    return [*arrays, np.array(ends, draw(st.sampled_from([np.int32, np.int64])))]


def by_rows(x: Array, weight: Array, ends: Array) -> Array:
    """Each row by itself: its expert is the first whose end is after it."""
    made = np.zeros((len(x), weight.shape[2]), x.dtype)
    for row in range(len(x)):
        for expert in np.flatnonzero(ends > row)[:1]:
            made[row] = x[row] @ weight[expert]
    return made


@given(routed())
def test_each_row_is_multiplied_by_its_expert(operands: list[Array]) -> None:
    (made,) = GroupedMatMul().evaluate(operands)
    np.testing.assert_allclose(made, by_rows(*operands), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
@given(routed())
def test_torch_computes_the_same(operands: list[Array]) -> None:
    """By its own function in fp32 of aligned rows, and as what a CUDA graph can hold in fp64."""
    torch = pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    from iossim.backends.torch_cuda.operators import apply

    x, *others = map(torch.from_numpy, operands)
    x = torch.nn.functional.pad(x, (1, 2))[:, 1:-2]  # a part of wider rows, as a split makes it
    (made,) = apply(GroupedMatMul(), [x, *others], types_of(operands))
    np.testing.assert_allclose(made.numpy(), by_rows(*operands), rtol=1e-5, atol=1e-5)


def grouped(rows: int, ends: list[int], inner: int = 64, width: int = 96) -> Network:
    b = GraphBuilder("grouped")
    operands = b.constant("w", (len(ends), inner, width)), b.numbers("ends", np.array(ends))
    return b.network([b.add(GroupedMatMul(), b.input("x", (rows, inner)), *operands)])


def test_a_written_network_runs_in_onnxruntime_and_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    network, path = grouped(9, [0, 4, 4, 7]), tmp_path / "m.onnx"
    write_onnx(network.graph, path, network=network)
    again = load(path)
    assert [unit.kind for unit in again.units] == [unit.kind for unit in network.units]
    assert again.graph.hash == network.graph.hash
    assert any("evenly" in remark for remark in again.reading)
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    weight, ends = (network.graph.constants[name].load() for name in ("w", "ends"))
    (made,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(made, by_rows(x, weight, ends), rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError, match="operator set 17 has no form of a grouped product; write 18 or a later one"):
        write_onnx(network.graph, path, opset=17)


@pytest.mark.parametrize("domain", ["own", "iossim"])
def test_another_function_of_the_same_model_is_inlined(domain: str, tmp_path: Path) -> None:
    network, path = grouped(3, [1, 2]), tmp_path / "m.onnx"
    write_onnx(network.graph, path)
    model = onnx.load(path)
    text = f'<domain: "{domain}", opset_import: ["" : 21]> F (a) => (b) {{ b = Relu (a) }}'
    model.functions.append(onnx.parser.parse_function(text))
    (node,) = model.graph.node
    model.graph.node.append(onnx.helper.make_node("F", [node.output[0]], ["relu"], domain=domain))
    if domain == "own":
        model.opset_import.add(domain=domain, version=1)
    model.graph.output[0].name = "relu"
    onnx.save(model, path)
    assert [each.op.kind for each in load(path).graph.nodes] == ["grouped_matmul", "relu"]


@pytest.mark.parametrize(("rows", "active", "each_one"), [(3, 3, 1), (64, 16, 4), (17, 16, 2)])
def test_the_price_is_that_of_active_experts_with_as_many_rows_each(rows: int, active: int, each_one: int) -> None:
    """On GPUs of one batched launch; on a CPU of the rows that there are."""
    network, b = grouped(rows, [rows] * 16), GraphBuilder("stacked")
    stacked = b.network([b.add(MatMul(), b.input("x", (active, each_one, 64)), b.constant("w", (active, 64, 96)))])
    read_bytes = active * 64 * 96 * 4
    for name in ("h100-sxm", "t4"):
        mine, theirs = (lower_unit(one, one.units[0], device(name)) for one in (network, stacked))
        assert mine == theirs
        assert {kernel.weight_bytes for kernel in mine[0][0].kernels} == {read_bytes}
    work = network.graph.work(network.graph.nodes[0])
    assert work.bytes_read == read_bytes + rows * 64 * 4 + 16 * 8
    assert work.flops == 2 * rows * 64 * 96
    (step,) = unit_steps(network, network.units[0])
    ((on_cpu,),) = (one.kernels for one in cpu.TARGET.families["grouped_matmul"](step))
    assert (on_cpu.flops, on_cpu.activation_bytes + on_cpu.weight_bytes) == (work.flops, work.bytes_read)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(4, 3), (2, 3, 5)], "takes x, weight and ends, not 2 inputs"),
        ([(4, 3), (2, 4, 5), (2,)], "are not .rows, inner. and .experts, inner, width."),
        ([(4, 3), (3, 5), (3,)], "are not .rows, inner. and .experts, inner, width."),
        ([(4, 3), (2, 3, 5), (3,)], "are not a whole number .int32 or int64. for each"),
    ],
)
def test_operands_that_do_not_fit_are_refused(shapes: list[Any], message: str) -> None:
    types = [TensorType(shape, DType.INT64 if place == 2 else DType.FLOAT32) for place, shape in enumerate(shapes)]
    with pytest.raises(GraphError, match=message):
        GroupedMatMul().infer(types)
