"""Which cuDNN is used, of libraries made with the host's compiler; and what the driver that runs on a GPU asks a double of CuPy for."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_cupy import HostCupy
from host_device import HostDriver, HostStream
from host_library import HostLibrary
from random_networks import random_inputs, random_network, random_schedule

from iossim.backends.cupy_cudnn import capture, cudnn_library, driver
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError, DeviceLostError, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import plan_for
from iossim.ir.types import Precision

ROOT = Path(__file__).resolve().parents[3]
#: In a process of its own, since what is loaded stays; says what was found, or the error.
SCRIPT = """
import ctypes, json, sys, sysconfig
from iossim.backends.cupy_cudnn import cudnn_library
from iossim.base.errors import IossimError
sysconfig.get_path = lambda name: "/nowhere"  # what is installed beside the tests does not count
sys.path[:0] = json.loads(sys.argv[1])
for path in json.loads(sys.argv[2]):
    ctypes.CDLL(path)
cudnn_library.make_findable()
try:
    print(cudnn_library.the_only())
except IossimError as error:
    print("error:", error)
"""


def made(folder: Path, version: int) -> Path:
    """A library that says that it is cuDNN of this version, where a wheel would have it."""
    compiler = shutil.which("gcc")
    if compiler is None or not Path("/proc/self/maps").exists():
        pytest.skip("no C compiler, or no /proc")
    place = folder / "nvidia" / "cudnn" / "lib"
    place.mkdir(parents=True)
    for parent in (place.parent, place.parents[1]):
        (parent / "__init__.py").touch()  # before any other package of the name
    source = place / "cudnn.c"
    source.write_text(f"unsigned long cudnnGetVersion(void) {{ return {version}; }}")
    library = place / "libcudnn.so.9"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcudnn.so.9", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def said(paths: list[Path], loaded: list[Path]) -> str:
    arguments = [json.dumps([str(path) for path in given]) for given in (paths, loaded)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("found", "loaded", "expected"),
    [
        # One on ``PYTHONPATH``, as of an environment that lies on top of another, is made findable.
        ({"wheels": 92800}, {}, "9.28.0 of {wheels}"),
        # One that is loaded already is used, and two of one version get along.
        ({"wheels": 92800}, {"torch": 92101}, "9.21.1 of {torch}"),
        ({}, {"one": 92800, "two": 92800}, "9.28.0 of {one}"),
        # The parts of cuDNN find each other by name, so that even the last digit matters.
        ({}, {"one": 92800, "two": 92801}, "error: two versions of cuDNN are loaded in this process, 9.28.0 of {one}"),
    ],
)
def test_which_cudnn_is_used(found: dict[str, int], loaded: dict[str, int], expected: str, tmp_path: Path) -> None:
    files = {name: made(tmp_path / name, version) for name, version in (found | loaded).items()}
    answer = said([tmp_path / name for name in found], [files[name] for name in loaded])
    assert answer.startswith(expected.format(**files))
    assert "\n" not in answer
    assert all(str(files[name]) in answer for name in loaded) or not expected.startswith("error")


def test_cublas_of_a_package_is_loaded_before_cudnn_asks_for_it(tmp_path: Path) -> None:
    """Where the loader does not find it, cuDNN ends the process."""
    made(tmp_path / "wheels", 92800)
    place = tmp_path / "wheels" / "nvidia" / "cublas" / "lib"
    place.mkdir(parents=True)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcublasLt.so.12", "-x", "c", "/dev/null"]
    subprocess.run([*command, "-o", str(place / "libcublasLt.so.12")], check=True)
    script = f"{SCRIPT}\nctypes.CDLL('libcublasLt.so.12')\nprint('found by its name')"
    arguments = [json.dumps([str(tmp_path / "wheels")]), "[]"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["found by its name"], done.stderr


@pytest.fixture
def _untried() -> Iterator[None]:
    cudnn_library.begins_here.cache_clear()
    yield
    cudnn_library.begins_here.cache_clear()


@pytest.mark.usefixtures("_untried")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os, sys\nprint('no libcublasLt', file=sys.stderr, flush=True)\nos.abort()", "ends the process with SIGABRT: no libcublasLt"),
        ("raise RuntimeError('CUDNN_STATUS_NOT_INITIALIZED')", "CUDNN_STATUS_NOT_INITIALIZED"),
        ("def create_handle(): pass", ""),
    ],
)  # fmt: skip
def test_a_cudnn_that_ends_the_process_is_told_in_one_line(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cudnn.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = cudnn_library.begins_here()
    assert reason in said
    assert bool(said) is bool(reason)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("library", "good", "bad"),
    [
        ("cupy", ("13.6.0", "14.2.0"), ("13.5.1",)),
        ("nvidia-cudnn", ("9.10.0", "9.28.1"), ("9.9.0",)),
        ("nvidia-cudnn-frontend", ("1.24.1", "1.28.0"), ("1.23.0", "1.29.0", "2.0")),
    ],
)
def test_versions_that_the_backend_is_not_written_for_are_refused(
    library: str, good: Sequence[str], bad: Sequence[str]
) -> None:
    for version in good:
        cudnn_library.check_version(library, version)
    for version in bad:
        with pytest.raises(BackendError, match=rf"{library} {version} is installed, and >=.* is needed; install that$"):
            cudnn_library.check_version(library, version)


def test_versions_are_those_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu-cuda12"]
    asked = {re.sub(r"-(cuda12x|cu12)$", "", line.partition(">")[0]): line.partition(";")[0] for line in extra}
    for library, (least, before) in cudnn_library.VERSIONS.items():
        assert asked[library].endswith(f">={least}{f',<{before}' if before else ''}")


MakeDriver = Callable[..., driver.Driver]


class Library(HostLibrary):
    """The host's library behind CuPy's streams."""

    def handle(self, stream: Any) -> HostStream:
        return self._driver.streams[stream.ptr]


@pytest.fixture
def make_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MakeDriver:
    """Makes the driver on a double of CuPy."""

    def make(device: HostDriver, **options: Any) -> driver.Driver:
        cupy = HostCupy(device, **options)
        monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
        if "CUPY_CACHE_DIR" not in os.environ:
            monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(driver, "driver_library", lambda: cupy)
        return driver.Driver()

    return make


@pytest.mark.parametrize("fails", [False, True])
def test_kernels_that_start_early_are_launched_by_the_driver_itself(
    fails: bool, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CuPy's own arguments, and in captures alone; a driver that refuses is a remark, and nothing more."""
    network = random_network(3, movers=True)
    device = HostDriver(3, overlaps=True)
    backend, inputs = backend_on(make_driver, device, Engine.GRAPH), random_inputs(network)
    issued: list[int] = []
    own = HostCupy.cuLaunchKernelEx

    def launch(self: HostCupy, *arguments: Any) -> int:
        assert self.device.is_capturing
        issued.append(own(self, *arguments))
        return 801 if fails else 0

    told: list[str] = []
    monkeypatch.setattr(HostCupy, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(capture, "warn_once", told.append)
    plan = lower_schedule(random_schedule(network, 3), network, Engine.GRAPH, in_place=True)
    outputs = backend.execute(network, plan, inputs)
    assert (len(issued) == 1) == fails
    assert told == ["the driver captures no kernels that start while others end (801)"] * fails
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def backend_on(make_driver: MakeDriver, device: HostDriver, engine: Engine) -> CupyCudnnBackend:
    driver: Any = make_driver(device)
    return CupyCudnnBackend(Precision.FP32, engine, CudnnOptions(), driver, Library(device))


@pytest.mark.parametrize("engine", UNDIVIDED)
@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_right_whatever_order_host_copies_and_streams_take(
    seed: int, engine: Engine, make_driver: MakeDriver
) -> None:
    """Without a synchronise behind a host copy, streams would read memory before weights are there."""
    network = random_network(seed, movers=True)
    backend, inputs = backend_on(make_driver, HostDriver(seed), engine), random_inputs(network)
    plan = lower_schedule(random_schedule(network, seed), network, engine, in_place=True)
    outputs = backend.execute(network, plan, inputs)
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_parts_of_the_device_are_streams_of_the_driver_by_their_numbers(make_driver: MakeDriver) -> None:
    """CuPy has not made them, and its class for such streams warns at each."""
    network, device = random_network(4), HostDriver(4)
    backend, inputs = backend_on(make_driver, device, Engine.PARTITION), random_inputs(network)
    parts = [device.stream().ptr for _ in range(9)]
    left = iter(parts)
    backend.driver._green = SimpleNamespace(stream=lambda *part: next(left))  # type: ignore[assignment]
    outputs = backend.execute(network, plan_for(random_schedule(network, 4, merge=True), network, backend), inputs)
    assert {call.stream for call in device.calls if call.captured} >= {*parts} - {*left} > set()
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_plans_are_measured_through_it(make_driver: MakeDriver) -> None:
    network = random_network(2)
    backend = backend_on(make_driver, HostDriver(), Engine.GRAPH)
    plan = lower_schedule(random_schedule(network, 2), network, Engine.GRAPH, in_place=True)
    (samples,) = backend.measure(network, [plan], Timing(rounds=3, warm_up=1))
    assert len(samples.times_us) == 3
    assert backend.context.device == "h100-sxm"


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_lands_behind_what_was_issued_and_before_what_comes(seed: int, make_driver: MakeDriver) -> None:
    device = HostDriver(seed)
    driver = make_driver(device)
    memory, stream = driver.allocate(4), driver.stream()
    number = device.bytes(memory.address, 4).view(np.float32)
    seen: list[float] = []
    device.enqueue(device.streams[stream.ptr], lambda: number.fill(7.0), 1.0)  # still to run
    driver.write(memory.address, np.float32([2.5]))
    device.enqueue(device.streams[stream.ptr], lambda: seen.append(float(number[0])), 1.0)
    device.enqueue(device.streams[stream.ptr], lambda: number.fill(8.0), 1.0)
    found = np.zeros(1, np.float32)
    driver.read(memory.address, found)
    assert seen == [2.5]
    assert found.tolist() == [8.0]


def test_memory_that_is_not_there_is_told_in_one_line(make_driver: MakeDriver) -> None:
    driver = make_driver(HostDriver(free_bytes=64), memory_bytes=100)
    with pytest.raises(BackendError, match="the GPU has no 101 bytes of memory left, only 64; take a smaller batch"):
        driver.allocate(101)


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_a_broken_device_is_told_as_itself(engine: Engine, make_driver: MakeDriver) -> None:
    network = random_network(1)
    device = HostDriver()
    backend = backend_on(make_driver, device, engine)
    plan = lower_schedule(random_schedule(network, 1), network, engine, in_place=True)
    device.fail("cudaErrorLaunchFailure: unspecified launch failure")
    for call in (
        lambda: backend.execute(network, plan, random_inputs(network)),
        lambda: backend.measure(network, [plan], Timing(rounds=1)),
    ):
        with pytest.raises(DeviceLostError, match="the GPU failed: cudaErrorLaunchFailure: unspecified"):
            call()


def test_kernels_stay_in_memory_where_there_is_no_folder_for_them(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    make_driver(HostDriver())
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "0"
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    make_driver(HostDriver())
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
