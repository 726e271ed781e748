"""``iossim measurements``: list, export, import and delete the measurements of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.display import counted
from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.options import OptionGroup, command
from iossim.cli.outputs import Part, present, table

if TYPE_CHECKING:
    from iossim.cost.measured.record import MeasurementRecord
    from iossim.cost.measured.store import Filter, StoredContext


@dataclass(frozen=True)
class StoreFilters(OptionGroup):
    """Filters that select measurements."""

    context: int | None = None
    backend: str | None = None
    device: str | None = None
    engine: str | None = None
    kind: str | None = None

    def filter(self, before: str | None = None) -> Filter:
        """Records that the options select; raises OptionError for an unknown kind."""
        from iossim.cost.measured.record import Kind
        from iossim.cost.measured.store import Filter

        known = [one.value for one in Kind]
        if self.kind is not None and self.kind not in known:
            raise OptionError(f"--kind {self.kind!r} is no kind of measurement; {did_you_mean(self.kind, known)}")
        kind = None if self.kind is None else Kind(self.kind)
        return Filter(self.context, self.backend, self.device, engine=self.engine, kind=kind, before=before)


@command
def list_measurements(
    store: Path | None = None, *, filters: StoreFilters, records: bool = False, as_json: bool = False
) -> None:
    """List the contexts of the store, and the number of measurements in each; with --records, all of them."""
    from iossim.cost.measured.store import MeasurementStore

    chosen = filters.filter()
    with MeasurementStore(store, read_only=True) as opened:
        held = opened.contexts(chosen)
        rows = list(map(_record_row, opened.records(chosen))) if records else list(map(_context_row, held))
    parts: list[Part] = [f"{opened.path}: {_counted(held)}"]
    if records and rows:
        shown = ("kind", "measured", "copy_us", "spread_percent", "rounds", "date")
        parts += table("", [{name: row[name] for name in shown} for row in rows], shortens=("measured",))
    for row in () if records else rows:
        where = f"{row['backend']} on {row['device']}, {row['dtype']}, {row['engine']} engine"
        parts.append(f"{row['context']:3}  {where}: {row['kinds']}; {row['first']} to {row['last']}")
        parts.append(f"     {row['libraries']}")
    present({"store": str(opened.path), "records" if records else "contexts": rows}, parts, as_json)


def _counted(held: Sequence[StoredContext]) -> str:
    total = sum(one.records for one in held)
    return f"{counted(total, 'measurement')} in {counted(len(held), 'context')}"


@command
def export_measurements(
    file: Path, store: Path | None = None, *, filters: StoreFilters, cold: bool = False, as_json: bool = False
) -> None:
    """Write the newest measurement of each stage of one context as a measurement set; report what it cannot express."""
    from iossim.cost.measured.record import measurement_set
    from iossim.cost.measured.store import Filter, MeasurementStore, StoreError
    from iossim.cost.replay import described
    from iossim.measurements.measurement_set import write_measurements
    from iossim.measurements.text_files import FEWEST_ROWS

    chosen = filters.filter()
    with MeasurementStore(store, read_only=True) as opened:
        held = opened.contexts(chosen)
        if not held:
            raise StoreError(
                f"measurement store {opened.path} holds nothing of that kind; see 'iossim measurements list'"
            )
        if len(held) > 1:
            raise StoreError(
                f"measurement store {opened.path} has {len(held)} such contexts, a measurement set is of one: "
                f"{described(held)}; say which with --context NUMBER"
            )
        # Boundaries must be subtracted, whatever kind is requested.
        records = [
            record
            for record in opened.records(Filter(context=held[0].number))
            if record.is_cold == cold and (filters.kind is None or record.kind in (filters.kind, "boundary"))
        ]
    if not records:
        temperature = "cold" if cold else "warm"
        raise StoreError(f"measurement store {opened.path} holds nothing that was measured {temperature} there")
    found = measurement_set(records, cold)
    write_measurements(found, file)
    facts = {
        "file": str(file),
        "device": found.device,
        "operators": len(found.measurements),
        "stages": len(found.stages),
        "left_out": list(found.notes),
    }
    measured = f"{counted(len(found.measurements), 'operator')} and {counted(len(found.stages), 'stage')}"
    said = [f"wrote {file}: {measured} on {found.device}"]
    said += [f"note: {note}" for note in found.notes]
    if len(found.measurements) + len(found.stages) < FEWEST_ROWS:
        said.append(f"note: calibrate needs at least {FEWEST_ROWS} measurements; measure more with profile")
    present(facts, said, as_json)


@command
def import_measurements(stores: list[Path], store: Path | None = None, as_json: bool = False) -> None:
    """Add the measurements of other stores to this one; those that it has already are left unchanged."""
    from iossim.cost.measured.store import MeasurementStore

    given = []
    for path in stores:
        with MeasurementStore(path, read_only=True) as other:
            given.append((path, other.records()))
    rows = []
    with MeasurementStore(store) as opened:
        for path, records in given:
            rows.append({"from": str(path), "measurements": len(records), "new": opened.add(records)})
    to = str(opened.path)
    held = [f"{path}: {counted(len(records), 'measurement')}" for path, records in given]
    said = [f"{one}, {row['new']:,} of them new to {to}" for one, row in zip(held, rows, strict=True)]
    present({"store": to, "imported": rows}, said, as_json)


@command
def prune_measurements(
    store: Path | None = None,
    older_than: int | None = None,
    *,
    filters: StoreFilters,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Report how many measurements the filters select, and with --yes delete them."""
    from datetime import UTC, datetime, timedelta

    from iossim.cost.measured.store import Filter, MeasurementStore

    before = None
    if older_than is not None:
        if older_than < 0:
            raise OptionError(f"--older-than {older_than} is no number of days; give 0 or more")
        before = (datetime.now(UTC) - timedelta(days=older_than)).isoformat(timespec="microseconds")
    chosen = filters.filter(before)
    if chosen == Filter():
        raise OptionError(
            "prune needs to know what may go; give --older-than, --backend, --device, --kind or --context"
        )
    with MeasurementStore(store, read_only=not yes) as opened:
        held = opened.contexts(chosen)
        count = sum(one.records for one in held)
        gone = opened.remove(chosen) if yes else 0
    done = f"{counted(gone, 'measurement')} deleted" if yes else f"{_counted(held)} would go; add --yes to delete them"
    document = {"store": str(opened.path), "chosen": count, "deleted": gone}
    present(document, [f"{opened.path}: {done}"], as_json)


def _context_row(stored: StoredContext) -> dict[str, object]:
    context = stored.context
    named = [f"{name} {version}" for name, version in context.libraries]
    named += [f"{name}={value}" for name, value in context.options]
    if context.driver:
        named.append(f"driver {context.driver}")
    return {
        "context": stored.number,
        "backend": context.backend,
        "device": context.device,
        "dtype": context.precision,
        "engine": context.engine,
        "libraries": ", ".join(named),
        "kinds": ", ".join(f"{count} {kind}" for kind, count in stored.counts.items()),
        "measurements": stored.records,
        "first": stored.first[:10],
        "last": stored.last[:10],
        "hosts": list(stored.hosts),
    }


def _record_row(record: MeasurementRecord) -> dict[str, object]:
    return {
        "kind": str(record.kind),
        "measured": record.words,
        "copy_us": record.copy_us(),
        "spread_percent": 100 * record.relative_spread,
        "copies": record.copies,
        "rounds": len(record.samples.times_us),
        "rejected": record.samples.rejected,
        "cold": record.is_cold,
        "date": record.date[:10],
        "device": record.context.device,
        "backend": record.context.backend,
    }
