"""``iossim microbatch``, and rows of a kernel: by cuDNN's plans on the host's double of a GPU, and from the simulator."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from cpus import cpu
from host_device import HostDriver
from host_library import HostLibrary
from jsonschema import Draft202012Validator

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.convolution import Convolution
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import DType, Precision, TensorType
from iossim.microbatching.convolutions_in_micro_batches import measured_rows, simulated_rows
from iossim.microbatching.division import BenchmarkRow, front
from iossim.microbatching.network_kernels import ConvKernel, convolution_kernels
from iossim.models.load import load
from iossim.prediction.bands import measured_over_predicted
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.report.schemas import schema

TABLE = {
    "conv2": [
        {"batch": size, "algorithm": name, "time_us": time_us * size + 1, "workspace_bytes": size * need}
        for size in (1, 2, 4, 8)
        for name, time_us, need in (("fft", 1.0, 1 << 20), ("gemm", 3.0, 0))
    ],
    "conv3": [{"batch": 8, "algorithm": "gemm", "time_us": 5.0, "workspace_bytes": 0}],
}
ALEXNET = "microbatch alexnet --device p100-sxm2 --batch 32 --policy power-of-two"


def table(folder: Path, content: Any = TABLE) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(content))
    return path


def test_a_table_under_a_limit_of_each_kernel_or_one_for_all(tmp_path: Path) -> None:
    found = printed_json(f"microbatch --table {table(tmp_path)} --workspace 4MiB --json")
    first, second = found["kernels"]
    assert first == {
        "layer": "conv2",
        "pass": "forward",
        "configuration": [{"micro_batch": 4, "count": 2, "algorithm": "fft"}],
        "time_us": 10.0,
        "undivided_us": 25.0,
        "workspace_bytes": 4 << 20,
    }
    assert second["undivided_us"] == second["time_us"] == 5.0
    assert (found["time_us"], found["undivided_us"]) == (15.0, 30.0)
    shown = printed(f"microbatch --table {table(tmp_path)} --workspace 4MiB")
    (row,) = (line.split() for line in shown.splitlines() if "2x4 fft" in line)
    assert row[:5] == ["conv2", "2x4", "fft", "25.0", "10.0"]
    assert "2.00 times" in shown
    shown = printed(f"microbatch --table {table(tmp_path)} --total-workspace 2MiB")
    assert "4x2 fft" in shown
    assert "proved the best under the limit" in shown


def test_a_model_with_its_gradients(tmp_path: Path) -> None:
    found = printed_json(f"{ALEXNET} --pass training --total-workspace 60MiB --json --out {tmp_path}")
    names = [(one["layer"], one["pass"]) for one in found["kernels"]]
    assert len(names) == len(set(names)) == 14  # the first layer reads the images
    assert found["workspace_bytes"] == sum(one["workspace_bytes"] for one in found["kernels"]) <= 60 << 20
    assert found["lower_bound_us"] <= found["time_us"] <= found["undivided_us"]
    for one in found["kernels"]:
        assert sum(part["micro_batch"] * part["count"] for part in one["configuration"]) == 32
    assert json.loads((tmp_path / "microbatch.json").read_text()) == found
    assert list(Draft202012Validator(schema("microbatch")).iter_errors(found)) == []
    assert {"front.svg", "workspaces.svg"} <= {path.name for path in tmp_path.iterdir()}


def test_what_is_found_is_a_schedule_that_runs(tmp_path: Path) -> None:
    found = printed_json(
        f"microbatch ios_sample -d p100-sxm2 -b 8 --workspace 100KiB --json --no-plot --out {tmp_path}"
    )
    sizes = [[(part["count"], part["micro_batch"]) for part in one["configuration"]] for one in found["kernels"]]
    assert [(1, 7), (1, 1)] in sizes
    done = printed_json(
        f"run {tmp_path}/schedule.json --backend numpy_reference --compare sequential --rounds 1 --warm-up 0 --json"
    )
    assert done["output_error"] == 0
    assert any("runs" in remark and "units with its own kernels" in remark for remark in done["remarks"])


def test_a_batch_is_divided_for_a_gain_of_a_hundredth(tmp_path: Path) -> None:
    def rows(half_us: float) -> dict[str, Any]:
        times = ((4, half_us, 10), (8, 100.0, 20))
        return {"conv": [{"batch": b, "algorithm": "a", "time_us": t, "workspace_bytes": w} for b, t, w in times]}

    for half_us, expected in ((49.6, "1x8 a"), (49.4, "2x4 a")):
        file = table(tmp_path, rows(half_us))
        for limit in ("--workspace 100B", "--total-workspace 20B", "--total-workspace 1MiB"):
            shown = printed(f"microbatch --table {file} {limit}")
            # Where all share the limit, a workspace of half the size is worth dividing for.
            assert (expected if limit == "--workspace 100B" else "2x4 a") in shown
    assert "1 kernel takes 98.8 us, undivided 100.0 us" in shown
    assert "10 B" in shown
    assert "for all kernels" in shown.partition("\n")[0]
    assert "MiB" not in shown.partition("\n")[2]


def test_activations_and_workspaces_under_one_limit() -> None:
    found = printed_json(f"{ALEXNET} --memory-limit 85MiB --json")
    assert found["arena_bytes"] <= found["memory_limit_bytes"] == 85 << 20
    assert found["proved"]
    assert found["time_us"] < found["undivided_us"]
    assert list(Draft202012Validator(schema("microbatch")).iter_errors(found)) == []
    assert "The arena with activations has" in printed(f"{ALEXNET} --memory-limit 85MiB")


def test_the_interval_is_that_of_the_kernels_and_measured_times_have_none(tmp_path: Path) -> None:
    """A kernel alone has the interval of its operator; many of a kind, whose errors cancel in part, a narrower one."""
    found = printed_json(f"{ALEXNET} --workspace 64MiB --json")
    low_us, high_us = found["interval_us"]
    assert 0.5 * found["time_us"] < low_us < found["time_us"] < high_us < 2 * found["time_us"]
    assert f"Expected on hardware: {low_us / 1e3:.2f}-{high_us / 1e3:.2f} ms (90% interval)" in printed(
        f"{ALEXNET} --workspace 64MiB"
    )
    measured = printed_json(f"{ALEXNET.replace('p100-sxm2', 'v100-sxm2')} --workspace 64MiB --json")
    assert measured["interval_us"][1] / measured["interval_us"][0] < high_us / low_us
    assert (measured["remarks"], len(found["remarks"])) == ([], 1)
    alone = load("ios_sample", batch=8)
    errors = ScheduleErrors(alone, device("v100-sxm2"))
    kernels = list(convolution_kernels(alone).values())
    steps = [(kernel.step(), 10.0, count) for kernel, count in zip(kernels, (1, 2, 1), strict=False)]
    one, several = errors.interval_of_steps(steps[:1]), errors.interval_of_steps(steps)
    band = measured_over_predicted("conv", Precision.FP32, 10.0, device("v100-sxm2"))
    assert one.low_us == pytest.approx(10 * band.low, rel=0.02)
    assert one.high_us == pytest.approx(10 * band.high, rel=0.02)
    assert several.high_us / several.low_us < one.high_us / one.low_us
    assert printed_json(f"microbatch --table {table(tmp_path)} --json")["interval_us"] is None
    assert "Expected" not in printed(f"microbatch --table {table(tmp_path)}")


def test_the_more_workspace_the_faster() -> None:
    times = [printed_json(f"{ALEXNET} --workspace {size} --json")["time_us"] for size in ("0B", "8MiB", "64MiB")]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


LEFT_OUT = ("--device p100", "--dtype fp16", "--pass training", "--engine graph", "--memory-limit 1MiB")
NO_TIME = {"batch": 8, "algorithm": "fft", "workspace_bytes": 1}


@pytest.mark.parametrize(
    ("options", "content", "reason"),
    [
        ("--workspace 64", TABLE, "--workspace '64' is not a size; say 64MiB"),
        ("--policy halves", TABLE, "--policy 'halves' is not known"),
        ("--batch 6 --policy undivided", TABLE, "layer 'conv2': no micro-batches with rows add up to a batch of 6"),
        ("--batch 12", TABLE, "layer 'conv3': no micro-batches"),
        ("alexnet", TABLE, "a model or a table, not both"),
        *((option, TABLE, f"leave {option.split()[0]} out, or give a MODEL") for option in LEFT_OUT),
        ("", {}, "there is no kernel in it"),
        ("", {"conv2": []}, "kernel 'conv2' has no rows"),
        ("", {"conv2": [NO_TIME]}, "conv2.0.time_us"),
        ("--workspace 0B", {"conv2": [NO_TIME | {"time_us": 1.0}]}, "needs at least 1 bytes"),
        ("", [1], "should be an object"),
    ],
)
def test_mistakes_with_a_table(tmp_path: Path, options: str, content: Any, reason: str) -> None:
    assert reason in refused(f"microbatch --table {table(tmp_path, content)} {options}")


X, W = TensorType((4, 3, 5, 5), DType.FLOAT32), TensorType((6, 3, 3, 3), DType.FLOAT32)
KERNEL = ConvKernel(Conv((1, 1), (1, 1, 1, 1)), (X, W))


def plans_of(convolution: Convolution) -> dict[EnginePlan, float]:
    """Two plans, the faster one with a workspace that grows with the batch; and one that refuses."""
    images = convolution.x.shape[0]
    return {
        EnginePlan("gemm", 0): 30.0 * images,
        EnginePlan("fft", 1024 * images): 10.0 * images + 1,
        EnginePlan("refused", 0): 1.0,
    }


def measuring(path: Path) -> tuple[MeasuredCostModel, HostLibrary]:
    driver = HostDriver()
    library = HostLibrary(driver, plans_of)
    backend = CupyCudnnBackend(Precision.FP32, Engine.GRAPH, CudnnOptions(), driver, library)
    return MeasuredCostModel(backend, MeasurementStore(path)), library


def test_every_plan_is_a_row_and_is_measured_once(tmp_path: Path) -> None:
    model, _ = measuring(tmp_path / "store.sqlite")
    rows = [row for batch in (1, 2, 4) for row in measured_rows(KERNEL.of_batch(batch), model)]
    named = {(row.batch, row.algorithm): row for row in rows}
    assert set(named) == {(batch, f"fused:{name}") for batch in (1, 2, 4) for name in ("gemm", "fft")}
    for batch in (1, 2, 4):
        assert named[batch, "fused:fft"].workspace_bytes == 1024 * batch
        assert named[batch, "fused:gemm"].workspace_bytes == 0
        assert named[batch, "fused:gemm"].time_us > named[batch, "fused:fft"].time_us
    assert "4x1 fused:fft" in map(str, front(rows, 4))
    again, library = measuring(tmp_path / "store.sqlite")
    assert [row for batch in (1, 2, 4) for row in measured_rows(KERNEL.of_batch(batch), again)] == rows
    assert not library.asked


def test_gradients_are_not_measured(tmp_path: Path) -> None:
    model, _ = measuring(tmp_path / "store.sqlite")
    op = ConvBackwardFilter((1, 1), (1, 1, 1, 1), (1, 1), 1, kernel_size=(3, 3))
    kernel = ConvKernel(op, (X, TensorType((4, 6, 5, 5), DType.FLOAT32)))
    with pytest.raises(OptionError, match="algorithms of gradients are not measured"):
        measured_rows(kernel.of_batch(4), model)


MIB = 1 << 20
P100 = SimulatorCostModel(device("p100-sxm2"), Precision.FP32)
CONV2 = Conv((1, 1), (2, 2, 2, 2))
IMAGES, WEIGHT, Y = TensorType((256, 48, 27, 27)), TensorType((128, 48, 5, 5)), TensorType((256, 128, 27, 27))
FORWARD = ConvKernel(CONV2, (IMAGES, WEIGHT))
DATA = ConvKernel(ConvBackwardData(CONV2.strides, CONV2.pads, input_size=(27, 27)), (Y, WEIGHT))
FILTER = ConvKernel(ConvBackwardFilter(CONV2.strides, CONV2.pads, kernel_size=(5, 5)), (IMAGES, Y, WEIGHT))


def test_the_whole_batch_gets_no_fast_algorithm_within_the_limit_and_a_part_of_it_does() -> None:
    rows = [row for batch in (32, 48, 256) for row in simulated_rows(FORWARD.of_batch(batch), P100)]

    def fastest(batch: int, limit: int) -> BenchmarkRow:
        fitting = (row for row in rows if row.batch == batch and row.workspace_bytes <= limit)
        return min(fitting, key=lambda row: row.time_us)

    assert fastest(256, 64 * MIB).algorithm == "implicit_precomp_gemm"
    assert fastest(48, 64 * MIB).algorithm == "winograd_nonfused"
    assert {row.algorithm for row in rows if row.batch == 32 and row.workspace_bytes <= 50 * MIB} >= {"fft_tiling"}
    divided_us = 2 * fastest(32, 64 * MIB).time_us + 4 * fastest(48, 64 * MIB).time_us
    assert 2 < fastest(256, 64 * MIB).time_us / divided_us < 4  # 2.33 is published
    assert fastest(256, 512 * MIB).time_us < divided_us


@pytest.mark.parametrize("kernel", [FORWARD, DATA, FILTER], ids=lambda kernel: kernel.op.kind)
def test_rows_of_an_algorithm_do_not_beat_each_other(kernel: ConvKernel) -> None:
    rows = [row for batch in (1, 8) for row in simulated_rows(kernel.of_batch(batch), P100)]
    for one in rows:
        same = [row for row in rows if (row.batch, row.algorithm) == (one.batch, one.algorithm) and row is not one]
        assert all((row.time_us < one.time_us) != (row.workspace_bytes < one.workspace_bytes) for row in same)
    assert all(any(row.workspace_bytes <= 64 << 10 for row in rows if row.batch == batch) for batch in (1, 8))


def test_the_fastest_row_is_what_the_simulator_would_run() -> None:
    for kernel in (DATA, FILTER):
        given = kernel.of_batch(16)
        prices = P100.price_candidates(step_candidates(given.step(), P100.profile))
        assert min(row.time_us for row in simulated_rows(kernel.of_batch(16), P100)) == prices.min()


def test_parts_keep_the_weights_and_the_sum() -> None:
    assert DATA.of_batch(32).inputs == (TensorType((32, 128, 27, 27)), WEIGHT)
    assert FILTER.of_batch(32).inputs == (TensorType((32, 48, 27, 27)), TensorType((32, 128, 27, 27)), WEIGHT)


def test_candidates_are_priced_as_units_are() -> None:
    candidates = step_candidates(FORWARD.of_batch(4).step(), P100.profile)
    fastest_one, prices = P100.units.whole.fastest(candidates)
    assert P100.price_candidates(candidates).min() == pytest.approx(sum(price.alone_us for price in prices))
    absent = Candidate("absent", fastest_one.kernels, libraries=frozenset())
    assert P100.price_candidates([absent, fastest_one])[0] == float("inf")
    assert len(P100.price_candidates([])) == 0


def test_a_device_without_cudnn_has_its_own_algorithms() -> None:
    rows = simulated_rows(FORWARD.of_batch(8), SimulatorCostModel(cpu(), Precision.FP32))
    assert {row.algorithm for row in rows} == {"nchw", "nchwc"}
