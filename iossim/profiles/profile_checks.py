"""Checks that a profile belongs to the network compared with it: its batch, shapes, precision, device and speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from iossim.base.errors import OptionError
from iossim.hardware.load import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.measurement import device_of_product
from iossim.measurements.operator import Operator
from iossim.measurements.plausibility import fastest_arithmetic_us, fastest_transfer_us, possible_precision
from iossim.measurements.profilers.layer_times import LayerTimes, TimedLayer
from iossim.profiles.profile_match import layer_class

#: Element types of products, as ONNX Runtime and PyTorch name them.
_PRECISIONS = {
    "float": Precision.FP32,
    "float16": Precision.FP16,
    "c10::half": Precision.FP16,
    "bfloat16": Precision.BF16,
    "c10::bfloat16": Precision.BF16,
}


def recorded_batch(network: Network, times: LayerTimes) -> int | None:
    """Batch at which most layers with a shape ran, if it differs from the network's."""
    agree, batches, _ = _votes(network, times)
    batch, count = max(batches.items(), key=lambda item: item[1], default=(0, 0))
    return batch if count > agree else None


def check_recorded(network: Network, times: LayerTimes) -> None:
    """Raise OptionError where the layers of a profile ran at another batch, other shapes or another precision."""
    if batch := recorded_batch(network, times):
        raise OptionError(f"recorded at batch {batch}, and not at {network.source.batch}; give `batch` {batch}")
    agree, _, others = _votes(network, times)
    if times.names_nodes and sum(others.values()) > agree:
        (name, shape), _ = others.most_common(1)[0]
        raise OptionError(
            f"recorded at other shapes: {name!r} ran at {'x'.join(map(str, shape))}, which nothing in {network.name} "
            "has; give those of the recording with `shape`, `dim` or `batch`"
        )
    took_us: Counter[Precision] = Counter()
    for layer in _stating(times):
        if layer.dtype.lower() in _PRECISIONS and layer_class(layer) == "product":
            took_us[_PRECISIONS[layer.dtype.lower()]] += layer.duration_us  # type: ignore[assignment]
    own = Precision.FP32 if network.precision is Precision.TF32 else network.precision
    if took_us and own is not Precision.INT8 and 2 * took_us[own] < took_us.total():
        ran = took_us.most_common(1)[0][0]
        raise OptionError(f"its products ran in {ran}, and not in {network.precision}; give `dtype` {ran}")


def _stating(times: LayerTimes) -> Sequence[TimedLayer]:
    return times.operators or times.layers


def _votes(network: Network, times: LayerTimes) -> tuple[int, Counter[int], Counter[tuple[str, tuple[int, ...]]]]:
    """Number of layers with a shape of the network, those with one at another batch, by batch, and the others."""
    graph = network.graph
    own = {kind.shape for name, kind in graph.types.items() if name not in graph.constants}
    leading: dict[tuple[int, ...], int] = {}
    for shape in sorted(own):
        if len(shape) > 1:
            leading.setdefault(shape[1:], shape[0])
    agree, batches, others = 0, Counter[int](), Counter[tuple[str, tuple[int, ...]]]()
    for layer in _stating(times):
        shape = layer.shape
        if shape in own:
            agree += 1
        elif shape and shape[1:] in leading:
            batch, rest = divmod(network.source.batch * shape[0], leading[shape[1:]])
            batches[batch] += not rest
        elif len(shape) > 1 and layer_class(layer) == "product":
            others[layer.name, shape] += 1
    return agree, batches, others


def recorded_device(times: LayerTimes) -> str | None:
    """Device named by a profile, if iossim has a profile of it."""
    name = device_of_product(times.product) if times.product else ""
    return name if name in device_names() else None


def other_device(times: LayerTimes, device: DeviceProfile) -> str:
    """Device of a profile if it is not this one: its name, ``a CPU`` or ``a GPU``; empty if unknown."""
    name = device_of_product(times.product) if times.product else ""
    if times.on_cpu is not None and times.on_cpu != (device.kind == "cpu"):
        return name or ("a CPU" if times.on_cpu else "a GPU")
    return name if name != device.name.partition("+")[0] else ""


@dataclass(frozen=True, slots=True)
class TooFast:
    """A unit that took less time than its arithmetic at the device's peak, or its bytes at the memory bandwidth.

    ``try_precision`` is the first in which that time is possible.
    """

    unit: str
    by_arithmetic: bool
    measured_us: float
    least_us: float
    try_precision: Precision | None = None


def too_fast(
    unit: str, operators: Sequence[Operator], measured_us: float, resolution_us: float, device: DeviceProfile
) -> TooFast | None:
    """Finding that a unit of these operators was measured faster than the device permits; None if it was not.

    With several operators, or on a CPU, bytes are not counted: one operator's output may be in a cache for the next.
    """
    longest_us = measured_us + resolution_us
    least_us = sum(fastest_arithmetic_us(operator, device) for operator in operators)
    if longest_us < least_us:
        precision = possible_precision(operators, longest_us, device)
        return TooFast(unit, True, measured_us, least_us, precision)
    from_memory = len(operators) == 1 and device.kind == "gpu"
    moved_us = fastest_transfer_us(operators[0], device) if from_memory else 0.0
    return TooFast(unit, False, measured_us, moved_us) if longest_us < moved_us else None


def too_fast_words(several: Sequence[TooFast], network: Network, device: DeviceProfile) -> str:
    """Sentence that names the units that are too fast, and a remedy; empty without any."""
    if not several:
        return ""
    first = max(several, key=lambda one: (one.by_arithmetic, one.least_us / one.measured_us))
    more = f" and {len(several) - 1} more units are" if len(several) > 1 else " is"
    of = f"{network.precision}'s peak" if first.by_arithmetic else "the memory"
    least = f"{first.measured_us:,.1f} us, where {first.least_us:,.1f} are the least"
    told = f"{first.unit}{more} faster than {of} of {device.name} ({least})"
    remedy = f"try `dtype` {first.try_precision}" if first.try_precision else "was it this device, model and batch?"
    return f"{told}; {remedy}"
