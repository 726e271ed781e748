"""The file of a measurement store: SQLite, opened safely, its schema versioned, its errors in one line.

The journal is a write-ahead log (WAL): several processes read while one writes, and writers wait for one another
(``BUSY_S``). ``synchronous`` is NORMAL: a commit has written its pages to the log before it returns, so that a
process killed at any point loses nothing that it reported. Only a crash of the operating system or a loss of power
may lose the last commits (never the file); a WAL needs shared memory, so it cannot be on a network drive.

``PRAGMA user_version`` is the schema's version, ``application_id`` distinguishes the file from other SQLite files, and
the table ``schema_version`` records when each version was reached and by which iossim.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from iossim._version import __version__
from iossim.base.errors import IossimError
from iossim.base.shipped_yaml import shipped

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
