"""How a schedule is run, hence what stands between its stages."""

from __future__ import annotations

from enum import StrEnum

from iossim.errors import OptionError, did_you_mean
from iossim.lowering.kernel import Libraries


class Engine(StrEnum):
    """``paper``: a stream a group, issued kernel by kernel; the host waits for the device between two stages, unless both
    have a single group (as the published engine does). ``graph``: one CUDA graph, forked and joined by events. Each calls
    the libraries of its time.
    """

    PAPER = "paper"
    GRAPH = "graph"

    @property
    def libraries(self) -> Libraries:
        """The age of the libraries that it calls: the published engine links cuDNN 7.6."""
        return Libraries.CUDNN_7 if self is Engine.PAPER else Libraries.CURRENT

    @staticmethod
    def named(name: str) -> Engine:
        """The engine of that name; raises OptionError suggesting the nearest one."""
        known = [engine.value for engine in Engine]
        if name not in known:
            raise OptionError(f"unknown engine {name!r}; {did_you_mean(name, known)}")
        return Engine(name)
