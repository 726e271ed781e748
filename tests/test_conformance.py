"""``iossim.testing``: what iossim ships is held to its contracts, and a project that uses it runs a pytest of its own."""

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim import api
from iossim.api import cost_model
from iossim.backends.numpy_reference.backend import create as numpy_backend
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.model import CostModel
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.table import PriceTable, TableCostModel
from iossim.execution.backend import Backend
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.hardware.names import shipped_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.reduce import TopK
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.random_graphs import seeded_network
from iossim.schedule.problem import bits
from iossim.search.scheduler import schedule, scheduler_names
from iossim.tasks.checks import latency_at_most, no_slower_than, race_free, runs_without_races, valid
from iossim.testing.conformance import (
    BackendConformance,
    CostModelConformance,
    DeviceConformance,
    OpCase,
    OpConformance,
    SchedulerConformance,
    batches,
    least_latency_us,
    twin_network,
)


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
        stages = {  # seeded networks share names
            tuple(own): {"units": own, "latency_us": draw.uniform(10, 30)}
            for network in (twin_network(), *self.networks())
            for own in own_stages(network)
        }
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


def own_stages(network: Network) -> list[list[str]]:
    """Names of the units of each stage that may be priced."""
    every = batches(network)
    return [[batch.problem.unit_names[unit] for unit in bits(mask)] for batch in every for mask in batch.masks.tolist()]


