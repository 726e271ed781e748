"""The measurement store: all measurements, looked up by their work and context, in a file of SQLite.

A measurement is *reported* when :meth:`MeasurementStore.add` returns: then it is committed, and killing a process
cannot lose it. Several processes may use one store at the same time: the journal is a write-ahead log (WAL), several
read while one writes, and writers wait for one another (``BUSY_S``). ``synchronous`` is NORMAL: a commit has written
its pages to the log before it returns. Only a crash of the operating system or a loss of power may lose the last
commits (never the file); a WAL needs shared memory, so it cannot be on a network drive.

Several records may have one key, if two processes measured the same or a measurement was repeated. **The newest
counts**: the samples of one run share their conditions, and a repeated measurement implies less trust in the old one.

``PRAGMA user_version`` is the schema's version, ``application_id`` distinguishes the file from other SQLite files, and
the table ``schema_version`` records when each version was reached and by which iossim.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from iossim._version import __version__
from iossim.base.errors import IossimError
from iossim.base.shipped_yaml import shipped
from iossim.base.user_folders import user_data
from iossim.cost.measured.record import Kind, MeasurementRecord
from iossim.execution.backend import Context, Samples

#: Number of values in one query: SQLite accepts at least 999.
_AT_ONCE = 500

_CONTEXT_COLUMNS = "backend, device, precision, engine, layout, driver, libraries, options"
_COLUMNS = (
    "digest, context, kind, signature, algorithm, is_cold, copies, synchronises, samples_us, rejected, conditions, "
    "subject, date, host, process"
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Selection of records: those that agree with every given field.

    ``context`` is a context's number in its store; ``before`` a date in ISO format: records older than it.
    """

    context: int | None = None
    backend: str | None = None
    device: str | None = None
    precision: str | None = None
    engine: str | None = None
    kind: Kind | None = None
    before: str | None = None

    def condition(self) -> tuple[str, list[str | int]]:
        """An SQL condition on a measurement joined with its context, and its values."""
        given = {
            "context.id = ?": self.context,
            "context.backend = ?": self.backend,
            "context.device = ?": self.device,
            "context.precision = ?": self.precision,
            "context.engine = ?": self.engine,
            "measurement.kind = ?": self.kind,
            "measurement.date < ?": self.before,
        }
        used = {text: value for text, value in given.items() if value is not None}
        return " AND ".join(used) or "1", list(used.values())


@dataclass(frozen=True, slots=True)
class StoredContext:
    """A context of a store: its number there, its number of records of each kind, and their range of dates."""

    number: int
    context: Context
    counts: dict[str, int]
    hosts: tuple[str, ...]
    first: str
    last: str

    @property
    def records(self) -> int:
        return sum(self.counts.values())


def default_store() -> Path:
    """Path of the store unless the user gives another."""
    return user_data() / "measurements.sqlite"


