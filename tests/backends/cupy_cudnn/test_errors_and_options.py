"""What the backend says where it cannot run, and of options and plans that it does not take: one line each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from host_device import HostDriver
from host_library import HostLibrary
from random_networks import random_inputs, random_network, sequential_schedule
from small_networks import OPS, of_op

from iossim.backends.cupy_cudnn import backend as module
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend, fallbacks
from iossim.backends.cupy_cudnn.options import CudnnOptions, parsed_options
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import GraphError, IossimError, OptionError, PlanError, ScheduleError
from iossim.execution.backend import BackendError
from iossim.execution.backends import backend_names, create_backend, missing_for
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.plan import Launch, Plan, Queue
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.unary import Cast
from iossim.ir.types import Precision


def host_backend(precision: Precision = Precision.FP32) -> CupyCudnnBackend:
    driver = HostDriver()
    versions = (("cudnn", "9.19.1"), ("cudnn-frontend", "1.28.0"))
    return CupyCudnnBackend(precision, Engine.GRAPH, CudnnOptions(), driver, HostLibrary(driver), versions)


def plan_of(network: Network) -> Plan:
    return lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True)


def test_the_backend_is_found_by_name_without_being_able_to_run() -> None:
    assert "cupy_cudnn" in backend_names()


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
        ({"_devices": lambda: 0}, "no NVIDIA GPU with a driver is visible"),
        ({"_devices": _unloadable}, "CuPy cannot be imported (libcuda.so.1: cannot open shared object file);"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_the_remedy(
    found: dict[str, Callable[..., object]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"find_spec": {"cupy": 1, "cudnn": 1}.get, "_devices": lambda: 1, "_compiler_missing": lambda: ""}
    for name, function in (usual | found).items():
        monkeypatch.setattr(module, name, function)
    said = missing_for("cupy_cudnn")
    assert said.startswith(says)
    assert "\n" not in said
    with pytest.raises(BackendError, match="backend cupy_cudnn cannot run here: "):
        create_backend("cupy_cudnn")


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
    with pytest.raises(OptionError, match="backend option layout is 'last'; give nchw or nhwc"):
        parsed_options(Precision.BF16, {"layout": "last"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tf23": "true"}, "'tf23' is not known; did you mean 'tf32'"),
        ({"tf32": "maybe"}, "tf32 is 'maybe'; give true or false"),
        ({"workspace_limit_bytes": "-1"}, "is '-1'; give a number of bytes"),
        ({"plans": "0"}, "plans is '0'; give how many plans are timed, at least 1"),
        ({"choice": "a.json"}, "'choice' is not known; did you mean 'choices'"),
    ],
)
def test_options_are_checked(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parsed_options(Precision.FP32, options)


def test_sums_are_of_fp16_only_where_products_are() -> None:
    given = parsed_options(Precision.FP16, {"sums": "fp16"})
    assert dict(given.pairs)["sums"] == "fp16"
    assert "sums" not in dict(parsed_options(Precision.FP16, {"sums": "fp32"}).pairs)
    for precision, sums in ((Precision.BF16, "fp16"), (Precision.FP16, "bf16")):
        with pytest.raises(OptionError, match=f"sums is '{sums}' in {precision}; give fp32, or fp16 where `dtype` is"):
            parsed_options(precision, {"sums": sums})


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
    context = host_backend().context
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
        (lambda: of_op(LayerNorm(), (2, 3), weights=((1,),)), "layer_norm takes a scale and a shift of the shape"),
        (lambda: of_op(RmsNorm(), (2, 3), weights=((1,),)), "rms_norm takes a scale of the shape of a row"),
        (lambda: of_op(Reduce("product", (1,)), (2, 3)), "no kernel reduces to product, only sum, mean, max"),
        (lambda: of_op(Cast("fp8_e5m2"), (2, 3)), "no kernel computes cast of fp8_e5m2"),
        (_sine_of_doubles, "no kernel computes sin of fp64"),
    ],
)
def test_an_op_that_no_kernel_covers_is_named_with_its_unit(build: Callable[[], Network], says: str) -> None:
    network = build()
    (found,) = fallbacks(network)
    assert (found.op, found.unit, found.reason.startswith(says)) == ("op", "op", True), found
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    made, expected = host_backend().execute(network, plan_of(network), inputs), evaluate_graph(network.graph, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)


def test_other_element_types_are_refused() -> None:
    from iossim.ir.builder import GraphBuilder
    from iossim.ir.ops.unary import Relu

    b = GraphBuilder("half", Precision.FP16)
    network = b.network([b.add(Relu(), b.input("x", (2, 3)), name="op")])
    with pytest.raises(BackendError, match="is stored in fp16, and this backend was made for fp32; give `dtype` fp16"):
        host_backend().execute(network, plan_of(network), {"x": np.zeros((2, 3), np.float16)})


def test_a_plan_of_another_graph_or_of_several_devices_is_refused() -> None:
    network, other = random_network(1), random_network(2)
    with pytest.raises(ScheduleError, match="the plan is for another graph"):
        host_backend().execute(other, plan_of(network), random_inputs(other))
    plan = plan_of(network)
    moved = replace(
        plan,
        commands=tuple(
            replace(command, queue=Queue(1, 0)) if isinstance(command, Launch) else command for command in plan.commands
        ),
    )
    with pytest.raises(PlanError, match="of devices 0 and 1"):
        host_backend().execute(network, moved, random_inputs(network))


def test_inputs_are_checked() -> None:
    network = OPS["clip"]()
    backend, plan = host_backend(), plan_of(network)
    with pytest.raises(GraphError, match="no array for input 'x0'"):
        backend.execute(network, plan, {})
    with pytest.raises(GraphError, match=r"input 'x0' is float64\[2x6x9x7\]; give an array of fp32"):
        backend.execute(network, plan, {"x0": np.zeros((2, 6, 9, 7))})


def test_all_of_these_are_errors_of_iossim() -> None:
    assert issubclass(BackendError, IossimError)
    assert issubclass(OptionError, IossimError)
