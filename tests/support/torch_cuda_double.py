"""A double of ``torch.cuda`` that hears what is asked of CUDA: streams, events, captures and replays; tensors are the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Call = tuple[Any, ...]


class Double:
    """Stands for ``torch.cuda``: keeps what it is asked, computes nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.streams = ["legacy"]
        self.made = 0
        #: What a replay runs again, if it is told.
        self.again: Callable[[], None] = lambda: None

    def Stream(self) -> _Stream:  # noqa: N802  (torch's name)
        self.made += 1
        return _Stream(self, f"s{self.made - 1}")

    def Event(self, enable_timing: bool = False) -> _Event:  # noqa: N802
        return _Event(self, enable_timing)

    def CUDAGraph(self) -> _Graph:  # noqa: N802
        return _Graph(self)

    def current_stream(self) -> _Stream:
        return _Stream(self, self.streams[-1])

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        self.streams.append(stream.name)
        yield
        self.streams.pop()

    @contextmanager
    def graph(self, graph: _Graph, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "other threads may allocate"
        self.calls.append(("begin capture",))
        self.streams.append("capture")
        yield
        self.streams.pop()
        self.calls.append(("end capture",))

    def synchronize(self) -> None:
        assert "capture" not in self.streams, "a capture cannot wait for the device"
        self.calls.append(("synchronise",))

    def _sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.calls.append(("sleep",))


class _Stream:
    def __init__(self, cuda: Double, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_event(self, event: _Event) -> None:
        self.cuda.calls.append(("wait", id(event), self.name))

    def wait_stream(self, other: _Stream) -> None:
        self.cuda.calls.append(("join", other.name, self.name))


class _Event:
    def __init__(self, cuda: Double, timed: bool) -> None:
        self.cuda, self.timed = cuda, timed

    def record(self, stream: _Stream | None = None) -> None:
        self.cuda.calls.append(("record", id(self), stream.name if stream else self.cuda.streams[-1]))

    def elapsed_time(self, end: _Event) -> float:
        assert self.timed
        assert end.timed
        return 0.25


class _Graph:
    def __init__(self, cuda: Double) -> None:
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.calls.append(("replay",))
        self.cuda.again()


class TorchWithDouble:
    """torch, but for ``torch.cuda`` and for where tensors are made."""

    def __init__(self, cuda: Double) -> None:
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: str, **rest: Any) -> torch.Tensor:
        return torch.zeros(*size, device="cpu", **rest)