class MeasurementStore:
    """The store in a file; made if it is missing, unless ``read_only``. Use as a context manager, or close it.

    A store belongs to the thread that opened it. Methods raise StoreError if the file cannot be used.
    """

    def __init__(self, path: Path | None = None, read_only: bool = False) -> None:
        self.path = path or default_store()
        self._connection = open_store(self.path, read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        with sqlite_errors(self.path):
            self._connection.close()

    def add(self, records: Sequence[MeasurementRecord]) -> int:
        """Store records, all or none; returns the number of new ones. When this returns they are committed."""
        if not records:
            return 0
        with transaction(self._connection, self.path) as connection:
            # In the same transaction, so that no process removes a context between its row and its measurements.
            numbers = {context: self._context(context) for context in dict.fromkeys(one.context for one in records)}
            rows = [_row(record, numbers[record.context]) for record in records]
            marks = ", ".join("?" * len(rows[0]))
            before = connection.total_changes
            connection.executemany(f"INSERT OR IGNORE INTO measurement ({_COLUMNS}) VALUES ({marks})", rows)
            return connection.total_changes - before

    def newest(
        self, context: Context, signatures: Iterable[str], is_cold: bool = False
    ) -> dict[str, MeasurementRecord]:
        """The newest record of each signature that was measured in exactly this context, by any algorithm."""
        found: dict[str, MeasurementRecord] = {}
        if (number := self._number(context)) is None:
            return found
        asked = list(dict.fromkeys(signatures))
        for begin in range(0, len(asked), _AT_ONCE):
            part = asked[begin : begin + _AT_ONCE]
            condition = f"context.id = ? AND is_cold = ? AND signature IN ({', '.join('?' * len(part))})"
            # The order is by date: the last one stays.
            found |= {record.signature: record for record in self._select(condition, [number, is_cold, *part])}
        return found

    def of_kind(self, context: Context, kind: Kind, is_cold: bool = False) -> list[MeasurementRecord]:
        """All records of a kind that were measured in exactly this context, oldest first."""
        if (number := self._number(context)) is None:
            return []
        return self._select("context.id = ? AND kind = ? AND is_cold = ?", [number, kind.value, is_cold])

    def records(self, chosen: Filter | None = None) -> list[MeasurementRecord]:
        """The records that match a filter, oldest first."""
        return self._select(*(chosen or Filter()).condition())

    def contexts(self, chosen: Filter | None = None) -> list[StoredContext]:
        """The contexts with records that match a filter, by number."""
        condition, values = (chosen or Filter()).condition()
        query = f"""
            SELECT context.id, {_CONTEXT_COLUMNS}, kind, count(*), min(date), max(date), group_concat(DISTINCT host)
            FROM measurement JOIN context ON context.id = measurement.context
            WHERE {condition} GROUP BY context.id, kind ORDER BY context.id, kind"""
        found: dict[int, StoredContext] = {}
        with sqlite_errors(self.path):
            rows = self._connection.execute(query, values).fetchall()
        for number, *where, kind, count, first, last, hosts in rows:
            one = found.get(number) or StoredContext(number, _context_of(where), {}, (), first, last)
            names = {*one.hosts, *filter(None, (hosts or "").split(","))}
            dates = min(first, one.first), max(last, one.last)
            counts = one.counts | {kind: count}
            found[number] = StoredContext(number, one.context, counts, tuple(sorted(names)), *dates)
        return list(found.values())

    def remove(self, chosen: Filter) -> int:
        """Delete the records that match a filter, and contexts left without any; returns the number of records."""
        condition, values = chosen.condition()
        with transaction(self._connection, self.path) as connection:
            gone = connection.execute(
                "DELETE FROM measurement WHERE id IN (SELECT measurement.id FROM measurement JOIN context"
                f" ON context.id = measurement.context WHERE {condition})",
                values,
            ).rowcount
            connection.execute("DELETE FROM context WHERE id NOT IN (SELECT context FROM measurement)")
        return gone

    def _select(self, condition: str, values: Sequence[str | int]) -> list[MeasurementRecord]:
        query = f"""
            SELECT {_CONTEXT_COLUMNS}, {_COLUMNS} FROM measurement JOIN context ON context.id = measurement.context
            WHERE {condition} ORDER BY date, measurement.id"""
        with sqlite_errors(self.path):
            rows = self._connection.execute(query, values).fetchall()  # all: an open query would hold up writers
        return [_record(row) for row in rows]

    def _context(self, context: Context) -> int:
        """The number of a context, added if missing; within a transaction."""
        marks = ", ".join("?" * len(_CONTEXT_COLUMNS.split(",")))
        self._connection.execute(
            f"INSERT OR IGNORE INTO context ({_CONTEXT_COLUMNS}) VALUES ({marks})", _context_row(context)
        )
        number = self._number(context)
        assert number is not None, "the context was inserted just now"
        return number

    def _number(self, context: Context) -> int | None:
        columns = " AND ".join(f"{column.strip()} = ?" for column in _CONTEXT_COLUMNS.split(","))
        query = f"SELECT id FROM context WHERE {columns}"
        with sqlite_errors(self.path):
            row = self._connection.execute(query, _context_row(context)).fetchone()
        return None if row is None else int(row[0])


def _context_row(context: Context) -> list[str]:
    libraries, options = (json.dumps(dict(sorted(pairs))) for pairs in (context.libraries, context.options))
    place = context.backend, context.device, context.precision, context.engine
    return [*place, context.layout, context.driver, libraries, options]


def _context_of(row: Sequence[str]) -> Context:
    backend, device, precision, engine, layout, driver, libraries, options = row
    pairs = (tuple(json.loads(text).items()) for text in (libraries, options))
    return Context(backend, device, precision, engine, layout, driver, *pairs)


def _row(record: MeasurementRecord, context: int) -> list[object]:
    samples, how = record.samples, (int(record.is_cold), record.copies, record.synchronises)
    what = record.digest, context, record.kind.value, record.signature, record.algorithm
    found = json.dumps(samples.times_us), samples.rejected, json.dumps(dict(samples.conditions))
    return [*what, *how, *found, json.dumps(record.subject), record.date, record.host, record.process]


def _record(row: Sequence[Any]) -> MeasurementRecord:
    (_, _, kind, signature, algorithm, is_cold, copies, synchronises, *measured) = row[8:]
    times_us, rejected, conditions, subject, date, host, process = measured
    samples = Samples(tuple(json.loads(times_us)), rejected, json.loads(conditions))
    what = _context_of(row[:8]), Kind(kind), signature, copies, synchronises, samples
    return MeasurementRecord(*what, algorithm, bool(is_cold), json.loads(subject), date, host, process)


#: "ioss" in ASCII.
APPLICATION_ID = 0x696F7373
#: Initial bytes of a SQLite file.
_HEADER = b"SQLite format 3\0"
#: Time for which a process waits for another's write.
BUSY_S = 60.0

#: Statements that migrate each version of the schema to the next.
MIGRATIONS: list[list[str]] = shipped("iossim.cost.measured", "migrations.yaml")


class StoreError(IossimError):
    """A measurement store that cannot be opened, read or written."""


def open_store(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the store at ``path``, made if it is missing unless ``read_only``.

    The connection commits each statement by itself; :func:`transaction` groups several. Raises StoreError for a file
    that is missing, not a store, damaged, or written by a newer iossim.
    """
    if read_only:
        if not path.is_file():
            raise StoreError(f"there is no measurement store {path}; give an existing one, or make it with profile")
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the folder of the measurement store {path}: {error.strerror}; choose another `store`"
            ) from None
    _check_header(path)
    mode = _reading_mode(path) if read_only else "mode=rwc"
    with sqlite_errors(path):
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=BUSY_S, isolation_level=None
        )
        try:
            _check(connection, path)
            if not read_only:
                _write_ahead(connection)
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
                _migrate(connection, path)
                return connection
            connection.execute("PRAGMA query_only = ON")
            if _version(connection) < len(MIGRATIONS):
                raise StoreError(f"the measurement store {path} is empty; fill it with profile, or give another")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """Commit the statements inside as a whole when the block ends, and not at all if it raises."""
    with sqlite_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors to one line that names the store and the remedy."""
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "locked" in reason or "busy" in reason:
            remedy = f"another process has been writing to it for {BUSY_S:.0f} s; wait for it, or end it"
        elif "unable to open" in reason or "readonly" in reason:
            remedy = "choose a file that you may write to"
        elif "full" in reason:
            remedy = "make room, or choose another `store`"
        else:
            remedy = "choose another `store`, or move this one away"
        raise StoreError(f"measurement store {path}: {reason}; {remedy}") from None
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise  # a defect of iossim, not of the file
        raise StoreError(
            f"measurement store {path}: {error}: it is no SQLite file or is damaged; choose another `store`, or move "
            "this one away"
        ) from None


def _reading_mode(path: Path) -> str:
    """The mode in which SQLite opens a file that is only read.

    A reader of a write-ahead log makes files beside the store, and only a potential writer removes them.
    In a read-only folder there may be none, so there is no writer, unless a log has commits.
    """
    if os.access(path.parent, os.W_OK):
        return "mode=rw" if os.access(path, os.W_OK) else "mode=ro"
    log = path.with_name(f"{path.name}-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def _check_header(path: Path) -> None:
    """Raise StoreError for a file that SQLite did not write; SQLite regards a very short one as empty."""
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_HEADER))
    except OSError:
        return  # missing, or SQLite will report why it cannot be opened
    if head and head != _HEADER:
        from iossim.measurements.measurement_set import kind_of_file  # stores need it not

        remedy = "choose another `store`, or move this file away"
        said = f"is no measurement store; it seems to be {seen}" if (seen := kind_of_file(path, remedy)) else ""
        raise StoreError(f"{path} {said or f'is not a database; {remedy}'}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a SQLite file that is not a store, or is newer than this iossim."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and (tables or application):
        raise StoreError(
            f"{path} is a SQLite file of another program, no measurement store of iossim; choose another `store`"
        )
    version = _version(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"measurement store {path} has schema {version}, this iossim knows up to {len(MIGRATIONS)}; update "
            "iossim, or choose another `store`"
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. Processes that create a store at once collide here without queueing."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the schema to this iossim's version; among several processes the first does, the others find it done."""
    if _version(connection) == len(MIGRATIONS):
        return
    with transaction(connection, path):
        _check(connection, path)
        for version in range(_version(connection), len(MIGRATIONS)):
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            connection.execute("INSERT INTO schema_version VALUES (?, ?, ?)", (version + 1, now, __version__))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
