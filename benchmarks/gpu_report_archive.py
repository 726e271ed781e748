"""All results of ``gpu_report.py`` as one file, replaced atomically after each section.

A lent machine may be taken away at any moment, and few files can be copied from it: the archive has all measurements up
to the last section's end. Needs the standard library only.
"""

from __future__ import annotations

import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

#: Default archive in the folder of results, and the measurement store in it.
ARCHIVE, STORE = "results.tar.gz", "measurements.sqlite"
#: Files that are no results: links to the checkout, compilers' caches, and the store's files emptied by a checkpoint.
LEFT_OUT = (".site", "caches", f"{STORE}-wal", f"{STORE}-shm")


def save(out: Path, archive: Path) -> None:
    """Archive all results; the old archive remains until this returns, or the process is killed.

    Raises OSError if it cannot be written, RuntimeError for a damaged store.
    """
    checkpoint(out / STORE)
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with tarfile.open(fresh, "w:gz") as tar:
            for path in sorted(out.iterdir()):
                if path.name not in LEFT_OUT and not path.name.startswith(f".{archive.name}") and path != archive:
                    tar.add(path, path.name)
        with fresh.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(fresh, archive)
    finally:
        fresh.unlink(missing_ok=True)


def restore(out: Path, archive: Path) -> bool:
    """Restore an archive into a folder without results; returns whether there was one."""
    if not archive.is_file() or (out / "report.jsonl").exists():
        return False
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    return True


def checkpoint(store: Path) -> None:
    """Move the rows of a store's write-ahead log into the store: a killed section has left them there."""
    if not store.is_file():
        return
    with closing(sqlite3.connect(store, timeout=30.0)) as connection:
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.DatabaseError as error:
            raise RuntimeError(f"measurement store {store}: {error}; move it away") from None
    if busy:
        raise RuntimeError(f"measurement store {store}: another process reads it; end that, then run this again")
