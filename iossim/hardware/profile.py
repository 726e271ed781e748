"""A device: datasheet facts with their sources, the simulator's parameters, and the engine's costs.

Devices of every kind have a name, facts with their sources, and a hierarchy of memories (:class:`Device`): units that
compute in parallel, a clock, memory private to each unit, on-chip memory shared by all units, and external memory with
a bandwidth. On a GPU and a processor caches move data (:class:`DeviceProfile`), and a schedule only says when ops run.
On an edge device the program does: a plan gives the bytes in each memory (:class:`~iossim.hardware.edge.EdgeDevice`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from iossim.base.errors import DeviceError, note_once
from iossim.base.values import Value, validated
from iossim.hardware.compute_capability import FP16_IN_FP32, TENSOR_CORES, MultiprocessorLimits, has_precision
from iossim.hardware.kind import DEVICE_KINDS, GPU, DeviceKind, device_kind
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.provenance import DEFAULT_PROVENANCE, Provenance
from iossim.ir.types import Precision

T = TypeVar("T")
D = TypeVar("D", bound="Device")


class Fact(Value, Generic[T]):
    """A datasheet fact; ``source`` is a key of the profile's ``sources``."""

    value: T
    source: str


class Device(Value):
    """Fields at the start of a profile, for any kind of device."""

    name: str = Field(min_length=1)
    kind: str
    title: str
    #: Short names accepted for it: those of the family whose most common board it is.
    aliases: list[str] = Field(default_factory=list)
    sources: dict[str, str]

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        for where, fact in self.facts().items():
            if fact.source not in self.sources:
                raise ValueError(f"{where}: source {fact.source!r} is not among the profile's sources")
        return self

    def facts(self) -> dict[str, Fact[Any]]:
        """All facts of the profile, by their path in it."""
        return dict(_facts(self, ""))


def _facts(value: Value, where: str) -> list[tuple[str, Fact[Any]]]:
    found: list[tuple[str, Fact[Any]]] = []
    for name in type(value).model_fields:
        inner, place = getattr(value, name), f"{where}{name}"
        parts = {f"{place}.{key}": part for key, part in inner.items()} if isinstance(inner, dict) else {place: inner}
        for key, part in parts.items():
            if isinstance(part, Fact):
                found.append((key, part))
            elif isinstance(part, Value):
                found += _facts(part, f"{key}.")
    return found


#: Allowed range of a fact, in its unit; beyond it prices overflow.
_SMALLEST, _LARGEST = 1e-9, 1e18
#: Multiply-adds of 8-bit integers per instruction (``__dp4a``), which an SM issues at the rate of fp32.
_DP4A = 4


