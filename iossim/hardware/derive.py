"""Profile of a device that is not available: another device's, with the datasheet facts that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from iossim.base.errors import DeviceError
from iossim.base.values import first_problem
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.kind import GPU
from iossim.hardware.names import check_name, device_names
from iossim.hardware.profile import DeviceProfile

GIVEN = "command-line"
_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class _Range:
    """Allowed range of a fact, its unit, and the factors by which commonly confused units differ."""

    low: float
    high: float
    unit: str
    mistakes: Mapping[str, float]


_RANGES = {
    "sm_count": _Range(1, 1024, "SMs", {}),
    "boost_clock_ghz": _Range(0.2, 5.0, "GHz", {"MHz": 1e-3}),
    "dram_bandwidth_gbps": _Range(5.0, 50_000.0, "GB/s", {"TB/s": 1e3}),
    "l2_mib": _Range(0.05, 2048.0, "MiB", {"KiB": 1 / 1024, "bytes": 1 / _MIB}),
    "board_power_w": _Range(1.0, 5000.0, "W", {"kW": 1e3}),
    "fp32_lanes_per_sm": _Range(8, 512, "lanes", {}),
    "dram_gib": _Range(0.25, 4096.0, "GiB", {"MiB": 1 / 1024, "bytes": 1 / _GIB}),
}


def derive(name: str, like: DeviceProfile, facts: Mapping[str, float | int | str | None]) -> DeviceProfile:
    """A profile ``name`` with ``facts``, the omitted ones from ``like``, and transferred parameters.

    ``facts``: ``sm_count``, ``boost_clock_ghz``, ``dram_bandwidth_gbps``, ``l2_mib``, ``board_power_w``,
    ``fp32_lanes_per_sm``, ``dram_gib``, ``compute_capability``, or None. Raises DeviceError for an invalid one.
    """
    if like.kind != GPU:
        raise DeviceError(
            f"{like.name} is a {like.device_kind.noun}; give a GPU with `like`, from: {', '.join(device_names())}"
        )
    check_name(name)
    if name in device_names():
        raise DeviceError(f"device name {name!r} is that of a device that ships; choose another name")
    given = {key: value for key, value in facts.items() if value is not None}
    for key, value in given.items():
        if key == "compute_capability":
            if value not in LIMITS:
                raise DeviceError(f"`compute_capability` {value}: unknown; known: {', '.join(LIMITS)}")
        else:
            _check(key, float(value))
    if "fp32_lanes_per_sm" in given and float(given["fp32_lanes_per_sm"]) % 8:
        raise DeviceError(
            f"`fp32_lanes_per_sm` {given['fp32_lanes_per_sm']}: SMs have a multiple of 8 fp32 lanes; give that of "
            "one SM"
        )
    sheet = _datasheet(like, given)
    _check_peak(sheet)
    sources = {
        GIVEN: "given on the command line",
        "like": f"as {like.name}",
        "computed": "computed from the other facts",
    }
    used = {fact["source"] for fact in sheet.values()}
    try:
        return DeviceProfile.model_validate(
            {
                "name": name,
                "title": f"{name}, derived from {like.name}",
                "sources": {key: text for key, text in sources.items() if key in used},
                "datasheet": sheet,
            }
        )
    except ValidationError as error:
        raise DeviceError(f"device {name}: {first_problem(error)}; correct the option") from None


def _datasheet(like: DeviceProfile, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts with their sources."""
    own = like.datasheet
    sheet: dict[str, dict[str, Any]] = {}

    def put(name: str, option: str, scale: float | None = None) -> None:
        if option in given:
            value = given[option] if scale is None else round(given[option] * scale)
            sheet[name] = {"value": value, "source": GIVEN}
        else:
            sheet[name] = {"value": getattr(own, name).value, "source": "like"}

    for name in ("compute_capability", "sm_count", "fp32_lanes_per_sm", "boost_clock_ghz", "dram_bandwidth_gbps"):
        put(name, name)
    put("dram_bytes", "dram_gib", _GIB)
    put("l2_bytes", "l2_mib", _MIB)
    put("board_power_w", "board_power_w")
    lanes = sheet["sm_count"]["value"] * sheet["fp32_lanes_per_sm"]["value"]
    tflops = lanes * 2 * sheet["boost_clock_ghz"]["value"] / 1e3
    sheet["fp32_tflops"] = {"value": round(tflops, 2), "source": "computed"}
    reduced = own.reduced_precision_tflops
    if reduced is not None and sheet["compute_capability"]["value"] == like.compute_capability:
        # The SMs are the same: their reduced-precision units scale with their number and clock.
        units = sheet["sm_count"]["value"] * sheet["boost_clock_ghz"]["value"]
        ratio = units / (like.sm_count * like.boost_clock_ghz)
        scaled = {precision: round(value * ratio, 1) for precision, value in reduced.value.items()}
        sheet["reduced_precision_tflops"] = {"value": scaled, "source": "computed"}
        if own.fp16_accumulation_tflops is not None:
            tflops = round(own.fp16_accumulation_tflops.value * ratio, 1)
            sheet["fp16_accumulation_tflops"] = {"value": tflops, "source": "computed"}
    return sheet


def _check(name: str, value: float) -> None:
    expected = _RANGES[name]
    if expected.low <= value <= expected.high:
        return
    hint = f"give {expected.low:g} to {expected.high:g} {expected.unit}"
    for unit, factor in expected.mistakes.items():
        if expected.low <= value * factor <= expected.high:
            hint = f"is it in {unit}? then give `{name}` {value * factor:.4g}"
            break
    raise DeviceError(f"`{name}` {value:g}: no device has {value:g} {expected.unit}; {hint}")


#: Peak arithmetic over board power in GFLOP/s per W, of existing devices, with room: Kepler's 25 to Blackwell's 200.
_LEAST_GFLOPS_PER_WATT = 2.0
_MOST_GFLOPS_PER_WATT = 1000.0


def _check_peak(sheet: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DeviceError for facts that are plausible alone, but not together."""
    tflops, watts = sheet["fp32_tflops"]["value"], sheet["board_power_w"]["value"]
    ratio = 1e3 * tflops / watts
    if not _LEAST_GFLOPS_PER_WATT <= ratio <= _MOST_GFLOPS_PER_WATT:
        raise DeviceError(
            f"`sm_count`, `boost_clock_ghz`, `fp32_lanes_per_sm` and `board_power_w` give {tflops:g} fp32 TFLOP/s at "
            f"{watts:g} W, which no device has; check them, and give `board_power_w`"
        )
