"""A device: datasheet facts with their sources, the simulator's parameters, and the engine's costs."""

from __future__ import annotations

import hashlib
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from iossim.devices.compute_capability import (
    LIMITS,
    PROCESSOR,
    Architecture,
    MultiprocessorLimits,
    limits_of,
)
from iossim.devices.parameters import (
    ENGINE_OVERHEADS,
    EngineOverheads,
    ModelParameters,
    default_parameters,
    engine_overheads,
)
from iossim.devices.provenance import DEFAULT_PROVENANCE, Provenance
from iossim.devices.transfer import BoardFacts, transferred_defaults
from iossim.errors import DeviceError
from iossim.ir.types import Precision
from iossim.values import Value

T = TypeVar("T")

#: What a fact may be, in its unit; with others prices overflow.
_SMALLEST, _LARGEST = 1e-9, 1e18
_NO_BF16 = (
    Architecture.KEPLER,
    Architecture.MAXWELL,
    Architecture.PASCAL,
    Architecture.VOLTA,
    Architecture.TURING,
)


class Fact(Value, Generic[T]):
    """A datasheet fact; ``source`` is a key of the profile's ``sources``."""

    value: T
    source: str


class Datasheet(Value):
    """What the vendor prints about the device; of a processor, what it says of itself and what was measured.

    A processor's cores are its SMs, the lanes of its vector units those of an SM, its last-level cache its L2.
    """

    compute_capability: Fact[str]
    sm_count: Fact[int]
    fp32_lanes_per_sm: Fact[int]
    boost_clock_ghz: Fact[float]
    dram_bandwidth_gbps: Fact[float]
    #: Memory comes in chips of whole GiB: a card sold as 40 GB has 40 GiB; what its driver reports may be a little less.
    dram_bytes: Fact[int]
    #: The width of the memory bus, and what each of its pins carries: they make the bandwidth, to check it by.
    dram_bus_bits: Fact[int] | None = None
    dram_pin_gbps: Fact[float] | None = None
    l2_bytes: Fact[int]
    #: The largest cache that a core has to itself; of processors only.
    core_cache_bytes: Fact[int] | None = None
    #: Of GPUs; a processor's limits nothing here.
    board_power_w: Fact[float] | None = None
    #: The printed fp32 peak, to check the other facts by; the model derives its own.
    fp32_tflops: Fact[float]
    #: Dense peaks of matrix products at other precisions: tensor cores, packed-half or dot-product instructions. A
    #: precision that is left out computes at the fp32 rate.
    reduced_precision_tflops: Fact[dict[str, float]] | None = None

    @field_validator("*")
    @classmethod
    def _positive(cls, fact: Fact[Any] | None) -> Fact[Any] | None:
        if fact is None or isinstance(fact.value, str):
            return fact
        values = fact.value.values() if isinstance(fact.value, dict) else (fact.value,)
        if any(not _SMALLEST <= value <= _LARGEST for value in values):
            raise ValueError(f"a fact must be a positive number, from {_SMALLEST:g} to {_LARGEST:g}")
        return fact

    @field_validator("compute_capability")
    @classmethod
    def _known_capability(cls, fact: Fact[str]) -> Fact[str]:
        if limits_of(fact.value) is None:
            raise ValueError(f"unknown compute capability {fact.value!r}; known: {', '.join((*LIMITS, PROCESSOR))}")
        return fact

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        is_processor = self.compute_capability.value == PROCESSOR
        if self.board_power_w is None and not is_processor:
            raise ValueError("board_power_w is missing: a GPU needs it")
        if (self.core_cache_bytes is None) is is_processor:
            raise ValueError("core_cache_bytes is a fact of processors, which need it")
        return self

    @field_validator("reduced_precision_tflops")
    @classmethod
    def _known_precisions(cls, fact: Fact[dict[str, float]] | None) -> Fact[dict[str, float]] | None:
        known = [str(precision) for precision in Precision if precision is not Precision.FP32]
        unknown = sorted(set(fact.value) - set(known)) if fact else []
        if unknown:
            raise ValueError(f"unknown precision {unknown[0]!r}; known: {', '.join(known)}")
        return fact


