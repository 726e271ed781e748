"""Devices made of another one, with other facts, costs or parameters.

- *Overridden*, for example with twice the SMs: all else stays. Its name lists the replacements
  (``v100-sxm2+sm_count=160``), and suffices to make it again.
- *Derived*, a device that is not available: the datasheet facts that differ are given, and parameters transferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from iossim.base.errors import DeviceError, did_you_mean
from iossim.base.values import validated
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.kind import GPU
from iossim.hardware.names import check_name, device_names
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.profile import Datasheet, DeviceProfile, Fact
from iossim.ir.types import Precision

#: A fact of a file, its ``value`` and ``source``; and all facts by name.
_Fact = dict[str, Any]
_Sheet = dict[str, _Fact]


def _facts(of_type: type) -> tuple[str, ...]:
    """The datasheet facts whose values have this type."""
    found = ((name, field.annotation) for name, field in Datasheet.model_fields.items())
    return tuple(name for name, annotation in found if annotation in (of_type, of_type | None))


_MIB = 1 << 20
_GIB = 1 << 30
_SOURCE = "what-if"

#: Short names of facts, and the factor to a fact's own unit.
_SHORT_NAMES: dict[str, tuple[str, float]] = {
    "sms": ("sm_count", 1),
    "cores": ("sm_count", 1),
    "lanes": ("fp32_lanes_per_sm", 1),
    "clock_ghz": ("boost_clock_ghz", 1),
    "dram_gbps": ("dram_bandwidth_gbps", 1),
    "dram_gib": ("dram_bytes", _GIB),
    "l2_mib": ("l2_bytes", _MIB),
    "power_w": ("board_power_w", 1),
}
#: Facts that only check the bandwidth.
_BUS = ("dram_bus_bits", "dram_pin_gbps")
_WHOLE = _facts(Fact[int])
_NUMBERS = tuple(name for name in (*_WHOLE, *_facts(Fact[float])) if name not in ("fp32_tflops", *_BUS))
#: ``fp16_tflops`` and so on: peaks of the reduced precisions.
_RATES = {f"{precision}_tflops": str(precision) for precision in Precision if precision is not Precision.FP32}


def overridable_names() -> list[str]:
    """All names that :func:`overridden` takes."""
    return [*_NUMBERS, *_SHORT_NAMES, *_RATES, *ModelParameters.model_fields, *EngineOverheads.model_fields]


def overridden(profile: DeviceProfile, changes: Mapping[str, float]) -> DeviceProfile:
    """The profile with ``changes``: values by the name of a datasheet fact, a parameter or an engine overhead.

    Facts also have short names: ``sms``, ``lanes``, ``clock_ghz``, ``dram_gbps``, ``dram_gib``, ``l2_mib``,
    ``power_w``, and ``fp16_tflops`` and so on for the reduced precisions. Dependent facts change too, unless they are
    given: the fp32 peak by SMs x lanes x clock, and peaks of reduced precisions by SMs x clock. All else stays,
    including calibrated parameters and intervals.

    The name lists every change (:func:`changes_of` parses it), so that no data of the original is used for the
    changed device. Without changes the profile itself is returned. Raises DeviceError.
    """
    if not changes:
        return profile
    values = _by_full_name(profile, changes)
    data = profile.model_dump()
    sheet = _overridden_sheet(data["datasheet"], values)
    groups = ("parameters", "engine")
    whole = {group: data[group] | {name: values[name] for name in values if name in data[group]} for group in groups}
    provenance = data["provenance"]
    provenance["spread"] = {name: value for name, value in provenance["spread"].items() if name not in values}
    for told in ("unidentified", "at_bounds"):
        provenance[told] = [name for name in provenance[told] if name not in values]
    told = ", ".join(f"{name}={_exact(value)}" for name, value in values.items())
    made = {
        "name": f"{profile.name}+{told.replace(', ', ',')}",
        "title": f"{profile.title}, with {told}",
        "sources": {**profile.sources, _SOURCE: f"replaced, or following from what it replaced: {told}"},
        "datasheet": sheet,
        **whole,
        "provenance": provenance,
    }
    return validated(DeviceProfile, made, f"{profile.name} with {told} cannot be", "change the value", DeviceError)


def changes_of(name: str) -> tuple[str, dict[str, float]]:
    """The device and the changes in ``BASE+NAME=VALUE,NAME=VALUE``; raises DeviceError."""
    base, _, told = name.partition("+")
    changes: dict[str, float] = {}
    for change in told.split(","):
        key, _, text = (part.strip() for part in change.partition("="))
        try:
            value = float(text)
        except ValueError:
            raise DeviceError(
                f"device {name!r}: {change!r} is not NAME=NUMBER; give changes as in {base}+sms=160,dram_gbps=450"
            ) from None
        if key in changes:
            raise DeviceError(f"device {name!r}: {key!r} is given twice; give it once")
        if not isfinite(value):
            raise DeviceError(f"device {name!r}: {text} is no value that {key!r} can have; give a number")
        changes[key] = value
    return base, changes


def _by_full_name(profile: DeviceProfile, changes: Mapping[str, float]) -> dict[str, float]:
    """The changes by their full names and in their facts' units."""
    values: dict[str, float] = {}
    called: dict[str, str] = {}
    for short, given in changes.items():
        if short == "fp32_tflops":
            raise DeviceError(
                "fp32_tflops follows from other facts; set sm_count, fp32_lanes_per_sm or boost_clock_ghz"
            )
        name, factor = _SHORT_NAMES.get(short, (short, 1))
        if name not in overridable_names():
            raise DeviceError(f"{short!r} is nothing that a device has; {did_you_mean(short, overridable_names())}")
        if name in values:
            raise DeviceError(f"{called[name]!r} and {short!r} are the same; give one of them")
        value = given * factor
        if name in _WHOLE:
            if factor == 1 and value != round(value):
                raise DeviceError(f"{short!r} is {given:g}; give a whole number")
            value = round(value)
        if (name in _NUMBERS or name in _RATES) and value <= 0:
            raise DeviceError(f"{short!r} is {given:g}; give more than 0")
        if name in Datasheet.model_fields and getattr(profile.datasheet, name) is None:
            raise DeviceError(f"{short!r} is no fact of {profile.name}; leave it out")
        values[name], called[name] = value, short
    return values


