"""What the package adds is held to iossim's contracts."""

from __future__ import annotations

import numpy as np
import pytest
from iossim_example.costs import PerUnit
from iossim_example.determinant import Determinant

import iossim
from iossim.cost.model import CostModel
from iossim.hardware.profile import DeviceProfile
from iossim.ir.op import Array
from iossim.testing.conformance import (
    CostModelConformance,
    DeviceConformance,
    OpCase,
    OpConformance,
    SchedulerConformance,
)

MATRICES = np.random.default_rng(1).normal(size=(3, 5, 5)).astype(np.float32)


@pytest.mark.parametrize("case", [OpCase(Determinant(), (MATRICES,))], ids=str)
class TestDeterminant(OpConformance):
    def reference(self, case: OpCase) -> list[Array]:
        """The products of the eigenvalues."""
        return [np.linalg.eigvals(case.inputs[0]).prod(-1).real]


class TestPairs(SchedulerConformance):
    scheduler = "pairs"


class TestExampleGpu(DeviceConformance):
    def profile(self) -> DeviceProfile:
        return iossim.device("example-gpu")


class TestPerUnit(CostModelConformance):
    def cost_model(self, device: DeviceProfile) -> CostModel:
        return PerUnit(3.0, device.name)