def _transferred(data: dict[str, Any]) -> dict[str, Any]:
    """What calibrated devices say of one whose file tells facts alone; nothing if it says where its parameters come from."""
    if "provenance" in data:
        return {}
    try:
        sheet = {name: fact["value"] for name, fact in data["datasheet"].items() if isinstance(fact, dict)}
        if sheet["compute_capability"] not in LIMITS:
            return {}
        peak_gflops = 2.0 * sheet["sm_count"] * sheet["fp32_lanes_per_sm"] * sheet["boost_clock_ghz"]
        watts = sheet["board_power_w"]
        if not (0 < peak_gflops < float("inf") and 0 < watts < float("inf")):
            return {}
        facts = BoardFacts(sheet["compute_capability"], peak_gflops / watts, sheet["fp32_lanes_per_sm"])
        return transferred_defaults(str(data.get("name")), facts) or {}
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        # A fact is missing or wrong: its own validation says so.
        return {}


class DeviceProfile(Value):
    """A device as the lowering and the simulator see it."""

    name: str = Field(min_length=1)
    title: str
    #: Short names that a user may give for it: those of the family whose most common board it is.
    aliases: list[str] = Field(default_factory=list)
    sources: dict[str, str]
    datasheet: Datasheet
    parameters: ModelParameters
    provenance: Provenance = DEFAULT_PROVENANCE
    engine: EngineOverheads = ENGINE_OVERHEADS

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        """Give the parameters and engine costs that the file leaves out their defaults."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        try:
            capability = data["datasheet"]["compute_capability"]["value"]
            limits = limits_of(capability)
        except (KeyError, TypeError):
            capability = limits = None
        # The fact is missing or wrong: its own validation says so. Any architecture's defaults do meanwhile.
        architecture = limits.architecture if limits else Architecture.VOLTA
        transferred = _transferred(data)
        for name, default in (
            ("parameters", default_parameters(architecture, str(capability))),
            ("engine", engine_overheads(architecture)),
        ):
            given = data.get(name, {})
            if isinstance(given, dict):
                filled[name] = {**default.model_dump(), **transferred.get(name, {}), **given}
        if "provenance" in transferred:
            filled["provenance"] = transferred["provenance"]
        return filled

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        for name in Datasheet.model_fields:
            fact = getattr(self.datasheet, name)
            if fact is not None and fact.source not in self.sources:
                raise ValueError(f"datasheet.{name}: source {fact.source!r} is not among the profile's sources")
        return self

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
        """Hash of all that prices depend on: a price from another fingerprint is another device's."""
        priced = self.model_dump_json(
            include={"datasheet", "parameters", "engine"}, exclude={"datasheet": {"dram_bus_bits", "dram_pin_gbps"}}
        )
        return hashlib.sha256(priced.encode()).hexdigest()[:12]

    def require(self, precision: Precision) -> None:
        """Raise DeviceError, naming what it has, where a GPU has no instructions for numbers of this precision.

        bf16 came with compute capability 8.0 (CUDA C++ Programming Guide, arithmetic throughput). What has numbers but no
        fast unit for them (tf32 before 8.0) computes as fp32.
        """
        if precision is not Precision.BF16 or self.architecture not in _NO_BF16:
            return
        has = ", ".join(each for each in Precision if each not in (Precision.BF16, Precision.TF32))
        raise DeviceError(
            f"device {self.name!r} (compute capability {self.datasheet.compute_capability.value}) has no {precision}; it "
            f"has {has}"
        )

    @property
    def limits(self) -> MultiprocessorLimits:
        """What one SM can hold."""
        limits = limits_of(self.datasheet.compute_capability.value)
        assert limits is not None, "the datasheet is validated"
        return limits

    @property
    def architecture(self) -> Architecture:
        return self.limits.architecture

    @property
    def is_processor(self) -> bool:
        """Whether this is a processor, not a GPU."""
        return self.architecture is Architecture.CPU

    @property
    def board_power_w(self) -> float:
        """What limits sustained arithmetic; inf where nothing is known to."""
        fact = self.datasheet.board_power_w
        return fact.value if fact else float("inf")

    @property
    def sm_count(self) -> int:
        return self.datasheet.sm_count.value

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
        """Peak of matrix products at ``precision``, or None where the device computes them as fp32."""
        fact = self.datasheet.reduced_precision_tflops
        return fact.value.get(str(precision)) if fact else None
