"""An edge device: units with a private memory each, one shared memory, external memory, DMA, and links.

The program determines what moves between the memories (:mod:`iossim.edge`); nothing is fitted. Facts without a
datasheet are ``assumed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from iossim.base.errors import DeviceError, did_you_mean
from iossim.base.shipped_yaml import shipped_files
from iossim.base.user_files import read_text
from iossim.base.values import Value, validated
from iossim.hardware.load import device
from iossim.hardware.names import EDGE, FOLDER, edge_names, shipped_edge_names, shipped_text, user_folder
from iossim.hardware.override import changes_of
from iossim.hardware.profile import Device, Fact, device_in
from iossim.ir.types import Precision

_SMALLEST, _LARGEST = 1e-9, 1e18
#: The source of a fact that a user replaced.
_WHAT_IF = "what-if"


class Memory(Value):
    """A shared memory: its size, its total bandwidth, and the smallest access."""

    bytes: Fact[int]
    bandwidth_gbps: Fact[float]
    line_bytes: Fact[int]


class Dma(Value):
    """Engines that move data between memories while units compute."""

    channels: Fact[int]
    channel_gbps: Fact[float]
    setup_us: Fact[float]


class Link(Value):
    """A link between two devices."""

    bandwidth_gbps: Fact[float]
    latency_us: Fact[float]


class EdgeDevice(Device):
    """``unpartitioned_units``: number of units that the toolchain uses for an unsplit operator.

    ``cache_bytes``: cache of a unit for feature maps that it reads from shared or external memory; 0 for none.
    ``port_gbps``: bandwidth of one unit from and to the shared memory.
    """

    kind: str = EDGE
    units: Fact[int]
    clock_ghz: Fact[float]
    #: Multiply-adds of one unit per cycle, by precision.
    multiply_adds_per_cycle: Fact[dict[str, float]]
    private_bytes: Fact[int]
    cache_bytes: Fact[int]
    port_gbps: Fact[float]
    shared: Memory
    external: Memory
    dma: Dma
    links: dict[str, Link] = Field(default_factory=dict)
    unpartitioned_units: Fact[int]

    noun: ClassVar[str] = "edge device"

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.kind != EDGE:
            raise ValueError(f"kind is {self.kind!r}; an edge device's is {EDGE!r}")
        may_be_nothing = ("cache_bytes", "setup_us", "latency_us")
        for where, fact in self.facts().items():
            values = fact.value.values() if isinstance(fact.value, dict) else (fact.value,)
            least = 0.0 if where.endswith(may_be_nothing) else _SMALLEST
            if any(not least <= value <= _LARGEST for value in values):
                raise ValueError(f"{where}: a fact must be a positive number of at most {_LARGEST:g}")
        known = set(map(str, Precision))
        if unknown := sorted(set(self.multiply_adds_per_cycle.value) - known):
            raise ValueError(f"unknown precision {unknown[0]!r}; known: {', '.join(sorted(known))}")
        if self.unpartitioned_units.value > self.units.value:
            raise ValueError(f"unpartitioned_units is {self.unpartitioned_units.value} of {self.units.value} units")
        return self

    def multiply_adds_per_us(self, precision: Precision) -> float:
        """Multiply-adds of one unit per us; raises DeviceError if it does not compute in that precision."""
        rates = self.multiply_adds_per_cycle.value
        if str(precision) not in rates:
            raise DeviceError(f"device {self.name!r} does not compute in {precision}; it has {', '.join(rates)}")
        return rates[str(precision)] * self.clock_ghz.value * 1e3

    def gflops(self, precision: Precision) -> float:
        """Peak of all units; a multiply-add is two operations."""
        return 2 * self.units.value * self.multiply_adds_per_us(precision) / 1e3

    def changed(self, changes: Mapping[str, float]) -> EdgeDevice:
        """The device with facts replaced, by their path (``shared.bytes``, ``links.srio.latency_us``,
        ``multiply_adds_per_cycle.fp32``); its name lists every change. Raises DeviceError for an invalid one.
        """
        if not changes:
            return self
        data, known = self.model_dump(), self.numbers()
        told = ",".join(f"{name}={value:.15g}" for name, value in changes.items())
        for name, given in changes.items():
            if name not in known:
                raise DeviceError(f"{name!r} is no number of device {self.name}; {did_you_mean(name, known)}")
            value = int(given) if isinstance(known[name], int) and given == int(given) else given
            *outer, last = name.split(".")
            place: Any = data
            for key in outer:
                place = place[key]
            if name in self.facts():
                place[last] = {"value": value, "source": _WHAT_IF}
            else:
                place["value"][last] = value
        data |= {"name": f"{self.name}+{told}", "sources": {**self.sources, _WHAT_IF: f"replaced: {told}"}}
        return validated(EdgeDevice, data, f"{self.name} with {told} cannot be", "change the value", DeviceError)

    def numbers(self) -> dict[str, float]:
        """Every number of the profile, by its path, as :meth:`changed` takes them."""
        found: dict[str, float] = {}
        for where, fact in self.facts().items():
            parts = fact.value.items() if isinstance(fact.value, dict) else ()
            found |= {f"{where}.{key}": value for key, value in parts} or {where: fact.value}
        return found

    @property
    def first_precision(self) -> Precision:
        """The first of its precisions, fp32 if available."""
        rates = self.multiply_adds_per_cycle.value
        return Precision.FP32 if Precision.FP32 in rates else Precision(next(iter(rates)))

    def __repr__(self) -> str:
        return (
            f"<EdgeDevice {self.name}: {self.units.value} units, {self.clock_ghz.value:g} GHz, "
            f"{self.external.bandwidth_gbps.value:g} GB/s>"
        )

    __str__ = __repr__


def edge_device(name_or_path: str | Path | EdgeDevice) -> EdgeDevice:
    """The edge device of that name, shipped or in the user's folder, or of a YAML file; the suffix
    ``+NAME=VALUE,NAME=VALUE`` replaces facts of it (``c6678+shared.bytes=8388608``).

    An edge device is returned unchanged. Raises DeviceError naming the file and the invalid field, or if the device
    is of another kind.
    """
    if isinstance(name_or_path, EdgeDevice):
        return name_or_path
    if not isinstance(name_or_path, str | Path):
        raise DeviceError(f"device {name_or_path!r} is no name; {did_you_mean(name_or_path, edge_names())}")
    path, name_or_path = Path(name_or_path), str(name_or_path)
    if "=" in name_or_path.partition("+")[2] and not path.exists():
        base, changes = changes_of(name_or_path)
        return edge_device(base).changed(changes)
    if name_or_path in shipped_edge_names():
        return device_in(shipped_text(name_or_path), f"{name_or_path}.yaml", EdgeDevice)
    if name_or_path in edge_names():
        path = user_folder() / f"{name_or_path}.yaml"
    elif path.suffix not in (".yaml", ".yml") and len(path.parts) == 1:
        if name_or_path in shipped_files(FOLDER):
            raise DeviceError(f"device {name_or_path!r} is no edge device; those that are: {', '.join(edge_names())}")
        known = did_you_mean(name_or_path, edge_names())
        raise DeviceError(f"unknown edge device {name_or_path!r}; {known}; or give a .yaml file")
    text = read_text(path, "device profile", "give a YAML file or the name of a device", DeviceError)
    return device_in(text, str(path), EdgeDevice)


def any_device(name: str, checked: bool = True) -> Device:
    """The device of that name, of either kind: an edge device, or a profile, unless ``checked`` is False also one whose
    facts are impossible. Raises DeviceError as :func:`edge_device` and :func:`iossim.hardware.load.device` do.
    """
    return edge_device(name) if name in edge_names() else device(name, checked=checked)