def _overridden_sheet(sheet: _Sheet, values: Mapping[str, float]) -> dict[str, _Fact | None]:
    """The datasheet with the changes and their consequences."""
    changed: dict[str, Any] = {name: value for name, value in values.items() if name in _NUMBERS}

    def now(name: str) -> float:
        return float(changed[name] if name in changed else sheet[name]["value"])

    def ratio(*names: str) -> float:
        return float(prod(now(name) / sheet[name]["value"] for name in names))

    faster = ratio("sm_count", "fp32_lanes_per_sm", "boost_clock_ghz")
    if faster != 1:
        changed["fp32_tflops"] = sheet["fp32_tflops"]["value"] * faster
    rates = {name: values[key] for key, name in _RATES.items() if key in values}
    reduced = sheet["reduced_precision_tflops"]["value"] if sheet["reduced_precision_tflops"] else {}
    units = ratio("sm_count", "boost_clock_ghz")
    if rates or (reduced and units != 1):
        changed["reduced_precision_tflops"] = {**{name: value * units for name, value in reduced.items()}, **rates}
    halves = rates["fp16"] / reduced["fp16"] if "fp16" in rates.keys() & reduced.keys() else units
    if sheet["fp16_accumulation_tflops"] and halves != 1:
        changed["fp16_accumulation_tflops"] = sheet["fp16_accumulation_tflops"]["value"] * halves
    # The assignment of other SMs to clusters is unknown, and the bus of another bandwidth.
    dropped = {"sms_per_gpc": None} if "sm_count" in changed else {}
    dropped |= dict.fromkeys(_BUS) if "dram_bandwidth_gbps" in changed else {}
    return {**sheet, **dropped, **{name: {"value": value, "source": _SOURCE} for name, value in changed.items()}}


def _exact(value: float) -> str:
    """A number as text, different for different numbers."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


GIVEN = "command-line"


@dataclass(frozen=True, slots=True)
class _Range:
    """Allowed range of a fact, its unit, and the factors by which commonly confused units differ."""

    low: float
    high: float
    unit: str
    mistakes: Mapping[str, float]


#: The facts that a device may be derived by, beside its compute capability.
_RANGES = {
    "sm_count": _Range(1, 1024, "SMs", {}),
    "fp32_lanes_per_sm": _Range(8, 512, "lanes", {}),
    "boost_clock_ghz": _Range(0.2, 5.0, "GHz", {"MHz": 1e-3}),
    "dram_bandwidth_gbps": _Range(5.0, 50_000.0, "GB/s", {"TB/s": 1e3}),
    "dram_gib": _Range(0.25, 4096.0, "GiB", {"MiB": 1 / 1024, "bytes": 1 / _GIB}),
    "l2_mib": _Range(0.05, 2048.0, "MiB", {"KiB": 1 / 1024, "bytes": 1 / _MIB}),
    "board_power_w": _Range(1.0, 5000.0, "W", {"kW": 1e3}),
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
        if key != "compute_capability":
            _check(key, float(value))
        elif value not in LIMITS:
            raise DeviceError(f"`compute_capability` {value}: unknown; known: {', '.join(LIMITS)}")
    if float(lanes := given.get("fp32_lanes_per_sm", 0)) % 8:
        raise DeviceError(f"`fp32_lanes_per_sm` {lanes}: SMs have a multiple of 8 fp32 lanes; give that of one SM")
    sheet = _datasheet(like, given)
    _check_peak(sheet)
    sources = {
        GIVEN: "given on the command line",
        "like": f"as {like.name}",
        "computed": "computed from the other facts",
    }
    used = {fact["source"] for fact in sheet.values()}
    data = {
        "name": name,
        "title": f"{name}, derived from {like.name}",
        "sources": {key: text for key, text in sources.items() if key in used},
        "datasheet": sheet,
    }
    return validated(DeviceProfile, data, f"device {name}", "correct the option", DeviceError)


def _datasheet(like: DeviceProfile, given: Mapping[str, Any]) -> _Sheet:
    """The facts with their sources."""
    own = like.datasheet
    sheet: _Sheet = {}
    for option in ("compute_capability", *_RANGES):
        name, factor = _SHORT_NAMES.get(option, (option, 1))
        if option in given:
            value = given[option] if factor == 1 else round(given[option] * factor)
            sheet[name] = {"value": value, "source": GIVEN}
        else:
            sheet[name] = {"value": getattr(own, name).value, "source": "like"}
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


def _check_peak(sheet: _Sheet) -> None:
    """Raise DeviceError for facts that are plausible alone, but not together."""
    tflops, watts = sheet["fp32_tflops"]["value"], sheet["board_power_w"]["value"]
    ratio = 1e3 * tflops / watts
    if not _LEAST_GFLOPS_PER_WATT <= ratio <= _MOST_GFLOPS_PER_WATT:
        raise DeviceError(
            f"`sm_count`, `boost_clock_ghz`, `fp32_lanes_per_sm` and `board_power_w` give {tflops:g} fp32 TFLOP/s at "
            f"{watts:g} W, which no device has; check them, and give `board_power_w`"
        )
