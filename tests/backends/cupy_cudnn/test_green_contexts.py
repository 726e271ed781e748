"""Stages on parts of a device: streams of green contexts, of a driver that the test plays, and on the host's device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from host_device import HostDriver
from host_library import HostLibrary
from random_networks import random_network, random_schedule

from iossim.backends.cupy_cudnn.backend import ENGINES, CupyCudnnBackend
from iossim.backends.cupy_cudnn.driver_api import DevResource, GreenContexts
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.cupy_cudnn.prepared_plan import divisions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import BackendError, Timing
from iossim.execution.engine import Engine
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import plan_for
from iossim.execution.plan import Copy, Launch
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.types import Precision


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
        backend = CupyCudnnBackend(Precision.FP32, Engine.PARTITION, CudnnOptions(), driver, HostLibrary(driver))
        plan = plan_for(random_schedule(network, seed, merge=True), network, backend)
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        found = largest_difference(backend.execute(network, plan, inputs), evaluate_graph(network.graph, inputs))
        assert found.relative <= tolerance(network), found
        wanted = {one.sms for one in plan.commands if isinstance(one, Launch | Copy) and one.sms is not None}
        used = [driver._streams[call.stream].sms for call in driver.calls if call.verb in ("launch", "convolution")]
        assert wanted == {sms for sms in used if sms is not None}
        divided += len(wanted)
        (samples,) = backend.measure(network, [plan], Timing(rounds=2, warm_up=0))
        assert len(samples.times_us) == 2
    assert divided > 12


def test_the_engine_is_one_of_the_backend() -> None:
    assert Engine.PARTITION in ENGINES
    assert Engine.ONNXRUNTIME not in ENGINES
