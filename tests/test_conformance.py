"""What iossim ships is held to the contracts by the classes that it ships for the parts of others."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.api import cost_model
from iossim.backends.numpy_reference.backend import create as numpy_backend
from iossim.cost.model import CostModel
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.table import PriceTable, TableCostModel
from iossim.execution.backend import Backend
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.names import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.reduce import TopK
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.schedule.problem import bits
from iossim.search.scheduler import schedule, scheduler_names
from iossim.testing.backends import BackendConformance
from iossim.testing.cost_models import CostModelConformance, batches, least_latency_us, twin_network
from iossim.testing.devices import DeviceConformance
from iossim.testing.ops import OpCase, OpConformance
from iossim.testing.schedulers import SchedulerConformance


class TestSimulator(CostModelConformance):
    @pytest.fixture(autouse=True, params=["paper", "graph", "partition", "onnxruntime"])
    def _engine(self, request: pytest.FixtureRequest) -> None:
        self.engine = request.param

    def cost_model(self, device: DeviceProfile) -> CostModel:
        return cost_model("simulator", device, engine=self.engine)


class TestRandom(CostModelConformance):
    def cost_model(self, device: DeviceProfile) -> CostModel:
        return cost_model("random:7")


class TestTable(CostModelConformance):
    """Units that look alike, each with prices of its own."""

    def cost_model(self, device: DeviceProfile) -> CostModel:
        draw = random.Random(5)
        every = [
            {"units": [batch.problem.unit_names[unit] for unit in bits(mask)], "latency_us": draw.uniform(10, 30)}
            for network in (twin_network(), *self.networks())
            for batch in batches(network)
            for mask in batch.masks.tolist()
        ]
        stages = {tuple(stage["units"]): stage for stage in every}  # seeded networks share names
        return TableCostModel(PriceTable.model_validate({"stages": list(stages.values())}))


class TestPerturbed(CostModelConformance):
    def cost_model(self, device: DeviceProfile) -> CostModel:
        return cost_model("perturbed:0.2", device)

    def test_a_price_does_not_depend_on_its_batch(self, prices: CostModel, iossim_device: DeviceProfile) -> None:
        """As on hardware, the same groups in another order are one measurement, of the stage that is asked for first."""
        assert isinstance(prices, PerturbedCostModel)
        for network in self.networks():
            for batch in batches(network):
                by_signature: dict[object, float] = {}
                for signature, us in zip(prices.signatures(batch), prices.price_stages(batch).tolist(), strict=True):
                    assert by_signature.setdefault(signature, us) == us


class TestPerturbedTable(TestTable):
    def cost_model(self, device: DeviceProfile) -> CostModel:
        return PerturbedCostModel(super().cost_model(device), 0.2)


@given(st.lists(st.integers(1, 9), min_size=30, max_size=30))
def test_equal_blocks_with_unequal_prices_have_the_schedules_of_brute_force(prices_us: list[int]) -> None:
    """And what is proven is true, merged stages and their bounds left out."""
    network = twin_network()
    names = [
        [batch.problem.unit_names[unit] for unit in bits(mask)]
        for batch in batches(network)
        for mask in batch.masks.tolist()
    ]
    table = {"stages": [{"units": own, "latency_us": us} for own, us in zip(names, itertools.cycle(prices_us))]}
    prices = TableCostModel(PriceTable.model_validate(table))
    found = schedule(network, prices, "ios-parallel")
    assert found.latency_us == pytest.approx(least_latency_us(network, prices))
    assert found.proven


@pytest.mark.parametrize("name", scheduler_names())
class TestSchedulers(SchedulerConformance):
    @pytest.fixture(autouse=True)
    def _scheduler(self, name: str) -> None:
        self.scheduler = name


IMAGES = np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)


@pytest.mark.parametrize(
    "case", [OpCase(Conv(), (IMAGES, IMAGES[:, :, :1, :1])), OpCase(TopK(2, axis=3), (IMAGES,))], ids=str
)
class TestOps(OpConformance):
    """All are held to ONNX Runtime in ``ir/ops``."""


@pytest.mark.parametrize("case", [OpCase(Relu(), (IMAGES,))], ids=str)
class TestRelu(OpConformance):
    def reference(self, case: OpCase) -> list[Array]:
        return [np.where(case.inputs[0] > 0, case.inputs[0], 0)]


class TestNumPy(BackendConformance):
    def backend(self, engine: str) -> Backend:
        return numpy_backend(Precision.FP32, Engine.named(engine), {})


#: One device of each sort; all others are held to the contract in the slow tier.
SOME_DEVICES = ("v100-sxm2", "h100-sxm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME_DEVICES else pytest.mark.slow) for name in device_names()]
)
class TestDevices(DeviceConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def profile(self) -> DeviceProfile:
        return device(self.name)
