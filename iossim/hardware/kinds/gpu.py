"""NVIDIA GPUs: limits, default parameters, engine costs and ranges by generation (``gpu.yaml``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iossim.base.shipped_yaml import shipped
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.kind import DeviceKind, EngineCosts, Ranges
from iossim.hardware.parameters import EngineOverheads, ModelParameters

if TYPE_CHECKING:
    from iossim.hardware.fits import DeviceFits

_TABLES = shipped("iossim.hardware.kinds", "gpu.yaml")


def _rows(table: str) -> dict[str, dict[str, Any]]:
    """The rows of a table, each with those of the row that it is ``like``."""
    rows: dict[str, dict[str, Any]] = {}
    for name, own in _TABLES[table].items():
        rows[name] = {**rows.get(own.pop("like", ""), {}), **own}
    return rows


#: Default parameters by generation, and by compute capability where one differs.
PARAMETERS = {name: ModelParameters(**row) for name, row in _rows("parameters").items()}
#: Costs of the engine by generation.
ENGINES = {
    name: EngineCosts(
        EngineOverheads(**row), {**_TABLES["spread"], "graph_gap_factor": _TABLES["graph_gap_spread"][name]}
    )
    for name, row in _rows("engines").items()
}


def _fits() -> DeviceFits:
    from iossim.hardware.fits import GPU_FITS  # needed by calibration alone

    return GPU_FITS


KIND = DeviceKind(
    noun="GPU",
    multiprocessors="SMs",
    needs=frozenset({"compute_capability", "board_power_w"}),
    lacks=frozenset({"core_cache_bytes"}),
    limits=LIMITS,
    parameters=PARAMETERS,
    engines=ENGINES,
    ranges={name: Ranges(*map(tuple, pairs)) for name, pairs in _TABLES["ranges"].items()},
    fits=_fits,
    borrows=True,
)
