"""Pieces of work on the cores of this machine, or wherever joblib is told to run them; and values that pieces of a
process share.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Generic, TypeVar

from iossim.base.errors import OptionError, say_once
from iossim.base.threads import limit_threads, usable_cores

Result = TypeVar("Result")
V = TypeVar("V")

_KILLED = "a worker was killed, perhaps for want of memory; go on with `resume`, and fewer workers"


@dataclass(frozen=True)
class Workers:
    """Execution of pieces of work by joblib, ``count`` at a time: in processes of this machine (a single one is this
    process), unless the caller has chosen another backend by ``joblib.parallel_config``, such as a Dask cluster's.
    """

    count: int

    def each(self, work: Callable[..., Result], tasks: Iterable[tuple[object, ...]]) -> Iterator[Result]:
        """Results of the tasks, arguments of ``work``, in order of completion; tasks are taken on demand."""
        from joblib import Parallel, delayed

        # Tasks take seconds: they are dealt singly, so that none waits after another in one process.
        pool = Parallel(self.count, return_as="generator_unordered", batch_size=1)
        threads = 1 if self.count > 1 else None  # other processes use the other cores
        results = pool(delayed(_work_for)(os.getpid(), threads, work, task) for task in tasks)
        try:
            for result, said in results:
                for line in said:
                    say_once(line)
                yield result
        except Exception as error:  # joblib's TerminatedWorkerError or Dask's KilledWorker, which need not be installed
            if type(error).__name__ not in ("TerminatedWorkerError", "KilledWorker"):
                raise
            raise OptionError(_KILLED) from None
        finally:
            with warnings.catch_warnings(action="ignore"):  # joblib's warnings on abandoned tasks: the reason is known
                results.close()


def workers_for(count: int | None) -> Workers:
    """So many workers, by default one per core of this machine; raises OptionError for less than one."""
    if count is not None and count < 1:
        raise OptionError(f"`workers` {count} is not possible; give 1 or more")
    return Workers(count or len(usable_cores()))


def _work_for(
    parent: int, threads: int | None, work: Callable[..., Result], task: tuple[object, ...]
) -> tuple[Result, list[str]]:
    """The result, and the lines that a process of the parent's would have logged: the parent logs each once."""
    limit_threads(threads)
    if os.getppid() != parent:  # this is the parent, or a process that somebody else started
        return work(*task), []
    heard = _begin(parent)
    heard.lines = []
    return work(*task), heard.lines


class _Heard(logging.Handler):
    lines: list[str]

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@cache
def _begin(parent: int) -> _Heard:
    """End this process soon after its parent: a killed parent cannot say so, and its workers would wait for more.
    Look for cycles of garbage a hundredth as often: that took a twentieth of the time of rows, which make few. Returns
    the handler that hears what the process logs.
    """
    gc.freeze()
    gc.set_threshold(70_000)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="iossim-parent", daemon=True).start()
    heard = _Heard()
    logging.getLogger("iossim").addHandler(heard)
    return heard


class LruCache(threading.local, Generic[V]):
    """The ``maxsize`` most recently used values, per thread; a value that cannot be made is tried again.

    A worker may have several threads, and cost models are not thread-safe.
    """

    def __init__(self, maxsize: int) -> None:
        self._made = lru_cache(maxsize)(lambda key: self._make())

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        self._make = make
        value: V = self._made(key)
        return value
