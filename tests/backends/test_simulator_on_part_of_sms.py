"""Kernels on a part of a device's SMs: fewer SMs for their blocks, and the DRAM bandwidth that those can draw."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.backends.simulator.device_rates import bandwidth_part, device_rates
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.base.errors import OptionError
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Kernel, WorkClass

V100 = device("v100-sxm2")

#: Achieved GB/s of two streaming kernels by the SMs in use, and the reach of an SM that fits them; the part that it may be off.
CURVES = {
    "RTX A6000": (84, 4.95, {4: 78.7, 8: 157.1, 12: 236.7, 16: 324.0, 24: 335.1, 40: 340.7, 84: 337.2}, 0.16),
    "RTX 5090": (170, 2.32, {8: 135.7, 16: 262.0, 32: 487.3, 64: 865.1, 85: 1067.4, 128: 1148.3, 170: 1181.6}, 0.09),
}
COPY = Kernel("copy", WorkClass.STREAM, 8_000, 256, 32, 0, 0, 10**9, 0, 10**9, 2 * 10**9)
PRODUCT = Kernel("gemm", WorkClass.GEMM, 8_000, 256, 96, 16_640, 10**12, 10**7, 10**7, 10**7, 10**8, tile="128x128")


def test_all_sms_have_the_rates_of_the_device() -> None:
    assert device_rates(V100, sms=80) is device_rates(V100)
    assert KernelModel(V100, sms=80).price(COPY) == KernelModel(V100).price(COPY)


@pytest.mark.parametrize("name", CURVES)
def test_bandwidth_against_the_sms_in_use(name: str) -> None:
    sms, reach, curve, most = CURVES[name]
    whole = curve[sms]
    errors = [abs(bandwidth_part(used / sms, reach) * whole / measured - 1) for used, measured in curve.items()]
    assert max(errors) < most


def test_half_of_the_sms_draw_more_than_half_of_the_bandwidth_and_compute_half() -> None:
    half, whole = KernelModel(V100, sms=40), KernelModel(V100)
    copied = half.price(COPY).alone_us / whole.price(COPY).alone_us
    assert 1.05 < copied < 1.5
    assert half.price(PRODUCT).alone_us / whole.price(PRODUCT).alone_us == pytest.approx(2.0, rel=0.02)


def test_fewer_sms_never_make_a_copy_faster() -> None:
    times = [KernelModel(V100, sms=sms).price(COPY).alone_us for sms in range(2, 81, 2)]
    assert (np.diff(times) <= 0).all()


@pytest.mark.parametrize("sms", [0, 81])
def test_a_part_is_of_the_sms_that_there_are(sms: int) -> None:
    with pytest.raises(OptionError, match=f"{sms} SMs of 'v100-sxm2': it has 80; give 1 to 80"):
        KernelModel(V100, sms=sms)
