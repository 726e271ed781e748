"""A device profile as tables: facts with their sources, parameters with their calibration, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from iossim.base.tables import Cell, described_table, keyed_table
from iossim.hardware.profile import Datasheet, Device, DeviceProfile, Fact
from iossim.hardware.provenance import KindError, Provenance


def error_table(title: str, errors: Sequence[KindError]) -> Table:
    """One row per kind of operators of each data set."""
    return described_table(__package__, "errors", title, [error.model_dump() for error in errors])


#: Significant digits of values and of their spreads.
_DIGITS, _SPREAD_DIGITS = 4, 2
_UNMEASURED = "Errors: unknown; no measurement of this device was compared with its predictions"


def device_summary(device: Device) -> RenderableType:
    """The facts of a device; of a profile also its parameters and errors. Its bands are left out."""
    parts: list[RenderableType] = [Text(f"{device.name}: {device.title}", style="bold"), Text("")]
    facts = _datasheet(device.datasheet) if isinstance(device, DeviceProfile) else device.facts()
    parts += [
        keyed_table("Facts", _facts(facts)),
        *(Text(f"{name}: {source}") for name, source in device.sources.items()),
    ]
    return Group(*parts, *(_fitted(device) if isinstance(device, DeviceProfile) else ()))


def _datasheet(sheet: Datasheet) -> dict[str, Fact[object]]:
    return {name: fact for name in Datasheet.model_fields if (fact := getattr(sheet, name)) is not None}


def _fitted(profile: DeviceProfile) -> list[RenderableType]:
    """Parameters of a profile, their origin, and the errors of predictions by them."""
    provenance = profile.provenance
    parts: list[RenderableType] = [Text(""), *_origin(provenance)]
    for title, values in (("Parameters", profile.parameters), ("Costs of the engine", profile.engine)):
        rows = [_parameter(name, value, provenance) for name, value in values]
        parts += [Text(""), keyed_table(title, rows, wraps=("remark",))]
    if provenance.spread:
        parts.append(Text("spread: standard deviation over fits to resampled data"))
    if provenance.unidentified:
        parts.append(Text("not identified: the data does not determine it"))
    errors = provenance.held_out
    if provenance.kind == "transferred":
        title, errors = "Errors on devices left out, each predicted from the others", _by_kind(errors)
    else:
        title = f"Errors on the {provenance.held_out_fraction or 0:.0%} of the shapes that no fit saw"
    parts += [Text(""), error_table(title, errors) if errors else Text(_UNMEASURED)]
    return parts


def _by_kind(errors: Sequence[KindError]) -> list[KindError]:
    """One row per kind: the means over its data sets, weighted by their rows."""
    kinds: dict[str, list[KindError]] = {}
    for error in errors:
        kinds.setdefault(error.kind, []).append(error)
    return [
        KindError(
            data_set=f"{len(several)} data sets" if len(several) > 1 else several[0].data_set,
            kind=kind,
            rows=(rows := sum(each.rows for each in several)),
            mape_percent=sum(each.rows * each.mape_percent for each in several) / rows,
            median_error_percent=sum(each.rows * each.median_error_percent for each in several) / rows,
        )
        for kind, several in kinds.items()
    ]


def _facts(facts: Mapping[str, Fact[object]]) -> list[dict[str, Cell]]:
    """One row per fact, or per key of a fact that has several values."""
    return [
        {
            "fact": f"{name} {key}".rstrip(),
            "value": _fact(name.replace(".bytes", "_bytes"), value),
            "source": fact.source,
        }
        for name, fact in facts.items()
        for key, value in (fact.value.items() if isinstance(fact.value, dict) else [("", fact.value)])
    ]


def _fact(name: str, value: object) -> str:
    """A fact as its datasheet prints it; bytes in the largest binary unit that leaves them whole."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int | float) and name.endswith("_bytes"):
        for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{int(value) // size:,} {unit}"
    return f"{value:,}"


def _origin(provenance: Provenance) -> list[RenderableType]:
    """Origin of the parameters, in a line, and the data sets that they were fitted to."""
    when = f" on {provenance.date}" if provenance.date else ""
    told: list[RenderableType] = [Text(f"Parameters are {provenance.kind}{when}: {provenance.note}")]
    if provenance.data_sets:
        rows: list[dict[str, Cell]] = [
            {"data_set": each.name, "device": each.device, "rows": each.rows} for each in provenance.data_sets
        ]
        told += [Text(""), keyed_table("Fitted to", rows, titles={"data_set": "data set"}, wraps=("data_set",))]
    return told


def _parameter(name: str, value: float, provenance: Provenance) -> dict[str, Cell]:
    spread = provenance.spread.get(name)
    remarks = ["not identified"] * (name in provenance.unidentified)
    remarks += ["ended at a bound"] * (name in provenance.at_bounds)
    return {
        "parameter": name,
        "value": f"{value:.{_DIGITS}g}",
        "spread": "" if spread is None else f"{spread:.{_SPREAD_DIGITS}g}",
        "remark": ", ".join(remarks),
    }
