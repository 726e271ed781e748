"""The threads that run a program: the host's own for the first stream, and one more for each further stream.

Thread ``i`` is pinned to core ``i`` of those available to the process, round robin. Between two synchronisations the
host gives each thread all commands of its stream at once, runs those of the first stream itself, then waits for the
others: a plan of one stream has no handovers, one of ``n`` streams ``n - 1`` per synchronisation.

On 2 quiet cores at 2.1 GHz, a handover to a thread and back takes 13 us by a lock or a queue, 22 us by an event of
``threading``; an op costs 3 us besides its work, and takes the interpreter lock briefly before and after. So a
stage of two empty ops takes 36 us in two streams, 6 us in one: ops of less than about 100 us do not justify
a stream here (``benchmarks/thread_handover.py``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from iossim.backends.onnxruntime_cpu.program import SessionProgram, Step
from iossim.base.errors import IossimError, first_line
from iossim.execution.backend import BackendError

#: Maximum time for a thread to end: a running op cannot be stopped.
JOIN_TIMEOUT_S = 60.0


class _Worker:
    """The thread of one stream; it waits for ``go``, runs ``steps``, and releases ``done``."""

    def __init__(self, pool: WorkerPool, core: int) -> None:
        self.steps: Sequence[Step] = ()
        self.go = threading.Lock()
        self.done = threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self._pool = pool
        self._core = core
        self.thread = threading.Thread(target=self._work, name=f"iossim-stream-core-{core}", daemon=True)

    def _work(self) -> None:
        os.sched_setaffinity(0, {self._core})  # 0 is the calling thread
        while True:
            self.go.acquire()
            if self._pool.closing:
                return
            self._pool.run_steps(self.steps)
            self.done.release()


class WorkerPool:
    """Runs programs, sequentially, within its context; the thread that enters it is the host's.

    After an error it is unusable: exit it. Exiting ends its threads and restores the host's cores.
    """

    def __init__(self, streams: int, cores: Sequence[int]) -> None:
        self._cores = tuple(cores)
        self._workers = [_Worker(self, cores[stream % len(cores)]) for stream in range(1, streams)]
        self._program: SessionProgram | None = None
        self._failure: BaseException | None = None
        self._affinity: set[int] = set()
        self.closing = False

    def __enter__(self) -> Self:
        self._affinity = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {self._cores[0]})
            for worker in self._workers:
                worker.thread.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail(error)
        self._close()

    def run(self, program: SessionProgram) -> None:
        """Run a program once, until all its streams are done.

        Raises BackendError, naming the launch, for a failure in any thread; an interrupt of the host is raised once
        all have stopped.
        """
        self._program = program
        workers = self._workers
        for segment in program.segments:
            for stream, steps in segment.others:
                worker = workers[stream - 1]
                worker.steps = steps
                worker.go.release()
            if segment.own:
                self.run_steps(segment.own)
            for stream, _ in segment.others:
                workers[stream - 1].done.acquire()
            if self._failure is not None:
                raise self._failure

    def run_steps(self, steps: Sequence[Step]) -> None:
        """Run the commands of one stream; an error, here or in another stream, ends it and is stored for the host."""
        step: Step | None = None
        try:
            for step in steps:
                step()
                if self._failure is not None:
                    return
        except BaseException as error:
            self._fail(error if step is None else self._named(error, step))

    def _named(self, error: BaseException, step: Step) -> BaseException:
        if isinstance(error, IossimError) or not isinstance(error, Exception) or self._program is None:
            return error
        named = BackendError(f"{self._program.labels.get(step, 'a command')} failed: {first_line(error)}")
        named.__cause__ = error
        return named

    def _fail(self, error: BaseException) -> None:
        """Store the first error, and wake all waiters for events that may now never come."""
        if self._failure is None:
            self._failure = error
        for lock in () if self._program is None else self._program.locks:
            try:
                lock.release()
            except RuntimeError:  # the lock was free already
                continue

    def _close(self) -> None:
        self.closing = True
        for worker in self._workers:
            try:
                worker.go.release()
            except RuntimeError:  # it was already started, but has not run yet
                continue
        for worker in self._workers:
            if worker.thread.ident is not None:
                worker.thread.join(JOIN_TIMEOUT_S)
        os.sched_setaffinity(0, self._affinity)
