"""iossim: inter-operator scheduling of neural networks, priced by a GPU simulator or by measurement.

The same as the command line, in Python::

    network = iossim.load("inception_v3", batch=1)
    comparison = iossim.compare(network, "v100-sxm2")
    schedule = iossim.optimize(network, "v100-sxm2", scheduler="ios-both")
    elsewhere = iossim.simulate(schedule, "t4")

In a notebook networks, schedules, comparisons and studies show themselves as tables and pictures; ``.plot()`` gives the
picture, ``.to_dataframe()`` the rows.

Names are loaded when first used, so that importing iossim costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from iossim._version import __version__

if TYPE_CHECKING:
    from iossim.api import compare, cost_model, optimize, optimize_streams, simulate, simulate_events
    from iossim.base.errors import IossimError
    from iossim.hardware.load import device
    from iossim.inquiries import corun, explain, predict, run_study
    from iossim.ir.network import Network
    from iossim.models.load import load
    from iossim.related import microbatch
    from iossim.schedule.schedule import Schedule
    from iossim.study.study_run import StudyRun
    from iossim.tasks.comparison import Comparison

_HOMES = {
    "Comparison": "iossim.tasks.comparison",
    "compare": "iossim.api",
    "cost_model": "iossim.api",
    "microbatch": "iossim.related",
    "optimize": "iossim.api",
    "optimize_streams": "iossim.api",
    "simulate": "iossim.api",
    "simulate_events": "iossim.api",
    "device": "iossim.hardware.load",
    "IossimError": "iossim.base.errors",
    "corun": "iossim.inquiries",
    "explain": "iossim.inquiries",
    "predict": "iossim.inquiries",
    "run_study": "iossim.inquiries",
    "Network": "iossim.ir.network",
    "load": "iossim.models.load",
    "Schedule": "iossim.schedule.schedule",
    "StudyRun": "iossim.study.study_run",
}

__all__ = [
    "Comparison",
    "IossimError",
    "Network",
    "Schedule",
    "StudyRun",
    "__version__",
    "compare",
    "corun",
    "cost_model",
    "device",
    "explain",
    "load",
    "microbatch",
    "optimize",
    "optimize_streams",
    "predict",
    "run_study",
    "simulate",
    "simulate_events",
]


def __getattr__(name: str) -> object:
    if name == "torch":
        return import_module("iossim.torch")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'iossim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
