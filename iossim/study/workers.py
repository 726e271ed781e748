"""Pieces of work on the cores of this machine, or on those of a Dask cluster, by the same code; and values that pieces
of a process share.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

from iossim.base.errors import OptionError, say_once
from iossim.base.threads import limit_threads, usable_cores

Result = TypeVar("Result")
V = TypeVar("V")

#: Seconds until an unresponsive scheduler is given up.
_PATIENCE = "20s"
_KILLED = "a worker was killed, perhaps for want of memory; go on with `resume`, and fewer workers"


@dataclass(frozen=True)
class Workers:
    """Execution of pieces of work by joblib; ``count`` is the number of concurrent ones.

    ``backend`` is joblib's, with its options: processes (if there is a single one, it is this process), or Dask.
    """

    count: int
    backend: Mapping[str, Any]

    def each(self, work: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Results of the tasks, arguments of ``work``, in order of completion; tasks are taken on demand."""
        from joblib import Parallel, delayed, parallel_config

        # Tasks take seconds: they are dealt singly, so that none waits after another in one process.
        with parallel_config(**self.backend):
            pool = Parallel(self.count, return_as="generator_unordered", batch_size=1)
        parent = os.getpid() if self.backend["backend"] == "loky" else None
        threads = 1 if self.count > 1 else None  # other processes use the other cores
        results = pool(delayed(_work_for)(parent, threads, work, task) for task in tasks)
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


@contextmanager
def open_workers(count: int | None, address: str | None) -> Iterator[Workers]:
    """Processes on this machine (by default one per core), or those of the Dask cluster at ``address``.

    Raises OptionError for Dask that is not installed, and for a cluster that does not answer.
    """
    if address is not None:
        if count is not None:
            raise OptionError("`workers` is for processes of this machine; a Dask cluster has its own: leave it out")
        with _dask_client(address) as client:
            yield Workers(sum(client.ncores().values()), {"backend": "dask", "client": client})
        return
    if count is not None and count < 1:
        raise OptionError(f"`workers` {count} is not possible; give 1 or more")
    yield Workers(count or len(usable_cores()), {"backend": "loky"})


def _work_for(
    parent: int | None, threads: int | None, work: Callable[..., Result], task: tuple[Any, ...]
) -> tuple[Result, list[str]]:
    """The result, and the lines that another process than the parent would have logged: the parent logs each once.
    Without a parent, the process is not ours.
    """
    limit_threads(threads)
    if parent is None or os.getpid() == parent:
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


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        reason = "needs Dask, which is not installed; pip install 'iossim[cluster]'"
        raise OptionError(f"`address` {address} {reason}") from None
    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = f"{str(error).strip() or type(error).__name__}; start one with 'dask scheduler'"
        raise OptionError(f"no Dask scheduler answers at {address}: {reason}") from None
    with client:
        if not client.ncores():
            remedy = f"start some with 'dask worker {address}'"
            raise OptionError(f"the Dask cluster at {address} has no workers; {remedy}")
        yield client


class LruCache(threading.local, Generic[V]):
    """The ``maxsize`` most recently used values, per thread; a value that cannot be made is tried again.

    A Dask worker may have several threads, and cost models are not thread-safe.
    """

    def __init__(self, maxsize: int) -> None:
        self._made = lru_cache(maxsize)(lambda key: self._make())

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        self._make = make
        value: V = self._made(key)
        return value
