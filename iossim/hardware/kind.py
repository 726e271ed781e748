"""Kinds of devices: the properties of a kind, and what the schema, fits and plausibility checks need to know.

Each kind is a file of tables in ``hardware/kinds``, named like the ``kind`` of a profile. The kind's target defines how
it runs ops (:mod:`iossim.hardware.lowering.target`). Other packages add kinds by entry points ``iossim.device_kinds``:
modules with ``KIND`` and ``TARGET``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from iossim.base.errors import DeviceError
from iossim.base.registry import Extension, Group
from iossim.base.shipped_yaml import shipped, shipped_files
from iossim.hardware.compute_capability import LIMITS, MultiprocessorLimits
from iossim.hardware.parameters import EngineOverheads, ModelParameters

if TYPE_CHECKING:
    from iossim.hardware.fits import Bounds, DeviceFits

#: The kind of a profile without one.
GPU = "gpu"


class Ranges(NamedTuple):
    """Minimum and maximum: SMs, clock in GHz, L2 in MiB, bandwidth in GB/s, memory in GiB, power in W."""

    sm_count: tuple[float, float]
    clock_ghz: tuple[float, float]
    l2_mib: tuple[float, float]
    bandwidth_gbps: tuple[float, float]
    dram_gib: tuple[float, float]
    power_w: tuple[float, float]


@dataclass(frozen=True)
class EngineCosts:
    """Default costs of the engine; ``spread`` has standard deviations of some, by name."""

    values: EngineOverheads
    spread: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceKind:
    """``noun`` is the name of one device in messages, ``multiprocessors`` that of its SMs.

    ``needs`` and ``lacks`` are facts that a datasheet of the kind must and must not have, among those that differ
    between kinds. ``limits`` are keyed by the datasheet's compute capability ("" if there is none), ``ranges`` (of
    existing devices) by the architecture in those limits, ``parameters`` (the defaults) also by that, and by a
    compute capability that differs from its generation, ``engines`` by the architecture.

    ``fit_bounds`` are tables of the bounds of fitted parameters, by what is measured (:meth:`fits`). ``borrows``:
    unmeasured parameters come from :mod:`iossim.hardware.transfer`.
    """

    noun: str
    multiprocessors: str
    needs: frozenset[str]
    lacks: frozenset[str]
    limits: Mapping[str, MultiprocessorLimits]
    parameters: Mapping[str, ModelParameters]
    engines: Mapping[str, EngineCosts]
    ranges: Mapping[str, Ranges]
    fit_bounds: Mapping[str, Bounds]
    borrows: bool

    def fits(self) -> DeviceFits:
        """The parameters that measurements determine."""
        from iossim.hardware.fits import DeviceFits  # needed by calibration alone

        return DeviceFits.of_tables(self.fit_bounds)

    def default_parameters(self, compute_capability: str) -> ModelParameters:
        """The defaults of a compute capability, one of ``limits``: its own, or those of its architecture."""
        own = self.parameters.get(compute_capability)
        return own or self.parameters[self.limits[compute_capability].architecture]

    def engine_costs(self, compute_capability: str) -> EngineCosts:
        """The engine's costs on the architecture of a compute capability, one of ``limits``."""
        return self.engines[self.limits[compute_capability].architecture]


_KINDS = "iossim.hardware.kinds"


def _shipped_kind(name: str) -> DeviceKind:
    """The kind that a file of tables describes; without limits of its own it has those of compute capabilities."""
    tables: dict[str, Any] = shipped(_KINDS, f"{name}.yaml")

    def rows(table: str) -> dict[str, dict[str, Any]]:
        """The rows of a table, each with those of the row that it is ``like``."""
        found: dict[str, dict[str, Any]] = {}
        for row, own in tables[table].items():
            found[row] = {**found.get(own.pop("like", ""), {}), **own}
        return found

    return DeviceKind(
        **{key: tables[key] for key in ("noun", "multiprocessors", "borrows")},
        needs=frozenset(tables["needs"]),
        lacks=frozenset(tables["lacks"]),
        limits={"": MultiprocessorLimits(*tables["limits"])} if "limits" in tables else LIMITS,
        parameters={key: ModelParameters(**row) for key, row in rows("parameters").items()},
        engines={
            key: EngineCosts(spread=row.pop("spread", {}), values=EngineOverheads(**row))
            for key, row in rows("engines").items()
        },
        ranges={key: Ranges(*map(tuple, pairs)) for key, pairs in tables["ranges"].items()},
        fit_bounds=tables["fits"],
    )


@cache
def _own(name: str) -> SimpleNamespace | None:
    return SimpleNamespace(KIND=_shipped_kind(name)) if name in shipped_files(_KINDS) else None


#: Kinds by name: what has a ``KIND``, of another package its module.
DEVICE_KINDS: Group[ModuleType | SimpleNamespace] = Group(
    "device kind {!r} is not known",
    lambda: shipped_files(_KINDS),
    _own,
    Extension(
        "iossim.device_kinds",
        "a module with KIND and TARGET",
        lambda plugin, module: module,
        lambda module: isinstance(getattr(module, "KIND", None), DeviceKind) and hasattr(module, "TARGET"),
    ),
    DeviceError,
)


def device_kind(name: str) -> DeviceKind:
    """The kind of that name; raises DeviceError for an unknown one, PluginError for one that does not work."""
    kind: DeviceKind = DEVICE_KINDS.find(name).KIND
    return kind
