"""Plausibility of a profile's facts: each within the range of its generation, and consistent with the others.

Messages name the error: a wrong unit, a rate with sparsity, a clock of another board. Only facts that are off by a
factor of a hundred make a profile unusable, as a device may be invented on purpose.

The figures are NVIDIA's (``compute_capabilities.yaml``); the ranges are those of the boards of a generation, including
embedded ones, with a margin of a fifth on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iossim.hardware.compute_capability import CAPABILITIES
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision

#: Placeholder in a template.
TO_FILL_IN = "FILL_IN"
_MIB = 1 << 20
_GIB = 1 << 30
_ROOM = 1.2
#: A wrong unit is off by a thousand, bytes by more; what-if questions (ten times the SMs) by less.
_BEYOND = 100.0
#: Tolerance of a printed peak relative to the computed one: it is rounded, and clocks are too.
_PEAK_TOLERANCE = 0.02
_BANDWIDTH_TOLERANCE = 0.03
#: The same for tensor rates, which are printed for a separate clock, possibly lower.
_RATE_TOLERANCE = 0.06


def implausible(profile: DeviceProfile) -> list[str]:
    """Implausible facts of a profile: messages that name the fact, the expected value and a likely cause."""
    return [
        *_unfilled(profile),
        *_peak(profile),
        *_bandwidth(profile),
        *(_of_generation(profile) if profile.compute_capability in CAPABILITIES else []),
    ]


def impossible(profile: DeviceProfile) -> list[str]:
    """Facts that are impossible even for an invented device: off by a factor of a hundred, as by a wrong unit."""
    return list(_out_of_range(profile, _BEYOND))


def _unfilled(profile: DeviceProfile) -> Iterator[str]:
    """Placeholders of a template in text fields, which are valid to the reader."""
    for name, text in {
        "title": profile.title,
        **{f"sources.{key}": text for key, text in profile.sources.items()},
    }.items():
        if TO_FILL_IN in text:
            yield f"{name} is still {text!r}: write what it is"


def _peak(profile: DeviceProfile) -> Iterator[str]:
    lanes, clock = profile.datasheet.fp32_lanes_per_sm.value, profile.boost_clock_ghz
    slips = {
        2.0: "is it that of another precision, or counts it a multiply-add twice?",
        0.5: "does it count a multiply-add once?",
        1e3: "is it in GFLOP/s?",
        1e-3: "is the clock in MHz?",
        1.0: f"check {profile.device_kind.multiprocessors}, lanes and clock",
    }
    product = f"{profile.sm_count} SMs x {lanes} lanes x {clock:g} GHz x 2"
    printed = profile.datasheet.fp32_tflops.value
    yield from _off("fp32_tflops", printed, product, profile.fp32_tflops, _PEAK_TOLERANCE, slips)


def _bandwidth(profile: DeviceProfile) -> Iterator[str]:
    bits, pin_gbps = profile.datasheet.dram_bus_bits, profile.datasheet.dram_pin_gbps
    if bits is None or pin_gbps is None:
        if lone := [name for name in ("dram_bus_bits", "dram_pin_gbps") if getattr(profile.datasheet, name)]:
            yield f"{lone[0]} says nothing without the other of dram_bus_bits and dram_pin_gbps: give both, or none"
        return
    slips = {
        2.0: "does dram_pin_gbps leave out the double data rate?",
        8.0: "is it in Gbit/s?",
        1e-3: "is it in TB/s?",
        1.0: "check the three",
    }
    product, computed = f"{bits.value} bits x {pin_gbps.value:g} Gbit/s / 8", bits.value * pin_gbps.value / 8
    yield from _off("dram_bandwidth_gbps", profile.dram_bandwidth_gbps, product, computed, _BANDWIDTH_TOLERANCE, slips)


def _off(
    name: str, printed: float, product: str, computed: float, tolerance: float, slips: Mapping[float, str]
) -> Iterator[str]:
    """A message if a fact is not what others make, with the question about a known mistake by such a factor; with that
    of the factor 1 if it is none of them.
    """
    if abs(printed / computed - 1) > tolerance:
        asked = (slips[factor] for factor in slips if abs(printed / computed / factor - 1) <= tolerance)
        yield f"{name} is {printed:g}, but {product} make {computed:.4g}: {next(asked, slips[1.0])}"


def _of_generation(profile: DeviceProfile) -> Iterator[str]:
    sheet, capability = profile.datasheet, profile.compute_capability
    lanes = sheet.fp32_lanes_per_sm.value
    if lanes != (expected := CAPABILITIES[capability]["lanes"]):
        yield f"fp32_lanes_per_sm is {lanes}, an SM of compute capability {capability} has {expected}"
    yield from _out_of_range(profile, _ROOM)
    yield from _reduced_precision(profile, capability)


def _out_of_range(profile: DeviceProfile, room: float) -> Iterator[str]:
    """Facts outside the ranges of their generation, widened by a factor on both sides; with a unit in which the value
    would be plausible.
    """
    kind = profile.device_kind
    has = f"{profile.architecture.capitalize()} boards have" if len(kind.ranges) > 1 else f"{kind.noun}s have"
    for name, (low, high) in zip(_UNITS, kind.ranges[profile.architecture], strict=True):
        size, unit, mistakes = _UNITS[name]
        fact = getattr(profile.datasheet, name)
        if fact is not None and not low / room <= (value := fact.value / size) <= high * room:
            told = (f": was it given in {other}?" for other in mistakes if low <= value * mistakes[other] <= high)
            yield f"{name} is {value:.4g} {unit}, {has} {low:g} to {high:g}{next(told, '')}"


#: The facts of :class:`~iossim.hardware.kind.Ranges` in its order: the size of the unit in which it has them, the unit,
#: and the factors by which commonly confused units differ.
_UNITS: dict[str, tuple[int, str, dict[str, float]]] = {
    "sm_count": (1, "SMs", {}),
    "boost_clock_ghz": (1, "GHz", {"MHz": 1e-3}),
    "l2_bytes": (_MIB, "MiB", {"MiB": _MIB, "KiB": 1024}),
    "dram_bandwidth_gbps": (1, "GB/s", {"TB/s": 1e3, "Gbit/s": 1 / 8}),
    "dram_bytes": (_GIB, "GiB", {"GiB": _GIB, "MiB": _MIB}),
    "board_power_w": (1, "W", {"kW": 1e3, "mW": 1e-3}),
}


def _reduced_precision(profile: DeviceProfile, capability: str) -> Iterator[str]:
    for precision in Precision:
        tflops = profile.reduced_precision_tflops(precision)
        if tflops is None:
            continue
        name = f"reduced_precision_tflops {precision}"
        if tflops < profile.fp32_tflops * (1 - _PEAK_TOLERANCE):
            yield f"{name} is {tflops:g}, less than the fp32 peak: leave it out where it is computed as fp32"
            continue
        most = CAPABILITIES[capability].get("operations", {}).get(str(precision))
        if most is None:
            yield f"{name} is given, compute capability {capability} has no unit for it: leave it out"
            continue
        limit = most * profile.sm_count * profile.boost_clock_ghz / 1e3
        if tflops > limit * (1 + _RATE_TOLERANCE):
            sparse = (
                " (is it the rate with sparsity? then give half)" if tflops <= 2 * limit * (1 + _RATE_TOLERANCE) else ""
            )
            at_most = f"{limit:.4g} dense{sparse}"
            yield f"{name} is {tflops:g}, the tensor cores of {profile.sm_count} SMs do at most {at_most}"