class Datasheet(Value):
    """Facts printed by the vendor; for a CPU, those it reports itself and measurements.

    A CPU's cores are its SMs, the lanes of its vector units those of an SM, its last-level cache its L2. Facts that
    differ between kinds are optional here; :class:`~iossim.hardware.kind.DeviceKind` says which a kind needs.
    """

    #: Only for GPUs.
    compute_capability: Fact[str] | None = None
    sm_count: Fact[int]
    #: SMs of each graphics processing cluster (GPC), in the order of their numbers: blocks go to GPCs in turn, and a
    #: cluster of blocks lies within one.
    sms_per_gpc: Fact[list[int]] | None = None
    fp32_lanes_per_sm: Fact[int]
    boost_clock_ghz: Fact[float]
    dram_bandwidth_gbps: Fact[float]
    #: Memory comes in chips of whole GiB: a card sold as 40 GB has 40 GiB; drivers may report less.
    dram_bytes: Fact[int]
    #: The width of the memory bus, and the rate of each pin: their product checks the bandwidth.
    dram_bus_bits: Fact[int] | None = None
    dram_pin_gbps: Fact[float] | None = None
    l2_bytes: Fact[int]
    #: The largest private cache of a core; only for CPUs.
    core_cache_bytes: Fact[int] | None = None
    #: Only for GPUs; a CPU is not power-limited here.
    board_power_w: Fact[float] | None = None
    #: The printed fp32 peak, to check the other facts; the model computes its own.
    fp32_tflops: Fact[float]
    #: Dense peaks of matrix products at other precisions: tensor cores, packed-half or dot-product instructions.
    #: Other precisions run at the fp32 rate.
    reduced_precision_tflops: Fact[dict[str, float]] | None = None
    #: The peak of fp16 products that accumulate in fp16, if it differs: on GeForce boards it is twice as high.
    fp16_accumulation_tflops: Fact[float] | None = None

    @field_validator("*")
    @classmethod
    def _positive(cls, fact: Fact[Any] | None) -> Fact[Any] | None:
        if fact is None or isinstance(fact.value, str):
            return fact
        value = fact.value
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any(not _SMALLEST <= value <= _LARGEST for value in values):
            raise ValueError(f"a fact must be a positive number, from {_SMALLEST:g} to {_LARGEST:g}")
        return fact

    @model_validator(mode="after")
    def _clusters_have_all_sms(self) -> Self:
        clusters = self.sms_per_gpc.value if self.sms_per_gpc else []
        if clusters and sum(clusters) != self.sm_count.value:
            raise ValueError(f"sms_per_gpc are {sum(clusters)} SMs in all, and sm_count is {self.sm_count.value}")
        return self

    @field_validator("reduced_precision_tflops")
    @classmethod
    def _known_precisions(cls, fact: Fact[dict[str, float]] | None) -> Fact[dict[str, float]] | None:
        known = [str(precision) for precision in Precision if precision is not Precision.FP32]
        unknown = sorted(set(fact.value) - set(known)) if fact else []
        if unknown:
            raise ValueError(f"unknown precision {unknown[0]!r}; known: {', '.join(known)}")
        return fact


def _is_kind(name: object) -> bool:
    return isinstance(name, str) and DEVICE_KINDS.get(name) is not None


def _capability(data: dict[str, Any]) -> str:
    """The compute capability in a file's data; "" if it is missing or wrong."""
    try:
        return str(data["datasheet"]["compute_capability"]["value"])
    except (KeyError, TypeError):
        return ""


#: Parameters that distinguish nodes and events of a session from those of streams.
_OF_SESSIONS = frozenset({"session_gap_factor", "notification_us", "starved_notification_us"})


