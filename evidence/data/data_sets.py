"""Reference data of accuracy: its location, and reading all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from evidence.data.formats import formats
from iossim.hardware.profile import DeviceProfile
from iossim.measurements import measurement_set
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.measurement_set import DataSets
from iossim.measurements.text_files import FEWEST_ROWS

_OPERATORS = (
    "framework_operators",
    "operators",
    "graph_kernels/graph_products_bf16.csv",
    "graph_kernels/tensorrt_layers.csv",
)


def shared_data() -> Path:
    """Folder of the shared tables, at ``$IOSSIM_SHARED`` or in ``../shared``, which may not exist."""
    return Path(os.environ.get("IOSSIM_SHARED", Path("..") / "shared")) / "data"


def own_measurements() -> Path:
    """Folder of the repository's own measurements, beside the profiles that ship."""
    return Path(str(resources.files("iossim.hw_profiles"))) / "measurements"


def default_places() -> list[Path]:
    """Locations of measurements: beside the shipped profiles, and in :func:`shared_data` if that exists, in its folders
    of isolated kernels and of operators, and tables of kernels in graphs.
    """
    shared, own = shared_data(), own_measurements()
    others = [place for name in _OPERATORS if (place := shared / name).exists()]
    return [own, *(sorted(shared.glob("kernels*")) or [shared / "kernels"]), *others]


def read_measurements(path: Path, device: str | None = None, fewest: int = FEWEST_ROWS) -> MeasurementSet:
    """Read a file as :func:`iossim.measurements.measurement_set.read_measurements`, in the formats of public data sets
    too.
    """
    return measurement_set.read_measurements(path, device, fewest, formats())


def read_measurement_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """Read a file that may hold sets of several devices."""
    return measurement_set.read_measurement_sets(path, formats())


def read_data_sets(places: Sequence[Path] | None = None, profiles: Sequence[DeviceProfile] | None = None) -> DataSets:
    """Read as :func:`iossim.measurements.measurement_set.read_data_sets`, in the formats of public data sets too.

    Without ``places``, those of :func:`default_places` that exist; a note names each missing one.
    """
    if places is not None:
        return measurement_set.read_data_sets(places, profiles, formats())
    there = [place for place in default_places() if place.exists()]
    missing = tuple(f"no measurements at {place}" for place in default_places() if not place.exists())
    found = measurement_set.read_data_sets(there, profiles, formats())
    return DataSets(found.sets, (*missing, *found.notes))
