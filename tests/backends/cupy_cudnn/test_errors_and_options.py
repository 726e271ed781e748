"""Errors of the backend where it cannot run, its options, parts of a device; and its tests are found with little more than pytest."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from host_backend import HostBackend
from host_device import HostDriver
from random_networks import random_network, random_schedule, sequential_schedule
from small_networks import of_op

from iossim.backends.cupy_cudnn import backend as module
from iossim.backends.cupy_cudnn import driver as driving
from iossim.backends.cupy_cudnn.backend import fallbacks
from iossim.backends.cupy_cudnn.driver_api import DevResource, GreenContexts
from iossim.backends.cupy_cudnn.options import CudnnOptions, parsed_options
from iossim.backends.cupy_cudnn.prepared_plan import divisions
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Timing, create_backend, missing_for
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import plan_for
from iossim.execution.plan import Copy, Launch, Plan
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import Precision


def plan_of(network: Network) -> Plan:
    return lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True)


def test_importing_it_imports_neither_cupy_nor_cudnn() -> None:
    code = (
        "import sys, iossim.backends.cupy_cudnn.backend;"
        "assert not {'cupy', 'cudnn', 'pynvml'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _unloadable() -> int:
    raise ImportError("libcuda.so.1: cannot open shared object file\nand more")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"find_spec": {"cudnn": 1}.get}, "CuPy is not installed; pip install 'iossim[gpu]' (CUDA 13) or 'iossim[gpu-cuda12]'"),
        ({"find_spec": {"cupy": 1}.get}, "nvidia-cudnn-frontend is not installed; pip install 'iossim[gpu]'"),
        ({"_compiler_missing": lambda: "no libnvrtc"}, "CUDA's run-time compiler cannot be loaded (no libnvrtc); pip install nv"),
        ({"device_count": lambda: 0}, "no NVIDIA GPU with a driver is visible"),
        ({"device_count": _unloadable}, "CuPy cannot be imported (libcuda.so.1: cannot open shared object file);"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_the_remedy(
    found: dict[str, Callable[..., object]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"find_spec": {"cupy": 1, "cudnn": 1}.get, "device_count": lambda: 1, "_compiler_missing": lambda: ""}
    for name, function in (usual | found).items():
        monkeypatch.setattr(module, name, function)
    said = missing_for("cupy_cudnn")
    assert said.startswith(says)
    assert "\n" not in said
    with pytest.raises(BackendError, match="backend cupy_cudnn cannot run here: "):
        create_backend("cupy_cudnn")


@pytest.mark.parametrize(
    ("status", "driver", "says"), [(100, 13000, ""), (35, 0, ""), (35, 12080, r"of CUDA 12\.8\) .*old and slow\); see")]
)
def test_a_driver_that_is_too_old_is_no_missing_one(
    status: int, driver: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = type("CUDARuntimeError", (RuntimeError,), {"status": status})

    def count() -> int:
        raise error("old and slow")

    runtime = {"CUDARuntimeError": error, "getDeviceCount": count, "driverGetVersion": lambda: driver}
    cuda = SimpleNamespace(runtime=SimpleNamespace(**runtime))
    monkeypatch.setattr(driving, "_imported", lambda: SimpleNamespace(__version__="14.2.0", cuda=cuda))
    with pytest.raises(BackendError, match=says) if says else nullcontext():
        assert driving.device_count() == 0


def test_a_precision_that_needs_scales_is_refused() -> None:
    with pytest.raises(
        OptionError, match="computes in fp32, tf32, fp16, bf16, not in int8, for which networks have no scales"
    ):
        create_backend("cupy_cudnn", Precision.INT8)


def test_images_lie_as_the_precision_has_them_or_as_it_is_said() -> None:
    for precision, given, layout in (
        (Precision.FP32, {}, "nchw"),
        (Precision.TF32, {}, "nchw"),
        (Precision.BF16, {}, "auto"),
        (Precision.FP16, {"layout": "nchw"}, "nchw"),
        (Precision.FP32, {"layout": "nhwc"}, "nhwc"),
    ):
        assert parsed_options(precision, given).layout_for(precision) == layout


@pytest.mark.parametrize(
    ("precision", "options", "says"),
    [
        (Precision.FP32, {"tf23": "true"}, "'tf23' is not known; did you mean 'tf32'"),
        (Precision.FP32, {"tf32": "maybe"}, "tf32 is 'maybe'; give true or false"),
        (Precision.FP32, {"workspace_limit_bytes": "-1"}, "is '-1'; give a number of bytes"),
        (Precision.FP32, {"plans": "0"}, "plans is '0'; give how many plans are timed, at least 1"),
        (Precision.FP32, {"choice": "a.json"}, "'choice' is not known; did you mean 'choices'"),
        (Precision.BF16, {"layout": "last"}, "backend option layout is 'last'; give nchw or nhwc"),
        (Precision.BF16, {"sums": "fp16"}, "sums is 'fp16' in bf16; give fp32, or fp16 where `dtype` is"),
        (Precision.FP16, {"sums": "bf16"}, "sums is 'bf16' in fp16; give fp32, or fp16 where `dtype` is"),
    ],
)
def test_options_are_checked(precision: Precision, options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parsed_options(precision, options)


def test_sums_are_of_fp16_only_where_products_are() -> None:
    given = parsed_options(Precision.FP16, {"sums": "fp16"})
    assert dict(given.pairs)["sums"] == "fp16"
    assert "sums" not in dict(parsed_options(Precision.FP16, {"sums": "fp32"}).pairs)


def test_options_are_part_of_what_measurements_are_kept_under() -> None:
    assert parsed_options(Precision.TF32, {}).tf32
    assert not parsed_options(Precision.FP32, {}).tf32
    given = parsed_options(
        Precision.FP32,
        {"tf32": "on", "nondeterministic": "yes", "workspace_limit_bytes": "7", "clocks": "1530", "plans": "2"}
        | {"choices": "off"},
    )
    assert given == CudnnOptions(True, True, 7, "1530", 2)
    assert dict(given.pairs) == {
        "tf32": "true", "nondeterministic": "true", "workspace_limit_bytes": "7", "clocks": "1530",
        "plans": "2", "runtime_compiled": "false",
    }  # fmt: skip
    assert sorted(given.pairs) == list(given.pairs)


def test_the_context_names_device_driver_and_libraries() -> None:
    context = HostBackend(versions=(("cudnn", "9.19.1"), ("cudnn-frontend", "1.28.0"))).context
    assert (context.backend, context.device, context.driver) == ("cupy_cudnn", "h100-sxm", "580.1")
    assert [name for name, _ in context.libraries] == ["cuda", "cudnn", "cudnn-frontend", "cupy"]
    assert (context.precision, context.engine, context.layout) == ("fp32", "graph", "nchw")


def _sine_of_doubles() -> Network:
    b = GraphBuilder("doubles")
    return b.network([b.add(Cast("fp32"), b.add(Unary("sin"), b.add(Cast("fp64"), b.input("x", (2, 3))), name="op"))])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: of_op(MatMul(), (4,), (4, 5)), "no kernel multiplies vectors"),
        (lambda: of_op(Reduce("product", (1,)), (2, 3)), "no kernel reduces to product, only sum, mean, max"),
        (lambda: of_op(Cast("fp8_e8m0"), (2, 3)), "no kernel computes cast of fp8_e8m0"),
        (_sine_of_doubles, "no kernel computes sin of fp64"),
    ],
)
def test_an_op_that_no_kernel_covers_is_named_with_its_unit(build: Callable[[], Network], says: str) -> None:
    network = build()
    (found,) = fallbacks(network)
    assert (found.op, found.unit, found.reason.startswith(says)) == ("op", "op", True), found
    HostBackend().agree(network)


def test_other_element_types_are_refused() -> None:
    b = GraphBuilder("half", Precision.FP16)
    network = b.network([b.add(Relu(), b.input("x", (2, 3)), name="op")])
    with pytest.raises(BackendError, match="is stored in fp16, and this backend was made for fp32; give `dtype` fp16"):
        HostBackend().execute(network, plan_of(network), {"x": np.zeros((2, 3), np.float16)})


class PlayedDriver:
    """A driver of ``sms`` SMs, which rounds up to ``step``; ``made`` has the SMs of each context, in their order."""

    def __init__(self, sms: int = 132, step: int = 8, error: int = 0) -> None:
        self.sms, self.step, self.error = sms, step, error
        self.made: list[int] = []
        self.streams: list[int] = []

    def cuDeviceGetDevResource(self, device: int, found: object, kind: int) -> int:  # noqa: N802
        found._obj.sm_count, found._obj.type = self.sms, kind  # type: ignore[attr-defined]
        return self.error

    def cuDevSmResourceSplitByCount(  # noqa: N802
        self, own: object, groups: object, whole: object, left: object, flags: int, count: int
    ) -> int:
        assert count > 0, "a part of no SMs"
        given = -(-count // self.step) * self.step
        own._obj.sm_count = given  # type: ignore[attr-defined]
        left._obj.sm_count = whole._obj.sm_count - given  # type: ignore[attr-defined]
        return 0

    def cuDevResourceGenerateDesc(self, described: object, resource: object, count: int) -> int:  # noqa: N802
        described._obj.value = resource._obj.sm_count  # type: ignore[attr-defined]
        return 0

    def cuGreenCtxCreate(self, context: object, described: ctypes.c_void_p, device: int, flags: int) -> int:  # noqa: N802
        self.made.append(int(described.value or 0))
        context._obj.value = len(self.made)  # type: ignore[attr-defined]
        return 0

    def cuGreenCtxStreamCreate(  # noqa: N802
        self, stream: object, context: ctypes.c_void_p, flags: int, priority: int
    ) -> int:
        self.streams.append(int(context.value or 0))
        stream._obj.value = 1000 + len(self.streams)  # type: ignore[attr-defined]
        return 0


def test_parts_are_split_off_one_after_another_and_kept() -> None:
    driver = PlayedDriver()
    contexts = GreenContexts(driver)
    division = (range(8), range(16, 40), range(40, 132))
    assert [contexts.stream(division, part) for part in (0, 2, 1, 2)] == [1001, 1002, 1003, 1004]
    assert driver.made == [8, 24, 92]  # once; what no part has is split off, and the last takes what is left
    assert driver.streams == [1, 3, 2, 3]
    assert ctypes.sizeof(DevResource) == 144  # as the driver's header has it
    assert DevResource.sm_count.offset == 96


@pytest.mark.parametrize(
    ("library", "division", "reason"),
    [
        (SimpleNamespace(), (range(8),), "this driver has no cuDeviceGetDevResource; install one of CUDA 12.5"),
        (PlayedDriver(sms=80), (range(8), range(8, 132)), "divides 132 SMs and this GPU has 80"),
        (PlayedDriver(), (range(4), range(4, 132)), "gives a green context 8 SMs where the plan has 4"),
        (PlayedDriver(error=801), (range(8),), r"divides no SMs \(cuDeviceGetDevResource says error 801\)"),
    ],
)
def test_what_a_driver_does_not_divide_is_refused(library: object, division: tuple[range, ...], reason: str) -> None:
    with pytest.raises(BackendError, match=reason):
        GreenContexts(library).stream(division, 0)


def test_launches_belong_to_one_division_while_their_sms_are_disjoint() -> None:
    left, right, other = range(8), range(8, 132), range(16, 132)
    assert divisions([left, right, left, None, left, other, right]) == {
        0: ((left, right), 0),
        1: ((left, right), 1),
        2: ((left, right), 0),
        4: ((left, other), 0),
        5: ((left, other), 1),
        6: ((right,), 0),
    }


def test_divided_stages_compute_what_the_graph_does() -> None:
    divided = 0
    for seed in range(12):
        network = random_network(seed, movers=seed % 2 == 0)
        driver = HostDriver(seed)
        backend = HostBackend(engine=Engine.PARTITION, driver=driver)
        plan = plan_for(random_schedule(network, seed, merge=True), network, backend)
        backend.agree(network, plan)  # chooses algorithms, too
        driver.calls.clear()
        backend.agree(network, plan)
        wanted = {one.sms for one in plan.commands if isinstance(one, Launch | Copy) and one.sms is not None}
        issued = [call for call in driver.calls if call.verb in ("launch", "convolution")]
        assert not issued[0].captured, "a plan runs once before its capture"
        used = [driver.streams[call.stream].sms for call in issued]
        assert wanted == {sms for sms in used if sms is not None}
        divided += len(wanted)
        (samples,) = backend.measure(network, [plan], Timing(rounds=2, warm_up=0))
        assert len(samples.times_us) == 2
    assert divided > 12


HERE = Path(__file__).parent


def test_tests_of_a_gpu_need_no_hypothesis(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text('raise ImportError("No module named hypothesis")')
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--collect-only", "-p", "no:cacheprovider", str(HERE)]
    environment = {**os.environ, "PYTHONPATH": places, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test_on_gpu.py::") > 50
    assert "error" not in done.stdout.lower()
