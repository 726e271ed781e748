"""Contract of every op (:class:`iossim.ir.op.Op`): subclass, and give cases, each an op with its input arrays.

@pytest.mark.parametrize("case", [OpCase(Mine(axis=1), (np.ones((2, 3), np.float32),))], ids=str)
class TestMine(OpConformance):
    def reference(self, case):
        return [case.inputs[0].mean(1)]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from iossim.base.errors import GraphError
from iossim.cost.create import create_cost_model
from iossim.execution.engine import Engine
from iossim.hardware.kind import DEVICE_KINDS
from iossim.hardware.load import device
from iossim.hardware.lowering.target import target_of
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import dtype_of
from iossim.ir.network import Network
from iossim.ir.op import Array, Op, op_class
from iossim.ir.types import Precision, TensorType
from iossim.models.onnx.export import export_graph
from iossim.models.onnx.file import read_model
from iossim.models.onnx.inputs import bind
from iossim.models.onnx.translate import translate
from iossim.models.options import LoadOptions
from iossim.search.scheduler import schedule


@dataclass(frozen=True)
class OpCase:
    op: Op
    inputs: tuple[Array, ...]

    @property
    def types(self) -> list[TensorType]:
        return [TensorType(array.shape, dtype_of(array)) for array in self.inputs]

    def network(self) -> Network:
        """The op applied to its inputs; all but the first are weights."""
        b = GraphBuilder("one_op")
        x, *rest = self.types
        values = [b.input("x", x.shape) if x.dtype == b.dtype else b.constant("x", x.shape, x.dtype)]
        values += [b.constant(f"w{index}", each.shape, each.dtype) for index, each in enumerate(rest)]
        return b.network(list(b.add_all(self.op, *values)))

    def __str__(self) -> str:
        return f"{self.op.signature} of {', '.join(map(str, self.types))}"


class OpConformance:
    """Outputs have the inferred types, work is counted, and the op has prices and can be saved in files."""

    #: Tolerated absolute and relative difference of an output from the reference's.
    tolerance = 2e-5

    def reference(self, case: OpCase) -> Sequence[Array] | None:
        """The outputs, computed independently of the op; None if there is no reference."""
        return None

    def test_it_is_found_by_its_kind(self, case: OpCase) -> None:
        assert op_class(case.op.kind) is type(case.op)

    def test_outputs_are_of_the_inferred_types(self, case: OpCase) -> None:
        before = [array.copy() for array in case.inputs]
        outputs = case.op.evaluate(case.inputs)
        for array, expected in zip(outputs, case.op.infer(case.types), strict=True):
            assert (array.shape, array.dtype) == (expected.shape, expected.dtype.numpy)
        for array, kept in zip(case.inputs, before, strict=True):
            np.testing.assert_array_equal(array, kept)

    def test_outputs_are_those_of_the_reference(self, case: OpCase) -> None:
        expected = self.reference(case)
        if expected is not None:
            for found, value in zip(case.op.evaluate(case.inputs), expected, strict=True):
                np.testing.assert_allclose(found, value, rtol=self.tolerance, atol=self.tolerance)

    def test_inputs_that_do_not_fit_are_refused(self, case: OpCase) -> None:
        with pytest.raises(GraphError):
            case.op.infer([])

    def test_it_is_kept_as_json(self, case: OpCase) -> None:
        kept = json.loads(json.dumps(case.op.attributes()))
        again = Op.from_attributes(case.op.kind, kept)
        assert again == case.op
        assert again.signature == case.op.signature

    def test_its_work_is_counted(self, case: OpCase) -> None:
        outputs = case.op.infer(case.types)
        work = case.op.work(case.types, outputs)
        assert work.flops >= 2 * case.op.multiply_adds(case.types, outputs) >= 0
        assert 0 <= work.bytes <= sum(value.bytes for value in (*case.types, *outputs))

    @pytest.mark.parametrize("kind", DEVICE_KINDS.names())
    def test_each_kind_of_device_has_a_lowering(self, case: OpCase, kind: str) -> None:
        assert target_of(device("t4").model_copy(update={"kind": kind})).family(case.op) is not None

    def test_it_can_be_scheduled(self, case: OpCase) -> None:
        prices = create_cost_model("simulator", device("t4"), Precision.FP32, Engine.PAPER, None)
        assert 0 < schedule(case.network(), prices, "ios-both").latency_us < np.inf

    def test_it_is_read_from_the_onnx_that_it_writes(self, case: OpCase, tmp_path: Path) -> None:
        if not case.op.onnx_types:
            pytest.skip("it has no ONNX spelling")
        path = tmp_path / "one_op.onnx"
        onnx.save(export_graph(case.network().graph), path)
        (node,) = translate(bind(read_model(path), LoadOptions())).nodes
        assert node.op.signature == case.op.signature
