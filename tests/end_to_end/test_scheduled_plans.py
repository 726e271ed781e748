"""The whole way: an ONNX file, its best schedule, the plan of it, executed, against ONNX Runtime on the file itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_of_op import run_onnxruntime
from seeded_weights import LIGHT_MODELS, write_seeded

import iossim
from iossim.backends.numpy_reference.execute import execute
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule


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
