"""ONNX files end to end: the light models that come with the onnx wheel, for devices of all generations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import printed, printed_json
from onnx_of_op import run_onnxruntime
from seeded_weights import LIGHT_MODELS, write_seeded
from test_compare import check_comparison

import iossim
from iossim.backends.numpy_reference.execute import execute
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.schedule.schedule import Schedule

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize(
    ("model", "device", "dtype"),
    [
        ("light_squeezenet", "v100-sxm2", "fp32"),
        ("light_squeezenet", "h200-sxm", "int8"),
        pytest.param("light_resnet50", "t4", "fp16", marks=pytest.mark.slow),
        pytest.param("light_resnet50", "a100-pcie-80gb", "tf32", marks=pytest.mark.slow),
        pytest.param("light_vgg19", "p4", "fp32", marks=pytest.mark.slow),
        ("light_inception_v1", "k80", "fp32"),
    ],
)
def test_light_models(model: str, device: str, dtype: str, tmp_path: Path) -> None:
    path = LIGHT / f"{model}.onnx"
    options = [str(path), "-d", device, "--dtype", dtype]
    comparison = printed_json(["compare", *options, "--json"])
    check_comparison(comparison)
    assert comparison["model"] == model
    printed(["optimize", *options, "--out", str(tmp_path)])
    saved = Schedule.read(tmp_path / "schedule.json")
    assert saved.latency_us == pytest.approx(comparison["schedules"][-1]["latency_us"], rel=1e-9)
    again = printed_json(["simulate", str(tmp_path / "schedule.json"), "--json"])
    assert again["latency_us"] == pytest.approx(saved.latency_us, rel=1e-9)


def test_branches_are_worth_something() -> None:
    """Inception gains from scheduling; VGG is a chain, in which there is nothing to schedule."""
    inception, vgg = (
        printed_json(["compare", str(LIGHT / f"light_{name}.onnx"), "-d", "v100-sxm2", "--json"])["schedules"]
        for name in ("inception_v1", "vgg19")
    )
    assert inception[-1]["speedup"] > 1.1
    assert vgg[-1]["speedup"] == pytest.approx(1.0)
    text = printed(["compare", str(LIGHT / "light_vgg19.onnx"), "-d", "v100-sxm2"])
    assert "Best: no scheduler is faster than sequential" in text


def test_batch_of_an_onnx_file() -> None:
    path = LIGHT / "light_squeezenet.onnx"
    four = printed_json(["compare", str(path), "-d", "t4", "--batch", "4", "--json"])
    assert four["batch"] == 4
    shaped = printed_json(["models", "show", str(path), "--batch", "4", "--json"])
    assert [shape[0] for shape in shaped["inputs"].values()] == [4]


@pytest.mark.parametrize(
    ("model", "merges"),
    [
        ("light_squeezenet", True),
        ("light_resnet50", False),
        ("light_inception_v1", True),
        pytest.param("light_vgg19", False, marks=pytest.mark.slow),
    ],
)
def test_a_scheduled_plan_computes_what_onnxruntime_does(model: str, merges: bool, tmp_path: Path) -> None:
    """On the simulated V100, and under random prices, which make stages that no device would ask for."""
    path = write_seeded(LIGHT_MODELS / f"{model}.onnx", tmp_path / "seeded.onnx", seed=3)
    network = iossim.load(path)
    (name,) = network.graph.inputs
    generator = np.random.default_rng(4)
    image = generator.standard_normal(network.graph.types[name].shape, dtype=np.float32)
    (expected,) = run_onnxruntime(str(path), {name: image})
    merged = []
    for prices in (iossim.cost_model("simulator", "v100-sxm2"), iossim.cost_model("random:5")):
        schedule = iossim.optimize(network, None, cost_model=prices)
        merged += [stage for stage in schedule.stages if stage.strategy == "merge"]
        for engine in ("paper", "graph"):
            plan = lower_schedule(schedule, network, engine)
            check_happens_before(plan)
            (output,) = execute(plan, network, {name: image}, seed=6).values()
            assert np.abs(output - expected).max() <= 1e-4 * np.abs(expected).max()
    assert bool(merged) == merges