@given(st.lists(st.integers(1, 9), min_size=30, max_size=30))
def test_equal_blocks_with_unequal_prices_have_the_schedules_of_brute_force(prices_us: list[int]) -> None:
    """And what is proven is true, merged stages and their bounds left out."""
    network = twin_network()
    priced = zip(own_stages(network), itertools.cycle(prices_us))
    table = {"stages": [{"units": own, "latency_us": us} for own, us in priced]}
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
    "name", [pytest.param(name, marks=() if name in SOME_DEVICES else pytest.mark.slow) for name in shipped_names()]
)
class TestDevices(DeviceConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def profile(self) -> DeviceProfile:
        return device(self.name)


PROJECT = Path(__file__).parent / "user_project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project, where no configuration of ours reaches it."""
    shutil.copytree(PROJECT, tmp_path / "project")
    (tmp_path / "project" / "pytest.ini").write_text("[pytest]\n")
    return tmp_path / "project"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_project_of_a_user(project: Path) -> None:
    """What holds passes; each test of what does not hold fails with what was found."""
    found = run_pytest(project)
    assert re.search(r"4 failed, 6 passed", found.stdout), found.stdout + found.stderr
    assert set(re.findall(r"FAILED (\S+)::(\w+)", found.stdout)) == {
        ("test_fails.py", name)
        for name in ("test_too_slow", "test_slower_than_before", "test_of_another_network", "test_a_race")
    }
    for words in (
        r"FAIL latency: 0\.\d+ ms, limit 0\.1 ms",
        r"FAIL no slower than before: \d+\.\d+ ms, baseline \d+\.\d+ ms \(priced again\)",
        r"FAIL valid: the schedule of 'seeded3' is for a graph with hash",
        r"FAIL free of races: .* and nothing orders the two",
    ):
        assert re.search(f"AssertionError: {words}", found.stdout), words
    # The test is shown, not the plugin's own lines.
    assert "iossim/testing/" not in found.stdout


def test_who_does_not_ask_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    found = run_pytest(tmp_path, "--fixtures")
    assert "iossim/testing/" not in found.stdout
    assert "iossim_device" not in found.stdout


def test_loading_the_plugin_loads_no_more_of_iossim() -> None:
    code = "import sys, iossim.testing; print([n for n in sys.modules if n.startswith('iossim.') or n == 'numpy'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['iossim._version', 'iossim.testing']"


@pytest.mark.parametrize("seed", range(12))
def test_seeded_networks_are_the_same_everywhere_and_have_something_to_schedule(seed: int) -> None:
    network = seeded_network(seed)
    assert network.graph.hash == seeded_network(seed).graph.hash != seeded_network(seed + 1).graph.hash
    assert (len(network.blocks), network.graph.types["image"].shape) == (2, (1, 8, 14, 14))
    assert all(len(block.units) == 8 for block in network.blocks)
    found = schedule(network, api.cost_model("random:1"), "ios-both")
    assert found.latency_us < schedule(network, api.cost_model("random:1"), "sequential").latency_us
    assert valid(found, network).holds


def test_sizes_and_hashes_of_seeded_networks() -> None:
    """Users save schedules and prices of them: another stream of random numbers would make these worthless."""
    assert seeded_network(0).graph.hash == "ecf9311fd97fa5cfbf62590d9e32229d"
    with pytest.raises(OptionError, match="units 2 of a seeded network: give 3 or more"):
        seeded_network(0, units=2)


def test_baselines() -> None:
    network, changed = seeded_network(1), seeded_network(2)
    prices = api.cost_model("simulator", "t4")
    best = schedule(network, prices, "ios-both")
    later = schedule(changed, prices, "ios-both").model_copy(update={"latency_us": 2 * best.latency_us})
    assert no_slower_than(best, best, network, prices).holds
    slower = no_slower_than(later, best, changed, prices, changed_model=True)
    assert not slower.holds
    assert f"(as it was saved, of {network.name!r})" in slower.found
    assert slower.values == {"latency_us": later.latency_us, "baseline_us": best.latency_us, "tolerance": 0.0}
    renamed = best.model_copy(update={"network": changed.name})
    assert "(as it was saved)" in no_slower_than(later, renamed, changed, prices, changed_model=True).found
    assert no_slower_than(later, best, changed, prices, tolerance=1.0, changed_model=True).holds
    assert not no_slower_than(later, best, changed, prices, tolerance=0.999, changed_model=True).holds


@pytest.mark.parametrize(
    ("asked", "device", "engine", "words"),
    [
        (seeded_network(2), "t4", "paper", "model seeded1, not seeded2"),
        (replace(seeded_network(2), name="seeded1"), "t4", "paper", "graph hash .*; if the model has changed, give `chan"),
        (seeded_network(1, batch=2), "t4", "paper", "batch 1, not 2; give the same, or save another"),
        (seeded_network(1), "v100-sxm2", "paper", "question: device t4, not v100-sxm2; give"),
        (seeded_network(1), "t4", "graph", "question: engine paper, not graph; give"),
        (replace(seeded_network(1), precision=Precision.FP16), "t4", "paper", "question: dtype fp32, not fp16; give"),
    ],
)  # fmt: skip
def test_a_baseline_of_another_question_is_refused(asked: Network, device: str, engine: str, words: str) -> None:
    network, prices = seeded_network(1), api.cost_model("simulator", device, asked.precision, engine)
    best = schedule(network, api.cost_model("simulator", "t4"), "greedy")
    with pytest.raises(OptionError, match=words):
        no_slower_than(best, best, asked, prices)
    if device != "t4":
        with pytest.raises(OptionError, match="device t4, not v100-sxm2"):
            no_slower_than(best, best, asked, prices, changed_model=True)


def test_plans_with_and_without_memory() -> None:
    network = seeded_network(4)
    found = schedule(network, api.cost_model("random:3"), "greedy")
    for engine in ("paper", "graph"):
        assert runs_without_races(found, network, engine).holds
        assert race_free(lower_schedule(found, network, engine)).holds
    with pytest.raises(ScheduleError):
        runs_without_races(found, seeded_network(5))


@pytest.mark.parametrize("limit_ms", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(limit_ms: float) -> None:
    found = schedule(seeded_network(4), api.cost_model("random:3"), "greedy")
    with pytest.raises(OptionError, match="is not a time"):
        latency_at_most(found, limit_ms)