class DeviceProfile(Device):
    """A GPU or a processor, as seen by the lowering and the simulator."""

    #: One of :data:`~iossim.hardware.kind.DEVICE_KINDS`; GPU if the file has none.
    kind: str = GPU
    datasheet: Datasheet
    parameters: ModelParameters
    provenance: Provenance = DEFAULT_PROVENANCE
    engine: EngineOverheads = Field(default_factory=EngineOverheads)

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: object) -> object:
        """Fill in defaults for the parameters and engine costs that the file leaves out."""
        if not isinstance(data, dict):
            return data
        capability = _capability(data)
        filled = {"kind": GPU, **data}
        # Validation reports missing or wrong fields; until then any defaults will do.
        kind = device_kind(filled["kind"] if _is_kind(filled["kind"]) else GPU)
        known = capability if capability in kind.limits else next(iter(kind.limits))
        transferred: dict[str, Any] = {}
        if kind.borrows and "provenance" not in data:
            from iossim.hardware.transfer import transferred_to  # profiles that ship have their own

            transferred = transferred_to(data)
        for name, default in (
            ("parameters", kind.default_parameters(known)),
            ("engine", kind.engine_costs(known).values),
        ):
            given = data.get(name, {})
            if isinstance(given, dict):
                filled[name] = {**default.model_dump(), **transferred.get(name, {}), **given}
        if "provenance" in transferred:
            filled["provenance"] = transferred["provenance"]
        return filled

    @model_validator(mode="after")
    def _has_what_its_kind_has(self) -> Self:
        if not _is_kind(self.kind):
            raise ValueError(f"unknown kind {self.kind!r}; known: {', '.join(DEVICE_KINDS.names())}")
        kind = self.device_kind
        if self.datasheet.compute_capability is not None and self.compute_capability not in kind.limits:
            known = ", ".join(filter(None, kind.limits))
            raise ValueError(f"unknown compute capability {self.compute_capability!r} of a {kind.noun}; known: {known}")
        has = {name for name in Datasheet.model_fields if getattr(self.datasheet, name) is not None}
        if missing := sorted(kind.needs - has):
            raise ValueError(f"datasheet.{missing[0]} is missing: a {kind.noun} needs it")
        if surplus := sorted(kind.lacks & has):
            raise ValueError(f"datasheet.{surplus[0]} is no fact of a {kind.noun}")
        return self

    @model_serializer(mode="wrap")
    def _without_kind_of_gpus(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """The fields to be written: a profile without a kind is a GPU's."""
        return {name: value for name, value in handler(self).items() if (name, value) != ("kind", GPU)}

    @model_validator(mode="after")
    def _of_this_world(self) -> Self:
        for name in ("parameters", "engine"):
            for key, value in getattr(self, name):
                if isinstance(value, float | int) and value > _LARGEST:
                    raise ValueError(f"{name}.{key} is {value:g}; it must be at most {_LARGEST:g}")
        return self

    def __repr__(self) -> str:
        return (
            f"<DeviceProfile {self.name}: {self.architecture}, {self.sm_count} SMs, {self.boost_clock_ghz:g} GHz, "
            f"{self.dram_bandwidth_gbps:g} GB/s, parameters {self.provenance.kind}>"
        )

    __str__ = __repr__

    @property
    def fingerprint(self) -> str:
        """Hash of everything that prices depend on: a price with another fingerprint is another device's."""
        unpriced = {"dram_bus_bits", "dram_pin_gbps"}
        unpriced |= set() if self.datasheet.sms_per_gpc else {"sms_per_gpc"}
        unknown = set(_OF_SESSIONS) if self._is_no_session_known() else set[str]()
        # Part by part: pydantic turns an interrupt within the profile's own serializer into an error.
        sheet, engine = self.datasheet.model_dump_json(exclude=unpriced), self.engine.model_dump_json(exclude=unknown)
        priced = f'{{"datasheet":{sheet},"parameters":{self.parameters.model_dump_json()},"engine":{engine}}}'
        return hashlib.sha256(priced.encode()).hexdigest()[:12]

    def _is_no_session_known(self) -> bool:
        """True if sessions equal streams: such a profile keeps the fingerprint from before they were distinguished."""
        defaults = EngineOverheads.model_fields
        return all(getattr(self.engine, name) == defaults[name].default for name in _OF_SESSIONS)

    def require(self, precision: Precision) -> None:
        """Raise DeviceError, listing the supported ones, if a GPU has no instructions for this precision.

        Notices say if libraries compute fp16 data in fp32, or a rate is not known. Processors have every precision.
        """
        capability = self.compute_capability
        if not has_precision(capability, precision):
            has = ", ".join(each for each in Precision if has_precision(capability, each))
            name = f"device {self.name!r} (compute capability {capability})"
            raise DeviceError(f"{name} has no {precision}; it has {has}")
        if precision is Precision.FP16 and capability in FP16_IN_FP32:
            note_once(f"{self.name} has no fast fp16: libraries keep tensors in fp16 and compute in fp32, as is priced")
        if self.architecture in TENSOR_CORES.get(precision, ()) and not self.reduced_precision_tflops(precision):
            told = f"{self.name} names no rate of {precision}, so that its products are priced at the rate of fp32"
            note_once(f"{told}; give it in the profile's reduced_precision_tflops")

    @property
    def limits(self) -> MultiprocessorLimits:
        """Capacity of one SM."""
        return self.device_kind.limits[self.compute_capability]

    @property
    def device_kind(self) -> DeviceKind:
        """Common properties of devices of its kind."""
        return device_kind(self.kind)

    @property
    def compute_capability(self) -> str:
        """The compute capability of a GPU; "" for devices without one."""
        fact = self.datasheet.compute_capability
        return fact.value if fact else ""

    @property
    def architecture(self) -> str:
        """An :class:`~iossim.hardware.compute_capability.Architecture` for GPUs, or another kind's counterpart."""
        return self.limits.architecture

    @property
    def parameter_values(self) -> dict[str, float]:
        """Every parameter, of the model and of the engine, by its name."""
        return self.parameters.model_dump() | self.engine.model_dump()

    @property
    def spread(self) -> dict[str, float]:
        """Standard deviations of parameters by name: of the provenance, and of the kind's engine costs."""
        costs = self.device_kind.engine_costs(self.compute_capability)
        defaults, own = costs.values.model_dump(), self.engine.model_dump()
        untold = {name: value for name, value in costs.spread.items() if name in own and own[name] == defaults[name]}
        return untold | self.provenance.spread

    @property
    def board_power_w(self) -> float:
        """Power limit of sustained arithmetic in W; inf if none is known."""
        fact = self.datasheet.board_power_w
        return fact.value if fact else float("inf")

    @property
    def sm_count(self) -> int:
        return self.datasheet.sm_count.value

    @property
    def gpcs(self) -> tuple[int, ...]:
        """SMs of each GPC; empty if they are unknown."""
        fact = self.datasheet.sms_per_gpc
        return tuple(fact.value) if fact else ()

    def sms_for_clusters(self, blocks: int) -> int:
        """SMs that clusters of that many blocks fill, a block each; all if GPCs are unknown or too small for one."""
        filled = sum(size // blocks * blocks for size in self.gpcs) if blocks > 1 else 0
        return filled or self.sm_count

    @property
    def boost_clock_ghz(self) -> float:
        return self.datasheet.boost_clock_ghz.value

    @property
    def dram_bandwidth_gbps(self) -> float:
        return self.datasheet.dram_bandwidth_gbps.value

    @property
    def fp32_tflops(self) -> float:
        """Peak: SMs x lanes x 2 (a multiply-add) x clock."""
        return self.sm_count * self.datasheet.fp32_lanes_per_sm.value * 2 * self.boost_clock_ghz / 1e3

    def reduced_precision_tflops(self, precision: Precision) -> float | None:
        """Peak of matrix products at ``precision``, or None if the device computes them as fp32.

        GPUs without tensor cores for 8-bit integers use ``__dp4a``; the peak of fp8 is twice fp16's where none is told.
        """
        fact, capability = self.datasheet.reduced_precision_tflops, self.compute_capability
        told = fact.value.get(str(precision)) if fact else None
        if told is not None or not capability or not has_precision(capability, precision):
            return told
        if precision is Precision.INT8 and self.architecture not in TENSOR_CORES[precision]:
            return _DP4A * self.fp32_tflops
        half = self.reduced_precision_tflops(Precision.FP16) if precision is Precision.FP8 else None
        return half and 2 * half


def with_values(profile: DeviceProfile, given: Mapping[str, float], **told: object) -> DeviceProfile:
    """The profile with parameters replaced, in its model or its engine, whichever has the name, and fields of its
    provenance, if any are ``told``.
    """
    tables = {"parameters": profile.parameters, "engine": profile.engine}
    update: dict[str, Value] = {
        name: table.model_copy(update={key: given[key] for key in given if key in type(table).model_fields})
        for name, table in tables.items()
    }
    if told:
        update["provenance"] = profile.provenance.model_copy(update=told)
    return profile.model_copy(update=update)


def device_of(data: object, where: str, of: type[D]) -> D:
    """The device of a class by a file's values; raises DeviceError with an invalid field. ``where`` names the file."""
    if not isinstance(data, dict):
        raise DeviceError(f"device profile {where} is not a mapping of fields; start from one of hw_profiles/")
    return validated(of, data, f"device profile {where} is not valid", "correct the file", DeviceError)


def device_in(text: str, where: str, of: type[D]) -> D:
    """The device of a class by a user's YAML text, which ``where`` names in errors.

    Raises DeviceError with the line of invalid YAML, and the field of an invalid value.
    """
    from iossim.base.located_yaml import LocatedYamlError, read_located  # slower than what reads shipped files

    try:
        return device_of(read_located(text).values, where, of)
    except LocatedYamlError as error:
        field = f"field {'.'.join(map(str, error.location))!r} " if error.location else ""
        raise DeviceError(f"device profile {where}, line {error.line}: {field}{error.reason}") from None


@lru_cache(maxsize=64)  # a study needs the same few at each point, and profiles are immutable
def parse(text: str, where: str) -> DeviceProfile:
    """The profile in a text, as :func:`device_in`."""
    return device_in(text, where, DeviceProfile)
